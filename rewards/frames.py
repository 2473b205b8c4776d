"""Boxes and points in an answer, and the frames that their numbers can be in.

`pixel` counts pixels of an image, `normalised` runs from 0 to 1 and `thousand` from 0 to 1000 over width and height
(Qwen3-VL's own way). x runs right, y down, from the top left corner. A reference in pixels is about the image file; an
answer in pixels is about the image as it was shown, which the env may have made smaller.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from grpo.types import Turn
from rewards.answers import is_number, read_json

Frame = Literal["pixel", "normalised", "thousand"]
Box = tuple[float, float, float, float]
"""Left, top, right, bottom."""

ROUNDED = 0.01
"""Of the frame: so far out a reference may reach, as boxes at an edge do that were rounded or drawn by hand."""

MOST = 64
"""Boxes in one answer; more are no answer."""


def sizes(turn: Turn) -> tuple[tuple[float, float], tuple[float, float]]:
    """(width, height) of the first image's file, and as it was shown. Raises ValueError without an image."""
    if not turn.observation.images:
        raise ValueError("a box or point in pixels wants an image; this task has none")
    height, width = turn.observation.images[0].shape[:2]
    stored = turn.state.get("image_sizes") or [[width, height]]
    return (float(stored[0][0]), float(stored[0][1])), (float(width), float(height))


def reference_boxes(turn: Turn, frame: Frame) -> list[Box]:
    """The task's boxes, as they are written. Raises ValueError if they are none, or cannot be in `frame`."""
    value = turn.state["answer"]
    boxes = read_boxes(value)
    if boxes is None:
        raise ValueError(f"the reference {value!r} is no box [left, top, right, bottom]")
    if frame == "pixel":
        return boxes
    extent = _EXTENT[frame][0]
    numbers = [number for box in boxes for number in box]
    if min(numbers) < -ROUNDED * extent or max(numbers) > (1 + ROUNDED) * extent:
        raise ValueError(f"the reference {value!r} reaches out of the frame {frame}, 0 to {extent:g}; is it in pixels?")
    if frame == "thousand" and max(numbers) <= 1:
        raise ValueError(f"the reference {value!r} is a speck in the frame thousand, 0 to 1000; is it normalised?")
    return boxes


def reference_size(turn: Turn, frame: Frame) -> tuple[float, float]:
    return sizes(turn)[0] if frame == "pixel" else _EXTENT[frame]


def answer_size(turn: Turn, frame: Frame) -> tuple[float, float]:
    return sizes(turn)[1] if frame == "pixel" else _EXTENT[frame]


_EXTENT = {"normalised": (1.0, 1.0), "thousand": (1000.0, 1000.0)}


def normalised(numbers: Sequence[float], size: tuple[float, float]) -> tuple[float, ...]:
    """x, y, x, y, … as shares of width and height."""
    return tuple(number / size[index % 2] for index, number in enumerate(numbers))


def read_boxes(value: Any) -> list[Box] | None:
    """One box `[x1, y1, x2, y2]` or a list of them, as written by Qwen too (`{"bbox_2d": […]}`); None if it is none."""
    one = _read_box(value)
    if one is not None:
        return [one]
    if not isinstance(value, list) or not 0 < len(value) <= MOST:
        return None
    found = [_read_box(item) for item in value]
    boxes = [box for box in found if box is not None]
    return boxes if len(boxes) == len(found) else None


def _read_box(value: Any) -> Box | None:
    if isinstance(value, dict):
        value = value.get("bbox_2d")
    if not isinstance(value, list) or len(value) != 4 or not all(map(is_number, value)):
        return None
    left, top, right, bottom = value
    return (left, top, right, bottom) if left < right and top < bottom else None


def read_point(text: str) -> tuple[float, float] | None:
    """`[x, y]`, as written by Qwen too (`{"point_2d": [x, y]}`)."""
    value = read_json(text)
    if isinstance(value, dict):
        value = value.get("point_2d")
    if isinstance(value, list) and len(value) == 2 and all(map(is_number, value)):
        return value[0], value[1]
    return None
