"""The reward of a rollout: named terms, their weights, and which of them count.

Weights are not normalised: 0.2 adds 0.2. A term that abstains is left out of the total, which is the same as a value
of 0; the total of one rollout must not depend on its siblings, because an engine may pay it before they are done.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from grpo.interfaces import Reward
from grpo.measure import Finding, measure
from grpo.schema import RewardConfig
from grpo.term_workers import TermWorkers
from grpo.types import Score, Transcript

log = logging.getLogger(__name__)

GATE_MET = 1.0
"""A gated term counts where its gate's value is at least this."""


TOLD = 3
"""Failures of a term that are logged one by one in each step."""

HOPELESS = 8
"""A term that fails on all of at least so many rollouts is broken, and stops the run under either policy."""


class RewardError(RuntimeError):
    """A reward term is broken: it failed, or gave something else than a finite number or None."""


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
    on_error: Literal["stop", "abstain"] = "stop"
    """What becomes of a term that raises, hangs or crashes on one rollout."""
    workers: TermWorkers | None = None
    """Where the terms are measured; None: in this process, where a hanging term hangs the run."""

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
        """Judge `transcript`; `where` names the rollout (step, task, sample) in errors. Raises RewardError."""
        (score,) = self.judge([(transcript, where)])
        return score

    def judge(self, played: Sequence[tuple[Transcript, str]]) -> list[Score]:
        """Scores of (transcript, where), in order.

        Raises RewardError with term and rollout for a value that is neither a finite number nor None; also, if
        `on_error` is stop, for a term that raises, hangs or crashes, and in any case for one that never does else.
        """
        transcripts = [transcript for transcript, _ in played]
        if self.workers is None:
            found = [{name: measure(term, each) for name, term in self.terms.items()} for each in transcripts]
        else:
            found = self.workers.measure(transcripts)
        for name in self.terms:
            self._report(name, [(findings[name], where) for findings, (_, where) in zip(found, played, strict=True)])
        return [self._score(findings, where) for findings, (_, where) in zip(found, played, strict=True)]

    def close(self) -> None:
        if self.workers is not None:
            self.workers.close()

    def _report(self, name: str, findings: Sequence[tuple[Finding, str]]) -> None:
        failures = [(finding, where) for finding, where in findings if finding.what]
        for finding, where in failures:
            if finding.wrong or self.on_error == "stop":
                raise RewardError(_told(name, finding, where)) from finding.cause
        for finding, where in failures[:TOLD]:
            log.error("%s; it abstains", _told(name, finding, where), exc_info=finding.cause)
        if len(failures) > TOLD:
            log.error("reward term %s failed on %d more rollouts", name, len(failures) - TOLD)
        if len(failures) == len(findings) >= HOPELESS:
            told = f"reward term {name} failed on all {len(findings)} rollouts; the first: {_told(name, *failures[0])}"
            raise RewardError(told) from failures[0][0].cause

    def _score(self, findings: Mapping[str, Finding], where: str) -> Score:
        values = {name: findings[name].value for name in self.terms}
        total = sum(self.parts(values).values())
        if not math.isfinite(total):
            raise RewardError(f"the weighted total is {total} on {where}; terms {values}, weights {dict(self.weights)}")
        return Score(total=total, terms=values, failed=tuple(name for name in self.terms if findings[name].what))

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


def make_mixture(config: RewardConfig, terms: Mapping[str, Reward]) -> Mixture:
    """The mixture that a run's config asks for, its worker processes started. Close it."""
    workers = None
    if config.workers:
        workers = TermWorkers(terms, count=config.workers, seconds=config.timeout_seconds)
    weights = {name: term.weight for name, term in config.terms.items()}
    return Mixture(terms=terms, weights=weights, gate=config.gate, on_error=config.on_error, workers=workers)


def _told(name: str, finding: Finding, where: str) -> str:
    return f"reward term {name} {finding.what} on {where}{finding.detail}"
