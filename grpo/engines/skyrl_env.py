"""One of our episodes behind SkyRL-Gym's interface, scored by our mixture.

The whole score is paid with the last reply, so that a group is compared by totals and the zero-variance filter sees
them; an evaluation pays 1 for solved and 0 otherwise, so that SkyRL's own pass counts nothing else.
"""
# pyright: reportMissingImports=false

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import skyrl_gym
from skyrl_gym.envs.base_text_env import BaseTextEnv, BaseTextEnvStepOutput, ConversationType

from grpo.engines.skyrl import ENV_CLASS
from grpo.interfaces import Env
from grpo.openai_content import messages
from grpo.playing import Play, TooLong, begin, left_out
from grpo.reward import Mixture
from grpo.types import Observation, Score, Task, Transcript


class SkyrlEnv(BaseTextEnv):
    """Plays one task once; `extras` is what `row` made of it."""

    def __init__(self, env: Env, mixture: Mixture, end_marker: str, env_config: Any, extras: Mapping[str, Any]) -> None:
        super().__init__()
        self._mixture = mixture
        self._end_marker = end_marker
        self._evaluation: bool = extras["evaluation"]
        self._max_turns = env.max_turns
        self._play: Play = begin(env, task_of(extras["task"]), extras["sample"])

    @property
    def observation(self) -> Observation:
        """What the model is shown now."""
        return self._play.observation

    def init(self, prompt: ConversationType) -> tuple[ConversationType, dict[str, Any]]:
        return messages(self.observation), {}

    def step(self, action: str) -> BaseTextEnvStepOutput:
        """For SkyRL's own generators: they tell no number of tokens, and each episode is scored by itself."""
        if not self.take(action, completion_tokens=0):
            return BaseTextEnvStepOutput(observations=messages(self.observation), reward=0.0, done=False, metadata={})
        transcript, _ = self.finish()
        score = self._mixture(transcript, where=f"task {transcript.task.id}, sample {self._play.sample}")
        reward = pays(transcript, score, evaluation=self._evaluation)
        return BaseTextEnvStepOutput(observations=[], reward=reward, done=True, metadata={})

    def take(self, action: str, completion_tokens: int) -> bool:
        """Act on a reply as the model wrote it, end marker included; without the marker it was cut.

        Whether that ended the episode; else there is another observation.
        """
        text = action.removesuffix(self._end_marker)
        truncated = text == action
        shown = self._play.take(
            text, completion_tokens=completion_tokens, truncated=truncated, max_turns=self._max_turns
        )
        return shown is None

    def leave_out(self, error: TooLong) -> None:
        """Before the first reply: the next one ends the episode as an error."""
        self._play = left_out(self._play, error)

    def finish(self) -> tuple[Transcript, str | None]:
        """Transcript and last drawing; once, also where the next observation does not fit the context."""
        return self._play.finish()


def pays(transcript: Transcript, score: Score, *, evaluation: bool) -> float:
    return float(transcript.solved) if evaluation else score.total


def register(env: Env, mixture: Mixture, end_marker: str) -> None:
    """Make `env` what SkyRL-Gym plays in this process as `ENV_CLASS`, in place of an earlier one."""
    made: Any = partial(SkyrlEnv, env, mixture, end_marker)
    made.aggregate_metrics = SkyrlEnv.aggregate_metrics  # SkyRL-Gym asks the registered thing itself
    skyrl_gym.registry.pop(ENV_CLASS, None)
    skyrl_gym.register(ENV_CLASS, entry_point=made)


def row(task: Task, sample: int, *, evaluation: bool) -> dict[str, Any]:
    """The extras of one episode; `sample` tells siblings apart, and nothing else does."""
    given = {"id": task.id, "split": task.split, "seed": task.seed, "data": dict(task.data)}
    return {"task": given, "sample": sample, "evaluation": evaluation}


def task_of(given: Mapping[str, Any]) -> Task:
    return Task(id=given["id"], split=given["split"], seed=given["seed"], data=given["data"])
