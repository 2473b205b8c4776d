"""What a run will do, worked out before it does it: derived numbers, the reachable ceiling, warnings, and refusals.

The ceiling is looked up in held-out tasks, not computed from a formula: it depends on the layouts. Without it, a turn
budget that no policy can meet looks like a policy that does not learn.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from grpo import config, model_folder
from grpo.cluster_schema import LocalCluster
from grpo.engines import skyrl
from grpo.faults import ConfigError, Fault
from grpo.interfaces import DataError, Env
from grpo.layout import layout
from grpo.schema import RunConfig, SkyrlEngine
from grpo.types import SPLITS, Split, Task

CEILING_TASKS = 128
"""Per split. A third of a second where a split has few distinct layouts; the share is off by a few percent at most."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The numbers that follow from a config."""

    rows_per_step: int
    """Rollouts of a step: prompts_per_step x group_size."""
    rows_per_update: int
    devices: int
    accumulation: int
    """Passes whose gradients are added up into one optimiser step."""
    updates: int
    """Optimiser steps of the whole run."""
    rollouts: int
    """Of the whole run, without evaluation."""
    replies_at_most: int
    tokens_at_most: int
    """Sampled, if every reply were as long as it may be."""


@dataclass(frozen=True, kw_only=True)
class Ceiling:
    """How much of a split the turn budget lets anyone solve."""

    solvable: int
    tasks: int
    fewest_turns: int
    """That the easiest of the tasks needs."""
    most_turns: int

    @property
    def share(self) -> float:
        return self.solvable / self.tasks


def derive(run: RunConfig) -> Plan:
    rows = run.algorithm.prompts_per_step * run.algorithm.group_size
    per_update = rows // run.algorithm.updates_per_step
    device_count = layout(run.engine, run.cluster).devices
    replies = rows * run.runtime.steps * run.env.max_turns
    return Plan(
        rows_per_step=rows,
        rows_per_update=per_update,
        devices=device_count,
        accumulation=per_update // (device_count * run.runtime.per_device_batch_size),
        updates=run.algorithm.updates_per_step * run.runtime.steps,
        rollouts=rows * run.runtime.steps,
        replies_at_most=replies,
        tokens_at_most=replies * run.algorithm.max_completion_tokens,
    )


def ceiling(env: Env, split: Split, seed: int, tasks: int = CEILING_TASKS) -> Ceiling | None:
    """The reachable share of up to `tasks` tasks of a split."""
    return reach(env, env.tasks(split, tasks, seed))


def reach(env: Env, tasks: Sequence[Task]) -> Ceiling | None:
    """The reachable share of these tasks; None where the env cannot know how many turns one needs."""
    needed = [env.min_turns(task) for task in tasks]
    known = [turns for turns in needed if turns is not None]
    if not known or len(known) < len(needed):
        return None
    solvable = sum(turns <= env.max_turns for turns in known)
    return Ceiling(solvable=solvable, tasks=len(known), fewest_turns=min(known), most_turns=max(known))


def ceilings(run: RunConfig) -> Mapping[Split, Ceiling | None]:
    """{split: its ceiling}.

    Raises ConfigError if nothing can be solved, if the env cannot be played yet, or if the data that it reads is wrong.
    """
    env = config.build_env(run)
    try:
        found: dict[Split, Ceiling | None] = {split: ceiling(env, split, run.runtime.seed) for split in SPLITS}
    except NotImplementedError as error:
        raise ConfigError([Fault(key="env", problem=str(error))]) from error
    except DataError as error:
        raise ConfigError([Fault(key=f"env.{key}", problem=problem) for key, problem in error.faults]) from error
    for split, reach in found.items():
        if reach is not None and reach.solvable == 0:
            told = f"max_turns={run.env.max_turns} is below the shortest possible solution of every {split} task"
            problem = f"{told}; use at least {reach.fewest_turns} ({reach.most_turns} for all of them)"
            raise ConfigError([Fault(key="env.max_turns", problem=problem)])
    return found


def warnings(run: RunConfig, reached: Mapping[Split, Ceiling | None]) -> list[str]:
    """What a person should know before starting; nothing here stops a run."""
    told = [
        f"env.max_turns={run.env.max_turns} lets only {reach.share:.1%} of the {split} tasks be solved at all; "
        f"{reach.most_turns} turns reach all"
        for split, reach in reached.items()
        if reach is not None and reach.share < 1
    ]
    from_hub = not run.model.name_or_path.startswith(("/", "./", "models/"))
    if run.model.revision is None and from_hub:
        told.append(
            f"model.revision=null takes what {run.model.name_or_path} is that day; a revision makes the run repeatable"
        )
    aggregation, has_kl = run.algorithm.loss_aggregation, run.algorithm.kl_coefficient > 0
    if isinstance(run.engine, SkyrlEngine) and has_kl and aggregation != "sequence_mean":
        told.append(
            f"engine=skyrl averages the KL over rollouts, and not as algorithm.loss_aggregation={aggregation} does "
            "with the loss"
        )
    if run.algorithm.group_size == 2:
        told.append(
            "algorithm.group_size=2: groups whose two replies score alike teach nothing, and most do; 4 to 8 is usual"
        )
    if run.algorithm.warmup_steps >= run.runtime.steps > 0:
        told.append(f"algorithm.warmup_steps={run.algorithm.warmup_steps} leaves no step at the full learning rate")
    return told


def blockers(run: RunConfig) -> list[Fault]:
    """What the engine cannot honour or lacks here, and what this version composes and checks but cannot run yet."""
    faults = model_folder.faults(run.model.name_or_path) if isinstance(run.cluster, LocalCluster) else []
    if isinstance(run.engine, SkyrlEngine):
        faults += skyrl.faults(run)
        if isinstance(run.cluster, LocalCluster):
            faults += skyrl.not_installed()
    elif run.adapter.type == "none":
        problem = "adapter=none can be composed and checked, but engine=local trains an adapter; use adapter=lora"
        faults.append(Fault(key="adapter.type", problem=problem))
    return faults
