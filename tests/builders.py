"""Keyword builders of small transcripts and rollouts.

Every default is a healthy value, so a test names only what it is about.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from grpo.types import Observation, Outcome, Rollout, StopReason, Task, TokenTrace, Transcript, Turn

MAZE_STATE: Mapping[str, Any] = {"agent": [3, 1], "goal": [5, 5], "open": ["right", "down"]}


def task(*, id: str = "maze/train/0", seed: int = 0, data: Mapping[str, Any] | None = None) -> Task:
    return Task(id=id, split="train", seed=seed, data=data or {})


TASK = task()


def image(*, side: int = 4, value: int = 0) -> np.ndarray:
    return np.full((side, side, 3), value, dtype=np.uint8)


def turn(
    *,
    reply: str = "<action>right</action>",
    action: str | None = "right",
    state: Mapping[str, Any] = MAZE_STATE,
    tokens: int = 5,
    truncated: bool = False,
    done: bool = False,
    solved: bool = False,
    text: str = "Where to?",
    images: tuple[np.ndarray, ...] = (),
) -> Turn:
    return Turn(
        observation=Observation(text=text, images=images),
        state=state,
        reply=reply,
        completion_tokens=tokens,
        truncated=truncated,
        outcome=Outcome(action=action, feedback="", done=done, solved=solved),
    )


def transcript(*turns: Turn, task: Task = TASK, stop: StopReason = "finished", error: str | None = None) -> Transcript:
    return Transcript(task=task, turns=turns, stop=stop, error=error)


def replies(*texts: str) -> Transcript:
    """A transcript of one turn per reply."""
    return transcript(*(turn(reply=text) for text in texts))


def rollout(
    *,
    transcript: Transcript,
    sample: int = 0,
    token_ids: Sequence[int] = (1, 2, 3, 4),
    action_mask: Sequence[bool] = (False, False, True, True),
    logprobs: Sequence[float] = (0.0, 0.0, -1.0, -1.0),
    images: tuple[np.ndarray, ...] = (),
) -> Rollout:
    return Rollout(
        transcript=transcript,
        sample=sample,
        final_text=None,
        drift=0,
        trace=TokenTrace(
            token_ids=np.array(token_ids, dtype=np.int64),
            action_mask=np.array(action_mask, dtype=bool),
            logprobs=np.array(logprobs, dtype=np.float32),
            images=images,
        ),
    )
