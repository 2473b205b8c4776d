"""vLLM's place taken by a script: replies are given, rendering is vLLM's own."""
# pyright: reportMissingImports=false

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any

from skyrl.utils.tok import get_tokenizer

from grpo.chat import ChatRenderer
from grpo.engines import skyrl
from grpo.engines.skyrl_generator import Generator
from grpo.engines.skyrl_settings import settings
from grpo.engines.skyrl_trainer import entry
from grpo.interfaces import Env
from grpo.paths import model_path
from grpo.reward import Mixture
from grpo.schema import RunConfig
from grpo.types import Rollout, Score, Task

TINY = model_path("models/tiny_qwen3_vl")
TOKENIZER = get_tokenizer(TINY, trust_remote_code=False, use_fast=True, padding_side="left")
CHAT = ChatRenderer(TOKENIZER, "tiny")

Script = Callable[[int, int], str]
"""(sample, turn) -> what the model writes; without `<|im_end|>` at its end it was cut."""


def encode(reply: str) -> list[int]:
    """As a model samples it: the text's tokens, and the end marker where it is written."""
    ended = reply.endswith(TOKENIZER.eos_token)
    return CHAT.encode_reply(reply.removesuffix(TOKENIZER.eos_token)) + ([CHAT.end_token] if ended else [])


class ScriptedClient:
    """What the generator sees of SkyRL's inference client."""

    model_name = TINY

    def __init__(self, script: Script, renderer: Any) -> None:
        self._script = script
        self._renderer = renderer
        self._turns: defaultdict[str, int] = defaultdict(int)
        self.rendered = 0
        self.requests: list[dict[str, Any]] = []

    async def render_chat_completion(self, payload: dict[str, Any]) -> dict[str, Any]:
        self.rendered += 1
        return await self._renderer.render_chat_completion(payload)

    async def finish_session(self, session_id: str) -> None:
        """SkyRL's own generator says so."""

    async def generate(self, request: dict[str, Any], model: str | None = None) -> dict[str, Any]:
        self.requests.append(request | {"model": model, "prompt_token_ids": [list(request["prompt_token_ids"][0])]})
        session = request["session_ids"][0]
        ids = encode(self._script(int(session.rsplit("_", 1)[1]), self._turns[session]))
        self._turns[session] += 1
        return {
            "responses": [TOKENIZER.decode(ids)],
            "response_ids": [ids],
            "response_logprobs": [[-0.5] * len(ids)],
            "stop_reasons": ["stop"],
        }


def generator(run: RunConfig, env: Env, mixture: Mixture, client: Any) -> Generator:
    config = settings(skyrl.overrides(run))
    return Generator(
        env=env,
        mixture=mixture,
        model=TINY,
        merged_patches=4,
        tokenizer=TOKENIZER,
        generator_cfg=config.generator,
        skyrl_gym_cfg=config.environment.skyrl_gym,
        inference_engine_client=client,
        policy_model_name="adapter",
    )


async def play(
    made: Generator, tasks: Sequence[Task], *, siblings: int, evaluation: bool = False
) -> tuple[dict[str, Any], list[tuple[Rollout, Score]]]:
    """One batch; SkyRL's output and what was played."""
    from skyrl.train.generators.utils import prepare_generator_input

    rows = [entry(task, str(index), evaluation=evaluation) for index, task in enumerate(tasks)]
    sampling = {"temperature": 1.0, "max_tokens": 32, "logprobs": 1}
    batch, _ = prepare_generator_input(rows, siblings, sampling, skyrl.ENV_CLASS, "train", 1)
    output = await made.generate(batch, disable_tqdm=True)
    return dict(output), made.played
