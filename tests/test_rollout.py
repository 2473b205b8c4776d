"""Episodes over the kept key-value cache against the same episodes computed from scratch."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch
from conftest import lora, model, shake
from test_policy import batch

from envs.maze_2d import Maze2D
from grpo.conversation import Conversations, Sampling
from grpo.interfaces import Env, Episode
from grpo.policy import Policy, load_policy
from grpo.randomness import uniforms
from grpo.rollout import play
from grpo.types import Observation, Outcome, Rollout, Split, Task

SAMPLED = Sampling(temperature=1.0, greedy=False, max_completion_tokens=12)
GREEDY = replace(SAMPLED, greedy=True)


def rollouts(
    policy: Policy, env: Env, *, siblings: int = 2, sampling: Sampling = SAMPLED, **changes: int
) -> list[Rollout]:
    settings: dict[str, Any] = {"max_prompt_tokens": 2000, "rows_at_once": 64} | changes
    tasks = env.tasks("train", 3, seed=0)
    return play(policy, env, tasks, siblings=siblings, sampling=sampling, purpose=(0, "train", 1), **settings)


@pytest.fixture(scope="module")
def shaken() -> Policy:
    """A policy whose replies are of many lengths, so that the cache gets holes."""
    policy = load_policy(model(), lora(), device=torch.device("cpu"), seed=0)
    shake(policy)
    return policy


@pytest.mark.parametrize("temperature", [0.6, 1.0, 3.0])
def test_logprobs_at_sampling_are_those_of_training(shaken: Policy, maze: Maze2D, temperature: float) -> None:
    played = rollouts(shaken, maze, sampling=replace(SAMPLED, temperature=temperature))
    row = batch(shaken, *(rollout.trace for rollout in played))
    with torch.no_grad():
        new = shaken.logprobs(row, temperature).logprobs_BT
    ratio = (new - row.old_logprobs_BT).exp()[row.action_mask_BT]
    lengths = {turn.completion_tokens for rollout in played for turn in rollout.transcript.turns}
    assert len(lengths) > 1 or temperature < 3, "the cache must have had holes at least once"
    assert ratio.min() > 0.999
    assert ratio.max() < 1.001


def test_greedy_replies_are_the_most_likely_tokens_of_a_full_forward(shaken: Policy, maze: Maze2D) -> None:
    for rollout in rollouts(shaken, maze, siblings=1, sampling=GREEDY):
        row = batch(shaken, rollout.trace)
        with torch.no_grad():
            hidden = shaken.hidden(row)[0]
        sampled = row.action_mask_BT[0].nonzero().squeeze(1)
        assert torch.equal(shaken.scores(hidden[sampled - 1], 1.0).argmax(-1), row.token_ids_BT[0, sampled])


def test_sampled_tokens_are_the_trained_tokens(shaken: Policy, maze: Maze2D) -> None:
    assert [rollout.drift for rollout in rollouts(shaken, maze)] == [0] * 6


def test_siblings_differ_in_their_sampling_and_repeat_exactly(shaken: Policy, maze: Maze2D) -> None:
    def texts() -> list[list[str]]:
        return [[turn.reply for turn in rollout.transcript.turns] for rollout in rollouts(shaken, maze)]

    first = texts()
    assert first[0] != first[1]
    assert first == texts()


def test_a_rollout_does_not_depend_on_who_else_is_in_the_batch(shaken: Policy, maze: Maze2D) -> None:
    together = rollouts(shaken, maze, rows_at_once=64)
    apart = rollouts(shaken, maze, rows_at_once=2)
    for one, other in zip(together, apart, strict=True):
        assert np.array_equal(one.trace.token_ids, other.trace.token_ids)


def test_uniforms_follow_from_their_purpose_and_longer_draws_begin_alike() -> None:
    assert np.array_equal(uniforms(0, "train", 1, count=3), uniforms(0, "train", 1, count=5)[:3])
    assert not np.array_equal(uniforms(0, "train", 1, count=3), uniforms(0, "train", 2, count=3))


def test_a_reply_that_is_cut_is_marked_and_gets_an_end_marker_that_is_not_trained(policy: Policy, maze: Maze2D) -> None:
    cut = rollouts(policy, maze, siblings=1, sampling=replace(SAMPLED, max_completion_tokens=1))[0]
    assert all(turn.truncated for turn in cut.transcript.turns)
    assert cut.transcript.invalid_actions == len(cut.transcript.turns) == maze.max_turns
    ends = cut.trace.token_ids == policy.chat.end_token
    assert ends.any()
    assert not cut.trace.action_mask[ends].any()


def test_an_episode_that_outgrows_its_context_ends_by_token_limit_with_whole_images(
    policy: Policy, maze: Maze2D
) -> None:
    first = rollouts(policy, maze, siblings=1, sampling=replace(SAMPLED, max_completion_tokens=1))[0]
    needed = int(np.argmax(first.trace.action_mask))
    short = rollouts(
        policy, maze, siblings=1, sampling=replace(SAMPLED, max_completion_tokens=1), max_prompt_tokens=needed + 5
    )[0]
    assert short.transcript.stop == "token_limit"
    assert short.transcript.truncated
    assert len(short.transcript.turns) == len(short.trace.images) == 1


def test_a_first_observation_that_does_not_fit_is_refused_with_the_number_needed(policy: Policy, maze: Maze2D) -> None:
    with pytest.raises(ValueError, match=r"max_prompt_tokens: 10 is less .* use \d+ or more"):
        rollouts(policy, maze, max_prompt_tokens=10)


@dataclass(frozen=True, kw_only=True)
class Mixed(Env):
    """Turns with none, one and two images of different sizes; raises where told to."""

    max_turns: int
    raises: bool = False

    def tasks(self, split: Split, count: int, seed: int) -> list[Task]:
        return [Task(id=f"mixed/{index}", split=split, seed=index, data={}) for index in range(count)]

    def episode(self, task: Task) -> Episode:
        return MixedEpisode(task.seed, self.raises)

    def min_turns(self, task: Task) -> int | None:
        return None


class MixedEpisode(Episode):
    def __init__(self, seed: int, raises: bool) -> None:
        self._seed, self._raises, self._turn = seed, raises, 0

    def observe(self) -> Observation:
        rng = np.random.default_rng((self._seed, self._turn))
        sides = [(), (96,), (128, 96)][(self._seed + self._turn) % 3]
        pictures = tuple(rng.integers(0, 256, (side, side, 3), dtype=np.uint8) for side in sides)
        return Observation(text=f"turn {self._turn} of {self._seed}", images=pictures)

    def state(self) -> dict[str, int]:
        return {}

    def act(self, reply: str) -> Outcome:
        if self._raises and self._seed == 1 and self._turn == 1:
            raise OSError("the simulator is gone")
        self._turn += 1
        return Outcome(action=reply, feedback="", done=False, solved=False)

    def expert(self) -> None:
        return None

    def text(self) -> str:
        return ""


def test_text_only_one_image_and_many_image_turns_play_together(shaken: Policy) -> None:
    played = rollouts(shaken, Mixed(max_turns=3))
    assert [len(rollout.trace.images) for rollout in played] == [3] * 6
    row = batch(shaken, *(rollout.trace for rollout in played))
    with torch.no_grad():
        new = shaken.logprobs(row, 1.0).logprobs_BT
    assert ((new - row.old_logprobs_BT)[row.action_mask_BT]).abs().max() < 1e-3


def test_an_environment_that_raises_ends_its_own_episode_only(policy: Policy) -> None:
    played = rollouts(policy, Mixed(max_turns=3, raises=True), siblings=1)
    assert [rollout.transcript.stop for rollout in played] == ["turn_limit", "error", "turn_limit"]
    assert played[1].transcript.error == "OSError: the simulator is gone"


def test_a_conversation_with_one_row_is_closed_by_none(policy: Policy) -> None:
    conversations = Conversations(policy)
    conversations.start([Observation(text="hello", images=())], siblings=1)
    conversations.reply(GREEDY, lambda row, count: np.zeros(count))
    conversations.observe([None], max_tokens=100)
    assert conversations.live == []
    assert conversations.trace(0).action_mask.any()
