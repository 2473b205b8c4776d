"""Terms in processes of their own: what hangs, crashes or lies is named, and everything else is measured as ever."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import configs
import pytest
from builders import image, replies, rollout, transcript, turn
from odd_terms import Obeys, Unsendable

from grpo.config import build_rewards
from grpo.interfaces import Reward
from grpo.metrics import rollout_metrics
from grpo.reward import Mixture, RewardError, make_mixture
from grpo.term_workers import TermWorkers
from grpo.types import Score
from rewards.brevity import Brevity

TERMS: dict[str, Reward] = {"obeys": Obeys(), "short": Brevity(free_tokens=4, max_tokens=40)}


@pytest.fixture(scope="module")
def workers() -> Iterator[TermWorkers]:
    with closing(TermWorkers(TERMS, count=2, seconds=0.5)) as found:
        yield found


def mixture(workers: TermWorkers | None, on_error: Any = "abstain") -> Mixture:
    return Mixture(terms=TERMS, weights=dict.fromkeys(TERMS, 1.0), gate={}, on_error=on_error, workers=workers)


def judged(workers: TermWorkers | None, *words: str, on_error: Any = "abstain") -> list[Score]:
    return mixture(workers, on_error).judge([(replies(word), f"step 3, task {word}, sample 0") for word in words])


@pytest.mark.parametrize(
    ("word", "told"),
    [
        ("hang", "obeys took longer than 0.5 s on step 3, task hang, sample 0"),
        ("exit", "obeys ended its process (exit code 3) on step 3, task exit"),
        ("segfault", "obeys ended its process (signal SIGSEGV) on step 3, task segfault"),
        ("memory", "obeys raised MemoryError on step 3, task memory, sample 0: no room"),
        ("raise", "obeys raised KeyError on step 3, task raise"),
    ],
)
def test_a_term_that_fails_names_itself_and_its_rollout_and_costs_nothing_else(
    workers: TermWorkers, caplog: pytest.LogCaptureFixture, word: str, told: str
) -> None:
    with caplog.at_level(logging.ERROR):
        scores = judged(workers, "fine", word, "none", "fine")
    assert [score.terms["obeys"] for score in scores] == [1.0, None, None, 1.0]
    assert [score.failed for score in scores] == [(), ("obeys",), (), ()]
    assert all(score.terms["short"] == pytest.approx(35 / 36) for score in scores)
    assert f"reward term {told}" in caplog.text
    with pytest.raises(RewardError, match="reward term obeys .* task " + word):
        judged(workers, "fine", word, on_error="stop")


@pytest.mark.parametrize("word", ["nan", "text", "yes"])
@pytest.mark.parametrize("on_error", ["abstain", "stop"])
def test_what_no_term_may_give_stops_the_run_under_either_policy(
    workers: TermWorkers, word: str, on_error: Any
) -> None:
    for where in (workers, None):
        with pytest.raises(RewardError, match=rf"reward term obeys gave .* on step 3, task {word}, sample 0"):
            judged(where, "fine", word, on_error=on_error)


def test_a_term_that_fails_everywhere_is_broken(workers: TermWorkers) -> None:
    for where in (workers, None):
        with pytest.raises(RewardError, match=r"obeys failed on all 8 rollouts; the first: .* raised KeyError"):
            judged(where, *["raise"] * 8)
    assert judged(workers, "fine", *["raise"] * 8)[0].total == pytest.approx(1 + 35 / 36)


def test_a_term_that_hangs_again_and_again_is_given_up_for_the_step(caplog: pytest.LogCaptureFixture) -> None:
    with closing(TermWorkers(TERMS, count=1, seconds=0.1)) as one:
        scores = judged(one, "fine", *["exit"] * 8, "fine")
    assert [score.terms["obeys"] for score in scores] == [1.0, *[None] * 9]
    assert scores[-1].failed == ("obeys",)
    assert [score.terms["short"] for score in scores] == [pytest.approx(35 / 36)] * 10


@pytest.mark.parametrize("count", [1, 2, 3])
def test_values_do_not_depend_on_the_number_of_workers(count: int) -> None:
    (run,) = configs.typed(["reward=maze_shaped"])
    terms = build_rewards(run)
    shown = [(transcript(turn(reply="x" * n, tokens=n, images=(image(),))), str(n)) for n in range(7)]
    here = Mixture(terms=terms, weights=dict.fromkeys(terms, 0.3), gate={})
    with closing(TermWorkers(terms, count=count, seconds=5)) as found:
        there = Mixture(terms=terms, weights=dict.fromkeys(terms, 0.3), gate={}, workers=found)
        assert there.judge(shown) == here.judge(shown)
        assert there.judge([]) == []


def test_the_config_decides_about_processes_time_and_policy() -> None:
    run = configs.run({"reward.workers": 0, "reward.on_error": "stop"})
    with closing(make_mixture(run.reward, build_rewards(run))) as found:
        assert (found.workers, found.on_error) == (None, "stop")
    assert configs.faults({"reward.timeout_seconds": 0}) == ["reward.timeout_seconds: wants a number > 0, got 0"]


def test_a_term_that_cannot_be_sent_is_refused_with_the_way_out() -> None:
    with pytest.raises(ValueError, match=r"reward\.terms\.odd cannot be sent .* or use reward\.workers=0"):
        TermWorkers({"odd": Unsendable()}, count=1, seconds=1)


def test_failures_are_counted_in_the_metrics(workers: TermWorkers) -> None:

    scores = judged(workers, "fine", "raise", "exit")
    rollouts = [rollout(transcript=replies(word)) for word in ("fine", "raise", "exit")]
    metrics = rollout_metrics(rollouts, scores, [0.0] * 3)
    assert metrics["reward/obeys/failed"] == 2.0
    assert metrics["reward/obeys/abstained"] == 2.0
    assert "reward/short/failed" not in metrics
