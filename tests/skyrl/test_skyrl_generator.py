"""Our turn loop in SkyRL's generator, against vLLM's render server: same tokens and scores as the local engine."""
# pyright: reportMissingImports=false

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import configs
import numpy as np
import pytest
import skyrl_gym
import torch
from scripted_vllm import CHAT, ScriptedClient, encode, generator, play
from vllm.entrypoints.serve.disagg.protocol import GenerateRequest
from vllm.sampling_params import RequestOutputKind

from grpo import rollout as local_rollout
from grpo.config import RunConfig, build_env, build_rewards
from grpo.conversation import Conversations, Reply, Sampling
from grpo.engines import skyrl
from grpo.engines.skyrl_env import register, row
from grpo.engines.skyrl_generator import with_empty_images
from grpo.interfaces import Env
from grpo.policy import load_policy
from grpo.reward import Mixture
from grpo.tracking import rollout_row
from grpo.types import Message, Rollout, Score, Task

MOVES = ("left", "right", "up", "down")
END = "<|im_end|>"


def script(sample: int, turn: int) -> str:
    """Wanders about; says nothing useful now and then; is cut in turn 2; sample 3 stops at once."""
    if sample == 3:
        return f"<action>stop</action>{END}"
    if turn == 2:
        return "<action>ri"
    if turn == 3:
        return f"well, <|im_start|> no idea{END}"
    return f"<action>{MOVES[(sample + turn) % 4]}</action>{END}"


def parts(changes: dict[str, Any] | None = None) -> tuple[RunConfig, Any, Mixture]:
    (run,) = configs.typed(["engine=skyrl", *(f"{key}={value}" for key, value in (changes or {}).items())])
    mixture = Mixture(
        terms=build_rewards(run), weights={n: t.weight for n, t in run.reward.terms.items()}, gate=run.reward.gate
    )
    return run, build_env(run), mixture


def locally(run: RunConfig, env: Any, mixture: Mixture, tasks: Sequence[Task], monkeypatch: Any) -> list[Any]:
    """The same script through the local engine's conversations."""

    class Scripted(Conversations):
        def reply(self, sampling: Sampling, draws: Any) -> list[Reply]:
            return [
                self._finish_reply(row, ids := encode(script(row.id % 4, row.turn - 1)), [-0.5] * len(ids))
                for row in self._rows
            ]

    monkeypatch.setattr(local_rollout, "Conversations", Scripted)
    policy = load_policy(configs.run().model, configs.run().adapter, device=torch.device("cpu"), seed=0)
    rollouts = local_rollout.play(
        policy,
        env,
        tasks,
        siblings=4,
        sampling=Sampling(temperature=1.0, greedy=False, max_completion_tokens=32),
        purpose=("test",),
        max_prompt_tokens=run.algorithm.max_prompt_tokens,
        rows_at_once=64,
    )
    return [(rollout, mixture(rollout.transcript, where="test")) for rollout in rollouts]


def record(played: tuple[Rollout, Score]) -> dict[str, Any]:
    """All that a person could read of it."""
    return dict(rollout_row(1, played[0], played[1], 0.0).record)


