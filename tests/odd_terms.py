"""Reward terms that misbehave. A module of its own, because each worker process imports it."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from typing import Any

from grpo.interfaces import Reward
from grpo.types import Transcript


@dataclass(frozen=True, kw_only=True)
class Obeys(Reward):
    """Does what the reply says."""

    def __call__(self, transcript: Transcript) -> Any:
        word = transcript.turns[0].reply
        if word == "hang":
            time.sleep(60)
        if word == "exit":
            os._exit(3)
        if word == "segfault":
            os.kill(os.getpid(), 11)
        if word == "memory":
            raise MemoryError("no room")
        if word == "raise":
            raise KeyError("gone")
        return {"nan": float("nan"), "text": "1.0", "yes": True, "none": None}.get(word, 1.0)


@dataclass(frozen=True, kw_only=True)
class Unsendable(Reward):
    def __post_init__(self) -> None:
        object.__setattr__(self, "hook", lambda: None)

    def __call__(self, transcript: Transcript) -> float:
        return 1.0
