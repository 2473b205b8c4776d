"""Who is evaluated: the base alone, adapters on it, or a model behind an OpenAI-compatible endpoint.

The base is loaded once; an adapter is put on it while it plays and taken off again, so that a whole sweep needs the
memory of one model.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from grpo import adapter
from grpo.config import RunConfig
from grpo.conversation import Sampling
from grpo.endpoint import Endpoint
from grpo.interfaces import Env
from grpo.policy import Policy, load_policy
from grpo.rollout import Progress, play
from grpo.schema import NoAdapter
from grpo.types import Rollout, Task

Player = Callable[[Env, Sequence[Task], int, Sampling, str, Progress], list[Rollout]]
"""(env, tasks, siblings, sampling, what the random draws are for, progress) -> rollouts, siblings side by side."""


REMOTE_ROWS = 16
"""Episodes at once for a run of another engine, whose config does not say how many fit this machine."""


@dataclass(frozen=True, kw_only=True)
class Ready:
    """A contender that can play now."""

    play: Player
    policy: Policy | None
    """None behind an endpoint, which shows no logits."""


@dataclass(frozen=True, kw_only=True)
class Contender:
    name: str
    source: str
    """The folder or address that it came from."""
    ready: Callable[[], AbstractContextManager[Ready]]
    """Loads what it needs for as long as the context lasts."""


def local(run: RunConfig, adapters: Sequence[tuple[str, Path]]) -> list[Contender]:
    """The base of `run`, named `base`, and after it each adapter by its name."""
    wanted = run.engine.device if run.engine.name == "local" else "auto"
    device = ("cuda" if torch.cuda.is_available() else "cpu") if wanted == "auto" else wanted
    base = load_policy(run.model, NoAdapter(type="none"), device=torch.device(device), seed=run.runtime.seed)
    first = Contender(
        name="base",
        source=run.model.name_or_path,
        ready=lambda: nullcontext(Ready(play=_player(base, run), policy=base)),
    )
    return [
        first,
        *(
            Contender(name=name, source=str(path), ready=lambda path=path: _with_adapter(base, path, run))
            for name, path in adapters
        ),
    ]


def served(run: RunConfig, url: str, models: Sequence[str]) -> list[Contender]:
    """Each model behind the address. Raises ValueError for a name that is not served there."""
    endpoint = Endpoint(url)
    for model in models:
        endpoint.check(model)

    def ready(model: str) -> AbstractContextManager[Ready]:
        def player(
            env: Env, tasks: Sequence[Task], siblings: int, sampling: Sampling, purpose: str, progress: Progress
        ) -> list[Rollout]:
            return endpoint.play(
                model,
                env,
                tasks,
                siblings=siblings,
                sampling=sampling,
                purpose=(run.runtime.seed, purpose),
                progress=progress,
            )

        return nullcontext(Ready(play=player, policy=None))

    return [Contender(name=model, source=url, ready=lambda model=model: ready(model)) for model in models]


@contextmanager
def _with_adapter(base: Policy, folder: Path, run: RunConfig) -> Iterator[Ready]:
    adapted: Any = adapter.add(base.model, folder, name="default", trainable=False)
    try:
        # A policy of its own: an adapter on the vision tower must not find the base's features of an image.
        policy = Policy(adapted, base.tokenizer, base.image_processor, name=str(folder))
        yield Ready(play=_player(policy, run), policy=policy)
    finally:
        adapted.unload()
        del base.model.peft_config  # which unload leaves, and peft takes for an adapter that is still on


def _player(policy: Policy, run: RunConfig) -> Player:
    engine = run.engine
    rows = engine.rollout_batch_size if engine.name == "local" else REMOTE_ROWS

    def player(
        env: Env, tasks: Sequence[Task], siblings: int, sampling: Sampling, purpose: str, progress: Progress
    ) -> list[Rollout]:
        return play(
            policy,
            env,
            tasks,
            siblings=siblings,
            sampling=sampling,
            purpose=(run.runtime.seed, purpose),
            max_prompt_tokens=run.algorithm.max_prompt_tokens,
            rows_at_once=rows,
            progress=progress,
        )

    return player
