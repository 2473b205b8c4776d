"""Two policies on the same held-out tasks: what differs, how sure that is, and what to conclude.

*Solved* decides. A reward that rises without it, or replies that show the signs of `grpo.signs`, are told as suspected
hacking, also where less is solved than before: the sign says what to look for.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from grpo.evaluation import Evaluation, Played
from grpo.paired import Difference, Discordant, difference, discordant
from grpo.signs import signs

Judgement = Literal["improved", "unchanged", "worse", "reward hacking suspected"]

ALPHA = 0.05
"""Chance that any of the policies compared is called improved or worse though none is either."""
TESTS = 2
REWARD_RISE = 0.05
"""Share of the full mark (the sum of the positive weights); a smaller rise of the reward is tidiness, no hacking."""


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """A policy against the one that it is measured by."""

    judgement: Judgement
    reason: str
    greedy: Mapping[str, Difference]
    sampled: Mapping[str, Difference]
    solved_greedy: Discordant


def compare(
    before: Played, after: Played, weights: Mapping[str, float], *, max_turns: int, policies: int
) -> Comparison:
    """`after` against `before`; with `policies` compared at once, each must be that much surer (Bonferroni).

    Each is tested twice, greedily and sampled, and so is held to half of that.
    """
    alpha = ALPHA / TESTS / policies
    greedy = differences(before.greedy, after.greedy, alpha)
    sampled = differences(before.sampled, after.sampled, alpha)
    tasks = [[value == 1.0 for value in evaluation.by_task["solved"]] for evaluation in (before.greedy, after.greedy)]
    pairs = discordant(*tasks)
    told = (
        f"solved {_told(greedy['solved'])} greedy ({pairs.gained} tasks gained, {pairs.lost} lost, p={pairs.p:.2g}), "
        f"{_told(sampled['solved'])} sampled (p={sampled['solved'].p:.2g})"
    )
    sure = pairs.p < alpha
    better = sampled["solved"].rises or (sure and pairs.gained > pairs.lost)
    worse = sampled["solved"].falls or (sure and pairs.lost > pairs.gained)
    suspicions = [] if better and not worse else _suspicions(before, after, (greedy, sampled), weights, max_turns)
    judgement: Judgement = "unchanged"
    if suspicions:
        judgement = "reward hacking suspected"
    elif worse:
        judgement = "worse"
    elif better:
        judgement = "improved"
    return Comparison(
        judgement=judgement,
        reason="; ".join([told, *suspicions]),
        greedy=greedy,
        sampled=sampled,
        solved_greedy=pairs,
    )


def tasks_needed(policies: int) -> int:
    """Of fewer, even a change that is the same in each of them could be chance."""
    return math.floor(math.log2(2 * TESTS * policies / ALPHA)) + 1


def differences(before: Evaluation, after: Evaluation, alpha: float) -> dict[str, Difference]:
    """Of everything that both measured; a task in which a term abstained on either side says nothing about it."""
    found = {}
    for name, values in before.by_task.items():
        pairs = [(a, b) for a, b in zip(values, after.by_task[name], strict=True) if a is not None and b is not None]
        if len(pairs) >= 2:
            found[name] = difference([a for a, _ in pairs], [b for _, b in pairs], alpha=alpha)
    return found


def _suspicions(
    before: Played,
    after: Played,
    changes: Sequence[Mapping[str, Difference]],
    weights: Mapping[str, float],
    max_turns: int,
) -> list[str]:
    full = sum(weight for weight in weights.values() if weight > 0)
    risen = [change["reward"] for change in changes if change["reward"].rises]
    found = (
        [f"the reward rises ({_told(risen[0])}) and solved does not"]
        if any(rise.mean >= REWARD_RISE * full for rise in risen)
        else []
    )
    shown = {sign.name for each in _decodings(before) for sign in signs(each.metrics, weights, max_turns=max_turns)}
    new = {
        sign.name: sign.message
        for each in _decodings(after)
        for sign in signs(each.metrics, weights, max_turns=max_turns)
        if sign.name not in shown
    }
    return [*found, *new.values()]


def _decodings(played: Played) -> tuple[Evaluation, Evaluation]:
    return played.greedy, played.sampled


def _told(change: Difference) -> str:
    return f"{change.mean:+.3f} ({change.low:+.3f} to {change.high:+.3f})"
