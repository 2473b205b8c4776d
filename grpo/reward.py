"""The reward of a rollout: named terms, their weights, and which of them count.

Weights are not normalised: 0.2 adds 0.2. A term that abstains is left out of the total, which is the same as a value
of 0; the total of one rollout must not depend on its siblings, because an engine may pay it before they are done.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from grpo.interfaces import Reward
from grpo.types import Score, Transcript

GATE_MET = 1.0
"""A gated term counts where its gate's value is at least this."""


class RewardError(RuntimeError):
    """A reward term is broken: it raised, or gave something else than a finite number or None."""


@dataclass(frozen=True, kw_only=True)
class Mixture:
    """Scores transcripts; the keys of `terms` are the names under which the terms are logged."""

    terms: Mapping[str, Reward]
    weights: Mapping[str, float]
    """One for each term; negative turns a term into a penalty."""
    gate: Mapping[str, str]
    """Term -> the other term that must be met (value 1.0 or more, itself gated or not) for it to count.

    A gate that abstains is not met. The gated term is still measured, whether it counts or not.
    """

    def __post_init__(self) -> None:
        if not self.terms:
            raise ValueError("reward.terms is empty; name at least one term")
        if self.weights.keys() != self.terms.keys():
            raise ValueError(
                f"weights for {sorted(self.weights)}, terms {sorted(self.terms)}: each term wants one weight"
            )
        for name, weight in self.weights.items():
            if not math.isfinite(weight):
                raise ValueError(f"reward.terms.{name}.weight={weight} wants a finite number")
        for gated, by in self.gate.items():
            if gated not in self.terms or by not in self.terms or gated == by:
                raise ValueError(f"reward.gate: {gated}: {by} must name two different terms of {', '.join(self.terms)}")

    def __call__(self, transcript: Transcript, *, where: str) -> Score:
        """Judge `transcript`; `where` names the rollout (step, task, sample) in errors.

        Raises RewardError with the term's name if it raises, or gives anything but a finite number or None.
        """
        values = {name: _judge(term, transcript, name=name, where=where) for name, term in self.terms.items()}
        total = sum(self.parts(values).values())
        if not math.isfinite(total):
            raise RewardError(f"the weighted total is {total} on {where}; terms {values}, weights {dict(self.weights)}")
        return Score(total=total, terms=values)

    def parts(self, values: Mapping[str, float | None]) -> dict[str, float]:
        """What each term that counts adds to the total."""
        return {
            name: self.weights[name] * value
            for name, value in values.items()
            if value is not None and self._counts(name, values)
        }

    def _counts(self, name: str, values: Mapping[str, float | None]) -> bool:
        if name not in self.gate:
            return True
        gate_value = values[self.gate[name]]
        return gate_value is not None and gate_value >= GATE_MET


def _judge(term: Reward, transcript: Transcript, *, name: str, where: str) -> float | None:
    try:
        value = term(transcript)
    except Exception as error:
        raise RewardError(f"reward term {name} raised {type(error).__name__} on {where}: {error}") from error
    if value is None:
        return None
    # bool is an int to Python, but a term that answers yes or no has most likely forgotten its scale.
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise RewardError(
            f"reward term {name} gave {value!r} ({type(value).__name__}) on {where}; "
            "return a plain float, or None to abstain"
        )
    try:
        number = float(value)
    except OverflowError:  # an int beyond what a float holds
        number = math.inf
    if not math.isfinite(number):
        raise RewardError(f"reward term {name} gave {number} on {where}; return a finite number, or None to abstain")
    return number
