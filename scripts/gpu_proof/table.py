"""What the steps of `compare.py` took, as text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

PHASES = {
    "step": "step",
    "generate": "generate",
    "logprobs": "fwd_logprobs_values_reward",
    "update": "policy_train",
    "sync": "sync_weights",
}
"""Our word for a column and SkyRL's timer."""


def line(row: Mapping[str, Any]) -> str:
    seconds = ", ".join(f"{name} {row[name]:.1f}" for name in PHASES)
    return (
        f"{row['side']}: {seconds} s; {row['gpu_seconds']:.2f} GPU-seconds a rollout; "
        f"{row.get('perf/gpu_memory_gib', 0.0):.1f} GiB at most, GPU busy {row.get('perf/gpu_utilization', 0.0):.0%}"
    )


def table(rows: Sequence[Mapping[str, Any]]) -> float:
    """Prints the mean of each side's steps after the first; how many times the GPU-seconds of ours the recipe takes."""
    cost = {}
    for side in ("recipe", "ours"):
        mine = [row for row in rows[1:] if row["side"] == side]
        if not mine:
            print(f"{side}: no step measured")
            return 0.0
        names = {name for row in mine for name, value in row.items() if isinstance(value, float)}
        mean = {name: sum(row.get(name, 0.0) for row in mine) / len(mine) for name in names}
        print(f"mean of {len(mine)}: {line(mean | {'side': side})}")
        cost[side] = mean["gpu_seconds"]
    print(f"the recipe takes {cost['recipe'] / cost['ours']:.2f} times the GPU-seconds of ours")
    return cost["recipe"] / cost["ours"]
