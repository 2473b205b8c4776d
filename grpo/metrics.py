"""Step metrics that follow from the rollouts of a step, their scores and their advantages.

Every `rollout/…` figure is over all rollouts, those that ended in an error included, as unsolved: a crashing env must
not flatter the model. `reward/…` figures are over those that were compared, since the others have no meaningful score.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence

from grpo.advantage import comparable_totals
from grpo.behaviour import behaviour_metrics
from grpo.reward import Mixture
from grpo.types import Rollout, Score, Transcript

_Z_95 = 1.959963984540054


def rollout_metrics(
    rollouts: Sequence[Rollout], scores: Sequence[Score], advantages: Sequence[float]
) -> dict[str, float]:
    """`reward/…`, `rollout/…` and `group/…` of one step.

    - reward/total/{mean,std}, reward/<term>/{mean,std}: population spread; a term's are over the rollouts in which it
      did not abstain, and left out if it always did. reward/<term>/abstained: how many rollouts it abstained in.
      reward/<term>/failed: in how many it raised, hung or crashed; only where it did.
    - reward/<term>/solved_correlation: Pearson's, with solved; left out where one of the two does not vary.
    - reward/total/unsolved: mean total of the unsolved rollouts; left out if there are none.
    - rollout/{solved,truncated,errors,early_stop}: shares. Early stop: the model ended the episode itself, unsolved.
    - rollout/{turns,completion_tokens,invalid_actions}: means per rollout. What the replies look like: grpo.behaviour.
    - group/zero_gradient: share of the tasks whose advantages are all 0. group/distinct_tasks: how many tasks.

    Raises ValueError for no rollouts, and where the three sequences differ in length.
    """
    if not rollouts:
        raise ValueError("a step without rollouts has no metrics; check algorithm.prompts_per_step")
    transcripts = [rollout.transcript for rollout in rollouts]
    return (
        _reward_metrics(transcripts, scores)
        | _transcript_metrics(transcripts)
        | behaviour_metrics(transcripts)
        | _group_metrics([transcript.task.id for transcript in transcripts], advantages)
    )


def variance_shares(transcripts: Sequence[Transcript], scores: Sequence[Score], mixture: Mixture) -> dict[str, float]:
    """reward/<term>/variance_share: this term's part in the total's variance, cov(part, total) / var(total).

    The shares add up to 1; one below 0 works against the others. Nothing where the total does not vary.
    """
    judged = [score for transcript, score in zip(transcripts, scores, strict=True) if transcript.stop != "error"]
    totals = [score.total for score in judged]
    if not totals or (variance := _covariance(totals, totals)) == 0:
        return {}
    parts = [mixture.parts(score.terms) for score in judged]
    return {
        f"reward/{name}/variance_share": _covariance([part.get(name, 0.0) for part in parts], totals) / variance
        for name in mixture.terms
    }


def pass_at_k(solved: int, samples: int, k: int) -> float:
    """Chance that at least one of k replies solves, from `solved` of `samples`; unbiased (arXiv 2107.03374, eq. 1).

    Raises ValueError unless 0 <= solved <= samples and 1 <= k <= samples.
    """
    if not (0 <= solved <= samples and 1 <= k <= samples):
        raise ValueError(f"pass@{k} from {solved} solved of {samples} samples: wants k of 1 to {samples}")
    return 1.0 - math.comb(samples - solved, k) / math.comb(samples, k)


def wilson(successes: int, n: int) -> tuple[float, float]:
    """95 % interval for a share (Wilson 1927); unlike mean ± 2 sigma it stays in 0..1 and works at 0 and at n.

    Nothing observed says nothing: n = 0 gives (0, 1). Raises ValueError unless 0 <= successes <= n.
    """
    if not 0 <= successes <= n:
        raise ValueError(f"successes={successes} must lie between 0 and n={n}")
    if n == 0:
        return 0.0, 1.0
    share, z_squared = successes / n, _Z_95**2
    centre = (share + z_squared / (2 * n)) / (1 + z_squared / n)
    half = _Z_95 * math.sqrt(share * (1 - share) / n + z_squared / (4 * n * n)) / (1 + z_squared / n)
    # At the borders the exact end is 0 or 1, which rounding may miss.
    return (0.0 if successes == 0 else centre - half), (1.0 if successes == n else centre + half)


def _reward_metrics(transcripts: Sequence[Transcript], scores: Sequence[Score]) -> dict[str, float]:
    totals = comparable_totals(transcripts, scores)
    metrics = _mean_and_std("reward/total", [total for total in totals if total is not None])
    unsolved = [total for total, t in zip(totals, transcripts, strict=True) if total is not None and not t.solved]
    if unsolved:
        metrics["reward/total/unsolved"] = sum(unsolved) / len(unsolved)
    judged = [(score.terms, t.solved) for t, score in zip(transcripts, scores, strict=True) if t.stop != "error"]
    for name in scores[0].terms:
        stated = [(value, float(solved)) for terms, solved in judged if (value := terms[name]) is not None]
        values, solved = [value for value, _ in stated], [solved for _, solved in stated]
        metrics |= _mean_and_std(f"reward/{name}", values)
        metrics[f"reward/{name}/abstained"] = float(len(judged) - len(stated))
        if failures := sum(name in score.failed for score in scores):
            metrics[f"reward/{name}/failed"] = float(failures)
        if stated and (spread := math.sqrt(_covariance(values, values) * _covariance(solved, solved))) > 0:
            metrics[f"reward/{name}/solved_correlation"] = _covariance(values, solved) / spread
    return metrics


def _covariance(first: Sequence[float], second: Sequence[float]) -> float:
    mean_first, mean_second = sum(first) / len(first), sum(second) / len(second)
    return sum((a - mean_first) * (b - mean_second) for a, b in zip(first, second, strict=True)) / len(first)


def _transcript_metrics(transcripts: Sequence[Transcript]) -> dict[str, float]:
    def mean(values: Sequence[float]) -> float:
        return sum(values) / len(values)

    return {
        "rollout/solved": mean([transcript.solved for transcript in transcripts]),
        "rollout/turns": mean([len(transcript.turns) for transcript in transcripts]),
        "rollout/completion_tokens": mean([transcript.completion_tokens for transcript in transcripts]),
        "rollout/invalid_actions": mean([transcript.invalid_actions for transcript in transcripts]),
        "rollout/truncated": mean([transcript.truncated for transcript in transcripts]),
        "rollout/errors": mean([transcript.stop == "error" for transcript in transcripts]),
        "rollout/early_stop": mean([_stopped_early(transcript) for transcript in transcripts]),
    }


def _stopped_early(transcript: Transcript) -> bool:
    return transcript.stop == "finished" and not transcript.solved


def _group_metrics(task_ids: Sequence[str], advantages: Sequence[float]) -> dict[str, float]:
    has_signal: defaultdict[str, bool] = defaultdict(bool)
    for task_id, advantage in zip(task_ids, advantages, strict=True):
        has_signal[task_id] |= advantage != 0
    return {
        "group/zero_gradient": sum(not signal for signal in has_signal.values()) / len(has_signal),
        "group/distinct_tasks": float(len(has_signal)),
    }


def _mean_and_std(name: str, values: Sequence[float]) -> dict[str, float]:
    if not values:
        return {}
    mean = math.fsum(values) / len(values)
    # Equal values have no spread, whatever rounding makes of their mean.
    equal = min(values) == max(values)
    spread = 0.0 if equal else math.sqrt(math.fsum((value - mean) ** 2 for value in values) / len(values))
    return {f"{name}/mean": mean, f"{name}/std": spread}
