"""Our turn loop in SkyRL's generator, against vLLM's render server: same tokens and scores as the local engine."""
# pyright: reportMissingImports=false

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import configs
import numpy as np
import pytest
import torch
from scripted_vllm import ScriptedClient, encode, generator, play

from grpo import rollout as local_rollout
from grpo.config import RunConfig, build_env, build_rewards
from grpo.conversation import Conversations, Reply, Sampling
from grpo.policy import load_policy
from grpo.reward import Mixture
from grpo.tracking import rollout_row
from grpo.types import Rollout, Score, Task

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
