"""One row: where its answer is read from, and where its images stand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from manifest_files import SUM, built, faults, picture

from envs.data.rows import RowError, read_row, shown
from envs.manifest import find_answer

pytestmark = pytest.mark.usefixtures("own_cache")


@pytest.mark.parametrize(
    ("reply", "answer"),
    [
        ("<answer>2</answer>", "2"),
        ("so <answer>\n2 </answer>.", "2"),
        ("2", None),
        ("<answer>2</answer><answer>2</answer>", None),
        ("<answer><answer>2</answer></answer>", None),
        ("</answer>2<answer>", None),
        ("<answer></answer>", None),
        ("<answer>2", None),
        ("<ANSWER>2</ANSWER>", None),
        ("<answer>" + "9" * 1_000_000 + "</answer>", None),
        ("<answer>" * 100_000, None),
        ("", None),
    ],
)
def test_the_answer_is_read_from_one_place_only(reply: str, answer: str | None) -> None:
    assert find_answer(reply, "answer") == answer


def test_without_a_tag_the_whole_reply_is_the_answer() -> None:
    assert [find_answer(reply, None) for reply in (" B ", "", "A or B")] == ["B", None, "A or B"]


@given(reply=st.text(max_size=300))
def test_any_reply_is_taken_as_data(reply: str) -> None:
    answer = find_answer(f"<answer>{reply}</answer>", "answer")
    assert answer is None or answer in reply


def test_messages_keep_their_order_and_images_belong_to_the_last(tmp_path: Path) -> None:
    messages = [
        {"role": "system", "content": "Be short."},
        {"role": "user", "content": [{"type": "text", "text": "2 + 2?"}]},
        {"role": "assistant", "content": "4"},
        {"role": "user", "content": [{"type": "image", "image": "a.png"}, {"type": "text", "text": "How many?"}]},
    ]
    seen = shown(read_row(json.dumps({"messages": messages, "answer": 1, "kind": "number"}).encode()))
    assert [message.role for message in seen.before] == ["system", "user", "assistant"]
    assert (seen.text, seen.images, seen.places) == ("How many?", ("a.png",), (0,))
    for content in ([{"type": "image", "image": "b.png"}], "<image> too"):
        messages[1] = {"role": "user", "content": content}
        with pytest.raises(RowError, match=r"messages\.1: holds an image"):
            shown(read_row(json.dumps({"messages": messages, "answer": 1, "kind": "number"}).encode()))


@pytest.mark.parametrize(
    ("prompt", "images", "text", "places"),
    [
        ("<image>\nHow many?", ["a"], "\nHow many?", (0,)),
        ("<image> or <image>?", ["a", "b"], " or ?", (0, 4)),
        ("This <image>", ["a"], "This ", ()),
        ("Which?", ["a", "b"], "Which?", ()),
    ],
)
def test_images_stand_where_their_markers_do_and_else_follow_the_text(
    prompt: str, images: list[str], text: str, places: tuple[int, ...]
) -> None:
    seen = shown(read_row(json.dumps({**SUM, "prompt": prompt, "images": images}).encode()))
    assert (seen.text, seen.images, seen.places) == (text, tuple(images), places)


@pytest.mark.parametrize(
    ("content", "images", "shown_images", "places"),
    [
        ("<image>x", ["a"], ("a",), (0,)),
        ([{"type": "image"}, {"type": "text", "text": "x"}], ["a"], ("a",), (0,)),
        ([{"type": "image", "image": "b"}, {"type": "text", "text": "x"}], ["a"], ("b", "a"), (0, 1)),
        ([{"type": "image", "image": "b"}, {"type": "text", "text": "<image>x"}], ["a"], ("b", "a"), (0, 0)),
        ([{"type": "text", "text": "x"}, {"type": "image"}], ["a"], ("a",), ()),
    ],
)
def test_parts_of_a_message_are_places_and_the_rows_images_fill_those_without_a_path(
    content: Any, images: list[str], shown_images: tuple[str, ...], places: tuple[int, ...]
) -> None:
    row = {"messages": [{"role": "user", "content": content}], "images": images, "answer": 1, "kind": "number"}
    seen = shown(read_row(json.dumps(row).encode()))
    assert (seen.text, seen.images, seen.places) == ("x", shown_images, places)


def test_a_question_with_its_one_image_elsewhere_is_the_same_question(tmp_path: Path) -> None:
    picture(tmp_path / "a.png")
    picture(tmp_path / "b.png", colour="blue")
    ask = [{**SUM, "images": ["a.png"], "prompt": prompt} for prompt in ("Colour?", "<image>\nColour?")]
    pairs = [
        {**SUM, "images": ["a.png", "b.png"], "prompt": text} for text in ("<image>, <image> ", "<image><image>,  ")
    ]
    assert faults(built(tmp_path, [*ask, *pairs])) == [
        ("train_manifest", "line 2: asks the same as line 1: same text, same images")
    ]
    (task,) = built(tmp_path, ask[1:]).tasks("train", 1, seed=0)
    seen = built(tmp_path, ask[1:]).episode(task).observe()
    assert (seen.text, seen.places, len(seen.images)) == ("\nColour?", (0,), 1)
