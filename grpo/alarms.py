"""Alarms over the step metrics: a run that looks well and is not, or that cannot learn.

An alarm must be worth reading, so each wants evidence over several steps and a margin well outside the noise: a sudden
change is told after three steps, a slow one by its trend, and late. Near the goal (`SOLVED_ENOUGH`) a flat *solved* is
no fault.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from grpo import signs
from grpo.signs import SOLVED_ENOUGH, Alarm

History = Sequence[Mapping[str, float]]
"""The metrics of the steps so far, oldest first."""

NAMES = ("shaping_up_solved_flat", "longer_solved_flat", "collapsed", "terms_cancel", "no_signal", *signs.NAMES)

TREND_STEPS = 20
TREND_STEPS_NEEDED = 10
RECENT_STEPS = 5
JUMP_STEPS = 3
"""A sudden change is judged by the last of so many steps …"""
JUMP_STEPS_BEFORE = 8
"""… against at least so many before them, at most `TREND_STEPS`."""
JUMP_ERRORS = 6.0
MANY_EPISODES = 48
"""A step; `JUMP_STEPS` of them then show a level as well as `RECENT_STEPS` of fewer."""
COLLAPSED_SHARE = 0.4
"""Solved has collapsed if it is below this share of what it was."""
MOSTLY_SOLVED = 0.75
"""Above this share solved, most groups without signal are those that are always solved."""
RISE_NEEDED = 0.1
"""A term that pays rises if its mean improves by this much over the window (terms lie between 0 and 1) …"""
RISE_ERRORS = 5.0
"""… and by this many standard errors: the curve is looked at after every step, so 2 would often be chance."""
FLAT_SHARE = 0.25
"""Solved is flat if its rise plus one standard error is less than this share of the term's rise."""
HIGH_SHARE = 0.5
LONGER = 1.5
"""Times the tokens of a reply in the first steps."""
CANCELLED = 0.01
"""The total varies by less than this share of its largest part: the parts cancel."""


@dataclass(frozen=True, kw_only=True)
class _Change:
    """Of a metric: along a least-squares line through its last values, or from those before to the last few."""

    rise: float
    error: float
    """Standard error of `rise`, from the scatter around the line or before the jump."""


def alarms(history: History, weights: Mapping[str, float], *, group_size: int, max_turns: int) -> tuple[Alarm, ...]:
    """The alarms to raise after the last step of `history`; `weights` are those of the reward terms.

    An alarm is not judged while the metrics it needs are missing from its window.
    """
    found = (
        _shaping_up_solved_flat(history, weights),
        _longer_solved_flat(history),
        _collapsed(history),
        _terms_cancel(history, weights),
        _no_signal(history, group_size),
    )
    lasting = _lasting_signs(history, weights, group_size, max_turns)
    return (*(alarm for alarm in found if alarm is not None), *lasting)


def alarm_metrics(raised: Sequence[Alarm]) -> dict[str, float]:
    """`alarm/<name>` for every alarm there is: 1.0 if raised, else 0.0."""
    names = {alarm.name for alarm in raised}
    return {f"alarm/{name}": float(name in names) for name in NAMES}


def first_step_note(loss: float, grad_norm: float) -> str:
    """The log line that explains the loss of the first step."""
    if grad_norm == 0:
        return (
            f"first step: loss {loss:.4f} and gradient norm 0: no group has a difference between its rollouts, "
            "so nothing was learned"
        )
    return (
        f"first step: loss {loss:.4f} is as it should be: the policy is still the one that sampled (ratio 1) and "
        f"advantages are centred in each group, so the value cancels but its gradient does not (norm {grad_norm:.4g})"
    )


def no_signal_share(solve_rate: float, group_size: int) -> float:
    """Chance that all members of a group are solved or none is, if each is solved with `solve_rate`."""
    return (1 - solve_rate) ** group_size + solve_rate**group_size


