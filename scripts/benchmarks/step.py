"""One GRPO step, rollouts and update, against TRL's GRPOTrainer with an environment factory at the same work.

Same weights, mazes, LoRA modules, prompts, batch shape, number of optimiser steps and fp32, one thread each. The same
algorithm leaves two choices on which the sides differ as they do in use: ours leaves groups without signal out of the
update, TRL computes them with advantage 0 (measured with and without).
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from grpo.advantage import comparable_totals, group_advantages
from grpo.config import build_env, build_rewards
from grpo.console import Console
from grpo.engines import local
from grpo.interfaces import Env
from grpo.policy import matched_modules, model_path
from grpo.randomness import seed as seed_of
from grpo.reward import Mixture
from grpo.schema import LoraAdapter, RunConfig
from grpo.tracking import RunLog, make_tracker
from grpo.types import Task
from grpo.words import quoted
from scripts.benchmarks.configured import configured, fresh_policy, without_adapter
from scripts.benchmarks.measure import Figure, Result, Stopwatch, checked, run_command, shorter
from scripts.benchmarks.paths import PEERS

HOW_TO = (
    "python -m venv VENV && VENV/bin/pip install trl==1.16.0 transformers==5.24.0 torch==2.13.0 peft datasets; then "
    "--trl-python VENV/bin/python"
)

Step = Mapping[str, float]
"""wall_seconds, cpu_seconds, rollout_cpu_seconds, turns, tokens, solved of one GRPO step."""


def measure(options: argparse.Namespace) -> Result:
    words = [
        f"model.name_or_path={quoted(options.model)}",
        "tracker=none",
        "runtime.mixed_precision=fp32",
        *options.words,
    ]
    run = configured(words)
    everything = configured([*words, "algorithm.drop_zero_signal_groups=false"])
    env = build_env(run)
    tasks = [
        env.tasks("train", run.algorithm.prompts_per_step, seed_of(run.runtime.seed, "tasks", step))
        for step in range(1, options.steps + 1)
    ]
    mine, all_groups = play_and_train(run, env, tasks), play_and_train(everything, env, tasks)
    peer = trl_steps(run, tasks, options) if options.trl_python else None
    theirs: Sequence[Step] = peer["steps"] if peer else []

    def compare(name: str, unit: str, of: Callable[[Step], float], ours: Sequence[Step], goal: float | None) -> Figure:
        return shorter(name, unit, median(map(of, ours)), median(map(of, theirs)) if theirs else None, goal)

    name = f"GRPO step of {run.algorithm.prompts_per_step * run.algorithm.group_size} episodes"
    figures = (
        compare(name, "CPU s", lambda step: step["cpu_seconds"], mine, 9),
        compare("per 1000 sampled tokens", "CPU s", lambda step: 1000 * step["cpu_seconds"] / step["tokens"], mine, 9),
        compare("its rollouts", "CPU s", lambda step: step["rollout_cpu_seconds"], mine, None),
        compare("with groups without signal trained too", "CPU s", lambda step: step["cpu_seconds"], all_groups, None),
        compare(f"{name}, by the clock", "s", lambda step: step["wall_seconds"], mine, None),
    )
    remarks = [_amount("ours", mine), _amount("TRL", theirs)] if peer else [f"without TRL; to compare: {HOW_TO}"]
    return Result(
        name="step",
        peer="TRL GRPOTrainer" + (f" {peer['versions']['trl']}" if peer else ""),
        figures=figures,
        details={"ours": mine, "ours_with_all_groups": all_groups, "trl": peer},
        remarks=tuple(remarks),
    )


def play_and_train(run: RunConfig, env: Env, tasks_of_steps: Sequence[Sequence[Task]]) -> list[Step]:
    """As grpo.engines.local.train does, without evaluation, log and checkpoint."""
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        policy = fresh_policy(run)
        weights = {name: term.weight for name, term in run.reward.terms.items()}
        parts = local.Parts(
            run=run,
            env=env,
            mixture=Mixture(terms=build_rewards(run), weights=weights, gate=run.reward.gate),
            policy=policy,
            optimizer=local.make_optimizer(policy, run),
            folder=folder,
            log=RunLog(folder, make_tracker(run.tracker)),
            console=Console(run.runtime.steps),
            made_from={},  # goes into saved adapters; nothing is saved here
        )
        return [_one_step(parts, tasks, step) for step, tasks in enumerate(tasks_of_steps, start=1)]


def _one_step(parts: local.Parts, tasks: Sequence[Task], step: int) -> Step:
    watch = Stopwatch()
    rollouts = local.play_groups(parts, tasks, step)
    played = watch.spent()
    transcripts = [rollout.transcript for rollout in rollouts]
    scores = [parts.mixture(transcript, where=f"step {step}") for transcript in transcripts]
    totals = comparable_totals(transcripts, scores)
    advantages = group_advantages([t.task.id for t in transcripts], totals, parts.run.algorithm.advantage_scale)
    local.update(parts, rollouts, advantages, step)
    spent = watch.spent()
    return {
        "wall_seconds": spent.wall,
        "cpu_seconds": spent.cpu,
        "rollout_cpu_seconds": played.cpu,
        "turns": sum(len(transcript.turns) for transcript in transcripts),
        "tokens": sum(transcript.completion_tokens for transcript in transcripts),
        "solved": sum(transcript.solved for transcript in transcripts),
    }


def trl_steps(run: RunConfig, tasks: Sequence[Sequence[Task]], options: argparse.Namespace) -> dict[str, Any]:
    """What trl_step.py measured on these tasks.

    Raises RuntimeError if its process fails or trains another number of parameters.
    """
    with tempfile.TemporaryDirectory() as scratch:
        job, result = Path(scratch) / "job.json", Path(scratch) / "result.json"
        job.write_text(json.dumps(trl_job(run, tasks, options.model, scratch)))
        script = PEERS / "trl_step.py"
        finished = run_command(
            [options.trl_python, str(script), str(job), str(result)],
            folder=Path(scratch),
            environment={"OMP_NUM_THREADS": "1", "TRL_EXPERIMENTAL_SILENCE": "1", "HF_HUB_OFFLINE": "1"},
        )
        checked(finished, f"TRL under {options.trl_python} (needed: {HOW_TO})")
        measured = json.loads(result.read_text())
    trainable = sum(parameter.numel() for parameter in fresh_policy(run).trainable)
    if measured["trainable_parameters"] != trainable:
        raise RuntimeError(
            f"TRL trains {measured['trainable_parameters']} parameters, ours {trainable}: not the same work"
        )
    return measured | {"peak_gib": finished.peak_gib}


def trl_job(run: RunConfig, tasks: Sequence[Sequence[Task]], model: str, scratch: str) -> dict[str, Any]:
    """The config as trl_step.py reads it. Raises RuntimeError for a run without LoRA."""
    if not isinstance(run.adapter, LoraAdapter):
        raise RuntimeError(f"adapter.type={run.adapter.type}: TRL's side trains a LoRA adapter; use adapter=lora")
    algorithm = run.algorithm
    network = fresh_policy(without_adapter(run)).model
    targets = matched_modules(network, run.adapter.target_modules, run.adapter.exclude_modules)
    return {
        "env": {name: value for name, value in run.env.model_dump(by_alias=True).items() if name != "_target_"},
        "model": str(Path(model_path(model)).resolve()),
        "seeds": [task.seed for step in tasks for task in step],
        "steps": len(tasks),
        "lora": {
            "r": run.adapter.rank,
            "lora_alpha": run.adapter.alpha,
            "lora_dropout": run.adapter.dropout,
            "target_modules": targets,
        },
        "scratch": scratch,
        "seed": run.runtime.seed,
        "per_device_batch_size": run.runtime.per_device_batch_size,
        "prompts_per_step": algorithm.prompts_per_step,
        "group_size": algorithm.group_size,
        "updates_per_step": algorithm.updates_per_step,
        "learning_rate": algorithm.learning_rate,
        "warmup_steps": algorithm.warmup_steps,
        "temperature": algorithm.temperature,
        "max_prompt_tokens": algorithm.max_prompt_tokens,
        "max_completion_tokens": algorithm.max_completion_tokens,
    }


def _amount(who: str, steps: Sequence[Step]) -> str:
    turns, tokens, solved = (median(step[key] for step in steps) for key in ("turns", "tokens", "solved"))
    return f"{who}: {turns:,.0f} turns, {tokens:,.0f} tokens, {solved:.0f} solved in the median step"
