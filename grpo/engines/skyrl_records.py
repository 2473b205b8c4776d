"""What SkyRL reports of a step, under our names; takes the place of SkyRL's own tracker.

Rewards, turns and groups are worked out from the rollouts by the code of the local engine (`grpo.metrics`), so that a
figure means the same whichever engine it comes from. SkyRL's own averages of them are left out.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from grpo.alarms import alarm_metrics, alarms, first_step_note
from grpo.engines.given import Given
from grpo.metrics import rollout_metrics, variance_shares
from grpo.tracking import rollout_row
from grpo.types import Rollout, Score

log = logging.getLogger(__name__)

NAMES: Mapping[str, str] = {
    "policy/loss": "policy/policy_loss",
    "policy/kl": "policy/policy_kl",
    "policy/entropy": "policy/policy_entropy",
    "policy/clip_fraction": "policy/loss_metrics/clip_ratio",
    "policy/grad_norm": "policy/grad_norm",
    "policy/learning_rate": "policy/policy_lr",
    "policy/logprob_gap": "policy/rollout_train_logprobs_abs_diff_mean",
    "policy/logprob_gap_max": "policy/rollout_train_logprobs_abs_diff_max",
    "perf/step_seconds": "timing/step",
    "perf/rollout_seconds": "timing/generate",
    "perf/logprob_seconds": "timing/fwd_logprobs_values_reward",
    "perf/update_seconds": "timing/policy_train",
    "perf/sync_seconds": "timing/sync_weights",
    "perf/checkpoint_seconds": "timing/save_checkpoints",
    "perf/eval_seconds": "timing/eval",
}
"""Ours and SkyRL's. `logprob_gap`: how far trainer and vLLM differ about the tokens that vLLM sampled."""

NO_UPDATE = {"policy/loss": 0.0, "policy/grad_norm": 0.0}
"""Of a step in which no group carried a signal."""


@dataclass(frozen=True, kw_only=True)
class Step:
    """What was played in a step and how it compared."""

    rollouts: Sequence[Rollout]
    scores: Sequence[Score]
    advantages: Sequence[float]


class Records:
    """Has the methods that SkyRL calls on its tracker."""

    def __init__(
        self,
        given: Given,
        *,
        history: Sequence[Mapping[str, float]],
        gpu_use: Callable[[], Mapping[str, float]],
    ) -> None:
        self._given = given
        self._gpu_use = gpu_use
        self.history = list(history)
        """Metrics of steps 0, 1, …"""
        self.step: Step | None = None
        """Set by the trainer once a step's advantages are known."""
        self.written: Callable[[Mapping[str, float]], None] = lambda metrics: None
        """Called once a step's line is there: only then may its checkpoint count."""

    def log(self, data: Mapping[str, Any], step: int, commit: bool = False) -> None:
        """One step, evaluation included; step 0 is the start policy. A resumed run does not evaluate it again."""
        if step < len(self.history):
            return
        evaluated = {name: value for name, value in data.items() if name.startswith("eval/")}
        played, self.step = self.step, None
        if played is None:
            self.history.append(evaluated)
            self._given.log.step(step, evaluated)
            return
        metrics = self._metrics(played, data, step) | evaluated
        self.history.append(metrics)
        weights = {name: term.weight for name, term in self._given.run.reward.terms.items()}
        raised = alarms(
            self.history[1:],
            weights,
            group_size=self._given.run.algorithm.group_size,
            max_turns=self._given.run.env.max_turns,
        )
        self._given.log.step(step, metrics | alarm_metrics(raised))
        first = played.rollouts[0].transcript.task.id
        group = zip(played.rollouts, played.scores, played.advantages, strict=True)
        self._given.log.rollouts(
            step, [rollout_row(step, *each) for each in group if each[0].transcript.task.id == first]
        )
        self._given.console.step(step, metrics, raised)
        if step == 1:
            log.info(first_step_note(metrics["policy/loss"], metrics["policy/grad_norm"]))
        self.written(metrics)

    def finish(self) -> None:
        """SkyRL's last word; the run closes its trackers itself."""

    def log_exception(self, error: BaseException, step: int | None = None) -> None:
        """The error goes on to whoever called."""

    def _metrics(self, played: Step, data: Mapping[str, Any], step: int) -> dict[str, float]:
        metrics = rollout_metrics(played.rollouts, played.scores, played.advantages)
        metrics |= variance_shares(
            [rollout.transcript for rollout in played.rollouts], played.scores, self._given.mixture
        )
        metrics |= NO_UPDATE | {ours: float(data[theirs]) for ours, theirs in NAMES.items() if theirs in data}
        if not math.isfinite(metrics["policy/loss"] + metrics["policy/grad_norm"]):
            raise RuntimeError(
                f"step {step}: loss {metrics['policy/loss']}, gradient norm {metrics['policy/grad_norm']}; lower "
                f"algorithm.learning_rate ({self._given.run.algorithm.learning_rate})"
            )
        tokens = sum(rollout.transcript.completion_tokens for rollout in played.rollouts)
        metrics["rollout/token_drift"] = float(sum(rollout.drift for rollout in played.rollouts))
        metrics["perf/tokens_per_second"] = tokens / metrics["perf/rollout_seconds"]
        metrics["perf/train_seconds"] = metrics["perf/step_seconds"] - metrics["perf/rollout_seconds"]
        return metrics | dict(self._gpu_use())
