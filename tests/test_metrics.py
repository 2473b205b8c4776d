from itertools import combinations

import pytest
from builders import rollout, task, transcript, turn
from hypothesis import given
from hypothesis import strategies as st

from grpo.interfaces import Reward
from grpo.metrics import pass_at_k, rollout_metrics, variance_shares, wilson
from grpo.reward import Mixture
from grpo.types import Rollout, Score, StopReason, Transcript, Turn


def played(task_id: str, *turns: Turn, stop: StopReason = "finished", error: str | None = None) -> Rollout:
    return rollout(transcript=transcript(*turns, task=task(id=task_id), stop=stop, error=error))


def score(total: float, **terms: float | None) -> Score:
    return Score(total=total, terms=terms)


SOLVED = turn(tokens=4, done=True, solved=True)
STOPPED = turn(tokens=6, done=True, solved=False)
LOST = turn(tokens=10, action=None)


def test_a_step_by_hand() -> None:
    rollouts = [
        played("a", turn(tokens=2), SOLVED),
        played("a", STOPPED),
        played("b", LOST, LOST, turn(tokens=12, truncated=True), stop="turn_limit"),
        played("b", stop="error", error="boom"),
    ]
    scores = [
        score(1.2, task=1.0, seen=0.5),
        score(0.0, task=0.0, seen=None),
        score(0.0, task=0.0, seen=None),
        score(9.0, task=9.0, seen=9.0),
    ]
    assert rollout_metrics(rollouts, scores, [0.7, -0.7, 0.0, 0.0]) == pytest.approx(
        {
            # 1.2, 0 and 0 were compared: mean 0.4, spread sqrt((0.64 + 0.16 + 0.16) / 3).
            "reward/total/mean": 0.4,
            "reward/total/std": 0.565685,
            "reward/total/unsolved": 0.0,
            "reward/task/mean": 1 / 3,
            "reward/task/std": 0.471405,
            "reward/task/abstained": 0.0,
            "reward/task/solved_correlation": 1.0,
            "reward/seen/mean": 0.5,
            "reward/seen/std": 0.0,
            "reward/seen/abstained": 2.0,
            "rollout/solved": 0.25,
            "rollout/turns": 1.5,
            "rollout/completion_tokens": (6 + 6 + 32) / 4,
            "rollout/invalid_actions": 0.5,
            "rollout/truncated": 0.25,
            "rollout/errors": 0.25,
            "rollout/early_stop": 0.25,
            "rollout/reply_tokens": 44 / 6,
            "rollout/same_reply": 4 / 6,  # four of the six replies were understood as `right`
            "rollout/two_replies": 6 / 6,  # the two others hold no action and the same text
            "rollout/repeated": 0.0,
            "rollout/copied": 0.0,
            "group/zero_gradient": 0.5,
            "group/distinct_tasks": 2.0,
        },
        abs=1e-6,
    )


class Never(Reward):
    def __call__(self, transcript: Transcript) -> None:
        return None


def test_variance_shares_by_hand_add_up_to_one_and_know_the_gate() -> None:
    mixture = Mixture(
        terms={"task": Never(), "form": Never()}, weights={"task": 1.0, "form": 0.5}, gate={"form": "task"}
    )
    scores = [score(1.5, task=1.0, form=1.0), score(1.0, task=1.0, form=0.0), score(0.0, task=0.0, form=1.0)]
    # Parts: task 1, 1, 0; form 0.5, 0 and (its gate is shut) 0. Against the totals 1.5, 1, 0 (mean 5/6):
    # cov(task) = 5/6 - 2/3 * 5/6 = 5/18; cov(form) = 1/4 - 1/6 * 5/6 = 1/9; their sum is the variance.
    shares = variance_shares([transcript(SOLVED)] * 3, scores, mixture)
    assert shares == pytest.approx({"reward/task/variance_share": 5 / 7, "reward/form/variance_share": 2 / 7})
    assert variance_shares([transcript(SOLVED)] * 3, [scores[0]] * 3, mixture) == {}


def test_a_term_that_always_abstained_has_a_count_and_no_mean() -> None:
    metrics = rollout_metrics([played("a", SOLVED)], [score(1.0, task=1.0, seen=None)], [0.0])
    assert metrics["reward/seen/abstained"] == 1.0
    assert "reward/seen/mean" not in metrics


