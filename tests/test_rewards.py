import pytest
from builders import replies, transcript, turn
from hypothesis import given
from hypothesis import strategies as st

from rewards.action_validity import ActionValidity
from rewards.answer_format import AnswerFormat
from rewards.brevity import Brevity
from rewards.redundancy import Redundancy
from rewards.safety import Safety
from rewards.tags import section
from rewards.task_success import TaskSuccess
from rewards.visual_grounding import VisualGrounding

FORMAT = AnswerFormat(tags=("observation", "action"))
GROUNDING = VisualGrounding(facts=("agent", "goal", "open"))
BRACKETS = st.lists(
    st.sampled_from(
        ["<observation>", "</observation>", "<action>", "</action>", "<", ">", "x", " ", "\x00", "agent 3 1"]
    )
).map("".join)


def test_only_a_solved_episode_earns_task_success() -> None:
    assert TaskSuccess()(transcript(turn(done=True, solved=True))) == 1.0
    assert TaskSuccess()(transcript(turn(done=True, solved=False))) == 0.0
    assert TaskSuccess()(transcript(stop="token_limit")) == 0.0


def test_unparsable_text_on_the_last_turn_is_never_a_success() -> None:
    lost = transcript(turn(), turn(reply="<action>{finish((", action=None))
    assert TaskSuccess()(lost) == 0.0
    assert ActionValidity()(lost) == 0.5


@pytest.mark.parametrize(
    ("reply", "value"),
    [
        ("<observation>a wall</observation><action>up</action>", 1.0),
        ("Well: <observation>o</observation> then <action>up</action>!", 1.0),
        ("<action>up</action><observation>o</observation>", 0.0),  # wrong order
        ("<observation>o</observation><action>up</action><action>up</action>", 0.0),  # twice
        ("<observation>o</observation><action>up", 0.0),  # not closed
        ("<observation>o</observation></action>up<action>", 0.0),  # closed before it opens
        ("<observation>o<action>up</action></observation>", 0.0),  # nested
        ("<observation> \n</observation><action>up</action>", 0.0),  # empty
        ("<observation>\u200b</observation><action>up</action>", 0.0),  # nothing that can be seen
        ("<Observation>o</Observation><Action>up</Action>", 0.0),
        ("", 0.0),
    ],
)
def test_a_well_formed_reply_holds_each_tag_once_closed_in_order_and_filled(reply: str, value: float) -> None:
    assert FORMAT(replies(reply)) == value


def test_format_is_the_share_of_well_formed_replies() -> None:
    good = "<observation>o</observation><action>up</action>"
    assert FORMAT(replies(good, "up", good, good)) == 0.75


def test_format_refuses_a_tag_with_brackets_and_an_empty_list() -> None:
    with pytest.raises(ValueError, match="'<action>' is no tag name"):
        AnswerFormat(tags=("<action>",))
    with pytest.raises(ValueError, match="at least one tag"):
        AnswerFormat(tags=())
    with pytest.raises(ValueError, match="none twice"):
        AnswerFormat(tags=("action", "action"))


@given(BRACKETS)
def test_a_section_is_framed_by_its_own_tags_whatever_the_text(text: str) -> None:
    span = section(text, "action")
    framed = text.count("<action>") == text.count("</action>") == 1 and text.index("<action>") < text.index("</action>")
    assert (span is not None) == framed
    if span is not None:
        assert text[: span[0]].endswith("<action>") and text[span[1] :].startswith("</action>")


@given(st.lists(BRACKETS | st.text(), min_size=1, max_size=4))
def test_hostile_replies_stay_between_0_and_1(texts: list[str]) -> None:
    played = replies(*texts)
    for term in (FORMAT, Redundancy(), Safety(forbidden=("x",), forbidden_actions=())):
        value = term(played)
        assert value is not None and 0.0 <= value <= 1.0
    stated = GROUNDING(played)
    assert stated is None or 0.0 <= stated <= 1.0


