"""Pays for a point that lies where it should."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from grpo.types import Turn
from rewards.answers import AnswerTerm
from rewards.frames import Frame, answer_size, normalised, read_point, reference_boxes, reference_size


@dataclass(frozen=True, kw_only=True)
class PointInBox(AnswerTerm):
    """1.0 if the answer `[x, y]` lies in the reference's box or one of its boxes, edges included."""

    kind: ClassVar[str] = "point"
    reference_frame: Frame
    answer_frame: Frame

    def compare(self, answer: str, turn: Turn) -> float:
        boxes = reference_boxes(turn, self.reference_frame)
        point = read_point(answer)
        if point is None:
            return 0.0
        x, y = normalised(point, answer_size(turn, self.answer_frame))
        size = reference_size(turn, self.reference_frame)
        for box in boxes:
            left, top, right, bottom = normalised(box, size)
            if left <= x <= right and top <= y <= bottom:
                return 1.0
        return 0.0
