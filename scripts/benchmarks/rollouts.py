"""Rollouts over a kept key-value cache against `model.generate` that computes the whole history anew each turn.

The peer is what one writes first: all images of a history through the image processor, histories padded on the left,
one batched `generate` a turn. It gets its token ids from our renderer, so it pays less than the usual
apply_chat_template. Greedy, so that both must do the same: the actions are compared.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any

import numpy as np
import torch

from grpo.compose import quoted
from grpo.config import build_env
from grpo.conversation import Sampling
from grpo.interfaces import Env, Episode
from grpo.policy import Policy
from grpo.rollout import play
from grpo.types import Observation, Task
from scripts.benchmarks.configured import configured, fresh_policy, without_adapter
from scripts.benchmarks.measure import Result, Spent, Stopwatch, faster

Actions = list[list[str | None]]


@dataclass(frozen=True, kw_only=True)
class Played:
    actions: Actions
    tokens: int
    spent: Spent


def measure(options: argparse.Namespace) -> Result:
    """Raises RuntimeError if the two disagree about a single action."""
    path = f"model.name_or_path={quoted(options.model)}"
    run = without_adapter(configured([path, "tracker=none", *options.words]))
    env = build_env(run)
    tasks = env.tasks("test", options.episodes, seed=0)
    limit = run.algorithm.max_completion_tokens
    for play_all in (play_kept, play_plain):
        play_all(fresh_policy(run), env, tasks[:2], limit)  # warm up
    runs: dict[str, list[Played]] = {"ours": [], "ours_frames_seen_before": [], "plain": []}
    for _ in range(options.repeats):
        # A policy of its own each time: it remembers the features of frames that it has seen.
        policy = fresh_policy(run)
        runs["ours"].append(play_kept(policy, env, tasks, limit))
        runs["ours_frames_seen_before"].append(play_kept(policy, env, tasks, limit))
        runs["plain"].append(play_plain(fresh_policy(run), env, tasks, limit))
    ours, plain = runs["ours"][0], runs["plain"][0]
    same = sum(a == b for a, b in zip(ours.actions, plain.actions, strict=True))
    if same < len(tasks):
        raise RuntimeError(f"only {same} of {len(tasks)} episodes have the same actions on both sides")
    turns = sum(map(len, ours.actions))
    rate = {side: median(each.tokens / each.spent.cpu for each in played) for side, played in runs.items()}
    by_clock = {side: median(each.tokens / each.spent.wall for each in played) for side, played in runs.items()}
    seen = "ours_frames_seen_before"
    return Result(
        name="rollouts",
        peer="model.generate over the whole history",
        figures=(
            faster("rollouts", "tokens / CPU s", rate["ours"], rate["plain"], goal=12),
            faster("rollouts of frames seen before", "tokens / CPU s", rate[seen], rate["plain"]),
            faster("rollouts, by the clock", "tokens / s", by_clock["ours"], by_clock["plain"]),
        ),
        details={
            "episodes": len(tasks),
            "episodes_with_the_same_actions": same,
            "turns": turns,
            "tokens": ours.tokens,
            "cpu_seconds": {side: [each.spent.cpu for each in played] for side, played in runs.items()},
            "wall_seconds": {side: [each.spent.wall for each in played] for side, played in runs.items()},
        },
        remarks=(f"{same} of {len(tasks)} episodes with the same actions; {turns} turns, {ours.tokens} tokens",),
    )


def play_kept(policy: Policy, env: Env, tasks: Sequence[Task], max_completion_tokens: int) -> Played:
    watch = Stopwatch()
    rollouts = play(
        policy,
        env,
        tasks,
        siblings=1,
        sampling=Sampling(temperature=1.0, greedy=True, max_completion_tokens=max_completion_tokens),
        purpose=("benchmark",),
        max_prompt_tokens=policy.base.config.text_config.max_position_embeddings,
        rows_at_once=len(tasks),
    )
    return Played(
        actions=[[turn.outcome.action for turn in rollout.transcript.turns] for rollout in rollouts],
        tokens=sum(rollout.transcript.completion_tokens for rollout in rollouts),
        spent=watch.spent(),
    )


@dataclass
class _History:
    episode: Episode
    token_ids: list[int] = field(default_factory=list)
    images: list[np.ndarray] = field(default_factory=list)
    actions: list[str | None] = field(default_factory=list)
    done: bool = False

    def show(self, policy: Policy, observation: Observation) -> None:
        grids = tuple(policy.vision.grid(image) for image in observation.images)
        render = policy.chat.next_turn if self.token_ids else policy.chat.first_turn
        self.token_ids += render(observation.text, grids)
        self.images += observation.images


def play_plain(policy: Policy, env: Env, tasks: Sequence[Task], max_completion_tokens: int) -> Played:
    watch = Stopwatch()
    end, tokens = policy.chat.end_token, 0
    histories = [_History(episode=env.episode(task)) for task in tasks]
    for history in histories:
        history.show(policy, history.episode.observe())
    for turn in range(env.max_turns):
        live = [history for history in histories if not history.done]
        if not live:
            break
        for history, reply in zip(live, _replies(policy, live, max_completion_tokens), strict=True):
            tokens += len(reply)
            history.token_ids += reply if reply[-1] == end else [*reply, end]
            outcome = history.episode.act(policy.chat.decode(reply))
            history.actions.append(outcome.action)
            history.done = outcome.done
            if not outcome.done and turn + 1 < env.max_turns:
                history.show(policy, history.episode.observe())
    return Played(actions=[history.actions for history in histories], tokens=tokens, spent=watch.spent())


def _replies(policy: Policy, live: Sequence[_History], max_completion_tokens: int) -> list[list[int]]:
    """One greedy reply of each, its end marker included."""
    end, pad = policy.chat.end_token, policy.tokenizer.pad_token_id
    width = max(len(history.token_ids) for history in live)
    ids = torch.full((len(live), width), pad)
    mask = torch.zeros(len(live), width, dtype=torch.long)
    for row, history in enumerate(live):
        ids[row, width - len(history.token_ids) :] = torch.tensor(history.token_ids)
        mask[row, width - len(history.token_ids) :] = 1
    images = [image for history in live for image in history.images]
    inputs: dict[str, Any] = dict(policy.image_processor(images=images, return_tensors="pt"))
    produced = policy.base.generate(
        input_ids=ids,
        attention_mask=mask,
        mm_token_type_ids=(ids == policy.chat.image_token).int(),
        **inputs,
        max_new_tokens=max_completion_tokens,
        do_sample=False,
        eos_token_id=end,
        pad_token_id=pad,
        suppress_tokens=policy.banned_V.nonzero().flatten().tolist(),
    )[:, width:].tolist()
    return [reply[: reply.index(end) + 1] if end in reply else reply for reply in produced]
