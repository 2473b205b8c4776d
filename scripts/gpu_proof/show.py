"""The figures of runs, and whether they hold: `-m scripts.gpu_proof.show [--steps N] [--solved X] RUN_FOLDER...`"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

SECONDS = ("step", "rollout", "logprob", "update", "sync", "checkpoint", "eval")
LEVELS = ("perf/tokens_per_second", "perf/gpu_utilization", "perf/gpu_memory_gib", "policy/logprob_gap")


def show(name: str, lines: Sequence[dict[str, Any]], rows: Sequence[dict[str, Any]]) -> None:
    print(f"{name}: {max(len(lines) - 1, 0)} steps")
    for line in lines:
        if "eval/all/pass_at_1" in line:
            print(
                f"  step {line['step']}: validation solved {line['eval/all/pass_at_1']:.3f} greedy, "
                f"{line['eval/all/solved_sampled']:.3f} sampled"
            )
    steps = [line for line in lines if "perf/step_seconds" in line]
    print("  rollouts solved, step by step:", " ".join(f"{line['rollout/solved']:.3f}" for line in steps))
    later = steps[1:] or steps  # the first also compiles
    for part in SECONDS:
        values = [line[f"perf/{part}_seconds"] for line in later if f"perf/{part}_seconds" in line]
        if values:
            print(f"  {part:>10} {sum(values) / len(values):7.2f} s on average of {len(values)}")
    for level in LEVELS:
        values = [line[level] for line in later if level in line]
        if values:
            print(f"  {level} {sum(values) / len(values):.4g} (highest {max(values):.4g})")
    for row in rows:
        who = f"{row['policy']} {row['decoding']}"
        print(f"  test, {who}: solved {row['solved']:.3f} ({row['low']:.2f}-{row['high']:.2f})")


def faults(lines: Sequence[dict[str, Any]], rows: Sequence[dict[str, Any]], steps: int, solved: float) -> list[str]:
    """What of the claims does not hold: every step once, and sampled replies that solve more than at the start."""
    found = []
    if (there := [line["step"] for line in lines]) != list(range(steps + 1)):
        found.append(f"steps {there}, wanted each of 0 to {steps} once")
    sampled = {row["policy"]: row for row in rows if row["decoding"] != "greedy"}
    if solved and not sampled:
        found.append("no test split was played")
    elif solved:
        start, trained = sampled["start"]["solved"], sampled["trained"]
        if trained["solved"] <= start or trained["high"] < solved:
            found.append(
                f"solved {trained['solved']:.3f} after {start:.3f}, wanted more, and {solved:g} in the interval"
            )
    return found


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folders", metavar="RUN_FOLDER", nargs="+", type=Path)
    parser.add_argument("--steps", type=int, help="exit code 1 unless each step up to this one is there once")
    parser.add_argument(
        "--solved", type=float, default=0.0, help="exit code 1 unless the trained policy solves this share"
    )
    given = parser.parse_args(arguments)
    wrong = []
    for folder in given.folders:
        metrics, summary = folder / "metrics.jsonl", folder / "summary.json"
        lines = [json.loads(line) for line in metrics.read_text().splitlines()] if metrics.exists() else []
        rows = json.loads(summary.read_text())["rows"] if summary.exists() else []
        show(folder.name, lines, rows)
        if given.steps is not None:
            wrong += [f"{folder.name}: {each}" for each in faults(lines, rows, given.steps, given.solved)]
    print("\n".join(wrong))
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