@pytest.mark.parametrize("context", [1024, 300])
def test_both_engines_make_the_same_transcripts_tokens_and_scores_of_the_same_replies(
    context: int, renderer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, env, mixture = parts({"algorithm.max_prompt_tokens": context})
    tasks = env.tasks("train", 3, seed=5)
    client = ScriptedClient(script, renderer)
    output, theirs = asyncio.run(play(generator(run, env, mixture, client), tasks, siblings=4))
    ours = locally(run, env, mixture, tasks, monkeypatch)
    assert [record(each) for each in theirs] == [record(each) for each in ours]
    for (their, _), (our, _) in zip(theirs, ours, strict=True):
        assert np.array_equal(their.trace.token_ids, our.trace.token_ids)
        assert np.array_equal(their.trace.action_mask, our.trace.action_mask)
    assert {each[0].transcript.stop for each in theirs} == {
        "finished",
        "token_limit" if context == 300 else "turn_limit",
    }
    for index, (their, score) in enumerate(theirs):
        ids = output["prompt_token_ids"][index] + output["response_ids"][index]
        assert ids == their.trace.token_ids.tolist()
        assert output["rewards"][index] == score.total


def test_an_image_is_prepared_once_and_sent_once_an_episode(renderer: Any) -> None:
    run, env, mixture = parts()
    client = ScriptedClient(script, renderer)
    _, played = asyncio.run(play(generator(run, env, mixture, client), env.tasks("train", 1, seed=5), siblings=2))
    assert client.rendered == 1  # the probe that vLLM prepares images as we do
    sent = [each["mm_features"][0]["kwargs_data"]["image"] for each in client.requests]
    assert all(data[:-1] == [None] * (len(data) - 1) and data[-1] is not None for data in sent)
    assert max(map(len, sent)) == len(played[0][0].trace.images) > 2


def test_images_that_vllm_has_forgotten_are_sent_again(renderer: Any) -> None:
    class Forgetful(ScriptedClient):
        async def generate(self, request: dict[str, Any], model: str | None = None) -> dict[str, Any]:
            if None in request["mm_features"][0]["kwargs_data"]["image"]:
                return {"response_ids": [[]], "response_logprobs": [None], "stop_reasons": ["error"]}
            return await super().generate(request, model)

    run, env, mixture = parts({"env.max_turns": 13})
    client = Forgetful(script, renderer)
    asyncio.run(play(generator(run, env, mixture, client), env.tasks("train", 1, seed=5), siblings=1))
    assert len(client.requests) == 13
    assert all(None not in each["mm_features"][0]["kwargs_data"]["image"] for each in client.requests)


def test_a_vllm_that_answers_nothing_ends_the_run_with_the_episodes_name(renderer: Any) -> None:
    class Silent(ScriptedClient):
        async def generate(self, request: dict[str, Any], model: str | None = None) -> dict[str, Any]:
            return {"response_ids": [[]], "response_logprobs": [None], "stop_reasons": ["abort"]}

    run, env, mixture = parts()
    with pytest.raises(RuntimeError, match=r"vLLM gave 0 tokens and 0 log-probabilities for 0_0 \(abort\)"):
        asyncio.run(
            play(generator(run, env, mixture, Silent(script, renderer)), env.tasks("train", 1, seed=5), siblings=1)
        )


def test_every_sample_keeps_the_images_of_all_its_turns(renderer: Any) -> None:
    run, env, mixture = parts()
    tasks = env.tasks("train", 2, seed=5)
    output, played = asyncio.run(
        play(generator(run, env, mixture, ScriptedClient(script, renderer)), tasks, siblings=4)
    )
    for index, (rollout, _) in enumerate(played):
        images = len(rollout.trace.images)
        assert output["image_grid_thw"][index].tolist() == [[1, 8, 8]] * images
        assert output["pixel_values"][index].shape[0] == 64 * images
        placeholders = int((rollout.trace.token_ids == CHAT.image_token).sum())
        assert placeholders * 4 == 64 * images
    assert len({rollout.trace.images[0].tobytes() for rollout, _ in played[:4]}) == 1
    assert len({rollout.trace.images[0].tobytes() for rollout, _ in played}) == 2


def test_samples_without_images_may_stand_beside_others() -> None:
    output: Any = {"pixel_values": [None, torch.ones(4, 6)], "image_grid_thw": [None, torch.ones(1, 3)]}
    filled = with_empty_images(output)
    assert [tuple(each.shape) for each in filled["pixel_values"]] == [(0, 6), (4, 6)]
    assert [tuple(each.shape) for each in filled["image_grid_thw"]] == [(0, 3), (1, 3)]
    assert with_empty_images({"pixel_values": None}) == {"pixel_values": None}  # pyright: ignore[reportArgumentType]


def test_an_evaluation_pays_for_solved_and_for_nothing_else(renderer: Any) -> None:
    run, env, mixture = parts({"reward": "maze_shaped"})
    (task,) = env.tasks("train", 1, seed=5)
    episode, way = env.episode(task), []
    while (step := episode.expert()) is not None:
        way.append(step)
        if episode.act(step).done:
            break

    def solves_if_it_is_the_first(sample: int, turn: int) -> str:
        return f"{way[turn] if sample == 0 else '<action>stop</action>'}{END}"

    made = generator(run, env, mixture, ScriptedClient(solves_if_it_is_the_first, renderer))
    output, played = asyncio.run(play(made, [task], siblings=2, evaluation=True))
    assert output["rewards"] == [1.0, 0.0]
    assert [score.total for _, score in played] == [1.0, 0.2]


def test_an_episode_whose_env_raised_is_masked_and_the_others_go_on(renderer: Any, monkeypatch: Any) -> None:
    run, env, mixture = parts()
    act = type(env.episode(env.tasks("train", 1, seed=5)[0])).act

    def breaks(self: Any, reply: str) -> Any:
        if "no idea" in reply:
            raise OSError("the simulator is gone")
        return act(self, reply)

    monkeypatch.setattr(type(env.episode(env.tasks("train", 1, seed=5)[0])), "act", breaks)
    made = generator(run, env, mixture, ScriptedClient(script, renderer))
    output, played = asyncio.run(play(made, env.tasks("train", 1, seed=5), siblings=4))
    assert [rollout.transcript.stop for rollout, _ in played] == ["error", "error", "error", "finished"]
    assert [any(mask) for mask in output["loss_masks"]] == [False, False, False, True]


def test_a_batch_of_which_no_first_observation_fits_is_refused_with_the_number_that_is_needed(renderer: Any) -> None:
    run, env, mixture = parts({"algorithm.max_prompt_tokens": 20})
    made = generator(run, env, mixture, ScriptedClient(script, renderer))
    with pytest.raises(ValueError, match=r"it needs \d+ tokens .* algorithm.max_prompt_tokens is 20"):
        asyncio.run(play(made, env.tasks("train", 1, seed=5), siblings=1))


def test_one_first_observation_that_does_not_fit_is_left_out_and_the_others_are_played(
    renderer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, env, mixture = parts()
    long, short = env.tasks("train", 2, seed=5)
    episode = type(env).episode

    def talkative(self: Any, task: Any) -> Any:
        made = episode(self, task)
        if task == long:
            first = made.observe()
            monkeypatch.setattr(made, "observe", lambda: replace(first, text="on and " * 2000))
        return made

    monkeypatch.setattr(type(env), "episode", talkative)
    made = generator(run, env, mixture, ScriptedClient(script, renderer))
    output, played = asyncio.run(play(made, [long, short], siblings=2))
    assert [rollout.transcript.stop == "error" for rollout, _ in played] == [True, True, False, False]
    assert [any(mask) for mask in output["loss_masks"]] == [False, False, True, True]


def test_what_an_untrained_model_must_not_say_is_forbidden_at_vllm_too(renderer: Any) -> None:
    run, env, mixture = parts()
    client = ScriptedClient(script, renderer)
    asyncio.run(play(generator(run, env, mixture, client), env.tasks("train", 1, seed=5), siblings=1))
    bias = client.requests[0]["sampling_params"]["logit_bias"]
    assert bias[str(CHAT.image_token)] == -100.0
    assert str(CHAT.end_token) not in bias
    assert client.requests[0]["model"] == "adapter"


def test_vllm_reads_from_a_request_that_it_shall_answer_once_and_with_ids(renderer: Any) -> None:
    run, env, mixture = parts()
    client = ScriptedClient(script, renderer)
    asyncio.run(play(generator(run, env, mixture, client), env.tasks("train", 1, seed=5), siblings=1))
    sent = client.requests[-1]
    request = GenerateRequest.model_validate(
        {
            "model": sent["model"],
            "token_ids": sent["prompt_token_ids"][0],
            "sampling_params": sent["sampling_params"],
            "features": sent["mm_features"][0],
        }
    )
    asked = request.sampling_params
    assert (asked.output_kind, asked.detokenize) == (RequestOutputKind.FINAL_ONLY, False)
    assert (asked.min_tokens, asked.max_tokens, asked.logprobs) == (0, 32, 1)


@dataclass(frozen=True, kw_only=True)
class Instructed(Env):
    """A maze whose first observation has instructions before it, and each its image in front of the text."""

    maze: Env
    max_turns: int

    def tasks(self, split: Any, count: int, seed: int) -> Sequence[Task]:
        return self.maze.tasks(split, count, seed)

    def min_turns(self, task: Task) -> int | None:
        return None

    def episode(self, task: Task) -> Any:
        episode = self.maze.episode(task)
        observe = episode.observe
        before = (Message(role="system", text="Mind the <|im_start|> walls."),)
        seen: list[Any] = []

        def shown() -> Any:
            seen.append(replace(observe(), before=() if seen else before, places=(0,)))
            return seen[-1]

        object.__setattr__(episode, "observe", shown)
        return episode


def test_instructions_before_the_first_turn_and_places_of_images_reach_both_engines(
    renderer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, maze, mixture = parts()
    env = Instructed(maze=maze, max_turns=maze.max_turns)
    tasks = env.tasks("train", 1, seed=5)
    made = generator(run, env, mixture, ScriptedClient(script, renderer))
    _, theirs = asyncio.run(play(made, tasks, siblings=4))
    ours = locally(run, env, mixture, tasks, monkeypatch)
    assert CHAT.decode(theirs[0][0].trace.token_ids.tolist()).startswith(
        "<|im_start|>system\nMind the < |im_start|> walls.<|im_end|>\n<|im_start|>user\n<|vision_start|><|image_pad|>"
    )
    assert [each.trace.token_ids.tolist() for each, _ in theirs] == [each.trace.token_ids.tolist() for each, _ in ours]


def test_skyrls_own_generator_can_play_the_env_too() -> None:
    _, env, mixture = parts()
    (task,) = env.tasks("train", 1, seed=5)
    register(env, mixture, END)
    played = skyrl_gym.make(skyrl.ENV_CLASS, env_config={}, extras=row(task, 0, evaluation=False))
    (opening,), _ = played.init([])
    assert [part["type"] for part in opening["content"]] == ["text", "image_url"]
    going_on = played.step(f"<action>up</action>{END}")
    assert (going_on["done"], going_on["reward"], len(going_on["observations"])) == (False, 0.0, 1)
    ended = played.step(f"<action>stop</action>{END}")
    assert (ended["done"], ended["reward"], ended["observations"]) == (True, 0.0, [])
