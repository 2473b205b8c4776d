"""Images stand where an observation says, in every engine and on the wire: as the model's own processor has them."""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from transformers import Qwen3VLProcessor

from grpo.chat import ChatRenderer
from grpo.conversation import Sampling
from grpo.interfaces import Env, Episode
from grpo.openai_content import messages
from grpo.policy import Policy
from grpo.rollout import play
from grpo.types import Message, Observation, Outcome, Split, Task, interleaved


def picture(height: int, width: int) -> np.ndarray:
    return np.random.default_rng(height).integers(0, 256, (height, width, 3), dtype=np.uint8)


SMALL, WIDE = picture(64, 64), picture(64, 128)


class ImageOnlyProcessor(Qwen3VLProcessor):
    """Qwen3-VL's own processor without its video part, which needs torchvision."""

    def check_argument_for_proper_class(self, argument_name: str, argument: Any) -> Any:
        if argument_name == "video_processor" and argument is None:
            return type(None)
        return super().check_argument_for_proper_class(argument_name, argument)


@pytest.fixture(scope="module")
def processor(policy: Policy) -> Any:
    tokenizer = policy.tokenizer
    return ImageOnlyProcessor(policy.image_processor, tokenizer, None, chat_template=tokenizer.chat_template)


def parts(*content: str | np.ndarray) -> dict[str, Any]:
    """A user's message as the processor takes it."""
    made = [
        {"type": "text", "text": part}
        if isinstance(part, str)
        else {"type": "image", "image": Image.fromarray(np.array(part))}
        for part in content
    ]
    return {"role": "user", "content": made}


def rendered(processor: Any, *said: Mapping[str, Any]) -> list[int]:
    return processor.apply_chat_template(list(said), tokenize=True, add_generation_prompt=True, return_dict=True)[
        "input_ids"
    ][0]


def first_turn(policy: Policy, shown: Observation) -> list[int]:
    grids = tuple(policy.vision.grid(image) for image in shown.images)
    return policy.chat.first_turn(shown.text, grids, shown.before, shown.places)


@pytest.mark.parametrize(
    ("text", "places", "pieces"),
    [
        ("ab", (), ["ab", "1", "2"]),
        ("", (), ["", "1", "2"]),
        ("ab", (0, 0), ["1", "2", "ab"]),
        ("ab", (1, 2), ["a", "1", "b", "2"]),
        ("ab", (0, 1), ["1", "a", "2", "b"]),
        ("", (0, 0), ["1", "2"]),
    ],
)
def test_text_and_images_are_interleaved_as_the_places_say(
    text: str, places: tuple[int, ...], pieces: list[str]
) -> None:
    assert interleaved(text, places, ["1", "2"]) == pieces


@pytest.mark.parametrize("places", [(0,), (0, 1, 2), (2, 1), (-1, 0), (0, 3)])
def test_places_that_are_not_one_for_each_image_in_order_and_in_the_text_are_refused(places: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match=r"must say for each of 2 images, in their order, .* 2 characters"):
        Observation(text="ab", images=(SMALL, WIDE), places=places)


@pytest.mark.parametrize(
    ("shown", "content"),
    [
        (Observation(text="Which?", images=(SMALL, WIDE)), ("Which?", SMALL, WIDE)),
        (Observation(text="Which?", images=(SMALL, WIDE), places=(0, 0)), (SMALL, WIDE, "Which?")),
        (Observation(text="\nWhich?", images=(WIDE,), places=(0,)), (WIDE, "\nWhich?")),
        (
            Observation(text="First , then : same?", images=(WIDE, SMALL), places=(6, 13)),
            ("First ", WIDE, ", then ", SMALL, ": same?"),
        ),
        (Observation(text="😀 or 🎈", images=(SMALL, SMALL), places=(1, 5)), ("😀", SMALL, " or ", SMALL, "🎈")),
    ],
    ids=["after", "before", "a newline is kept", "within", "emojis"],
)
def test_a_first_turn_is_what_the_models_processor_makes_of_the_same_parts(
    shown: Observation, content: tuple[Any, ...], policy: Policy, processor: Any
) -> None:
    assert first_turn(policy, shown) == rendered(processor, parts(*content))


def test_later_turns_and_what_comes_before_are_the_processors_too(policy: Policy, processor: Any) -> None:
    before = (
        Message(role="system", text="Be short."),
        Message(role="user", text="Hi"),
        Message(role="assistant", text="Yes?"),
    )
    opening = Observation(text=" and ?", images=(SMALL, WIDE), before=before, places=(0, 5))
    grid = policy.vision.grid(WIDE)
    ids = first_turn(policy, opening)
    ids = [
        *ids,
        *policy.chat.encode_reply("up"),
        policy.chat.end_token,
        *policy.chat.next_turn("Now  ?", (grid,), (4,)),
    ]
    whole = rendered(
        processor,
        *({"role": said.role, "content": [{"type": "text", "text": said.text}]} for said in before),
        parts(SMALL, " and ", WIDE, "?"),
        {"role": "assistant", "content": [{"type": "text", "text": "up"}]},
        parts("Now ", WIDE, " ?"),
    )
    assert ids == whole


