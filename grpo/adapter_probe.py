"""Whether an adapter lands on its base and changes what that answers; and the two merged into one model.

The probe is one turn with text and an image. Logits are compared over the whole prompt, in float32 where it counts.
"""

from __future__ import annotations

import json
import shutil
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from grpo import adapter as adapters
from grpo import base, pair
from grpo.batch import collate
from grpo.checkpoint import write_folder
from grpo.conversation import Conversations, Sampling
from grpo.files import write_json
from grpo.policy import Policy, load_policy
from grpo.provenance import packages
from grpo.schema import ModelConfig, NoAdapter
from grpo.types import Observation, TokenTrace

MERGED_FILE = "merged.json"
TOLERANCE = {"float32": 1e-4, "bfloat16": 0.05, "float16": 0.01}
"""Largest difference of a logit between merged and unmerged, as a share of the largest logit, by the dtype that the
merged weights are rounded to."""
COPIED = (
    *base.TOKENIZER_FILES,
    base.TOKENIZER_CONFIG,
    *base.PROCESSOR_FILES,
    base.TEMPLATE_FILE,
    base.OLD_TEMPLATE_FILE,
    "generation_config.json",
)
SIDE, REPLY_TOKENS = 96, 32


@dataclass(frozen=True, kw_only=True)
class Probe:
    max_difference: float
    """Of a logit, with and without the adapter."""
    base_reply: str
    adapter_reply: str


class MergeError(RuntimeError):
    """The merged model does not answer as base and adapter do; nothing was kept."""


def adapted_policy(model: ModelConfig, folder: Path) -> Policy:
    """The base with the adapter in `folder`. Raises ConfigError if a tensor does not land."""
    bare = load_policy(model, NoAdapter(type="none"), device=_device(), seed=0)
    # Trainable, so that an adapted vision tower is not taken for one whose features can be remembered.
    network = adapters.add(bare.model, folder, name="default", trainable=True)
    return Policy(network, bare.tokenizer, bare.image_processor, name=model.name_or_path)


def probe(policy: Policy) -> Probe:
    with_adapter, adapter_reply = prompt_logits(policy), _reply(policy)
    with policy.model.disable_adapter():
        without, base_reply = prompt_logits(policy), _reply(policy)
    difference = float((with_adapter - without).abs().max())
    return Probe(max_difference=difference, base_reply=base_reply, adapter_reply=adapter_reply)


@torch.inference_mode()
def prompt_logits(policy: Policy) -> Tensor:
    """float32 [T, V]: at every token of the probe's prompt."""
    shown = _observation()
    grids = tuple(policy.vision.grid(image) for image in shown.images)
    ids = np.array(policy.chat.first_turn(shown.text, grids, ()))
    blank = np.zeros(len(ids))
    trace = TokenTrace(
        token_ids=ids, action_mask=blank.astype(bool), logprobs=blank.astype(np.float32), images=shown.images
    )
    batch = collate(
        [trace],
        grid=policy.vision.grid,
        image_token=policy.chat.image_token,
        pad_token=policy.tokenizer.pad_token_id,
        device=policy.device,
    )
    return policy.base.lm_head(policy.hidden(batch)[0]).float().cpu()


def merge(model: ModelConfig, folder: Path, out: Path) -> dict[str, Any]:
    """Write base and adapter as one model into the new folder `out`, load it again, and compare.

    Merged in float32, then rounded to the base's dtype. Returns what merged.json says. Raises MergeError, and leaves
    no folder, if the answers differ by more than the tolerance.
    """
    source = base.base_folder(model.name_or_path, model.revision)
    assert source is not None, "the base was loaded before"
    dtype = base_dtype(source)
    exact = model.model_copy(update={"dtype": "float32"})
    policy = adapted_policy(exact, folder)
    unmerged = prompt_logits(policy)
    network = policy.model.merge_and_unload(safe_merge=True).to(getattr(torch, dtype))
    record = {
        "adapter": str(folder.resolve()),
        "adapter_hash": pair.seal({}, folder)["adapter_hash"],
        "pair": pair.read(folder),
        "base": asdict(base.describe(model)),
        "dtype": dtype,
        "packages": packages(),
    }

    def write(aside: Path) -> None:
        network.save_pretrained(aside)
        for file in base.existing(source, COPIED):
            shutil.copy(file, aside / file.name)
        record.update(_compared(exact, aside, unmerged, dtype))
        write_json(aside / MERGED_FILE, record)

    write_folder(out, write)
    return record


def _compared(model: ModelConfig, merged: Path, unmerged: Tensor, dtype: str) -> dict[str, float]:
    again = model.model_copy(update={"name_or_path": str(merged), "revision": None})
    fresh = prompt_logits(load_policy(again, NoAdapter(type="none"), device=_device(), seed=0))
    difference, tolerance = float((fresh - unmerged).abs().max()), TOLERANCE[dtype] * float(unmerged.abs().max())
    if not difference <= tolerance:
        raise MergeError(
            f"merged and unmerged logits differ by up to {difference:.3g}, more than the tolerance {tolerance:.3g} "
            f"({TOLERANCE[dtype]:g} of the largest logit, for {dtype}); nothing was kept"
        )
    return {"max_logit_difference": difference, "tolerance": tolerance}


def base_dtype(folder: Path) -> str:
    """Of the base's weights as they are saved."""
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    found = str(config.get("dtype") or config.get("torch_dtype") or "float32")
    return found if found in TOLERANCE else "float32"


def _observation() -> Observation:
    image = np.random.default_rng(0).integers(0, 256, (SIDE, SIDE, 3), dtype=np.uint8)
    image.flags.writeable = False
    return Observation(text="What do you see in the picture, and which way do you go?", images=(image,))


def _reply(policy: Policy) -> str:
    conversations = Conversations(policy)
    conversations.start([_observation()], siblings=1)
    sampling = Sampling(temperature=1.0, greedy=True, max_completion_tokens=REPLY_TOKENS)
    (reply,) = conversations.reply(sampling, lambda row, count: np.zeros(count))
    return reply.text


def _device() -> torch.device:
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")
