"""The figures of one or more runs side by side: `python scripts/gpu_proof/show.py RUN_FOLDER...`"""

from __future__ import annotations

import json
import sys
from pathlib import Path

SECONDS = ("step", "rollout", "logprob", "update", "sync", "checkpoint", "eval")


def show(folder: Path) -> None:
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    print(f"{folder.name}: {len(lines) - 1} steps")
    for line in lines:
        if "eval/all/pass_at_1" in line:
            print(
                f"  step {line['step']}: validation solved {line['eval/all/pass_at_1']:.3f} greedy, "
                f"{line['eval/all/solved_sampled']:.3f} sampled"
            )
    steps = [line for line in lines if "perf/step_seconds" in line]
    later = steps[1:] or steps  # the first also compiles
    for name in SECONDS:
        values = [line[f"perf/{name}_seconds"] for line in later if f"perf/{name}_seconds" in line]
        if values:
            print(f"  {name:>10} {sum(values) / len(values):7.2f} s on average of {len(values)}")
    for name in ("perf/tokens_per_second", "perf/gpu_utilization", "perf/gpu_memory_gib", "policy/logprob_gap"):
        values = [line[name] for line in later if name in line]
        if values:
            print(f"  {name} {sum(values) / len(values):.4g} (highest {max(values):.4g})")
    summary = folder / "summary.json"
    for row in json.loads(summary.read_text())["rows"] if summary.exists() else []:
        who = f"{row['policy']} {row['decoding']}"
        print(f"  test, {who}: solved {row['solved']:.3f} ({row['low']:.2f}-{row['high']:.2f})")


if __name__ == "__main__":
    for argument in sys.argv[1:]:
        show(Path(argument))
