"""Paired statistics on figures worked out by hand."""

import numpy as np
import pytest

from grpo.paired import difference, discordant


def test_mcnemar_looks_only_at_the_tasks_that_one_alone_solved() -> None:
    before = [True] * 50 + [False] * 6 + [False] * 20
    after = [True] * 50 + [True] * 6 + [False] * 20
    found = discordant(before, after)
    # Six of six one way: twice 1/2^6.
    assert (found.gained, found.lost, found.p) == (6, 0, pytest.approx(2 / 64))
    assert discordant(after, before).lost == 6
    assert discordant(before, before).p == 1.0


def test_an_interval_holds_the_mean_and_narrows_with_more_tasks() -> None:
    few = difference([0.0, 1.0] * 10, [1.0, 1.0] * 10, alpha=0.05)
    many = difference([0.0, 1.0] * 100, [1.0, 1.0] * 100, alpha=0.05)
    assert few.mean == many.mean == 0.5
    assert few.low < many.low < 0.5 < many.high < few.high
    assert many.rises and not many.falls


def test_an_interval_is_the_same_every_time_and_wider_for_a_smaller_alpha() -> None:
    before, after = [0.1, 0.5, 0.2, 0.9, 0.4], [0.3, 0.4, 0.8, 0.9, 0.2]
    once = difference(before, after, alpha=0.05)
    assert once == difference(before, after, alpha=0.05)
    assert difference(before, after, alpha=0.001).low < once.low < 0 < once.high


def test_equal_changes_have_no_spread() -> None:
    same = difference([0.5, 0.25], [0.5, 0.25], alpha=0.05)
    assert (same.mean, same.low, same.high) == (0.0, 0.0, 0.0)
    assert not same.rises and not same.falls


@pytest.mark.parametrize(("tasks", "sure"), [(2, False), (5, False), (6, True)])
def test_a_rise_in_every_one_of_a_few_tasks_is_sure_only_once_chance_would_rarely_do_it(tasks: int, sure: bool) -> None:
    """Twice 1/2^n: 0.5 of two tasks, 0.0625 of five, 0.03125 of six. A bootstrap is sure of any."""
    found = difference([0.0] * tasks, [0.125 * (1 + place) for place in range(tasks)], alpha=0.05)
    assert found.low > 0
    assert found.p == pytest.approx(2 / 2**tasks)
    assert found.rises is sure
    assert difference([1.0] * tasks, [0.5] * tasks, alpha=0.05).falls is sure


def test_tasks_that_did_not_change_are_no_evidence() -> None:
    assert difference([0.0] * 50, [1.0] * 5 + [0.0] * 45, alpha=0.05).p == pytest.approx(2 / 2**5)
    assert difference([0.0] * 50, [1.0] + [0.0] * 49, alpha=0.05).p == 1.0


@pytest.mark.parametrize("tasks", [3, 12, 60])
def test_two_equal_policies_are_rarely_told_apart(tasks: int) -> None:
    """At 5 %; the bootstrap alone tells up to 18 % of them apart where tasks are few."""
    rng = np.random.default_rng(0)
    told = 0
    for _ in range(200):
        chances = rng.beta(1.0, 0.6, size=tasks)
        before, after = rng.binomial(8, chances) / 8, rng.binomial(8, chances) / 8
        told += difference(list(before), list(after), alpha=0.05).sure
    assert told <= 16  # of Binomial(200, 0.05), 97 %


def test_one_task_gives_no_interval() -> None:
    with pytest.raises(ValueError, match="two or more"):
        difference([0.0], [1.0], alpha=0.05)
