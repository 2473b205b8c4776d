"""Single-turn questions about images, listed in JSON-lines files.

Only the schema so far: a config that names it is checked in full, and a run is refused before anything starts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from grpo.interfaces import Env, Episode
from grpo.types import Split, Task

_NOT_YET = "env=manifest can be composed and checked, but not run yet: this version reads no manifests"


@dataclass(frozen=True, kw_only=True)
class Manifest(Env):
    train_manifest: str
    """A local path or s3:// address of a JSON-lines file."""
    eval_manifest: str
    max_turns: int

    def __post_init__(self) -> None:
        if self.max_turns < 1:
            raise ValueError(f"max_turns={self.max_turns} leaves no reply; use 1 or more")
        if self.train_manifest == self.eval_manifest:
            raise ValueError(f"train_manifest and eval_manifest are the same ({self.train_manifest}); hold tasks out")

    def tasks(self, split: Split, count: int, seed: int) -> Sequence[Task]:
        raise NotImplementedError(_NOT_YET)

    def episode(self, task: Task) -> Episode:
        raise NotImplementedError(_NOT_YET)

    def min_turns(self, task: Task) -> int | None:
        return 1
