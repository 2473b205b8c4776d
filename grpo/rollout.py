"""Play episodes: all of them turn by turn together, so that the model always works on a full batch.

A bad rollout is data, not a crash: an environment that raises ends that one episode with stop="error" and its message,
and the rollout is left out of its group's comparison. What the policy writes never raises.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import zip_longest

import numpy as np

from grpo.conversation import Conversations, Sampling
from grpo.faults import ConfigError, Fault
from grpo.interfaces import Env
from grpo.playing import Play, TooLong, begin, left_out
from grpo.policy import Policy
from grpo.randomness import uniforms
from grpo.types import Rollout, Task, TokenTrace

Progress = Callable[[int, int], None]
"""(episodes finished, episodes in all)."""


def play(
    policy: Policy,
    env: Env,
    tasks: Sequence[Task],
    *,
    siblings: int,
    sampling: Sampling,
    purpose: tuple[str | int, ...],
    max_prompt_tokens: int,
    rows_at_once: int,
    progress: Progress = lambda done, total: None,
) -> list[Rollout]:
    """`siblings` rollouts of each task, in order: those of a group are neighbours.

    `purpose` names what the random draws are for, (seed, split, step); task, sample and turn are added here.
    A task whose first observation does not fit `max_prompt_tokens` is left out, as an error of its episodes.
    Raises ConfigError, naming the number needed, if that is so for all of those that are played first.
    """
    tasks_at_once = max(1, rows_at_once // siblings)
    rollouts: list[Rollout] = []
    for first in range(0, len(tasks), tasks_at_once):
        rollouts += _play_together(
            policy,
            env,
            tasks[first : first + tasks_at_once],
            siblings=siblings,
            sampling=sampling,
            purpose=purpose,
            max_prompt_tokens=max_prompt_tokens,
            first=first == 0,
            report=lambda done, first=first: progress(first * siblings + done, len(tasks) * siblings),
        )
    return rollouts


def _play_together(
    policy: Policy,
    env: Env,
    tasks: Sequence[Task],
    *,
    siblings: int,
    sampling: Sampling,
    purpose: tuple[str | int, ...],
    max_prompt_tokens: int,
    first: bool,
    report: Callable[[int], None],
) -> list[Rollout]:
    plays = [begin(env, task, sample) for task in tasks for sample in range(siblings)]
    sampled: list[list[int]] = [[] for _ in plays]
    conversations = Conversations(policy)
    needed = [conversations.opening_tokens(plays[i * siblings].observation) for i in range(len(tasks))]
    if first and min(needed) > max_prompt_tokens:
        problem = f"{max_prompt_tokens} is less than any first observation needs with its images; use {max(needed)}"
        raise ConfigError([Fault(key="algorithm.max_prompt_tokens", problem=f"{problem} or more")])
    for row, begun in enumerate(plays):
        if needed[row // siblings] > max_prompt_tokens:
            plays[row] = left_out(begun, TooLong(needed[row // siblings], max_prompt_tokens))
    conversations.start([plays[i * siblings].observation for i in range(len(tasks))], siblings)
    for turn in range(env.max_turns):
        live = conversations.live

        def draws(row: int, count: int, turn: int = turn) -> np.ndarray:
            play = plays[row]
            return uniforms(*purpose, play.task.id, play.sample, turn, count=count)

        replies = conversations.reply(sampling, draws)
        following = []
        for row, reply in zip(live, replies, strict=True):
            sampled[row] += reply.token_ids
            shown = plays[row].take(
                reply.text,
                completion_tokens=len(reply.token_ids),
                truncated=reply.truncated,
                max_turns=env.max_turns,
            )
            following.append(shown)
        conversations.observe(following, max_prompt_tokens)
        report(len(plays) - len(conversations.live))
        if not conversations.live:
            break
    return [_rollout(play, conversations.trace(row), sampled[row]) for row, play in enumerate(plays)]


def _rollout(play: Play, trace: TokenTrace, sampled: Sequence[int]) -> Rollout:
    """`sampled`, noted apart from the trace, proves that these are the tokens trained on."""
    transcript, final_text = play.finish()
    trained = trace.token_ids[trace.action_mask].tolist()
    drift = sum(a != b for a, b in zip_longest(sampled, trained))
    return Rollout(transcript=transcript, sample=play.sample, trace=trace, final_text=final_text, drift=drift)