def test_a_step_of_errors_alone_counts_them_and_invents_no_reward() -> None:
    metrics = rollout_metrics([played("a", stop="error", error="boom")], [score(0.0, task=0.0)], [0.0])
    assert metrics["rollout/errors"] == 1.0
    assert "reward/total/mean" not in metrics


def test_equal_rewards_have_no_spread_at_all() -> None:
    metrics = rollout_metrics([played("a", SOLVED)] * 3, [score(0.1, task=0.1)] * 3, [0.0] * 3)
    assert metrics["reward/total/std"] == 0.0


def test_groups_are_counted_by_task_wherever_their_rollouts_stand() -> None:
    rollouts = [played(task_id, SOLVED) for task_id in ("a", "b", "c", "a", "b", "c")]
    metrics = rollout_metrics(rollouts, [score(1.0, task=1.0)] * 6, [0.0, 0.5, 0.0, 0.0, -0.5, 0.0])
    assert metrics["group/zero_gradient"] == pytest.approx(2 / 3)
    assert metrics["group/distinct_tasks"] == 3.0


def test_solving_or_running_out_of_turns_is_no_early_stop() -> None:
    def early(transcript: Transcript) -> float:
        return rollout_metrics([rollout(transcript=transcript)], [score(0.0)], [0.0])["rollout/early_stop"]

    assert early(transcript(STOPPED)) == 1.0
    assert early(transcript(SOLVED)) == 0.0
    assert early(transcript(turn(), stop="turn_limit")) == 0.0
    assert early(transcript(turn(), stop="token_limit")) == 0.0


def test_a_step_without_rollouts_is_refused() -> None:
    with pytest.raises(ValueError, match="prompts_per_step"):
        rollout_metrics([], [], [])


def test_lists_that_do_not_pair_are_refused() -> None:
    with pytest.raises(ValueError):
        rollout_metrics([played("a", SOLVED)], [score(0.0)], [0.0, 0.0])


@pytest.mark.parametrize(
    ("successes", "n", "low", "high"),
    [(0, 0, 0.0, 1.0), (0, 10, 0.0, 0.2775), (5, 10, 0.2366, 0.7634), (10, 10, 0.7225, 1.0), (61, 64, 0.8710, 0.9839)],
)
def test_wilson_against_published_and_hand_worked_values(successes, n, low, high) -> None:
    assert wilson(successes, n) == pytest.approx((low, high), abs=1e-4)


@given(st.integers(1, 10_000).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))))
def test_a_wilson_interval_holds_its_share_and_stays_between_0_and_1(drawn: tuple[int, int]) -> None:
    successes, n = drawn
    low, high = wilson(successes, n)
    assert 0.0 <= low <= successes / n <= high <= 1.0


def test_wilson_refuses_more_successes_than_trials() -> None:
    with pytest.raises(ValueError, match="successes=5 must lie between 0 and n=4"):
        wilson(5, 4)


def test_pass_at_k_by_hand() -> None:
    # 4 samples, 1 solved: of the 6 pairs, 3 hold it.
    assert pass_at_k(1, 4, 1) == 0.25
    assert pass_at_k(1, 4, 2) == 0.5
    assert pass_at_k(1, 4, 4) == 1.0
    assert pass_at_k(0, 4, 4) == 0.0
    assert pass_at_k(3, 4, 2) == 1.0  # two of four always hold one of the three


@pytest.mark.parametrize(("solved", "samples", "k"), [(1, 4, 5), (1, 4, 0), (5, 4, 1), (-1, 4, 1)])
def test_pass_at_k_refuses_what_was_not_sampled(solved: int, samples: int, k: int) -> None:
    with pytest.raises(ValueError, match="wants k of 1 to 4"):
        pass_at_k(solved, samples, k)


@given(st.integers(1, 7), st.data())
def test_pass_at_k_is_the_share_of_the_k_subsets_that_hold_a_solved_one(samples: int, data: st.DataObject) -> None:
    solved, k = data.draw(st.integers(0, samples)), data.draw(st.integers(1, samples))
    subsets = list(combinations(range(samples), k))
    with_a_solved_one = sum(min(subset) < solved for subset in subsets)
    assert pass_at_k(solved, samples, k) == pytest.approx(with_a_solved_one / len(subsets))
