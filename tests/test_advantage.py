import math
import random

import pytest
from builders import rollout, transcript, turn
from hypothesis import given
from hypothesis import strategies as st

from grpo.advantage import comparable_totals, group_advantages, trainable_mask
from grpo.types import Score

ROWS = st.lists(
    st.tuples(st.sampled_from("abc"), st.none() | st.floats(-100, 100, allow_subnormal=False)), min_size=1, max_size=24
)


def test_two_siblings_stand_one_half_over_the_square_root_of_two_apart() -> None:
    # Sample spread of 0 and 1: sqrt(0.25 + 0.25) = 0.7071.
    assert group_advantages(["a", "a"], [0.0, 1.0], "std") == pytest.approx([-0.70711, 0.70711], abs=1e-5)


def test_one_of_four_solved() -> None:
    # Mean 0.25; sample spread sqrt((3 * 0.0625 + 0.5625) / 3) = 0.5.
    assert group_advantages(["a"] * 4, [1.0, 0.0, 0.0, 0.0], "std") == pytest.approx([1.5, -0.5, -0.5, -0.5], abs=1e-5)
    assert group_advantages(["a"] * 4, [1.0, 0.0, 0.0, 0.0], "none") == [0.75, -0.25, -0.25, -0.25]


def test_each_group_is_normalised_by_itself() -> None:
    advantages = group_advantages(["a", "a", "b", "b"], [0.0, 1.0, 10.0, 11.0], "std")
    assert advantages[:2] == advantages[2:]


def test_groups_are_told_apart_by_task_id_and_not_by_position() -> None:
    # a holds 0 and 1, b holds 5 and 9, interleaved.
    assert group_advantages(["a", "b", "a", "b"], [0.0, 5.0, 1.0, 9.0], "none") == [-0.5, -2.0, 0.5, 2.0]


def test_a_group_solved_by_all_and_one_solved_by_none_give_nothing() -> None:
    assert group_advantages(["a"] * 4 + ["b"] * 4, [0.0] * 4 + [1.0] * 4, "std") == [0.0] * 8


@pytest.mark.parametrize("scale", ["std", "none"])
@pytest.mark.parametrize(
    "totals", [[0.1 + 0.2, 0.3, 0.3], [1e6 + 1e-6, 1e6], [0.7], [0.0, 0.0], [None, 1.0], [None, None], []]
)
def test_no_real_difference_gives_exactly_zero(scale, totals) -> None:
    assert group_advantages(["a"] * len(totals), totals, scale) == [0.0] * len(totals)


def test_parts_that_cancel_give_exactly_zero() -> None:
    totals = [0.2 * x - 0.2 * x for x in (5.0, -3.0, 0.1, 0.0)]
    assert group_advantages(["a"] * 4, totals, "std") == [0.0] * 4


def test_a_rollout_left_out_enters_neither_mean_nor_spread() -> None:
    # The mean of 1, 0 and 1 is 2/3, whatever the rollout that is left out.
    advantages = group_advantages(["a"] * 4, [1.0, None, 0.0, 1.0], "none")
    assert advantages == pytest.approx([1 / 3, 0.0, -2 / 3, 1 / 3])
    assert advantages[1] == 0.0


def test_a_total_that_is_not_finite_is_refused_with_its_task() -> None:
    with pytest.raises(ValueError, match="task a: total nan"):
        group_advantages(["a", "a"], [math.nan, 1.0], "std")


def test_ids_and_totals_must_pair() -> None:
    with pytest.raises(ValueError):
        group_advantages(["a"], [1.0, 2.0], "std")


@given(ROWS, st.sampled_from(["std", "none"]), st.randoms(use_true_random=False))
def test_order_never_matters(rows, scale, rng: random.Random) -> None:
    order = list(range(len(rows)))
    rng.shuffle(order)
    straight = group_advantages([row[0] for row in rows], [row[1] for row in rows], scale)
    shuffled = group_advantages([rows[i][0] for i in order], [rows[i][1] for i in order], scale)
    assert shuffled == [straight[i] for i in order]


@given(ROWS, st.sampled_from(["std", "none"]))
def test_advantages_of_a_group_are_finite_and_sum_to_zero(rows, scale) -> None:
    advantages = group_advantages([row[0] for row in rows], [row[1] for row in rows], scale)
    for task_id in "abc":
        members = [advantage for row, advantage in zip(rows, advantages, strict=True) if row[0] == task_id]
        assert all(map(math.isfinite, members))
        assert math.fsum(members) == pytest.approx(0.0, abs=1e-6)


@given(st.lists(st.floats(0, 1, allow_subnormal=False), min_size=2, max_size=8))
def test_better_totals_never_get_smaller_advantages(totals: list[float]) -> None:
    advantages = group_advantages(["a"] * len(totals), totals, "std")
    by_total = [advantage for _, advantage in sorted(zip(totals, advantages, strict=True))]
    assert by_total == sorted(by_total)


def test_errors_and_rollouts_without_any_judgement_are_not_compared() -> None:
    transcripts = [transcript(turn()), transcript(turn(), stop="error", error="boom"), transcript(turn())]
    scores = [
        Score(total=0.0, terms={"task": None}),
        Score(total=1.0, terms={"task": 1.0}),
        Score(total=0.5, terms={"task": 0.5, "seen": None}),
    ]
    assert comparable_totals(transcripts, scores) == [None, None, 0.5]


def test_truncated_rollouts_leave_the_update_only_under_the_rule_mask() -> None:
    whole, cut = rollout(transcript=transcript(turn())), rollout(transcript=transcript(turn(tokens=90, truncated=True)))
    assert trainable_mask(cut, "keep").tolist() == [False, False, True, True]
    assert trainable_mask(cut, "mask").tolist() == [False] * 4
    assert trainable_mask(whole, "mask").tolist() == [False, False, True, True]
    assert cut.transcript.completion_tokens == 90


def test_a_rollout_in_error_is_never_trained_on() -> None:
    failed = rollout(transcript=transcript(turn(), stop="error", error="boom"))
    assert trainable_mask(failed, "keep").tolist() == [False] * 4
