"""SkyRL's generator with our turn loop: what vLLM sampled is what is trained on.

SkyRL renders the whole conversation again for each turn and cuts it by length; here a turn is appended with the same
`ChatRenderer` as in the local engine, and vLLM's render server is asked once for each distinct image. So ids cannot
drift, a turn costs the same however many came before, and an episode that no longer fits is scored and labelled.
"""
# pyright: reportMissingImports=false

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from uuid import uuid4

import aiohttp
import numpy as np
import skyrl_gym
import torch
from skyrl.backends.renderer import decode_mm_kwargs
from skyrl.train.generators.base import GeneratorInput, GeneratorOutput, TrajectoryID
from skyrl.train.generators.skyrl_gym_generator import TrajectoryOutput
from skyrl.train.generators.skyrl_vlm_generator import SkyRLVLMGymGenerator

from grpo.chat import ChatRenderer
from grpo.engines.skyrl_env import SkyrlEnv, image_urls, register
from grpo.interfaces import Env
from grpo.reward import Mixture
from grpo.types import Observation, Rollout, Score, TokenTrace

REMEMBERED_IMAGES = 512
"""Rendered images kept, the oldest going first: siblings see the same first image, and mazes are walked in circles."""
NEVER = -100.0
"""vLLM's strongest bias against a token."""


@dataclass(frozen=True, kw_only=True)
class Rendered:
    """One image as vLLM's render server prepared it."""

    digest: str
    data: str
    """vLLM's own encoding, sent back with each request that shows the image."""
    tokens: int
    pixel_values: torch.Tensor
    grid_thw: torch.Tensor


@dataclass
class _Tokens:
    """A conversation as vLLM is prompted with it and as it is trained on."""

    ids: list[int] = field(default_factory=list)
    mask: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    images: list[Rendered] = field(default_factory=list)
    shown: list[np.ndarray] = field(default_factory=list)
    sent: int = 0
    """Images that vLLM has had the data of; it keeps them."""

    def extend(self, ids: Sequence[int], logprobs: Sequence[float] | None) -> None:
        self.ids += ids
        self.mask += [int(logprobs is not None)] * len(ids)
        self.logprobs += logprobs if logprobs is not None else [0.0] * len(ids)

    def show(self, block: Sequence[int], images: Sequence[Rendered], observation: Observation) -> None:
        self.extend(block, None)
        self.images += images
        self.shown += observation.images

    def features(self, image_token: int, sent: int) -> Any:
        """Where the images are, for vLLM, with the data of all but the first `sent`; None without any."""
        if not self.images:
            return None
        starts = [i for i, token in enumerate(self.ids) if token == image_token]
        places, at = [], 0
        for image in self.images:
            places.append({"offset": starts[at], "length": image.tokens})
            at += image.tokens
        return {
            "mm_hashes": {"image": [image.digest for image in self.images]},
            "mm_placeholders": {"image": places},
            "kwargs_data": {"image": [None] * sent + [image.data for image in self.images[sent:]]},
        }


