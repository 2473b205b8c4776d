"""A large manifest: how soon the first step is done when nobody has read it before, and what reading it takes.

Rows share a thousand small images, so that what is measured is the manifest and not a disk.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from PIL import Image

from scripts.benchmarks.measure import Result, alone, at_most, checked, run_command, shorter
from scripts.benchmarks.paths import ROOT

IMAGES = 1000


def measure(options: argparse.Namespace) -> Result:
    with tempfile.TemporaryDirectory() as folder:
        words = _written(Path(folder), options.rows)

        def train(cache: str, *more: str) -> tuple[float, float, float]:
            environment = {"XDG_CACHE_HOME": f"{folder}/{cache}", "OMP_NUM_THREADS": "1"}
            command = [sys.executable, "train.py", *words, f"hydra.run.dir={folder}/{cache}_{len(more)}", *more]
            done = checked(run_command(command, folder=ROOT, environment=environment), "train.py")
            return done.spent.wall, done.spent.cpu, done.peak_gib

        first_wall, first_cpu, first_peak = train("loader", "dry_run=true")
        again_wall, again_cpu, again_peak = train("loader", "dry_run=true")
        step_wall, step_cpu, step_peak = train("step")
    rows = f"{options.rows:,} rows"
    figures = (
        shorter(
            f"{rows}: one step of training, set-up and evaluations included, never read before", "s", step_wall, None
        ),
        alone("the same in CPU time", "CPU s", step_cpu, at_most(20.0)),
        alone("checking and indexing alone", "CPU s", first_cpu),
        alone("its peak memory", "GiB", first_peak, at_most(1.0)),
        alone("the next start", "CPU s", again_cpu),
    )
    details = {
        "rows": options.rows,
        "first": [first_wall, first_cpu, first_peak],
        "again": [again_wall, again_cpu, again_peak],
        "step": [step_wall, step_cpu, step_peak],
        "load": os.getloadavg()[0],
    }
    return Result(name="manifest", peer="", figures=figures, details=details)


def _written(folder: Path, rows: int) -> list[str]:
    """Writes both manifests; returns the words of the run that reads them."""
    (folder / "images").mkdir()
    for number in range(IMAGES):
        colour = (number % 256, 60 * (number // 256), 7)
        Image.new("RGB", (32, 32), colour).save(folder / "images" / f"{number}.png")
    for name, count in (("train", rows), ("eval", 1000)):
        with (folder / f"{name}.jsonl").open("w", encoding="utf-8") as file:
            file.writelines(_lines(name, count))
    return [
        "env=manifest",
        "reward=vqa_strict",
        "tracker=none",
        "runtime.steps=1",
        "runtime.eval_episodes=8",
        "runtime.test_episodes=8",
        f"env.train_manifest={folder}/train.jsonl",
        f"env.eval_manifest={folder}/eval.jsonl",
    ]


def _lines(name: str, count: int) -> Iterator[str]:
    for number in range(count):
        row = {
            "prompt": f"How many red shapes are in picture {number} of {name}? Answer in <answer>…</answer>.",
            "images": [f"images/{number % IMAGES}.png"],
            "answer": number % 17,
            "kind": "number",
            "id": f"row-{number:07}",
        }
        yield json.dumps(row, ensure_ascii=False) + "\n"
