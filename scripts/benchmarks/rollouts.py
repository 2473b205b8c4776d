"""Rollouts over a kept key-value cache against `model.generate` that computes the whole history anew each turn.

Two amounts of work: greedy episodes that share nothing, and the sampled groups of one GRPO step, whose siblings share
a prompt and, for as long as they go the same way, their frames. Every policy is new, so that every frame is.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from statistics import median
from typing import Any

from grpo.config import build_env
from grpo.conversation import Sampling
from grpo.interfaces import Env
from grpo.policy import Policy
from grpo.rollout import play
from grpo.schema import RunConfig
from grpo.types import Task
from grpo.words import quoted
from scripts.benchmarks.configured import configured, fresh_policy, without_adapter
from scripts.benchmarks.measure import Figure, Played, Result, Stopwatch, faster
from scripts.benchmarks.plain_rollouts import play_plain

GOAL = 12
ROUNDING = 0.02
"""Share of sampled episodes that may part: both sides round differently, and a draw that falls just between two tokens
then gives the one or the other."""

Runs = Mapping[str, Sequence[Played]]
"""Of each side: ours, ours_frames_seen_before, plain."""


def measure(options: argparse.Namespace) -> Result:
    """Raises RuntimeError if the two sides did not play the same episodes."""
    path = f"model.name_or_path={quoted(options.model)}"
    run = without_adapter(configured([path, "tracker=none", *options.words]))
    env, algorithm = build_env(run), run.algorithm
    greedy = _runs(run, env, env.tasks("test", options.episodes, seed=0), 1, greedy=True, repeats=options.repeats)
    tasks = env.tasks("train", algorithm.prompts_per_step, seed=0)
    groups = _runs(run, env, tasks, algorithm.group_size, greedy=False, repeats=options.repeats)
    of_groups = f"{algorithm.prompts_per_step} groups of {algorithm.group_size}, sampled"
    seen = "ours_frames_seen_before"
    return Result(
        name="rollouts",
        peer="model.generate over the whole history",
        figures=(
            _figure(f"{options.episodes} greedy episodes", greedy, "ours", GOAL),
            _figure("the same, frames seen before", greedy, seen, None),
            _figure(of_groups, groups, "ours", GOAL),
            _figure("the same, frames seen before", groups, seen, None),
        ),
        details={"greedy": _details(greedy), "groups": _details(groups)},
        remarks=(agreement("greedy", greedy, 0.0), agreement("sampled", groups, ROUNDING)),
    )


def _runs(run: RunConfig, env: Env, tasks: Sequence[Task], siblings: int, *, greedy: bool, repeats: int) -> Runs:
    algorithm = run.algorithm
    sampling = Sampling(
        temperature=algorithm.temperature, greedy=greedy, max_completion_tokens=algorithm.max_completion_tokens
    )

    def played(play_all: Callable[..., Played], policy: Policy) -> Played:
        return play_all(policy, env, tasks, siblings=siblings, sampling=sampling, purpose=("benchmark",))

    runs: dict[str, list[Played]] = {"ours": [], "ours_frames_seen_before": [], "plain": []}
    for warm_up in [True] + [False] * repeats:
        # A policy of its own each time: it remembers the features of frames that it has seen.
        policy = fresh_policy(run)
        found = [played(play_kept, policy), played(play_kept, policy), played(play_plain, fresh_policy(run))]
        if not warm_up:
            for side, each in zip(runs, found, strict=True):
                runs[side].append(each)
    return runs


def play_kept(
    policy: Policy,
    env: Env,
    tasks: Sequence[Task],
    *,
    siblings: int,
    sampling: Sampling,
    purpose: tuple[str | int, ...],
) -> Played:
    watch = Stopwatch()
    rollouts = play(
        policy,
        env,
        tasks,
        siblings=siblings,
        sampling=sampling,
        purpose=purpose,
        max_prompt_tokens=policy.base.config.text_config.max_position_embeddings,
        rows_at_once=len(tasks) * siblings,
    )
    return Played(
        actions=[[turn.outcome.action for turn in rollout.transcript.turns] for rollout in rollouts],
        token_ids=[rollout.trace.token_ids.tolist() for rollout in rollouts],
        tokens=sum(rollout.transcript.completion_tokens for rollout in rollouts),
        spent=watch.spent(),
        parts={},
    )


def _figure(name: str, runs: Runs, side: str, goal: float | None) -> Figure:
    ours, plain = (median(each.tokens / each.spent.cpu for each in runs[which]) for which in (side, "plain"))
    return faster(name, "tokens / CPU s", ours, plain, goal)


def agreement(what: str, runs: Runs, may_part: float) -> str:
    """A remark. Raises RuntimeError if more than a share of `may_part` episodes have other actions or token ids."""
    ours, plain = runs["ours"][0], runs["plain"][0]
    episodes = len(ours.actions)
    actions = sum(a == b for a, b in zip(ours.actions, plain.actions, strict=True))
    ids = sum(a == b for a, b in zip(ours.token_ids, plain.token_ids, strict=True))
    turns = sum(map(len, ours.actions))
    text = f"{what}: {actions} of {episodes} episodes with the same actions, {ids} with the same token ids"
    if min(actions, ids) < (1 - may_part) * episodes:
        raise RuntimeError(text)
    return f"{text}; {turns} turns, {ours.tokens} tokens"


def _details(runs: Runs) -> dict[str, Any]:
    return {
        "tokens": runs["ours"][0].tokens,
        "cpu_seconds": {side: [each.spent.cpu for each in played] for side, played in runs.items()},
        "wall_seconds": {side: [each.spent.wall for each in played] for side, played in runs.items()},
        "of_which_plain_made_its_inputs": [each.parts for each in runs["plain"]],
    }
