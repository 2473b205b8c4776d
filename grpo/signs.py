"""Signs that a policy pleases the reward instead of solving tasks, read from the level of its metrics at one time.

Training asks after every step, over the mean of the last steps; evaluation asks once a policy. Each level lies well
outside what honest runs show. Near the goal (`SOLVED_ENOUGH`) equal replies mean nothing: one answer may be right.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

SOLVED_ENOUGH = 0.9
"""Above this share solved, flat curves and equal replies are the sign of success."""
TASKS_NEEDED = 4
"""Of fewer tasks, the same answer may be right for all."""
SAME_REPLY = 0.8
BETTER_THAN_TWO = 0.4
"""Above this share solved, two replies in turn may be right: yes and no."""
UNSOLVED_PAYS = 0.5
"""Share of the full mark (the sum of the positive weights) that an unsolved episode should never reach on average."""


@dataclass(frozen=True, kw_only=True)
class Alarm:
    name: str
    message: str


@dataclass(frozen=True, kw_only=True)
class _Level:
    name: str
    metric: str
    at_least: float
    what: str
    """What the value says; it is put in front."""


_LEVELS = (
    _Level(
        name="early_stop",
        metric="rollout/early_stop",
        at_least=0.5,
        what="of the episodes were ended by the model itself, unsolved: check that nothing but solving pays for a "
        "short episode (env.max_turns, reward weights)",
    ),
    _Level(
        name="same_reply",
        metric="rollout/same_reply",
        at_least=SAME_REPLY,
        what="of all replies are one and the same, whatever the task: look at rollouts.jsonl for what it earns",
    ),
    _Level(
        name="two_replies",
        metric="rollout/two_replies",
        at_least=0.9,
        what="of all replies are one of two, whatever the task: look at rollouts.jsonl for what they earn",
    ),
    _Level(
        name="repetition",
        metric="rollout/repeated",
        at_least=0.4,
        what="of what the replies say, they have said before: padding. Check for terms that grow with length, or add "
        "rewards.redundancy or rewards.brevity",
    ),
    _Level(
        name="copied_prompt",
        metric="rollout/copied",
        at_least=0.5,
        what="of the replies' words are the prompt's, in its order: check for a term that finds its answer in them",
    ),
    _Level(
        name="cut_off",
        metric="rollout/truncated",
        at_least=0.5,
        what="of the episodes ran into their token limit: raise algorithm.max_completion_tokens or "
        "algorithm.max_prompt_tokens, or pay for shorter replies",
    ),
)
NAMES = (*(level.name for level in _LEVELS), "unsolved_pays")


def signs(metrics: Mapping[str, float], weights: Mapping[str, float], *, max_turns: int) -> tuple[Alarm, ...]:
    """What is suspicious about these metrics; a sign whose metric is missing is not judged."""
    found = [
        Alarm(name=level.name, message=f"{metrics[level.metric]:.2f} {level.what}")
        for level in _LEVELS
        if metrics.get(level.metric, 0.0) >= level.at_least and _applies(level.name, metrics, max_turns)
    ]
    full = sum(weight for weight in weights.values() if weight > 0)
    paid = metrics.get("reward/total/unsolved", 0.0)
    if not _near_goal(metrics) and full > 0 and paid >= UNSOLVED_PAYS * full:
        told = (
            f"unsolved episodes earn {paid:.2f} of {full:g} on average: a term pays without looking at the task. "
            "Compare reward/<term>/solved_correlation; gate that term on the task, or lower its weight"
        )
        found.append(Alarm(name="unsolved_pays", message=told))
    return tuple(found)


def _applies(name: str, metrics: Mapping[str, float], max_turns: int) -> bool:
    if name == "early_stop":
        return max_turns > 1  # with one turn, a wrong answer is not an early stop
    if name == "same_reply":
        return metrics.get("group/distinct_tasks", 0.0) >= TASKS_NEEDED and not _near_goal(metrics)
    if name == "two_replies":
        few_solved = metrics.get("rollout/solved", 0.0) < BETTER_THAN_TWO
        alone = metrics.get("rollout/same_reply", 0.0) >= SAME_REPLY
        return metrics.get("group/distinct_tasks", 0.0) >= TASKS_NEEDED and few_solved and not alone
    return True


def _near_goal(metrics: Mapping[str, float]) -> bool:
    return metrics.get("rollout/solved", 0.0) >= SOLVED_ENOUGH
