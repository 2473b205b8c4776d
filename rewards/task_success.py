"""Pays for solving the task, as the env alone judges it."""

from __future__ import annotations

from dataclasses import dataclass

from grpo.interfaces import Reward
from grpo.types import Transcript


@dataclass(frozen=True, kw_only=True)
class TaskSuccess(Reward):
    """1.0 if the episode ended solved, else 0.0; nothing for coming near."""

    def __call__(self, transcript: Transcript) -> float:
        return 1.0 if transcript.solved else 0.0
