"""SkyRL's generator with our turn loop: what vLLM sampled is what is trained on.

SkyRL renders the whole conversation again for each turn and cuts it by length; here a turn is appended with the same
`ChatRenderer` as in the local engine, and only its new images are prepared and sent. So ids cannot drift, a turn costs
the same however many came before, and an episode that no longer fits is scored and labelled.
"""
# pyright: reportMissingImports=false

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import aiohttp
import numpy as np
import skyrl_gym
import torch
from skyrl.train.generators.base import GeneratorInput, GeneratorOutput, TrajectoryID
from skyrl.train.generators.skyrl_gym_generator import TrajectoryOutput
from skyrl.train.generators.skyrl_vlm_generator import SkyRLVLMGymGenerator
from vllm.sampling_params import RequestOutputKind

from grpo.chat import ChatRenderer
from grpo.engines.skyrl_env import SkyrlEnv, pays, register
from grpo.engines.skyrl_images import Images, Prepared
from grpo.interfaces import Env
from grpo.playing import TooLong
from grpo.reward import Mixture
from grpo.types import Observation, Rollout, Score, TokenTrace

NEVER = -100.0
"""vLLM's strongest bias against a token."""


@dataclass
class _Tokens:
    """A conversation as vLLM is prompted with it and as it is trained on."""

    ids: list[int] = field(default_factory=list)
    mask: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    images: list[Prepared] = field(default_factory=list)
    shown: list[np.ndarray] = field(default_factory=list)
    sent: int = 0
    """Images that vLLM has had the data of; it keeps them."""

    def extend(self, ids: Sequence[int], logprobs: Sequence[float] | None) -> None:
        self.ids += ids
        self.mask += [int(logprobs is not None)] * len(ids)
        self.logprobs += logprobs if logprobs is not None else [0.0] * len(ids)

    def show(self, block: Sequence[int], images: Sequence[Prepared], observation: Observation) -> None:
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
        self, *, env: Env, mixture: Mixture, model: str, merged_patches: int, tokenizer: Any, **theirs: Any
    ) -> None:
        """`merged_patches` make one visual token. Raises ValueError for a chat template that does not only append."""
        super().__init__(tokenizer=tokenizer, **theirs)
        self.chat = ChatRenderer(tokenizer, model)
        self.played: list[tuple[Rollout, Score]] = []
        self._mixture = mixture
        # What the local engine masks out: an untrained policy does emit <|image_pad|>, and could not be trained on it.
        banned = [token for token in tokenizer.all_special_ids if token != self.chat.end_token]
        self._always = {
            "min_tokens": 0,
            "logit_bias": {str(token): NEVER for token in banned},
            # One answer at the end, of ids: vLLM's server would otherwise wake up and decode for every token.
            "output_kind": RequestOutputKind.FINAL_ONLY.value,
        }
        self._images = Images(self.inference_engine_client, model, merged_patches)
        register(env, mixture, tokenizer.eos_token)

    async def generate(self, input_batch: GeneratorInput, disable_tqdm: bool = False) -> GeneratorOutput:
        output = await super().generate(input_batch, disable_tqdm)
        given = input_batch["env_extras"]
        rollouts: list[Rollout] = [extras.pop("played") for extras in given]
        errors = [rollout.transcript.error or "" for rollout in rollouts]
        if all(error.startswith(TooLong.__name__) for error in errors):
            raise ValueError(f"no first observation of this batch fits; one of them: {errors[0]}")
        # All together, so that terms are measured side by side and one that fails on every rollout is found out.
        scores = self._mixture.judge([(each.transcript, _name(each)) for each in rollouts])
        self.played = list(zip(rollouts, scores, strict=True))
        output["rewards"] = [
            pays(rollout.transcript, score, evaluation=extras["evaluation"])
            for (rollout, score), extras in zip(self.played, given, strict=True)
        ]
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
        """One episode; an error if its first observation does not fit `max_input_length`."""
        start = time.monotonic()
        assert trajectory_id is not None and sampling_params is not None
        sample = trajectory_id.repetition_id
        env: Any = skyrl_gym.make(env_class, env_config={}, extras={**env_extras, "sample": sample})
        tokens, observation = _Tokens(), env.observation
        images = await self._images.prepare(observation.images)
        first = self.chat.first_turn(observation.text, _grids(images), observation.before, observation.places)
        if len(first) > max_input_length:
            env.leave_out(TooLong(len(first), max_input_length))
            observation, images = env.observation, []
            first = self.chat.first_turn(observation.text, ())
        tokens.show(first, images, observation)
        session = f"{trajectory_id.instance_id}_{sample}"
        sampling = sampling_params | self._always | {"detokenize": bool(sampling_params.get("stop"))}
        await self._turns(env, tokens, max_input_length, sampling, session)
        transcript, final_text = env.finish()
        trace = TokenTrace(
            token_ids=np.array(tokens.ids, dtype=np.int64),
            action_mask=np.array(tokens.mask, dtype=bool),
            logprobs=np.array(tokens.logprobs, dtype=np.float32),
            images=tuple(tokens.shown),
        )
        rollout = Rollout(transcript=transcript, sample=sample, trace=trace, final_text=final_text, drift=0)
        env_extras["played"] = rollout
        errored = transcript.stop == "error"
        return TrajectoryOutput(
            prompt_ids=first,
            response_ids=tokens.ids[len(first) :],
            loss_mask=[0 if errored else m for m in tokens.mask[len(first) :]],
            rollout_logprobs=tokens.logprobs[len(first) :],
            reward=0.0,  # until the whole batch is scored
            stop_reason="length" if transcript.truncated else "stop",
            env_metrics={},
            pixel_values=torch.cat([image.pixel_values for image in tokens.images]) if tokens.images else None,
            image_grid_thw=torch.cat([image.grid_thw for image in tokens.images]) if tokens.images else None,
            e2e_time=time.monotonic() - start,
        )

    async def _turns(
        self, env: SkyrlEnv, tokens: _Tokens, max_input_length: int, sampling: Mapping[str, Any], session: str
    ) -> None:
        """Play to the end."""
        while True:
            ids, logprobs = await self._sample(tokens, sampling, session)
            tokens.extend(ids, logprobs)
            text = self.tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False)
            if env.take(text, len(ids)):
                return
            observation = env.observation
            images = await self._images.prepare(observation.images)
            # A reply that was cut has no end marker; the template's next turn wants one.
            block = [] if ids[-1] == self.chat.end_token else [self.chat.end_token]
            block += self.chat.next_turn(observation.text, _grids(images), observation.places)
            if len(tokens.ids) + len(block) > max_input_length:
                return
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


def _grids(images: Sequence[Prepared]) -> tuple[tuple[int, int], ...]:
    """For `ChatRenderer`, which counts tokens only."""
    return tuple((1, image.tokens) for image in images)


def _name(rollout: Rollout) -> str:
    return f"task {rollout.transcript.task.id}, sample {rollout.sample}"
