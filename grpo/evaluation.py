"""What one policy did on held-out tasks, and the figures that follow from it; who played does not matter here."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from grpo.metrics import pass_at_k, rollout_metrics, wilson
from grpo.reward import Mixture
from grpo.types import Rollout, Score


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """One policy with one way of decoding: `siblings` rollouts of each task, those of a task side by side."""

    rollouts: tuple[Rollout, ...]
    scores: tuple[Score, ...]
    siblings: int

    @cached_property
    def metrics(self) -> dict[str, float]:
        """Under the names of training (`rollout/…`, `reward/…`)."""
        return rollout_metrics(self.rollouts, self.scores, [0.0] * len(self.rollouts))

    @property
    def solved(self) -> float:
        return self.metrics["rollout/solved"]

    @property
    def interval(self) -> tuple[float, float]:
        """95 % Wilson interval of `solved`, for one rollout a task: siblings are no independent evidence."""
        return wilson(sum(rollout.transcript.solved for rollout in self.rollouts), len(self.rollouts))

    @cached_property
    def by_task(self) -> dict[str, list[float | None]]:
        """One mean a task of solved, reward, every term, turns, tokens and invalid actions; None: it abstained."""
        played = [rollout.transcript for rollout in self.rollouts]
        columns: dict[str, Sequence[float | None]] = {
            "solved": [float(transcript.solved) for transcript in played],
            "reward": [score.total for score in self.scores],
            **{term: [score.terms[term] for score in self.scores] for term in self.scores[0].terms},
            "turns": [float(len(transcript.turns)) for transcript in played],
            "completion_tokens": [float(transcript.completion_tokens) for transcript in played],
            "invalid_actions": [float(transcript.invalid_actions) for transcript in played],
        }
        return {name: _means(values, self.siblings) for name, values in columns.items()}

    def pass_at(self, k: int) -> float:
        """Mean over the tasks of pass@k."""
        solved = [rollout.transcript.solved for rollout in self.rollouts]
        groups = [sum(solved[first : first + self.siblings]) for first in range(0, len(solved), self.siblings)]
        return sum(pass_at_k(count, self.siblings, k) for count in groups) / len(groups)


@dataclass(frozen=True, kw_only=True)
class Played:
    """One policy on the held-out tasks, in the order in which every other policy met them."""

    greedy: Evaluation
    sampled: Evaluation

    @property
    def never_varies(self) -> bool:
        """Each sampled episode says what the greedy one of its task says, word for word."""
        said = [_replies(rollout) for rollout in self.greedy.rollouts for _ in range(self.sampled.siblings)]
        return said == [_replies(rollout) for rollout in self.sampled.rollouts]

    @property
    def says_nothing(self) -> bool:
        played = (*self.greedy.rollouts, *self.sampled.rollouts)
        return not any(reply.strip() for rollout in played for reply in _replies(rollout)) and not self.errors

    @property
    def episodes(self) -> int:
        return len(self.greedy.rollouts) + len(self.sampled.rollouts)

    @property
    def errors(self) -> list[str]:
        """Of the episodes that could not be played to their end."""
        played = (*self.greedy.rollouts, *self.sampled.rollouts)
        return [rollout.transcript.error for rollout in played if rollout.transcript.error is not None]


def _replies(rollout: Rollout) -> list[str]:
    return [turn.reply for turn in rollout.transcript.turns]


def judged(rollouts: Sequence[Rollout], mixture: Mixture, *, siblings: int, purpose: str) -> Evaluation:
    """`rollouts` with their scores; `purpose` names the evaluation in errors."""
    scores = mixture.judge([(r.transcript, f"{purpose}, task {r.transcript.task.id}") for r in rollouts])
    return Evaluation(rollouts=tuple(rollouts), scores=tuple(scores), siblings=siblings)


def _means(values: Sequence[float | None], siblings: int) -> list[float | None]:
    groups = [values[first : first + siblings] for first in range(0, len(values), siblings)]
    stated = [[value for value in group if value is not None] for group in groups]
    return [sum(group) / len(group) if group else None for group in stated]
