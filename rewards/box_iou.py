"""Pays for boxes that cover what they should: intersection over union."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from grpo.types import Turn
from rewards.answers import AnswerTerm, read_json
from rewards.frames import Box, Frame, answer_size, normalised, read_boxes, reference_boxes, reference_size


@dataclass(frozen=True, kw_only=True)
class BoxIou(AnswerTerm):
    """Sum of the IoU of matched boxes over the larger of the two numbers of boxes: a spare box costs as a missed one.

    Boxes are matched greedily, the best pair first, each once.
    """

    kind: ClassVar[str] = "box"
    reference_frame: Frame
    answer_frame: Frame
    threshold: float | None
    """1.0 from this IoU on and 0.0 below; null pays the IoU itself."""

    def __post_init__(self) -> None:
        if self.threshold is not None and not 0 < self.threshold <= 1:
            raise ValueError(f"threshold={self.threshold} must be above 0 and at most 1, or null")

    def compare(self, answer: str, turn: Turn) -> float:
        wanted = reference_boxes(turn, self.reference_frame)
        stated = read_boxes(read_json(answer))
        if stated is None:
            return 0.0
        found = _match(
            [_normal(box, answer_size(turn, self.answer_frame)) for box in stated],
            [_normal(box, reference_size(turn, self.reference_frame)) for box in wanted],
        )
        value = min(1.0, sum(found) / max(len(stated), len(wanted)))
        return value if self.threshold is None else float(value >= self.threshold)


def _normal(box: Box, size: tuple[float, float]) -> Box:
    left, top, right, bottom = normalised(box, size)
    return left, top, right, bottom


def _match(stated: list[Box], wanted: list[Box]) -> list[float]:
    pairs = sorted(
        ((iou(a, b), i, j) for i, a in enumerate(stated) for j, b in enumerate(wanted)), key=lambda pair: -pair[0]
    )
    found, used_stated, used_wanted = [], set(), set()
    for value, i, j in pairs:
        if i not in used_stated and j not in used_wanted:
            found.append(value)
            used_stated.add(i)
            used_wanted.add(j)
    return found


def iou(a: Box, b: Box) -> float:
    """Intersection over union of two boxes in one frame, 0 to 1."""
    width = min(a[2], b[2]) - max(a[0], b[0])
    height = min(a[3], b[3]) - max(a[1], b[1])
    if width <= 0 or height <= 0:
        return 0.0
    common = width * height
    union = (a[2] - a[0]) * (a[3] - a[1]) + (b[2] - b[0]) * (b[3] - b[1]) - common
    # Huge boxes overflow to infinity and cover nothing.
    return common / union if union > 0 else 0.0
