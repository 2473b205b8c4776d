"""Statistics of two policies that played the same tasks: the task is what is resampled, never the single episode.

Siblings of one task are no independent evidence, so their mean counts as one observation.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy import stats

RESAMPLES = 4000


@dataclass(frozen=True, kw_only=True)
class Difference:
    """Mean over the tasks of (after - before), with its interval."""

    mean: float
    low: float
    high: float

    @property
    def rises(self) -> bool:
        return self.low > 0

    @property
    def falls(self) -> bool:
        return self.high < 0


@dataclass(frozen=True, kw_only=True)
class Discordant:
    """Tasks that only one of the two solved, and McNemar's exact p that this is chance."""

    gained: int
    lost: int
    p: float


def difference(before: Sequence[float], after: Sequence[float], *, alpha: float) -> Difference:
    """Bias-corrected bootstrap over the tasks, at confidence 1 - alpha; the same numbers give the same interval.

    Where no task differs from another there is nothing to resample, and the interval is the mean itself. Raises
    ValueError for fewer than two tasks or for lists of unequal length.
    """
    changes = np.array([b - a for a, b in zip(before, after, strict=True)])
    if len(changes) < 2:
        raise ValueError(f"{len(changes)} task(s) give no interval; use two or more")
    mean = float(changes.mean())
    if np.ptp(changes) < 1e-12:
        return Difference(mean=mean, low=mean, high=mean)
    interval = stats.bootstrap(
        (changes,),
        np.mean,
        n_resamples=RESAMPLES,
        confidence_level=1 - alpha,
        method="BCa",
        vectorized=True,
        rng=np.random.default_rng(0),
    ).confidence_interval
    return Difference(mean=mean, low=float(interval.low), high=float(interval.high))


def discordant(before: Sequence[bool], after: Sequence[bool]) -> Discordant:
    """McNemar's exact test: of the tasks that one alone solved, would half be expected either way?"""
    gained = sum(b and not a for a, b in zip(before, after, strict=True))
    lost = sum(a and not b for a, b in zip(before, after, strict=True))
    p = float(stats.binomtest(gained, gained + lost).pvalue) if gained + lost else 1.0
    return Discordant(gained=gained, lost=lost, p=p)
