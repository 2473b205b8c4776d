"""Group-relative advantages, and which rollouts take part in the comparison and in the update.

The spread is the sample estimate (divisor n - 1) plus 1e-6, exactly SkyRL's, so that a learning rate found with one
engine holds for the other. Two cases differ: a group without a difference is exactly 0 here, where rounding dust can
become an advantage there, and a rollout left without siblings is 0, where SkyRL passes its raw reward.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from typing import Literal

import numpy as np

from grpo.types import Rollout, Score, Transcript

Scale = Literal["std", "none"]
"""`std` divides by the group's spread (GRPO, arXiv 2402.03300); `none` only centres (Dr. GRPO, arXiv 2503.20783)."""

TruncatedRule = Literal["keep", "mask"]
"""What becomes of the tokens of a truncated rollout: trained on, or left out of the update (DAPO, arXiv 2503.14476)."""

EPSILON = 1e-6
DUST = 1e-9
"""Differences below this, relative to the larger of 1 and the largest total, come from rounding and not from merit."""


def comparable_totals(transcripts: Sequence[Transcript], scores: Sequence[Score]) -> list[float | None]:
    """The totals to compare: None where the env raised an error, or where every term abstained."""
    return [
        None if transcript.stop == "error" or all(value is None for value in score.terms.values()) else score.total
        for transcript, score in zip(transcripts, scores, strict=True)
    ]


def group_advantages(task_ids: Sequence[str], totals: Sequence[float | None], scale: Scale) -> list[float]:
    """How much better each rollout is than its siblings, in the order given.

    Siblings are the rollouts of one task id, wherever they stand. A total of None takes no part: it enters neither
    mean nor spread, and its advantage is 0. Raises ValueError for a total that is not finite.
    """
    groups: defaultdict[str, dict[int, float]] = defaultdict(dict)
    for index, (task_id, total) in enumerate(zip(task_ids, totals, strict=True)):
        if total is None:
            continue
        if not math.isfinite(total):
            raise ValueError(f"task {task_id}: total {total} cannot be compared; reward terms must be finite")
        groups[task_id][index] = total

    advantages = [0.0] * len(totals)
    for members in groups.values():
        for index, advantage in zip(members, _relative(list(members.values()), scale), strict=True):
            advantages[index] = advantage
    return advantages


def _relative(totals: Sequence[float], scale: Scale) -> list[float]:
    if max(totals) - min(totals) <= DUST * max(1.0, *map(abs, totals)):
        return [0.0] * len(totals)
    # fsum rounds once, so the result does not depend on the order of the members.
    mean = math.fsum(totals) / len(totals)
    centred = [total - mean for total in totals]
    if scale == "none":
        return centred
    spread = math.sqrt(math.fsum(value * value for value in centred) / (len(totals) - 1))
    return [value / (spread + EPSILON) for value in centred]


def trainable_mask(rollout: Rollout, rule: TruncatedRule) -> np.ndarray:
    """Which tokens of `rollout` the update trains on, bool[T].

    None of a rollout that ended in an error; none of a truncated one under the rule `mask`. Such a rollout still
    counts in its group's mean (unless in error) and in the reported lengths, which are those generated.
    """
    transcript = rollout.transcript
    left_out = transcript.stop == "error" or (transcript.truncated and rule == "mask")
    return np.zeros_like(rollout.trace.action_mask) if left_out else rollout.trace.action_mask
