"""Any environment of VisGym, by its id.

Only the schema so far: a config that names it is checked in full, and a run is refused before anything starts.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from grpo.interfaces import Env, Episode
from grpo.types import Split, Task

_NOT_YET = "env=visgym can be composed and checked, but not run yet: env=maze_2d_easy plays VisGym's maze_2d/easy here"


@dataclass(frozen=True, kw_only=True)
class VisGym(Env):
    env_id: str
    """`family/difficulty`, as VisGym names it: `maze_2d/easy`."""
    max_turns: int
    feedback: bool
    """Tell the model in words what its action did."""

    def __post_init__(self) -> None:
        if not re.fullmatch(r"\w+/\w+", self.env_id):
            raise ValueError(
                f"env_id={self.env_id!r} is no VisGym id; write family/difficulty, maze_2d/easy for example"
            )
        if self.max_turns < 1:
            raise ValueError(f"max_turns={self.max_turns} leaves no reply; use 1 or more")

    def tasks(self, split: Split, count: int, seed: int) -> Sequence[Task]:
        raise NotImplementedError(_NOT_YET)

    def episode(self, task: Task) -> Episode:
        raise NotImplementedError(_NOT_YET)

    def min_turns(self, task: Task) -> int | None:
        return None
