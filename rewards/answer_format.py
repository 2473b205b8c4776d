"""Pays for replies in the agreed tags.

The tags are judged, not what stands in them: alone this term is earned by empty talk, so the strict presets gate it.
"""

from __future__ import annotations

from dataclasses import dataclass

from grpo.interfaces import Reward
from grpo.types import Transcript
from rewards.tags import section


@dataclass(frozen=True, kw_only=True)
class AnswerFormat(Reward):
    """Share of the replies that hold every tag exactly once, closed, in this order, with visible text inside."""

    tags: tuple[str, ...]
    """Names without brackets, in the order in which they must come."""

    def __post_init__(self) -> None:
        if not self.tags or len(set(self.tags)) != len(self.tags):
            raise ValueError(f"tags={list(self.tags)} must name at least one tag, and none twice")
        for tag in self.tags:
            if not tag.isidentifier():
                raise ValueError(f"tags: {tag!r} is no tag name; write it without brackets, such as action")

    def __call__(self, transcript: Transcript) -> float | None:
        if not transcript.turns:
            return None
        return sum(self._well_formed(turn.reply) for turn in transcript.turns) / len(transcript.turns)

    def _well_formed(self, reply: str) -> bool:
        previous_end = 0
        for tag in self.tags:
            span = section(reply, tag)
            if span is None or span[0] < previous_end or not _has_visible_text(reply[span[0] : span[1]]):
                return False
            previous_end = span[1]
        return True


def _has_visible_text(content: str) -> bool:
    # `isprintable` is False for zero-width characters, which `strip` leaves standing.
    return any(character.isprintable() and not character.isspace() for character in content)
