"""Statistics of two policies that played the same tasks: the task is what is resampled, never the single episode.

Siblings of one task are no independent evidence, so their mean counts as one observation. An interval alone does not
decide: of few tasks a bootstrap is surer than it should be, so an exact test must agree.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import stats

RESAMPLES = 4000


@dataclass(frozen=True, kw_only=True)
class Difference:
    """Mean over the tasks of (after - before), with its interval."""

    mean: float
    low: float
    high: float
    p: float
    """That chance alone makes a mean so far from 0: sign flips, every one of them where few tasks changed."""
    sure: bool
    """The interval excludes 0 and `p` is below alpha."""

    @property
    def rises(self) -> bool:
        return self.sure and self.mean > 0

    @property
    def falls(self) -> bool:
        return self.sure and self.mean < 0


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
    mean, p = float(changes.mean()), _sign_flips(changes, alpha)
    low, high = (mean, mean) if np.ptp(changes) < 1e-12 else _interval(changes, alpha)
    return Difference(mean=mean, low=low, high=high, p=p, sure=p < alpha and (low > 0 or high < 0))


def _interval(changes: NDArray[np.float64], alpha: float) -> tuple[float, float]:
    interval = stats.bootstrap(
        (changes,),
        np.mean,
        n_resamples=RESAMPLES,
        confidence_level=1 - alpha,
        method="BCa",
        vectorized=True,
        rng=np.random.default_rng(0),
    ).confidence_interval
    return float(interval.low), float(interval.high)


def _sign_flips(changes: NDArray[np.float64], alpha: float) -> float:
    """Two-sided p of the mean, were each change as likely the other way round; unchanged tasks take no part.

    All flips are tried where these are few, else enough of them that a p below `alpha` can be told.
    """
    moved = changes[np.abs(changes) > 1e-12]
    if len(moved) < 2:
        return 1.0
    return float(
        stats.permutation_test(
            (moved,),
            np.mean,
            permutation_type="samples",
            vectorized=True,
            n_resamples=max(RESAMPLES, round(10 / alpha)),
            batch=1000,
            rng=np.random.default_rng(0),
        ).pvalue
    )


def discordant(before: Sequence[bool], after: Sequence[bool]) -> Discordant:
    """McNemar's exact test: of the tasks that one alone solved, would half be expected either way?"""
    gained = sum(b and not a for a, b in zip(before, after, strict=True))
    lost = sum(a and not b for a, b in zip(before, after, strict=True))
    p = float(stats.binomtest(gained, gained + lost).pvalue) if gained + lost else 1.0
    return Discordant(gained=gained, lost=lost, p=p)
