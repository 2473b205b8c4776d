"""A whole sweep folder of invented runs, for the report of a sweep."""

from __future__ import annotations

import json
from itertools import product
from pathlib import Path

from tests.fake_run import build_run

GRID = tuple(product((4, 8, 16), (0.0, 0.01, 0.02), (8, 16, 32)))


def build_sweep(folder: Path, *, trials: int, steps: int = 20) -> Path:
    """`trials` trials over group size, KL and rank (and a seed, once the grid is used up); the last one has failed."""
    records = []
    for place in range(trials):
        group_size, kl, rank = GRID[place % len(GRID)]
        words = [f"algorithm.group_size={group_size}", f"algorithm.kl_coefficient={kl}", f"adapter.rank={rank}"]
        failed = place == trials - 1
        if failed:
            (folder / str(place)).mkdir(parents=True)
        else:
            build_run(folder / str(place), steps=steps, seed=place)
        records.append(
            {
                "overrides": [*words, f"runtime.seed={place // len(GRID)}"],
                "folder": str(place),
                "state": "failed" if failed else "finished",
                "objective": None if failed else 0.5 + 0.4 * (place * 37 % trials) / trials,
                "reason": "exit code 1: out of memory" if failed else None,
                "seconds": 80.0 + place,
            }
        )
    (folder / "sweep.json").write_text(json.dumps({"trials": records}), encoding="utf-8")
    return folder
