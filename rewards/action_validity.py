"""Pays for replies that the env can understand as an action."""

from __future__ import annotations

from dataclasses import dataclass

from grpo.interfaces import Reward
from grpo.types import Transcript


@dataclass(frozen=True, kw_only=True)
class ActionValidity(Reward):
    """Share of the turns whose reply held a valid action; a valid action may still be a bad one."""

    def __call__(self, transcript: Transcript) -> float | None:
        if not transcript.turns:
            return None
        return 1.0 - transcript.invalid_actions / len(transcript.turns)
