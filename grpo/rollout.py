"""Play episodes: all of them turn by turn together, so that the model always works on a full batch.

A bad rollout is data, not a crash: an environment that raises ends that one episode with stop="error" and its message,
and the rollout is left out of its group's comparison. What the policy writes never raises.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest

import numpy as np

from grpo.conversation import Conversations, Reply, Sampling
from grpo.interfaces import Env, Episode
from grpo.policy import Policy
from grpo.randomness import uniforms
from grpo.types import Observation, Rollout, StopReason, Task, TokenTrace, Transcript, Turn

log = logging.getLogger(__name__)

Progress = Callable[[int, int], None]
"""(episodes finished, episodes in all)."""


@dataclass
class _Play:
    """One episode in progress."""

    task: Task
    sample: int
    episode: Episode
    observation: Observation
    turns: list[Turn] = field(default_factory=list)
    sampled: list[int] = field(default_factory=list)
    """Every token that was sampled, noted apart from the trace to prove that these are what is trained on."""
    stop: StopReason | None = None
    error: str | None = None

    def take(self, reply: Reply, max_turns: int) -> Observation | None:
        """Act on a reply; returns what the model sees next, or None at the end."""
        self.sampled += reply.token_ids
        try:
            state = self.episode.state()
            outcome = self.episode.act(reply.text)
            self.turns.append(
                Turn(
                    observation=self.observation,
                    state=state,
                    reply=reply.text,
                    completion_tokens=len(reply.token_ids),
                    truncated=reply.truncated,
                    outcome=outcome,
                )
            )
            if outcome.done or len(self.turns) == max_turns:
                self.stop = "finished" if outcome.done else "turn_limit"
                return None
            self.observation = self.episode.observe()
        # An environment is anybody's code; whatever goes wrong in one episode must not take the others along.
        except Exception as error:
            log.exception(
                "task %s, sample %d: the environment raised in turn %d", self.task.id, self.sample, len(self.turns)
            )
            self.stop, self.error = "error", f"{type(error).__name__}: {error}"
            return None
        return self.observation

    def rollout(self, trace: TokenTrace) -> Rollout:
        final_text = None if self.stop == "error" else self.episode.text()
        self.episode.close()
        stop = self.stop or "token_limit"
        transcript = Transcript(task=self.task, turns=tuple(self.turns), stop=stop, error=self.error)
        trained = trace.token_ids[trace.action_mask].tolist()
        drift = sum(a != b for a, b in zip_longest(self.sampled, trained))
        return Rollout(transcript=transcript, sample=self.sample, trace=trace, final_text=final_text, drift=drift)


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
    Raises ValueError if a task's first observation does not fit `max_prompt_tokens`, naming the number needed.
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
    report: Callable[[int], None],
) -> list[Rollout]:
    plays = [_begin(env, task, sample) for task in tasks for sample in range(siblings)]
    conversations = Conversations(policy)
    conversations.start([plays[i * siblings].observation for i in range(len(tasks))], siblings, max_prompt_tokens)
    for turn in range(env.max_turns):
        live = conversations.live

        def draws(row: int, count: int, turn: int = turn) -> np.ndarray:
            play = plays[row]
            return uniforms(*purpose, play.task.id, play.sample, turn, count=count)

        replies = conversations.reply(sampling, draws)
        following = [plays[row].take(reply, env.max_turns) for row, reply in zip(live, replies, strict=True)]
        conversations.observe(following, max_prompt_tokens)
        report(len(plays) - len(conversations.live))
        if not conversations.live:
            break
    return [play.rollout(conversations.trace(row)) for row, play in enumerate(plays)]


def _begin(env: Env, task: Task, sample: int) -> _Play:
    episode = env.episode(task)
    return _Play(task=task, sample=sample, episode=episode, observation=episode.observe())