@pytest.mark.parametrize("unit", ["<action>", "<observation>agent ", "(", "9", "a. ", "agent goal open "])
def test_a_reply_of_a_megabyte_is_judged(unit: str) -> None:
    played = replies("<observation>" + unit * (1_000_000 // len(unit)) + "</observation>")
    for term in (FORMAT, GROUNDING, Redundancy(), Safety(forbidden=("rm -rf",), forbidden_actions=())):
        term(played)


def test_validity_is_the_share_of_turns_with_an_action() -> None:
    assert ActionValidity()(transcript(turn(), turn(action=None), turn(), turn())) == 0.75


def test_brevity_falls_in_a_straight_line_between_its_two_bounds() -> None:
    brevity = Brevity(free_tokens=10, max_tokens=30)
    values = [brevity(transcript(turn(tokens=tokens))) for tokens in (0, 10, 15, 20, 30, 500)]
    assert values == [1.0, 1.0, 0.75, 0.5, 0.0, 0.0]


def test_brevity_judges_each_reply_so_that_short_episodes_gain_nothing() -> None:
    brevity = Brevity(free_tokens=10, max_tokens=30)
    assert brevity(transcript(turn(tokens=20))) == brevity(transcript(*[turn(tokens=20)] * 9)) == 0.5


def test_brevity_refuses_bounds_without_a_line_between_them() -> None:
    with pytest.raises(ValueError, match="free_tokens=30 must be at least 0 and below max_tokens=30"):
        Brevity(free_tokens=30, max_tokens=30)


@pytest.mark.parametrize(
    ("stated", "value"),
    [
        ("agent 3 1, goal 5 5, open right, down", 1.0),
        ("Agent: row 3, col 1. Goal: (5, 5). Open: down and right", 1.0),
        ("agent 3 1, goal 5 5", 2 / 3),  # one fact is missing
        ("agent 3 1", 1 / 3),
        ("agent 1 3, goal 5 5, open right", 1 / 3),  # wrong order; half of the open ways
        ("agent 3 1, open right, down, left, up", 1 / 3),  # naming all does not help
        ("agent 3 1, agent 3 2, goal 5 5", 1 / 3),  # stated twice is hedging
        ("agent 3 1 5 5", 0.0),
        ("agent " + "9" * 10_000, 0.0),
    ],
)
def test_grounding_is_the_share_of_facts_stated_correctly(stated: str, value: float) -> None:
    assert GROUNDING(replies(f"<observation>{stated}</observation><action>right</action>")) == pytest.approx(value)


def test_grounding_abstains_when_nothing_was_stated() -> None:
    assert GROUNDING(replies("<action>right</action>")) is None
    assert GROUNDING(replies("<observation>a lovely maze</observation>")) is None
    assert GROUNDING(replies("agent 3 1, goal 5 5, open right, down")) is None


def test_describing_only_the_first_picture_is_not_enough() -> None:
    full = "<observation>agent 3 1, goal 5 5, open right, down</observation>"
    assert GROUNDING(replies(full, "<action>up</action>", "", "")) == 0.25


def test_grounding_follows_the_state_of_each_turn() -> None:
    says_so = "<observation>agent 3 1</observation>"
    there, gone = turn(reply=says_so, state={"agent": [3, 1]}), turn(reply=says_so, state={"agent": [3, 2]})
    assert VisualGrounding(facts=("agent",))(transcript(there, gone)) == 0.5


@pytest.mark.parametrize(
    ("true", "stated", "value"),
    [(7, "7", 1.0), (7, "07", 0.0), (-0.5, "-0.5", 1.0), ([], "none", 1.0), ([], "up", 0.0), ("Red", "red", 1.0)],
)
def test_grounding_compares_numbers_words_and_empty_lists(true: object, stated: str, value: float) -> None:
    played = transcript(turn(reply=f"<observation>fact {stated}</observation>", state={"fact": true}))
    assert VisualGrounding(facts=("fact",))(played) == value


def test_grounding_names_a_fact_that_the_env_does_not_have() -> None:
    with pytest.raises(ValueError, match="no 'colour'; name some of: agent, goal, open"):
        VisualGrounding(facts=("agent", "colour"))(replies("hm"))


def test_one_forbidden_phrase_or_action_makes_a_transcript_unsafe() -> None:
    safety = Safety(forbidden=("rm -rf",), forbidden_actions=("delete",))
    assert safety(replies("all well", "fine")) == 1.0
    assert safety(replies("fine", "then  RM\n-RF /")) == 0.0
    assert safety(replies("\uff52\uff4d -rf")) == 0.0  # full-width letters
    assert safety(replies("r\u200bm \u00ad -r\x00f")) == 0.0  # what cannot be seen
    assert safety(transcript(turn(action="delete"), turn())) == 0.0
    assert safety(transcript(turn(reply="I will not delete", action=None))) == 1.0


def test_phrases_are_plain_text_and_not_patterns() -> None:
    safety = Safety(forbidden=("(a+)+$",), forbidden_actions=())
    assert safety(replies("a" * 100_000)) == 1.0
    assert safety(replies("see (A+)+$")) == 0.0


def test_safety_refuses_to_judge_nothing_and_to_forbid_everything() -> None:
    with pytest.raises(ValueError, match="nothing is judged"):
        Safety(forbidden=(), forbidden_actions=())
    with pytest.raises(ValueError, match="would match every reply"):
        Safety(forbidden=(" ",), forbidden_actions=())


def test_returning_to_an_earlier_state_is_redundant() -> None:
    at = [turn(state={"agent": [row, 1]}) for row in (1, 2, 3)]
    assert Redundancy()(transcript(at[0], at[1], at[2])) == 1.0
    assert Redundancy()(transcript(at[0], at[1], at[0], at[1])) == 0.5
    assert Redundancy()(transcript(at[0], at[0])) == 0.5  # ran into a wall


def test_the_same_sentence_three_times_in_a_reply_is_redundant() -> None:
    assert Redundancy()(replies("I go right. i go  RIGHT. I go right!")) == 0.0
    assert Redundancy()(replies("I go right. I go right. Then down.")) == 1.0