def _shaping_up_solved_flat(history: History, weights: Mapping[str, float]) -> Alarm | None:
    slow = (TREND_STEPS, TREND_STEPS_NEEDED, _trend, RISE_ERRORS)
    sudden = (TREND_STEPS + JUMP_STEPS, JUMP_STEPS_BEFORE + JUMP_STEPS, _jump, JUMP_ERRORS)
    for at_most, at_least, change_of, errors in (sudden, slow):
        solved = _series(history, "rollout/solved", at_most, at_least)
        if solved is None or _mean(solved[-at_least:]) >= SOLVED_ENOUGH:
            continue
        solved_change = change_of(solved)
        rising: list[str] = []
        # The task term needs no exception: it cannot rise while solved is flat.
        for name, weight in weights.items():
            values = _series(history, f"reward/{name}/mean", at_most, at_least)
            if values is None or weight == 0:
                continue
            change = change_of([math.copysign(1.0, weight) * value for value in values])
            rises = change.rise >= RISE_NEEDED and change.rise > errors * change.error
            if rises and solved_change.rise + solved_change.error < FLAT_SHARE * change.rise:
                rising.append(f"{name} (by {change.rise:.2f})")
        if rising:
            return Alarm(
                name="shaping_up_solved_flat",
                message=f"{', '.join(rising)} improves while rollout/solved does not ({solved_change.rise:+.2f}) over "
                f"the last {len(solved)} steps: the policy may be learning the reward and not the task. Look at "
                "rollouts.jsonl; gate the term on the task, or lower its weight",
            )
    return None


def _collapsed(history: History) -> Alarm | None:
    """Solved has fallen far and fast: what had been learned is lost."""
    solved = _series(history, "rollout/solved", TREND_STEPS + JUMP_STEPS, JUMP_STEPS_BEFORE + JUMP_STEPS)
    if solved is None:
        return None
    change, now = _jump(solved), _mean(solved[-JUMP_STEPS:])
    if -change.rise <= JUMP_ERRORS * change.error or now > COLLAPSED_SHARE * (now - change.rise):
        return None
    return Alarm(
        name="collapsed",
        message=f"rollout/solved is {now:.2f} over the last {JUMP_STEPS} steps and was {now - change.rise:.2f} in the "
        f"{len(solved) - JUMP_STEPS} before: what was learned is being lost. Look at rollouts.jsonl; go back to a "
        "checkpoint with a lower algorithm.learning_rate or a higher algorithm.kl_coefficient",
    )


def _terms_cancel(history: History, weights: Mapping[str, float]) -> Alarm | None:
    now = history[-1] if history else {}
    stds = {name: now[f"reward/{name}/std"] for name in weights if f"reward/{name}/std" in now}
    parts = {name: abs(weights[name]) * std for name, std in stds.items() if weights[name] != 0 and std > 0}
    varying = sorted(parts, key=lambda name: -parts[name])
    if len(varying) < 2 or "reward/total/std" not in now:
        return None
    first, second = varying[:2]
    # A part larger than all others together cannot be cancelled by them: then it was gated away.
    could_cancel = parts[first] <= (1 + CANCELLED) * sum(parts[name] for name in varying[1:])
    if not could_cancel or now["reward/total/std"] > CANCELLED * parts[first]:
        return None
    return Alarm(
        name="terms_cancel",
        message=f"{first} (std {stds[first]:.3g}, weight {weights[first]:g}) and {second} (std {stds[second]:.3g}, "
        f"weight {weights[second]:g}) cancel: the total does not vary (std {now['reward/total/std']:.3g}), so nothing "
        "is learned. Change the weight of one of them",
    )


