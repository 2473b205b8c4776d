"""How soon train.py answers: a composed config, a refusal, its help."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from statistics import median

from scripts.benchmarks.measure import Result, alone, at_most, run_command
from scripts.benchmarks.paths import ROOT, TRAIN

REPEATS = 5
STARTS: Mapping[str, tuple[Sequence[str], int]] = {
    "train.py --cfg job": (("--cfg", "job"), 0),
    "train.py refuses a config": (("algorithm.group_size=1",), 2),
    "train.py --help": (("--help",), 0),
}
"""What is started: its words, and the exit code that is right."""


def measure(options: argparse.Namespace) -> Result:
    """Raises RuntimeError where an exit code is not the right one."""
    figures, details = [], {}
    for name, (words, expected) in STARTS.items():
        runs = [run_command([sys.executable, str(TRAIN), *words], folder=ROOT) for _ in range(REPEATS)]
        for run in runs:
            if run.exit_code != expected:
                raise RuntimeError(f"{name}: exit code {run.exit_code}, wanted {expected}:\n{run.output[-3000:]}")
        figures.append(alone(name, "s", median(run.spent.wall for run in runs), at_most(1.5)))
        details[name] = {
            "wall_seconds": [run.spent.wall for run in runs],
            "cpu_seconds": [run.spent.cpu for run in runs],
        }
    return Result(name="startup", peer="", figures=tuple(figures), details=details)
