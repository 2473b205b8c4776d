"""The peer of the rollout benchmark: `model.generate` that computes the whole history anew each turn.

It is what one writes first, in a fast form. Each turn the whole chats are rendered and tokenised as Qwen3VLProcessor
does it (that class itself wants torchvision), the images of all histories go through the image processor together, and
one batched `generate` on prompts padded on the left answers all episodes that still go on. Sampled replies are drawn
from the numbers that our side draws from, so that both play the same episodes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import LogitsProcessor

from grpo.chat import IMAGE_PAD
from grpo.conversation import Sampling, drawn
from grpo.interfaces import Env, Episode
from grpo.policy import Policy
from grpo.randomness import uniforms
from grpo.types import Observation, Task
from scripts.benchmarks.measure import Played, Stopwatch


@dataclass(kw_only=True)
class _History:
    task: Task
    sample: int
    episode: Episode
    messages: list[dict[str, Any]] = field(default_factory=list)
    images: list[np.ndarray] = field(default_factory=list)
    actions: list[str | None] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    """The last prompt and its reply."""
    done: bool = False

    def show(self, observation: Observation) -> None:
        parts = [{"type": "text", "text": observation.text}, *({"type": "image"} for _ in observation.images)]
        self.messages.append({"role": "user", "content": parts})
        self.images += observation.images


def play_plain(
    policy: Policy,
    env: Env,
    tasks: Sequence[Task],
    *,
    siblings: int,
    sampling: Sampling,
    purpose: tuple[str | int, ...],
) -> Played:
    """What `grpo.rollout.play` plays, all episodes at once."""
    watch, inputs = Stopwatch(), Inputs(policy)
    histories = [
        _History(task=task, sample=sample, episode=env.episode(task)) for task in tasks for sample in range(siblings)
    ]
    tokens = 0
    for history in histories:
        history.show(history.episode.observe())
    for turn in range(env.max_turns):
        live = [history for history in histories if not history.done]
        if not live:
            break
        prompts = inputs(live)
        draws = [uniforms(*purpose, h.task.id, h.sample, turn, count=sampling.max_completion_tokens) for h in live]
        replies = _replies(policy, prompts, sampling, np.stack(draws))
        for row, (history, reply) in enumerate(zip(live, replies, strict=True)):
            tokens += len(reply)
            prompt = prompts["input_ids"][row][prompts["attention_mask"][row].bool()]
            history.token_ids = [*prompt.tolist(), *reply]
            text = policy.chat.decode(reply)
            history.messages.append({"role": "assistant", "content": text})
            outcome = history.episode.act(text)
            history.actions.append(outcome.action)
            history.done = outcome.done
            if not outcome.done and turn + 1 < env.max_turns:
                history.show(history.episode.observe())
    return Played(
        actions=[history.actions for history in histories],
        token_ids=[history.token_ids for history in histories],
        tokens=tokens,
        spent=watch.spent(),
        parts=inputs.spent,
    )


class Inputs:
    """Model inputs of whole chats, and the CPU seconds that went into making them."""

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self.spent = {"chat_template_and_tokenizer": 0.0, "image_processor": 0.0}

    def __call__(self, histories: Sequence[_History]) -> dict[str, Any]:
        images = [image for history in histories for image in history.images]
        made = self._timed("image_processor", lambda: self._policy.image_processor(images=images, return_tensors="pt"))
        # Visual tokens of each image: its patches, four of which are merged.
        counts = iter((made["image_grid_thw"].prod(dim=1) // self._policy.image_processor.merge_size**2).tolist())
        prompts = self._timed("chat_template_and_tokenizer", lambda: self._tokenized(histories, counts))
        is_image = prompts["input_ids"] == self._policy.chat.image_token
        return {**prompts, **made, "mm_token_type_ids": is_image.int()}

    def _tokenized(self, histories: Sequence[_History], counts: Any) -> Any:
        tokenizer = self._policy.tokenizer
        chats = [history.messages for history in histories]
        texts = tokenizer.apply_chat_template(chats, tokenize=False, add_generation_prompt=True)
        for index, text in enumerate(texts):
            first, *rest = text.split(IMAGE_PAD)
            texts[index] = first + "".join(IMAGE_PAD * next(counts) + piece for piece in rest)
        return tokenizer(texts, padding=True, padding_side="left", add_special_tokens=False, return_tensors="pt")

    def _timed(self, part: str, work: Callable[[], Any]) -> Any:
        watch = Stopwatch()
        made = work()
        self.spent[part] += watch.spent().cpu
        return made


class _Drawn(LogitsProcessor):
    """Leaves only the token that our own sampling would draw."""

    def __init__(self, policy: Policy, temperature: float, uniform_BK: np.ndarray) -> None:
        self._policy, self._temperature = policy, temperature
        self._uniform_BK = torch.from_numpy(uniform_BK)
        self._step = 0

    # The base class types its tensors as torch.FloatTensor, which no operation returns.
    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        scores = (scores / self._temperature).masked_fill(self._policy.banned_V, float("-inf"))
        chosen_B = drawn(scores.log_softmax(dim=-1), self._uniform_BK[:, self._step])
        self._step += 1
        return torch.full_like(scores, float("-inf")).scatter_(1, chosen_B[:, None], 0.0)


def _replies(policy: Policy, prompts: dict[str, Any], sampling: Sampling, uniform_BK: np.ndarray) -> list[list[int]]:
    """One reply of each, its end marker included."""
    end = policy.chat.end_token
    choice: dict[str, Any] = {"logits_processor": [_Drawn(policy, sampling.temperature, uniform_BK)]}
    if sampling.greedy:
        choice = {"suppress_tokens": policy.banned_V.nonzero().flatten().tolist()}
    produced = policy.base.generate(
        **prompts,
        **choice,
        max_new_tokens=sampling.max_completion_tokens,
        do_sample=False,
        eos_token_id=end,
        pad_token_id=policy.tokenizer.pad_token_id,
    )[:, prompts["input_ids"].shape[1] :].tolist()
    return [reply[: reply.index(end) + 1] if end in reply else reply for reply in produced]
