"""One line of a manifest: its schema, its checks, and what of it the model is shown.

An image stands where the text has a marker `<image>`, or a message a part for it; without either, images follow the
text in their order. Only the last message may have any: a `Message` before it is text alone.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from grpo.types import Message

MARKER = "<image>"
LARGEST = sys.float_info.max


class RowError(ValueError):
    """A line that is no row: the key at fault (empty for the line as a whole) and the reason."""

    def __init__(self, key: str, reason: str) -> None:
        super().__init__(f"{key}: {reason}" if key else reason)


class _Read(BaseModel):
    model_config = ConfigDict(strict=True, frozen=True, extra="forbid", allow_inf_nan=False)


class _Text(_Read):
    type: Literal["text"]
    text: str
    image: None = None


class _Image(_Read):
    type: Literal["image"]
    image: str | None = None
    """None: the next of the row's `images`."""
    text: None = None


_Part = Annotated[_Text | _Image, Field(discriminator="type")]


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
    """Their paths, as written."""
    places: tuple[int, ...]
    """Where in `text` they stand, as `grpo.types.Observation` has it."""

    @property
    def asked(self) -> str:
        """What is asked, images aside, to find the same question again wherever its one image stands."""
        several = self.places if len(self.places) > 1 else ()
        return "\0\0".join(
            (self.text.strip(), *(f"{message.role}\0{message.text}" for message in self.before), *map(str, several))
        )


_read = Row.__pydantic_validator__.validate_json


def read_row(line: bytes) -> Row:
    """Raises RowError with the first fault."""
    try:
        row = _read(line)
    except ValidationError as error:
        raise RowError(*_first_fault(error)) from error
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


def _first_fault(error: ValidationError) -> tuple[str, str]:
    """Key and reason. A value that may be of several types has a fault for each: the one deepest inside says most."""
    faults = error.errors(include_url=False)
    here = [fault for fault in faults if fault["loc"][:1] == faults[0]["loc"][:1]]
    deepest = max(here, key=lambda fault: len(fault["loc"]))
    parts = [str(part) for part in deepest["loc"]]
    where = ".".join(part for part in parts if not part.startswith(("list[", "str")))
    if deepest["type"] == "extra_forbidden" and len(parts) == 1:
        near = get_close_matches(where.lower(), Row.model_fields, n=1)
        meant = f"did you mean {near[0]}?" if near else f"there are {', '.join(Row.model_fields)}"
        return where, f"is no key of a row; {meant}"
    if deepest["type"] in ("missing", "json_invalid") or not parts:
        return where, deepest["msg"]
    return where, f"{deepest['msg']}, got {_cut(deepest['input'])}"


def shown(row: Row) -> Shown:
    """Raises RowError."""
    if (row.prompt is None) == (row.messages is None):
        raise RowError("prompt", "wants either prompt or messages, and not both")
    before: tuple[Message, ...] = ()
    if row.prompt is None:
        before, parts = _conversation(row)
        text, places, images = _placed(parts, row.images)
    elif MARKER in row.prompt:
        text, places, images = _placed(_parts(row.prompt), row.images)
    else:
        text, places, images = row.prompt, (), tuple(row.images)
    if row.system is not None:
        if any(message.role == "system" for message in before):
            raise RowError("system", "is given twice: as a key and among the messages")
        before = (Message(role="system", text=row.system), *before)
    if not text or text.isspace():
        raise RowError("prompt", "is blank; the model needs a question")
    return Shown(text=text, before=before, images=images, places=places)


def _conversation(row: Row) -> tuple[tuple[Message, ...], Sequence[_Part]]:
    """What comes before the last message, and the last one's parts."""
    messages = row.messages or []
    if not messages or messages[-1].role != "user":
        raise RowError("messages", "must end with one of the user, which is what the model answers")
    before = []
    for index, message in enumerate(messages[:-1]):
        parts = _parts(message.content)
        text = "".join(part.text for part in parts if part.type == "text")
        if MARKER in text or any(part.type == "image" for part in parts):
            raise RowError(f"messages.{index}", "holds an image; only the last message can")
        if message.role == "system" and index:
            raise RowError(f"messages.{index}", "is of the system, which only the first can be")
        before.append(Message(role=message.role, text=text))
    return tuple(before), _parts(messages[-1].content)


def _parts(content: str | list[_Part]) -> Sequence[_Part]:
    return [_Text(type="text", text=content)] if isinstance(content, str) else content


def _placed(parts: Sequence[_Part], images: Sequence[str]) -> tuple[str, tuple[int, ...], tuple[str, ...]]:
    """The text without markers, where its images stand in it, and their paths.

    `images` fill the places that name no path; where there is none, they follow the text.
    """
    text = ""
    places: list[int] = []
    paths: list[str | None] = []
    for part in parts:
        if part.type == "image":
            places.append(len(text))
            paths.append(part.image)
            continue
        first, *rest = part.text.split(MARKER)
        text += first
        for piece in rest:
            places.append(len(text))
            paths.append(None)
            text += piece
    unnamed = paths.count(None)
    if unnamed and unnamed != len(images):
        raise RowError("images", f"are {len(images)}, but the text has {unnamed} markers {MARKER}")
    given = iter(images)
    found = [next(given) if path is None else path for path in paths]
    following = list(given)
    places += [len(text)] * len(following)
    inside = any(place < len(text) for place in places)
    return text, tuple(places) if inside else (), (*found, *following)


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
