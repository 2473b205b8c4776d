"""Compare two runs: what they were made from, and what they measured, step by step.

Times differ between any two runs, so `perf/…` takes no part in the comparison of metrics.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from grpo.config import leaves


@dataclass(frozen=True, kw_only=True)
class Difference:
    """One value that is not the same in both."""

    key: str
    old: Any
    new: Any


@dataclass(frozen=True, kw_only=True)
class MetricDifference:
    step: int
    name: str
    old: float | None
    """None where that run has no such metric at that step."""
    new: float | None

    @property
    def size(self) -> float:
        return math.inf if self.old is None or self.new is None else abs(self.new - self.old)


def differences(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[Difference]:
    """What differs between two records such as run.json, by full dotted key."""
    before, after = dict(leaves(dict(old))), dict(leaves(dict(new)))
    return [
        Difference(key=key, old=before.get(key), new=after.get(key))
        for key in sorted(before.keys() | after.keys())
        if before.get(key) != after.get(key)
    ]


def metric_differences(
    old: Sequence[Mapping[str, float]], new: Sequence[Mapping[str, float]]
) -> Iterator[MetricDifference]:
    """What differs between two metrics.jsonl, in the order of the steps; nothing if they are identical, times aside."""
    by_step = [{int(record["step"]): record for record in records} for records in (old, new)]
    for step in sorted(by_step[0].keys() | by_step[1].keys()):
        before, after = (records.get(step, {}) for records in by_step)
        for name in sorted(before.keys() | after.keys()):
            if not name.startswith("perf/") and before.get(name) != after.get(name):
                yield MetricDifference(step=step, name=name, old=before.get(name), new=after.get(name))
