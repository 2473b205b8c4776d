"""Several policies on the same held-out tasks with the same draws, each compared with what training began from."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass
from typing import Any

from grpo.contenders import Contender, Ready
from grpo.conversation import Sampling
from grpo.drift import Drift, drifts, kl_to_base
from grpo.evaluation import Evaluation, Played, judged
from grpo.interfaces import Env
from grpo.reward import Mixture
from grpo.rollout import Progress
from grpo.types import Rollout, Task
from grpo.verdict import Comparison, compare

REGRESSION_TOKENS = 128
"""At most, of a reply to a regression prompt."""


@dataclass(frozen=True, kw_only=True)
class Contest:
    """What all contenders meet."""

    env: Env
    mixture: Mixture
    tasks: Sequence[Task]
    samples: int
    """Sampled rollouts of each task, besides the greedy one."""
    temperature: float
    max_completion_tokens: int
    regression: Env
    progress: Callable[[str], AbstractContextManager[Progress]]


@dataclass(frozen=True, kw_only=True)
class Result:
    """One contender; what it is compared by is missing for the one that the others are measured by."""

    name: str
    source: str
    played: Played
    drift: Mapping[str, Drift] | None
    """By kind of regression prompt, against the first contender; None for that one itself."""
    comparison: Comparison | None


def hold(contest: Contest, contenders: Sequence[Contender], reference: str) -> list[Result]:
    """One result a contender, in order. The first is the base; `reference` names whom the others are measured by.

    The reference must come before those that are measured by it.
    """
    prompts = contest.regression.tasks("test", 1000, seed=0)
    kinds = [str(task.data["kind"]) for task in prompts]
    measured = [contender.name for contender in contenders[1:] if contender.name != reference]
    results: list[Result] = []
    base_replies: list[Rollout] = []
    before: Played | None = None
    for contender in contenders:
        with contender.ready() as ready:
            played = _play(contest, ready, contender.name)
            replies = _answers(contest, ready, prompts, contender.name)
            kl = kl_to_base(ready.policy, base_replies) if ready.policy is not None and base_replies else None
        drift = drifts(kinds, base_replies, replies, kl) if base_replies else None
        base_replies = base_replies or replies
        comparison = None
        if contender.name == reference:
            before = played
        if before is not None and contender.name in measured:
            weights, turns = contest.mixture.weights, contest.env.max_turns
            comparison = compare(before, played, weights, max_turns=turns, policies=len(measured))
        results.append(
            Result(name=contender.name, source=contender.source, played=played, drift=drift, comparison=comparison)
        )
    return results


def _play(contest: Contest, ready: Ready, name: str) -> Played:
    def decoded(greedy: bool) -> Evaluation:
        siblings = 1 if greedy else contest.samples
        sampling = Sampling(
            temperature=contest.temperature, greedy=greedy, max_completion_tokens=contest.max_completion_tokens
        )
        with contest.progress(f"{name} {'greedy' if greedy else 'sampled'}") as progress:
            # Every contender draws the same numbers: what is drawn for does not name it.
            rollouts = ready.play(contest.env, contest.tasks, siblings, sampling, "evaluation", progress)
        return judged(rollouts, contest.mixture, siblings=siblings, purpose=f"evaluation of {name}")

    return Played(greedy=decoded(greedy=True), sampled=decoded(greedy=False))


def _answers(contest: Contest, ready: Ready, prompts: Sequence[Task], name: str) -> list[Rollout]:
    tokens = min(REGRESSION_TOKENS, contest.max_completion_tokens)
    sampling = Sampling(temperature=1.0, greedy=True, max_completion_tokens=tokens)
    with contest.progress(f"{name} regression") as progress:
        return ready.play(contest.regression, prompts, 1, sampling, "regression", progress)


def record(result: Result, samples: int) -> dict[str, Any]:
    """A result as JSON values, for the file."""
    played = result.played
    pass_at = {str(k): played.sampled.pass_at(k) for k in powers(samples)}
    return {
        "name": result.name,
        "source": result.source,
        "greedy": played.greedy.metrics,
        "solved_greedy_interval": list(played.greedy.interval),
        "sampled": played.sampled.metrics,
        "pass_at": pass_at,
        "drift": None if result.drift is None else {kind: asdict(drift) for kind, drift in result.drift.items()},
        "comparison": None if result.comparison is None else asdict(result.comparison),
    }


def powers(samples: int) -> list[int]:
    """1, 2, 4, … and `samples` itself: the k of pass@k."""
    return sorted({2**power for power in range(samples.bit_length()) if 2**power <= samples} | {samples})
