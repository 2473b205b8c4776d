import json
import random
from collections.abc import Callable
from pathlib import Path

import pytest

from grpo.alarms import NAMES, alarm_metrics, alarms, first_step_note, no_signal_share

Curve = Callable[[float], float]
"""From the progress of the run, 0 to 1, to a share."""
WEIGHTS = {"task_success": 1.0, "answer_format": 0.2}
ROLLOUTS = 128


def flat(share: float) -> Curve:
    return lambda _: share


def line(start: float, end: float) -> Curve:
    return lambda progress: start + (end - start) * progress


def run(solved: Curve, form: Curve, *, seed: int = 0, steps: int = 40, **others: float) -> list[dict[str, float]]:
    """Step metrics whose shares are those of 128 simulated rollouts a step."""
    rng = random.Random(seed)

    def share(p: float) -> float:
        return sum(rng.random() < p for _ in range(ROLLOUTS)) / ROLLOUTS

    history = []
    for step in range(steps):
        task, tags = share(solved(step / steps)), share(form(step / steps))
        history.append(
            {
                "rollout/solved": task,
                "rollout/early_stop": 0.2,
                "group/zero_gradient": no_signal_share(task, 8),
                "reward/task_success/mean": task,
                "reward/task_success/std": (task * (1 - task)) ** 0.5,
                "reward/answer_format/mean": tags,
                "reward/answer_format/std": (tags * (1 - tags)) ** 0.5,
                "reward/total/std": 0.4,
            }
            | others
        )
    return history


def names(history: list[dict[str, float]], weights: dict[str, float] = WEIGHTS, **settings: int) -> set[str]:
    raised = alarms(history, weights, **({"group_size": 8, "max_turns": 20} | settings))
    return {alarm.name for alarm in raised}


def ever(history: list[dict[str, float]], weights: dict[str, float] = WEIGHTS) -> set[str]:
    """What a run would have raised after any of its steps."""
    return set[str]().union(*(names(history[: end + 1], weights) for end in range(len(history))))


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize(
    ("solved", "form"),
    [
        (flat(0.4), flat(0.6)),
        (flat(0.4), flat(1.0)),
        (line(0.4, 0.9), line(0.6, 1.0)),
        (line(0.1, 0.6), flat(0.9)),
        (line(0.6, 0.3), flat(0.9)),  # getting worse, but no hack
        (lambda progress: min(0.98, 0.67 + progress), lambda progress: min(1.0, 0.9 + progress)),
        (flat(0.97), line(0.3, 1.0)),  # solved already, getting tidier
    ],
)
def test_flat_and_honest_runs_raise_nothing(solved: Curve, form: Curve, seed: int) -> None:
    assert ever(run(solved, form, seed=seed)) <= ({"no_signal"} if solved(0) < 0.15 else set())


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("solved", [flat(0.3), line(0.3, 0.1), flat(0.0)])
def test_tags_that_rise_while_solved_is_flat_raise_the_alarm(solved: Curve, seed: int) -> None:
    assert "shaping_up_solved_flat" in ever(run(solved, line(0.2, 0.95), seed=seed))


def test_the_shaping_alarm_names_the_term_and_both_rises() -> None:
    history = run(flat(0.3), line(0.2, 0.95), steps=20)
    (alarm,) = alarms(history, WEIGHTS, group_size=8, max_turns=20)
    assert alarm.message.startswith("answer_format (by 0.")
    assert "rollout/solved does not (" in alarm.message
    assert "last 20 steps" in alarm.message


def test_a_penalty_pays_when_it_falls_and_an_unpaid_term_never_does() -> None:
    falling = run(flat(0.3), line(0.95, 0.2))
    assert "shaping_up_solved_flat" in ever(falling, {"task_success": 1.0, "answer_format": -0.2})
    assert "shaping_up_solved_flat" not in ever(falling, WEIGHTS)
    rising = run(flat(0.3), line(0.2, 0.95))
    assert "shaping_up_solved_flat" not in ever(rising, {"task_success": 1.0, "answer_format": 0.0})


@pytest.mark.parametrize("seed", range(8))
def test_a_sudden_rise_of_tags_at_flat_solved_is_told_after_three_steps(seed: int) -> None:
    honest = run(flat(0.3), flat(0.5), seed=seed, steps=20)
    history = honest + run(flat(0.3), flat(0.95), seed=seed + 100, steps=3)
    assert ever(honest) == set()
    assert names(history) == {"shaping_up_solved_flat"}


@pytest.mark.parametrize("seed", range(8))
def test_solved_that_falls_far_and_fast_has_collapsed_and_a_slow_or_small_fall_has_not(seed: int) -> None:
    before = run(flat(0.7), flat(0.9), seed=seed, steps=12)
    assert "collapsed" in names(before + run(flat(0.1), flat(0.9), seed=seed + 100, steps=3))
    assert names(before + run(flat(0.4), flat(0.9), seed=seed + 100, steps=3)) == set()
    assert "collapsed" not in ever(run(line(0.7, 0.3), flat(0.9), seed=seed))


def test_two_replies_in_turn_raise_the_alarm_unless_both_may_be_right() -> None:
    step = {"rollout/two_replies": 1.0, "rollout/same_reply": 0.5, "group/distinct_tasks": 16.0, "rollout/solved": 0.1}
    assert names([step] * 3) == {"two_replies"}
    assert names([step | {"rollout/solved": 0.5}] * 3) == set()  # yes and no
    assert names([step | {"group/distinct_tasks": 2.0}] * 5) == set()
    assert names([step | {"rollout/same_reply": 0.9}] * 3) == {"same_reply"}


