"""The whole main job, as a process of its own: time, memory, and what it learned, for one seed or several."""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from grpo.words import quoted
from scripts.benchmarks.measure import Goal, Result, alone, at_most, checked, run_command
from scripts.benchmarks.paths import ROOT, TRAIN

# As the Makefile sets it: waiting threads must not take the cores from those that work.
ENVIRONMENT = {"OMP_WAIT_POLICY": "passive"}

LEARNED = Goal(of="ours", sense="at least", value=0.95)


def measure(options: argparse.Namespace) -> Result:
    """Raises RuntimeError if a run fails."""
    runs = {seed: _train(seed, options) for seed in options.seeds}
    walls = [run["wall_seconds"] for run in runs.values()]
    solved = {
        (policy, greedy): [_solved(run["rows"], policy, greedy) for run in runs.values()]
        for policy in ("start", "trained")
        for greedy in (True, False)
    }
    figures = [
        alone("main job, longest", "s", max(walls), at_most(300)),
        alone("main job, longest", "CPU s", max(run["cpu_seconds"] for run in runs.values())),
        alone("largest process", "GiB", max(run["peak_gib"] for run in runs.values()), at_most(3.5)),
        alone("start policy solves, sampled, best seed", "of 1", max(solved["start", False]), at_most(0.75)),
        alone(
            "trained policy solves, sampled, worst seed",
            "of 1",
            min(solved["trained", False]),
            LEARNED,
        ),
        alone("trained policy solves, greedy, worst seed", "of 1", min(solved["trained", True])),
    ]
    return Result(
        name="train",
        peer="",
        figures=tuple(figures),
        details={str(seed): run for seed, run in runs.items()},
        remarks=tuple(_line(seed, run) for seed, run in runs.items()),
    )


def _train(seed: int, options: argparse.Namespace) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as scratch:
        words = [
            f"model.name_or_path={quoted(options.model)}",
            *options.words,
            f"runtime.seed={seed}",
            f"runtime.output_dir={quoted(scratch)}",
        ]
        run = run_command([sys.executable, str(TRAIN), *words], folder=ROOT, environment=ENVIRONMENT)
        checked(run, f"train.py with seed {seed}")
        summary = json.loads(next(Path(scratch).glob("*/*/summary.json")).read_text())
    spent = {"wall_seconds": run.spent.wall, "cpu_seconds": run.spent.cpu, "peak_gib": run.peak_gib}
    return spent | {"rows": summary["rows"]}


def _solved(rows: Sequence[Mapping[str, Any]], policy: str, greedy: bool) -> float:
    """Of the closing table: greedy, or sampled at the training temperature."""
    return next(row["solved"] for row in rows if row["policy"] == policy and (row["decoding"] == "greedy") == greedy)


def _line(seed: int, run: Mapping[str, Any]) -> str:
    parts = [
        f"{row['policy']} {row['decoding']} {row['solved']:.3f} ({row['low']:.3f} to {row['high']:.3f})"
        for row in run["rows"]
    ]
    return f"seed {seed}: " + ", ".join(parts) + f"; {run['wall_seconds']:.0f} s, {run['peak_gib']:.2f} GiB"
