"""What a checkpoint costs: the time that a save holds the training up, as a share of the steps between two saves.

By the clock, because a save waits for the disk. The heartbeats of a step count too.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

import torch

from grpo import heartbeat
from grpo.checkpoint import save_checkpoint
from grpo.config import build_env
from grpo.engines import local
from grpo.randomness import seed as seed_of
from grpo.schema import RunConfig
from grpo.words import quoted
from scripts.benchmarks.configured import configured, fresh_policy
from scripts.benchmarks.measure import Result, alone, at_most
from scripts.benchmarks.paths import ROOT
from scripts.benchmarks.step import play_and_train

SAVES = 20
BEATS_PER_STEP = 3


def measure(options: argparse.Namespace) -> Result:
    """Steps of the configured run, then saves of what it would save. Raises ConfigError."""
    path = f"model.name_or_path={quoted(options.model)}"
    run = configured([path, "tracker=none", *options.words])
    env, interval = build_env(run), run.runtime.checkpoint_interval
    per_step = run.algorithm.prompts_per_step
    tasks = [env.tasks("train", per_step, seed_of(run.runtime.seed, "tasks", step)) for step in range(options.steps)]
    step = median(each["wall_seconds"] for each in play_and_train(run, env, tasks))
    save, beat, size = _saves(run)
    share = 100 * (save / interval + BEATS_PER_STEP * beat) / step
    return Result(
        name="checkpoint",
        peer="",
        figures=(
            alone(f"checkpoint every {interval} steps", "% of step time", share, at_most(2)),
            alone("checkpoint every step", "% of step time", 100 * (save + BEATS_PER_STEP * beat) / step),
            alone("one save, synced to the disk", "ms", 1000 * save),
            alone("one heartbeat", "ms", 1000 * beat),
            alone("a checkpoint", "MiB", size / 2**20),
        ),
        details={"step_seconds": step, "save_seconds": save, "beat_seconds": beat, "bytes": size},
        remarks=(f"a step takes {step:.2f} s, a save {save:.3f} s",),
    )


def _saves(run: RunConfig) -> tuple[float, float, int]:
    """Median seconds of a save and of a heartbeat, and the bytes of a checkpoint."""
    policy = fresh_policy(run)
    optimizer = local.make_optimizer(policy, run)
    for parameter in policy.trainable:
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()  # so that there is a state to save
    # Not where temporary files go: that may be memory, which needs no syncing.
    with tempfile.TemporaryDirectory(dir=ROOT) as scratch:
        folder = Path(scratch)

        def save(step: int) -> None:
            save_checkpoint(folder, step, policy, optimizer, keep=run.runtime.keep_checkpoints, record={})

        saves = [_seconds(save, step) for step in range(1, SAVES + 1)]
        beats = [_seconds(lambda step: heartbeat.beat(folder, "rollouts", step), step) for step in range(SAVES)]
        newest = folder / f"checkpoints/step_{SAVES:06d}"
        size = sum(path.stat().st_size for path in newest.rglob("*") if path.is_file())
    return median(saves), median(beats), size


def _seconds(work: Callable[[int], None], step: int) -> float:
    start = time.perf_counter()
    work(step)
    return time.perf_counter() - start
