"""Copied, repeated and ever the same: told from what honest replies look like."""

from builders import replies, transcript, turn
from hypothesis import given
from hypothesis import strategies as st

from grpo.behaviour import behaviour_metrics, copied, repeated, runs_of

PROMPT = "Blue circle to red square. <action>left|right|up|down|stop</action>"
THOUGHT = (
    "The blue circle stands in the upper left corner and the way down is closed, so the first move leads right along "
    "the long corridor until it turns. <action>right</action>"
)


def test_a_reply_that_gives_the_prompt_back_is_copied_and_a_thought_about_it_is_not() -> None:
    assert copied(PROMPT, runs_of(PROMPT)) == 1.0
    assert copied(THOUGHT, runs_of(PROMPT)) == 0.0
    assert copied("<action>left|right|up</action>", runs_of(PROMPT)) == 0.0  # shorter than what counts


def test_copying_from_an_earlier_turn_is_copying_too() -> None:
    told = behaviour_metrics([transcript(turn(text=PROMPT), turn(text="Go on.", reply=PROMPT))])
    assert told["rollout/copied"] == 0.5


def test_filler_is_repeated_and_prose_is_not() -> None:
    assert repeated("really " * 40) > 0.9
    assert repeated("I am sure of it. " * 10 + "<action>up</action>") > 0.6
    assert repeated("好的" * 20) > 0.9
    assert repeated("\n" * 300 + "<action>up</action>") > 0.5
    assert (
        repeated('{\n    "steps": [\n        "up",\n        "left",\n        "down",\n        "stop"\n    ]\n}') < 0.2
    )
    assert repeated(THOUGHT) == 0.0
    assert repeated("no no no no") == 0.0  # too short to judge


def test_an_action_in_other_words_is_the_same_reply() -> None:
    same = [turn(reply=f"Thought {n}: right", action="right") for n in range(3)]
    other = turn(reply="what?", action=None)
    assert behaviour_metrics([transcript(*same, other)])["rollout/same_reply"] == 0.75


def test_without_a_reply_there_is_nothing_to_tell() -> None:
    assert behaviour_metrics([replies()]) == {}


@given(st.text(max_size=400), st.text(max_size=400))
def test_any_text_gives_shares(reply: str, prompt: str) -> None:
    assert 0.0 <= copied(reply, runs_of(prompt)) <= 1.0
    assert 0.0 <= repeated(reply) < 1.0
