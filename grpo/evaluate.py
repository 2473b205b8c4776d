"""How well a policy does on held-out tasks: *solved* apart from reward, with an interval."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from grpo.config import RunConfig
from grpo.conversation import Sampling
from grpo.interfaces import Env
from grpo.metrics import rollout_metrics, wilson
from grpo.policy import Policy
from grpo.reward import Mixture
from grpo.rollout import Progress, play
from grpo.types import Rollout, Score, Split, Task


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """One policy, one way of decoding, one rollout a task."""

    rollouts: tuple[Rollout, ...]
    scores: tuple[Score, ...]

    @property
    def metrics(self) -> dict[str, float]:
        """Under the names of training (`rollout/…`, `reward/…`)."""
        return rollout_metrics(self.rollouts, self.scores, [0.0] * len(self.rollouts))

    @property
    def solved(self) -> float:
        return sum(rollout.transcript.solved for rollout in self.rollouts) / len(self.rollouts)

    @property
    def interval(self) -> tuple[float, float]:
        """95 % Wilson interval of `solved`."""
        return wilson(sum(rollout.transcript.solved for rollout in self.rollouts), len(self.rollouts))


def evaluate(
    policy: Policy,
    env: Env,
    mixture: Mixture,
    run: RunConfig,
    tasks: Sequence[Task],
    *,
    greedy: bool,
    purpose: str,
    progress: Progress,
) -> Evaluation:
    """Play each task once. `purpose` says what the random draws are for, and names the evaluation in errors."""
    assert run.engine.name == "local"
    rollouts = play(
        policy,
        env,
        tasks,
        siblings=1,
        sampling=Sampling(
            temperature=run.algorithm.temperature,
            greedy=greedy,
            max_completion_tokens=run.algorithm.max_completion_tokens,
        ),
        purpose=(run.runtime.seed, purpose),
        max_prompt_tokens=run.algorithm.max_prompt_tokens,
        rows_at_once=run.engine.rollout_batch_size,
        progress=progress,
    )
    scores = [mixture(r.transcript, where=f"{purpose}, task {r.transcript.task.id}") for r in rollouts]
    return Evaluation(rollouts=tuple(rollouts), scores=tuple(scores))


def held_out(env: Env, split: Split, count: int) -> Sequence[Task]:
    """The tasks that every run with this env is evaluated on: they do not depend on the run's seed."""
    return env.tasks(split, count, seed=0)