def _no_signal(history: History, group_size: int) -> Alarm | None:
    dead = _series(history, "group/zero_gradient", RECENT_STEPS, RECENT_STEPS)
    solved = _series(history, "rollout/solved", RECENT_STEPS, RECENT_STEPS)
    if dead is None or solved is None or _mean(dead) < HIGH_SHARE or _mean(solved) >= MOSTLY_SOLVED:
        return None
    rate = _mean(solved)
    sizes = (group_size, 2 * group_size, 4 * group_size)
    expected = ", ".join(f"{no_signal_share(rate, size):.2f} at {size}" for size in sizes)
    advice = (
        "nothing is ever solved: start from easier tasks or a better policy"
        if rate == 0
        else f"were all tasks alike, {expected} would be expected: raise algorithm.group_size. If the figure for "
        f"{group_size} is already far lower, tasks are either too easy or too hard, and their mix matters more"
    )
    return Alarm(
        name="no_signal",
        message=f"{_mean(dead):.2f} of the groups carried no gradient over the last {RECENT_STEPS} steps "
        f"(solve rate {rate:.2f}, algorithm.group_size={group_size}); {advice}",
    )


def _lasting_signs(
    history: History, weights: Mapping[str, float], group_size: int, max_turns: int
) -> tuple[Alarm, ...]:
    """The signs of `grpo.signs` that the mean over the last steps shows: of more steps where these are small."""
    now = history[-1] if history else {}
    many = now.get("group/distinct_tasks", 0.0) * group_size >= MANY_EPISODES
    steps = JUMP_STEPS if many else RECENT_STEPS
    names = {name for metrics in history[-steps:] for name in metrics}
    series = {name: _series(history, name, steps, steps) for name in names}
    means = {name: _mean(values) for name, values in series.items() if values is not None}
    return signs.signs(means, weights, max_turns=max_turns)


def _longer_solved_flat(history: History) -> Alarm | None:
    """Replies that are much longer than in the first steps, while no more is solved."""
    if len(history) < 2 * RECENT_STEPS:
        return None
    tokens_then, tokens_now, solved_then, solved_now = (
        _series(part, key, RECENT_STEPS, RECENT_STEPS)
        for key in ("rollout/reply_tokens", "rollout/solved")
        for part in (history[:RECENT_STEPS], history)
    )
    if tokens_then is None or tokens_now is None or solved_then is None or solved_now is None:
        return None
    rise = _mean(solved_now) - _mean(solved_then)
    longer = _mean(tokens_now) >= LONGER * _mean(tokens_then)
    if not longer or rise >= RISE_NEEDED:
        return None
    return Alarm(
        name="longer_solved_flat",
        message=f"a reply takes {_mean(tokens_now):.0f} tokens, {_mean(tokens_then):.0f} in the first {RECENT_STEPS} "
        f"steps, while rollout/solved went from {_mean(solved_then):.2f} to {_mean(solved_now):.2f}: padding may pay. "
        "Look at rollouts.jsonl; "
        "check for terms that grow with length, or add rewards.brevity",
    )


def _series(history: History, key: str, at_most: int, at_least: int) -> list[float] | None:
    """The last `at_most` values of `key`; None if there are fewer than `at_least` steps, or one lacks it."""
    window = history[-at_most:]
    if len(window) < at_least or any(key not in metrics for metrics in window):
        return None
    return [metrics[key] for metrics in window]


def _trend(values: Sequence[float]) -> _Change:
    """From the first to the last step of the window."""
    n = len(values)
    centred_steps = [step - (n - 1) / 2 for step in range(n)]
    mean = _mean(values)
    steps_squared = sum(step * step for step in centred_steps)
    slope = sum(step * (value - mean) for step, value in zip(centred_steps, values, strict=True)) / steps_squared
    scatter = sum((value - mean - slope * step) ** 2 for step, value in zip(centred_steps, values, strict=True)) / (
        n - 2
    )
    return _Change(rise=slope * (n - 1), error=math.sqrt(scatter / steps_squared) * (n - 1))


def _jump(values: Sequence[float]) -> _Change:
    """To the mean of the last `JUMP_STEPS` from that of those before."""
    before, now = values[:-JUMP_STEPS], values[-JUMP_STEPS:]
    mean = _mean(before)
    scatter = sum((value - mean) ** 2 for value in before) / (len(before) - 1)
    return _Change(rise=_mean(now) - mean, error=math.sqrt(scatter * (1 / len(before) + 1 / len(now))))


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