class Generator(SkyRLVLMGymGenerator):
    """Plays our env; `played` holds the rollouts and scores of the last batch, in its order."""

    def __init__(
        self, *, env: Env, mixture: Mixture, model_name: str, merged_patches: int, tokenizer: Any, **theirs: Any
    ) -> None:
        """`merged_patches` make one visual token. Raises ValueError for a chat template that does not only append."""
        super().__init__(tokenizer=tokenizer, **theirs)
        self.chat = ChatRenderer(tokenizer, model_name)
        self.played: list[tuple[Rollout, Score]] = []
        self._merged_patches = merged_patches
        # What the local engine masks out: an untrained policy does emit <|image_pad|>, and could not be trained on it.
        banned = [token for token in tokenizer.all_special_ids if token != self.chat.end_token]
        self._always = {"min_tokens": 0, "logit_bias": {str(token): NEVER for token in banned}}
        self._images: OrderedDict[str, asyncio.Task[Rendered]] = OrderedDict()
        register(env, mixture, tokenizer.eos_token)

    async def generate(self, input_batch: GeneratorInput, disable_tqdm: bool = False) -> GeneratorOutput:
        output = await super().generate(input_batch, disable_tqdm)
        self.played = [extras.pop("played") for extras in input_batch["env_extras"]]
        return with_empty_images(output)

    async def agent_loop(
        self,
        prompt: Any,
        env_class: str,
        env_extras: dict[str, Any],
        max_tokens: int,
        max_input_length: int,
        sampling_params: dict[str, Any] | None = None,
        trajectory_id: TrajectoryID | None = None,
        cache_salt: str | None = None,
    ) -> TrajectoryOutput:
        """One episode. Raises ValueError if its first observation does not fit `max_input_length`."""
        start = time.monotonic()
        assert trajectory_id is not None and sampling_params is not None
        sample = trajectory_id.repetition_id
        env: Any = skyrl_gym.make(env_class, env_config={}, extras={**env_extras, "sample": sample})
        tokens, observation = _Tokens(), env.observation
        images = await self._render(observation)
        first = self.chat.first_turn(observation.text, _grids(images))
        if len(first) > max_input_length:
            raise ValueError(
                f"algorithm.max_prompt_tokens={max_input_length} is less than a first observation needs with its "
                f"images; use {len(first)} or more (task {env_extras['task']['id']})"
            )
        tokens.show(first, images, observation)
        session = f"{trajectory_id.instance_id}_{sample}"
        reward = await self._turns(env, tokens, max_input_length, sampling_params | self._always, session)
        assert env.played is not None
        transcript = env.played.transcript
        trace = TokenTrace(
            token_ids=np.array(tokens.ids, dtype=np.int64),
            action_mask=np.array(tokens.mask, dtype=bool),
            logprobs=np.array(tokens.logprobs, dtype=np.float32),
            images=tuple(tokens.shown),
        )
        rollout = Rollout(transcript=transcript, sample=sample, trace=trace, final_text=env.played.final_text, drift=0)
        env_extras["played"] = (rollout, env.played.score)
        errored = transcript.stop == "error"
        return TrajectoryOutput(
            prompt_ids=first,
            response_ids=tokens.ids[len(first) :],
            loss_mask=[0 if errored else m for m in tokens.mask[len(first) :]],
            rollout_logprobs=tokens.logprobs[len(first) :],
            reward=reward,
            stop_reason="length" if transcript.truncated else "stop",
            env_metrics=env.get_metrics(),
            pixel_values=torch.cat([image.pixel_values for image in tokens.images]) if tokens.images else None,
            image_grid_thw=torch.cat([image.grid_thw for image in tokens.images]) if tokens.images else None,
            e2e_time=time.monotonic() - start,
        )

    async def _turns(
        self, env: SkyrlEnv, tokens: _Tokens, max_input_length: int, sampling: Mapping[str, Any], session: str
    ) -> float:
        """Play to the end; returns what the episode pays."""
        while True:
            ids, logprobs = await self._sample(tokens, sampling, session)
            tokens.extend(ids, logprobs)
            text = self.tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False)
            outcome = env.step(text, len(ids))
            if outcome["done"]:
                return outcome["reward"]
            observation = env.observation
            images = await self._render(observation)
            # A reply that was cut has no end marker; the template's next turn wants one.
            block = [] if ids[-1] == self.chat.end_token else [self.chat.end_token]
            block += self.chat.next_turn(observation.text, _grids(images))
            if len(tokens.ids) + len(block) > max_input_length:
                return env.end()
            tokens.show(block, images, observation)

    async def _sample(
        self, tokens: _Tokens, sampling: Mapping[str, Any], session: str
    ) -> tuple[list[int], list[float]]:
        output = await self._request(tokens, tokens.sent, sampling, session)
        if not output["response_ids"][0] and tokens.sent > 0:
            output = await self._request(tokens, 0, sampling, session)  # vLLM has had to forget an image
        ids, logprobs = output["response_ids"][0], output["response_logprobs"][0]
        if not ids or logprobs is None or len(ids) != len(logprobs):
            raise RuntimeError(
                f"vLLM gave {len(ids)} tokens and {len(logprobs or [])} log-probabilities for {session} "
                f"({output['stop_reasons'][0]}); wanted as many of the one as of the other, and at least one"
            )
        tokens.sent = len(tokens.images)
        return ids, logprobs

    async def _request(self, tokens: _Tokens, sent: int, sampling: Mapping[str, Any], session: str) -> Any:
        """SkyRL's answer; without tokens where vLLM refuses, if it has been trusted to know `sent` images."""
        features = tokens.features(self.chat.image_token, sent)
        request: Any = dict(
            prompt_token_ids=[tokens.ids],
            session_ids=[session],
            sampling_params=sampling,
            mm_features=None if features is None else [features],
            cache_salt=None,
        )
        try:
            return await self.inference_engine_client.generate(request, model=self.policy_model_name)
        except aiohttp.ClientResponseError as error:
            if sent == 0:
                raise
            return {"response_ids": [[]], "response_logprobs": [None], "stop_reasons": [str(error)]}

    async def _render(self, observation: Observation) -> list[Rendered]:
        return await asyncio.gather(*map(self._render_image, image_urls(observation.images)))

    async def _render_image(self, url: str) -> Rendered:
        task = self._images.get(url)
        if task is None:
            task = self._images[url] = asyncio.create_task(self._ask_for_image(url))
            while len(self._images) > REMEMBERED_IMAGES:
                self._images.popitem(last=False)
        self._images.move_to_end(url)
        return await task

    async def _ask_for_image(self, url: str) -> Rendered:
        client = self.inference_engine_client
        # A name of its own: for an image that it has named already, the server would leave the data out.
        content = [{"type": "image_url", "image_url": {"url": url}, "uuid": uuid4().hex}]
        request = {"model": client.model_name, "messages": [{"role": "user", "content": content}]}
        features = (await client.render_chat_completion({"json": request}))["features"]
        (place,), (data,) = features["mm_placeholders"]["image"], features["kwargs_data"]["image"]
        decoded = decode_mm_kwargs({"image": [data]})
        patches = int(decoded["image_grid_thw"].prod())
        if patches != place["length"] * self._merged_patches:
            raise RuntimeError(
                f"vLLM gave {place['length']} placeholders for an image of {patches} patches; wanted one for "
                f"{self._merged_patches}: its processor is not the model's"
            )
        return Rendered(
            digest=features["mm_hashes"]["image"][0],
            data=data,
            tokens=place["length"],
            pixel_values=decoded["pixel_values"],
            grid_thw=decoded["image_grid_thw"],
        )


def with_empty_images(output: GeneratorOutput) -> GeneratorOutput:
    """Samples without images get tensors of no rows, where others of the batch have some: SkyRL joins them all."""
    pixels = output.get("pixel_values")
    if pixels is None:
        return output
    some = next(each for each in pixels if each is not None)
    output["pixel_values"] = [some[:0] if each is None else each for each in pixels]
    grids = output["image_grid_thw"]
    output["image_grid_thw"] = [torch.zeros(0, 3, dtype=torch.long) if each is None else each for each in grids]
    return output


def _grids(images: Sequence[Rendered]) -> tuple[tuple[int, int], ...]:
    """For `ChatRenderer`, which counts tokens only."""
    return tuple((1, image.tokens) for image in images)
