"""Pays for short replies.

Each reply is judged by itself, so a long episode of short replies loses nothing and stopping early gains nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

from grpo.interfaces import Reward
from grpo.types import Transcript


@dataclass(frozen=True, kw_only=True)
class Brevity(Reward):
    """Mean over the replies of: 1.0 up to `free_tokens`, falling in a straight line to 0.0 at `max_tokens`."""

    free_tokens: int
    max_tokens: int

    def __post_init__(self) -> None:
        if not 0 <= self.free_tokens < self.max_tokens:
            raise ValueError(
                f"free_tokens={self.free_tokens} must be at least 0 and below max_tokens={self.max_tokens}"
            )

    def __call__(self, transcript: Transcript) -> float | None:
        if not transcript.turns:
            return None
        return sum(self._of(turn.completion_tokens) for turn in transcript.turns) / len(transcript.turns)

    def _of(self, tokens: int) -> float:
        share_left = (self.max_tokens - tokens) / (self.max_tokens - self.free_tokens)
        return min(1.0, max(0.0, share_left))
