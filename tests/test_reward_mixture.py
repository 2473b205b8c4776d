import math
from dataclasses import dataclass
from typing import Any

import pytest
from builders import replies, transcript, turn

from grpo.interfaces import Reward
from grpo.reward import Mixture, RewardError
from grpo.types import Transcript
from rewards.answer_format import AnswerFormat
from rewards.task_success import TaskSuccess

PLAYED = replies("hello")
WHERE = "step 3, task maze/7, sample 2"


@dataclass(frozen=True, kw_only=True)
class Fixed(Reward):
    value: Any

    def __call__(self, transcript: Transcript) -> float | None:
        return self.value


@dataclass(frozen=True, kw_only=True)
class Broken(Reward):
    def __call__(self, transcript: Transcript) -> float | None:
        return 1 / len(transcript.turns[99].reply)


def mixture(gate: dict[str, str] | None = None, **values: Any) -> Mixture:
    """Fixed terms of weight 1."""
    terms = {name: Fixed(value=value) for name, value in values.items()}
    return Mixture(terms=terms, weights=dict.fromkeys(values, 1.0), gate=gate or {})


def test_weights_mean_what_they_say() -> None:
    terms = {"task": Fixed(value=1.0), "format": Fixed(value=0.5)}
    score = Mixture(terms=terms, weights={"task": 2.0, "format": -0.5}, gate={})(PLAYED, where=WHERE)
    assert score.total == 1.75
    assert score.terms == {"task": 1.0, "format": 0.5}


def test_an_abstaining_term_is_left_out_and_reported_as_none() -> None:
    score = mixture(task=1.0, seen=None)(PLAYED, where=WHERE)
    assert score.total == 1.0
    assert score.terms == {"task": 1.0, "seen": None}


def test_a_gated_term_counts_only_where_its_gate_is_met_but_is_always_measured() -> None:
    gate = {"format": "task"}
    assert mixture(gate, task=1.0, format=0.5)(PLAYED, where=WHERE).total == 1.5
    assert mixture(gate, task=0.99, format=0.5)(PLAYED, where=WHERE).total == 0.99
    closed = mixture(gate, task=None, format=0.5)(PLAYED, where=WHERE)
    assert closed.total == 0.0
    assert closed.terms["format"] == 0.5


def test_tags_and_an_immediate_stop_earn_nothing_under_the_strict_gate() -> None:
    strict = Mixture(
        terms={"task_success": TaskSuccess(), "answer_format": AnswerFormat(tags=("action",))},
        weights={"task_success": 1.0, "answer_format": 0.2},
        gate={"answer_format": "task_success"},
    )
    hack = transcript(turn(reply="<action>stop</action>", action="stop", done=True, solved=False))
    honest = transcript(turn(reply="<action>stop</action>", action="stop", done=True, solved=True))
    assert strict(hack, where=WHERE).total == 0.0
    assert strict(honest, where=WHERE).total == 1.2


def test_a_whole_number_is_a_value() -> None:
    assert mixture(task=1)(PLAYED, where=WHERE).total == 1.0


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, "0.5", True, [1.0], 10**400])
def test_anything_else_than_a_finite_number_stops_with_term_and_rollout(value: Any) -> None:
    with pytest.raises(RewardError, match=f"reward term task gave .* on {WHERE}"):
        mixture(good=1.0, task=value)(PLAYED, where=WHERE)


def test_a_term_that_raises_stops_with_its_name_and_keeps_the_cause() -> None:
    broken = Mixture(terms={"task": Broken()}, weights={"task": 1.0}, gate={})
    with pytest.raises(RewardError, match=f"reward term task raised IndexError on {WHERE}") as caught:
        broken(PLAYED, where=WHERE)
    assert isinstance(caught.value.__cause__, IndexError)


def test_a_total_beyond_floats_stops_too() -> None:
    huge = Mixture(terms={"task": Fixed(value=1e308)}, weights={"task": 10.0}, gate={})
    with pytest.raises(RewardError, match="weighted total is inf"):
        huge(PLAYED, where=WHERE)


def test_a_mixture_that_cannot_work_is_refused() -> None:
    one = {"task": Fixed(value=1.0)}
    with pytest.raises(ValueError, match="terms is empty"):
        Mixture(terms={}, weights={}, gate={})
    with pytest.raises(ValueError, match="each term wants one weight"):
        Mixture(terms=one, weights={}, gate={})
    with pytest.raises(ValueError, match=r"reward\.terms\.task\.weight=nan"):
        Mixture(terms=one, weights={"task": math.nan}, gate={})
    with pytest.raises(ValueError, match=r"reward\.gate: task: typo"):
        Mixture(terms=one, weights={"task": 1.0}, gate={"task": "typo"})
    with pytest.raises(ValueError, match="two different terms"):
        Mixture(terms=one, weights={"task": 1.0}, gate={"task": "task"})
