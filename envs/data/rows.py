"""One line of a manifest: its schema, its checks, and what of it the model is shown.

Images always follow the text of the last message, in their order, because that is all an `Observation` can say; a
marker `<image>` in the text is therefore taken out, or becomes `[image 2]` where there are several.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from grpo.types import Message

MARKER = "<image>"
LARGEST = sys.float_info.max


class RowError(ValueError):
    """A line that is no row: the key at fault (empty for the line as a whole) and the reason."""

    def __init__(self, key: str, reason: str) -> None:
        super().__init__(f"{key}: {reason}" if key else reason)


class _Read(BaseModel):
    model_config = ConfigDict(strict=True, frozen=True, extra="forbid", allow_inf_nan=False)


class _Part(_Read):
    type: Literal["text", "image"]
    text: str | None = None
    image: str | None = None


class _ChatMessage(_Read):
    role: Literal["system", "user", "assistant"]
    content: str | list[_Part]


class Row(_Read):
    """A question, its images and its answer. Paths are as written."""

    prompt: str | None = None
    messages: list[_ChatMessage] | None = None
    """Instead of `prompt`; the last one is the user's, and the only one with images."""
    system: str | None = None
    images: list[str] = []
    answer: Any
    kind: str
    """How the answer is judged: a key of `env.judges`."""
    choices: list[str] | None = None
    """The options' texts, A first, as the prompt shows them; only for `kind` choice."""
    facts: dict[str, Any] | None = None
    """What is true of the images, for the reward term visual_grounding."""
    id: str | None = None
    tags: list[str] = []


@dataclass(frozen=True, kw_only=True)
class Shown:
    """What the model sees of a row."""

    text: str
    before: tuple[Message, ...]
    images: tuple[str, ...]


_read = Row.__pydantic_validator__.validate_json


def read_row(line: bytes) -> Row:
    """Raises RowError with the first fault."""
    try:
        row = _read(line)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(str(part) for part in first["loc"] if not str(part).startswith(("list[", "_", "str")))
        raise RowError(where, first["msg"]) from error
    check = _ANSWERS.get(row.kind)
    wanted = check(row) if check else None
    if wanted:
        raise RowError("answer", f"kind {row.kind} wants {wanted}, got {_cut(row.answer)}")
    for key, value in (("answer", row.answer), ("facts", row.facts)):
        if isinstance(value, dict | list | float):
            try:
                json.dumps(value, allow_nan=False)
            except ValueError as error:
                raise RowError(key, "holds NaN or an infinity") from error
    if row.choices is not None and row.kind != "choice":
        raise RowError("choices", f"belong to kind choice, this row's is {row.kind}")
    if row.id == "":
        raise RowError("id", "is empty; leave it out or give one")
    return row


def shown(row: Row) -> Shown:
    """Raises RowError."""
    if (row.prompt is None) == (row.messages is None):
        raise RowError("prompt", "wants either prompt or messages, and not both")
    if row.prompt is not None:
        before: tuple[Message, ...] = ()
        text, images = row.prompt, tuple(row.images)
    else:
        before, text, images = _conversation(row)
    if row.system is not None:
        if any(message.role == "system" for message in before):
            raise RowError("system", "is given twice: as a key and among the messages")
        before = (Message(role="system", text=row.system), *before)
    if MARKER in text:
        text = _without_markers(text, len(images))
    if not text or text.isspace():
        raise RowError("prompt", "is blank; the model needs a question")
    return Shown(text=text, before=before, images=images)


def _conversation(row: Row) -> tuple[tuple[Message, ...], str, tuple[str, ...]]:
    messages = row.messages or []
    if not messages or messages[-1].role != "user":
        raise RowError("messages", "must end with one of the user, which is what the model answers")
    before = []
    for index, message in enumerate(messages[:-1]):
        text, marks, paths = _parts(message)
        if marks or paths:
            raise RowError(f"messages.{index}", "holds an image; only the last message can")
        if message.role == "system" and index:
            raise RowError(f"messages.{index}", "is of the system, which only the first can be")
        before.append(Message(role=message.role, text=text))
    text, marks, paths = _parts(messages[-1])
    images = (*paths, *row.images)
    if marks and marks != len(row.images):
        raise RowError("images", f"are {len(row.images)}, but the last message has places for {marks}")
    return tuple(before), text, images


def _parts(message: _ChatMessage) -> tuple[str, int, list[str]]:
    """Text, how many images without a path, and the paths of the others."""
    if isinstance(message.content, str):
        return message.content, 0, []
    text = "".join(part.text or "" for part in message.content if part.type == "text")
    images = [part.image for part in message.content if part.type == "image"]
    return text, images.count(None), [path for path in images if path is not None]


def _without_markers(text: str, images: int) -> str:
    marks = text.count(MARKER)
    if marks != images:
        raise RowError("images", f"are {images}, but the text has {marks} markers {MARKER}")
    if images == 1:
        return text.replace(MARKER, "").strip()
    for number in range(1, images + 1):
        text = text.replace(MARKER, f"[image {number}]", 1)
    return text


def _number(row: Row) -> str | None:
    answer = row.answer
    sound = _is_finite(answer) or (isinstance(answer, str) and answer.strip())
    return None if sound else "a finite number, or one as text"


def _is_finite(value: Any) -> bool:
    """A number that a float can hold; comparing works for whole numbers of any length, `isfinite` does not."""
    return isinstance(value, int | float) and not isinstance(value, bool) and -LARGEST <= value <= LARGEST


def _text(row: Row) -> str | None:
    texts = row.answer if isinstance(row.answer, list) else [row.answer]
    sound = texts and all(isinstance(text, str) and text.strip() for text in texts)
    return None if sound else "a text, or a list of texts that are all right"


def _one_text(row: Row) -> str | None:
    return None if isinstance(row.answer, str) and row.answer.strip() else "a text"


def _object(row: Row) -> str | None:
    return None if isinstance(row.answer, Mapping) and row.answer else "an object with fields"


def _box(row: Row) -> str | None:
    answer = row.answer
    boxes = answer if isinstance(answer, list) and answer and isinstance(answer[0], list) else [answer]
    return None if all(map(_is_box, boxes)) else "a box [left, top, right, bottom], or a list of them"


def _is_box(box: Any) -> bool:
    if not isinstance(box, list) or len(box) != 4:
        return False
    if not all(map(_is_finite, box)):
        return False
    return box[0] < box[2] and box[1] < box[3]


_ANSWERS: dict[str, Callable[[Row], str | None]] = {
    "number": _number,
    "text": _text,
    "choice": _one_text,
    "math": _one_text,
    "json": _object,
    "box": _box,
    "point": _box,
}
"""What each known kind wants as its answer; None if it has it. Kinds of a user's own take any JSON value."""


def _cut(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