def test_levels_of_small_steps_are_judged_by_more_of_them() -> None:
    large, small = ({"rollout/early_stop": 0.6, "group/distinct_tasks": tasks} for tasks in (16.0, 2.0))
    assert [names([large] * steps) for steps in (2, 3)] == [set(), {"early_stop"}]
    assert [names([small] * steps) for steps in (4, 5)] == [set(), {"early_stop"}]


def test_a_few_steps_are_no_trend() -> None:
    assert names(run(flat(0.3), line(0.2, 0.95), steps=9)) == set()


def test_two_terms_that_cancel_are_named() -> None:
    step = {"reward/total/std": 0.0, "reward/x/std": 5.0, "reward/y/std": 2.5, "reward/z/std": 0.0}
    (alarm,) = alarms([step], {"x": 1.0, "y": -2.0, "z": 1.0}, group_size=4, max_turns=20)
    assert alarm.name == "terms_cancel"
    assert alarm.message.startswith("x (std 5, weight 1) and y (std 2.5, weight -2) cancel")


@pytest.mark.parametrize(
    "step",
    [
        {"reward/total/std": 5.0, "reward/x/std": 5.0, "reward/y/std": 2.5},
        {"reward/total/std": 0.0, "reward/x/std": 5.0, "reward/y/std": 0.0},  # x is gated and its gate shut
        {"reward/total/std": 0.0, "reward/x/std": 5.0, "reward/y/std": 1.0},  # y is too small to cancel x
        {"reward/total/std": 0.0, "reward/x/std": 0.0, "reward/y/std": 0.0},
        {},
    ],
)
def test_a_varying_total_or_a_shut_gate_is_no_cancelling(step: dict[str, float]) -> None:
    assert names([step], {"x": 1.0, "y": -2.0}) == set()


def test_share_of_groups_without_signal_at_a_solve_rate_of_18_percent() -> None:
    assert [round(no_signal_share(0.18, size), 2) for size in (2, 4, 8)] == [0.70, 0.45, 0.20]


def test_too_small_groups_raise_no_signal_with_the_sizes_that_would_help() -> None:
    history = [{"rollout/solved": 0.18, "group/zero_gradient": 0.70}] * 5
    (alarm,) = alarms(history, {}, group_size=2, max_turns=20)
    assert alarm.name == "no_signal"
    assert "0.70 of the groups" in alarm.message
    assert "0.70 at 2, 0.45 at 4, 0.20 at 8" in alarm.message


def test_no_signal_is_success_when_nearly_all_is_solved_and_hopeless_when_nothing_is() -> None:
    assert names([{"rollout/solved": 0.97, "group/zero_gradient": 0.8}] * 5) == set()
    (alarm,) = alarms([{"rollout/solved": 0.0, "group/zero_gradient": 1.0}] * 5, {}, group_size=8, max_turns=20)
    assert "nothing is ever solved" in alarm.message


def test_one_dead_step_is_not_enough() -> None:
    assert (
        names(
            [{"rollout/solved": 0.3, "group/zero_gradient": 0.1}] * 4
            + [{"rollout/solved": 0.3, "group/zero_gradient": 1.0}]
        )
        == set()
    )


def test_mostly_stopping_early_raises_the_alarm_where_there_are_turns_to_use() -> None:
    history = [{"rollout/early_stop": 0.6}] * 5
    assert names(history) == {"early_stop"}
    assert names(history, max_turns=1) == set()
    assert names([{"rollout/early_stop": 0.3}] * 5) == set()


def test_without_any_step_nothing_is_raised() -> None:
    assert names([]) == set()


def test_every_alarm_has_a_metric_that_is_1_when_raised() -> None:
    raised = alarms([{"rollout/early_stop": 0.6}] * 5, {}, group_size=8, max_turns=20)
    assert alarm_metrics(raised) == {f"alarm/{name}": float(name == "early_stop") for name in NAMES}


def test_a_first_loss_of_zero_is_explained_beside_the_gradient_norm() -> None:
    note = first_step_note(loss=0.0, grad_norm=0.53)
    assert "loss 0.0000" in note and "ratio 1" in note and "norm 0.53" in note


def test_a_first_step_without_a_gradient_says_that_nothing_was_learned() -> None:
    assert "nothing was learned" in first_step_note(loss=0.0, grad_norm=0.0)


HONEST = json.loads((Path(__file__).parent / "data/honest_runs.json").read_text())
"""Step metrics of five real training runs of the tiny model (rounded): seeds, rewards, algorithms and group sizes."""


@pytest.mark.parametrize("name", HONEST)
def test_no_alarm_is_raised_at_any_step_of_a_recorded_honest_run(name: str) -> None:
    recorded = HONEST[name]
    columns = recorded["metrics"]
    history = [
        {metric: values[step] for metric, values in columns.items() if values[step] is not None} for step in range(60)
    ]
    settings = {"group_size": recorded["group_size"], "max_turns": recorded["max_turns"]}
    raised = {alarm.name for end in range(60) for alarm in alarms(history[: end + 1], recorded["weights"], **settings)}
    assert raised == set()
