"""One episode in progress, whoever generates its replies: both engines play by these rules.

A bad episode is data, not a crash: an environment that raises ends this one with stop="error" and its message. What
the policy writes never raises.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from grpo.interfaces import Env, Episode
from grpo.types import Observation, Outcome, StopReason, Task, Transcript, Turn

log = logging.getLogger(__name__)


@dataclass
class Play:
    task: Task
    sample: int
    episode: Episode
    observation: Observation
    turns: list[Turn] = field(default_factory=list)
    stop: StopReason = "token_limit"
    """What it is until the env or `max_turns` ends the episode: then the next observation did not fit."""
    error: str | None = None

    def take(self, reply: str, *, completion_tokens: int, truncated: bool, max_turns: int) -> Observation | None:
        """Act on a reply; returns what the model sees next, or None at the end."""
        try:
            state = self.episode.state()
            outcome = self.episode.act(reply)
            self.turns.append(
                Turn(
                    observation=self.observation,
                    state=state,
                    reply=reply,
                    completion_tokens=completion_tokens,
                    truncated=truncated,
                    outcome=outcome,
                )
            )
            if outcome.done or len(self.turns) == max_turns:
                self.stop = "finished" if outcome.done else "turn_limit"
                return None
            self.observation = self.episode.observe()
        # An environment is anybody's code; whatever goes wrong in one episode must not take the others along.
        except Exception as error:
            if not isinstance(error, TooLong):  # which is told once a task
                log.exception(
                    "task %s, sample %d: the environment raised in turn %d", self.task.id, self.sample, len(self.turns)
                )
            self.stop, self.error = "error", f"{type(error).__name__}: {error}"
            return None
        return self.observation

    def finish(self) -> tuple[Transcript, str | None]:
        """The transcript and the env's drawing of how it ended (None if it raised); gives the episode back."""
        final_text = None if self.stop == "error" else self.episode.text()
        self.episode.close()
        transcript = Transcript(task=self.task, turns=tuple(self.turns), stop=self.stop, error=self.error)
        return transcript, final_text


def begin(env: Env, task: Task, sample: int) -> Play:
    """Never raises: an episode that cannot begin ends as an error with its first reply, like one that breaks later."""
    try:
        episode = env.episode(task)
        return Play(task=task, sample=sample, episode=episode, observation=episode.observe())
    except Exception as error:
        return _broken(task, sample, error)


class TooLong(ValueError):
    """A first observation that the token budget has no room for; it is never cut, least of all inside an image."""

    def __init__(self, needed: int, limit: int) -> None:
        super().__init__(f"it needs {needed} tokens with its images, and algorithm.max_prompt_tokens is {limit}")


def left_out(play: Play, error: TooLong) -> Play:
    """In the place of a play that cannot begin: it ends as an error, and its group has nothing to compare."""
    if play.sample == 0:
        log.warning("task %s is left out: %s", play.task.id, error)
    play.episode.close()
    return _broken(play.task, play.sample, error)


def _broken(task: Task, sample: int, error: Exception) -> Play:
    broken = _Broken(error)
    return Play(task=task, sample=sample, episode=broken, observation=broken.observe())


class _Broken(Episode):
    """Stands in for an episode that could not begin, so that its siblings and neighbours are played as ever."""

    def __init__(self, error: Exception) -> None:
        self._error = error

    def observe(self) -> Observation:
        return Observation(text="?", images=())

    def state(self) -> Mapping[str, Any]:
        raise self._error

    def act(self, reply: str) -> Outcome:
        raise self._error

    def expert(self) -> str | None:
        return None

    def text(self) -> str:
        return str(self._error)
