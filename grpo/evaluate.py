"""How well the policy in training does on held-out tasks."""

from __future__ import annotations

from collections.abc import Sequence

from grpo.config import RunConfig
from grpo.conversation import Sampling
from grpo.evaluation import Evaluation, judged
from grpo.interfaces import Env
from grpo.policy import Policy
from grpo.reward import Mixture
from grpo.rollout import Progress, play
from grpo.types import Split, Task


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
    return judged(rollouts, mixture, siblings=1, purpose=purpose)


def held_out(env: Env, split: Split, count: int) -> Sequence[Task]:
    """The tasks that every run with this env is evaluated on: they do not depend on the run's seed."""
    return env.tasks(split, count, seed=0)