@settings(deadline=None, max_examples=40)
@given(text=st.text(st.characters(exclude_characters="<|>", exclude_categories=["Cs"]), max_size=30), data=st.data())
def test_any_text_cut_anywhere_is_rendered_as_the_processor_does(
    text: str, data: st.DataObject, policy: Policy, processor: Any
) -> None:
    places = tuple(sorted(data.draw(st.lists(st.integers(0, len(text)), min_size=1, max_size=3))))
    shown = Observation(text=text, images=(SMALL,) * len(places), places=places)
    content = interleaved(shown.text, shown.places, shown.images)
    assert first_turn(policy, shown) == rendered(processor, parts(*content))


def test_a_special_token_cannot_be_spelled_around_an_image(policy: Policy) -> None:
    shown = Observation(text="<|im_end|><|image_pad|>", images=(SMALL,), places=(10,))
    ids = first_turn(policy, shown)
    assert ids.count(policy.chat.end_token) == 1
    assert ids.count(policy.chat.image_token) == np.prod(policy.vision.grid(SMALL))


@dataclass(frozen=True, kw_only=True)
class Album(Env):
    """Two turns, each with two images inside the text."""

    max_turns: int = 2

    def tasks(self, split: Split, count: int, seed: int) -> Sequence[Task]:
        return [Task(id=str(number), split=split, seed=number, data={}) for number in range(count)]

    def episode(self, task: Task) -> Episode:
        return Page()

    def min_turns(self, task: Task) -> int | None:
        return None


class Page(Episode):
    def __init__(self) -> None:
        self._turn = 0

    def observe(self) -> Observation:
        before = (Message(role="system", text="Look."),) if not self._turn else ()
        return Observation(text=f"{self._turn}: or ?", images=(SMALL, WIDE), before=before, places=(3, 6))

    def state(self) -> Mapping[str, Any]:
        return {}

    def act(self, reply: str) -> Outcome:
        self._turn += 1
        return Outcome(action=None, feedback="", done=False, solved=False)

    def expert(self) -> str | None:
        return None

    def text(self) -> str:
        return "album"


def test_the_local_engine_trains_on_what_the_processor_would_have_shown(policy: Policy, processor: Any) -> None:
    env = Album()
    sampling = Sampling(temperature=1.0, greedy=False, max_completion_tokens=4)
    (played,) = play(
        policy,
        env,
        env.tasks("train", 1, seed=0),
        siblings=1,
        sampling=sampling,
        purpose=(0,),
        max_prompt_tokens=512,
        rows_at_once=4,
    )
    replies = played.trace.token_ids[played.trace.action_mask].tolist()
    first, second = (parts(f"{turn}: ", SMALL, "or ", WIDE, "?") for turn in range(2))
    opening = rendered(processor, {"role": "system", "content": [{"type": "text", "text": "Look."}]}, first)
    assert played.trace.token_ids[: len(opening)].tolist() == opening
    grids = (policy.vision.grid(SMALL), policy.vision.grid(WIDE))
    block = policy.chat.next_turn("1: or ?", grids, (3, 6))
    assert rendered(processor, parts("?"), {"role": "assistant", "content": "x"}, second)[-len(block) :] == block
    shown = [token for token in played.trace.token_ids[len(opening) :].tolist() if token == policy.chat.image_token]
    assert len(shown) == sum(height * width for height, width in grids)
    assert replies and [image.shape for image in played.trace.images] == [SMALL.shape, WIDE.shape] * 2


def test_a_server_is_sent_the_same_parts_in_the_same_order_and_what_comes_before() -> None:
    said = messages(Page().observe())
    assert said[0] == {"role": "system", "content": "Look."}
    kinds = [part.get("text", part["type"]) for part in said[1]["content"]]
    assert kinds == ["0: ", "image_url", "or ", "image_url", "?"]
    url = said[1]["content"][3]["image_url"]["url"]
    sent = Image.open(io.BytesIO(base64.b64decode(url.removeprefix("data:image/png;base64,"))))
    assert np.array_equal(np.asarray(sent), WIDE)
    json.dumps(said)


def test_a_template_is_asked_once_for_the_same_turn(policy: Policy) -> None:
    chat = ChatRenderer(policy.tokenizer, "tiny")
    grid = policy.vision.grid(SMALL)
    assert chat.first_turn("ab", (grid,), (), (0,)) != chat.first_turn("ab", (grid,), (), (1,))
    assert chat.next_turn("ab", (grid,), (0,)) != chat.next_turn("ab", (grid,), (1,))
