"""Images to visual tokens: each distinct image of a batch once, images of one size together.

transformers' vision model loops over images and rebuilds its position tables for each; `_encode_equal` runs the same
weights on a whole stack of equal-sized images (equal to it by test). It relies on modules and weights alone, because
the methods around them differ between transformers 5.8 and 5.17. Where the vision tower is frozen, features are
remembered across steps, and on CPU computed by `grpo.frozen_vision`: in rollouts and in training alike, so that both
see the same numbers.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from grpo.frozen_vision import FrozenTower
from grpo.vision_tables import position_embeddings, rotary_angles

MEMORY_BYTES = 256 * 2**20
"""How much remembered features may take; the oldest go first."""
PATCHES_AT_ONCE = 2048
"""Of one pass through a frozen tower on CPU: fewer pay more for calls, more for memory that no cache holds."""


@dataclass(frozen=True, kw_only=True)
class Features:
    """What the language model is given for one image of N visual tokens."""

    tokens_NH: Tensor
    deepstack_LNH: Tensor
    """Added to the hidden states after each of the first L decoder layers (DeepStack, arXiv 2406.04334)."""


class VisionEncoder:
    def __init__(self, visual: Any, image_processor: Any) -> None:
        self._visual = visual
        self._processor = image_processor
        self._frozen = not any(parameter.requires_grad for parameter in visual.parameters())
        fast = self._frozen and FrozenTower.suits(visual)
        self._frozen_tower = FrozenTower(visual) if fast else None
        self._memory: OrderedDict[bytes, Features] = OrderedDict()
        self._bytes = 0
        self._patch, self._merge = int(visual.patch_size), int(visual.spatial_merge_size)
        self._resized_shape = lru_cache(maxsize=1024)(self._smart_resize)

    def grid(self, image: np.ndarray) -> tuple[int, int]:
        """Height and width of an image in visual tokens, after the processor's resizing."""
        height, width = self._resized(image)
        unit = self._patch * self._merge
        return height // unit, width // unit

    def encode(self, images: Sequence[np.ndarray]) -> list[Features]:
        """Features of each image, in order; equal images are computed once and share one tensor."""
        digests = [digest(image) for image in images]
        known: dict[bytes, Features] = {}
        missing: dict[bytes, np.ndarray] = {}
        for key, image in zip(digests, images, strict=True):
            if key in self._memory:
                self._memory.move_to_end(key)
                known[key] = self._memory[key]
            else:
                missing.setdefault(key, image)
        stacks: dict[tuple[tuple[int, int], bool], list[bytes]] = {}
        for key, image in missing.items():
            size = self._resized(image)
            stacks.setdefault((size, image.shape[:2] == size), []).append(key)
        for (size, unchanged), keys in stacks.items():
            encoded = self._encode_stack([missing[key] for key in keys], size, unchanged=unchanged)
            for key, features in zip(keys, encoded, strict=True):
                known[key] = features
                if self._frozen:
                    self._store(key, features)
        return [known[key] for key in digests]

    def _encode_stack(
        self, images: Sequence[np.ndarray], size: tuple[int, int], *, unchanged: bool
    ) -> Iterator[Features]:
        """Features of images that all have (`unchanged`) or become `size` pixels."""
        height, width = size[0] // self._patch, size[1] // self._patch
        at_once = len(images) if self._frozen_tower is None else max(1, PATCHES_AT_ONCE // (height * width))
        for first in range(0, len(images), at_once):
            some = images[first : first + at_once]
            if self._frozen_tower is None:
                patches_FPC = patchify(np.stack(some), self._patch, self._merge) if unchanged else self._processed(some)
                tokens_FNH, deepstack_LFNH = _encode_equal(self._visual, patches_FPC, height, width)
            elif unchanged:
                tokens_FNH, deepstack_LFNH = self._frozen_tower.images(np.stack(some))
            else:
                tokens_FNH, deepstack_LFNH = self._frozen_tower.patches(self._processed(some), height, width)
            for index in range(len(some)):
                yield Features(tokens_NH=tokens_FNH[index], deepstack_LNH=deepstack_LFNH[:, index])

    def _store(self, key: bytes, features: Features) -> None:
        # Cloned, or one remembered image would keep the whole stack that it was computed in alive.
        kept = Features(tokens_NH=features.tokens_NH.clone(), deepstack_LNH=features.deepstack_LNH.clone())
        self._memory[key] = kept
        self._bytes += _size(kept)
        while self._bytes > MEMORY_BYTES:
            self._bytes -= _size(self._memory.popitem(last=False)[1])

    def _resized(self, image: np.ndarray) -> tuple[int, int]:
        height, width, _ = image.shape
        return self._resized_shape(height, width)

    def _smart_resize(self, height: int, width: int) -> tuple[int, int]:
        from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import smart_resize

        size = self._processor.size
        return smart_resize(
            height,
            width,
            factor=self._patch * self._merge,
            min_pixels=size["shortest_edge"],
            max_pixels=size["longest_edge"],
        )

    def _processed(self, images: Sequence[np.ndarray]) -> Tensor:
        """Pixel rows [F, P, 3*patch*patch]: one of the two equal frames that the processor makes of an image."""
        rows = self._processor(images=list(images), return_tensors="pt")["pixel_values"]
        return rows.reshape(len(images), -1, 3, 2, self._patch**2)[:, :, :, 0].flatten(2)


def digest(image: np.ndarray) -> bytes:
    """Of shape and pixels. SHA-256, because processors have instructions for it."""
    found = hashlib.sha256(repr(image.shape).encode())
    found.update(np.ascontiguousarray(image).data)
    return found.digest()


def patchify(images_FHWC: np.ndarray, patch: int, merge: int) -> Tensor:
    """float32[F, P, 3*patch*patch]: what Qwen2VLImageProcessor makes of images that need no resizing, less its
    repetition in time. Pixels go from 0..255 to -1..1; the patches of one visual token are consecutive.
    """
    images, height, width, _ = images_FHWC.shape
    rows, columns = height // patch // merge, width // patch // merge
    blocks = images_FHWC.reshape(images, rows, merge, patch, columns, merge, patch, 3)
    # Rearranged as bytes and by numpy, which is several times faster at it than torch.
    patches = np.ascontiguousarray(blocks.transpose(0, 1, 4, 2, 5, 7, 3, 6)).reshape(images, -1, 3 * patch * patch)
    return torch.from_numpy(patches).float().mul_(2 / 255).sub_(1)


def _encode_equal(visual: Any, patches_FPC: Tensor, height: int, width: int) -> tuple[Tensor, Tensor]:
    """Tokens [F, N, H] and deepstack features [L, F, N, H] of F images of `height` x `width` patches."""
    images = len(patches_FPC)
    parameter = next(visual.parameters())
    patches_FPC = patches_FPC.to(device=parameter.device, dtype=parameter.dtype)
    # The patch convolution never overlaps, so it is a matrix product; and as an image is the same frame twice, the
    # kernel's two slices in time can be added up first.
    kernel = visual.patch_embed.proj
    hidden_FPC = nn.functional.linear(patches_FPC, kernel.weight.sum(dim=2).flatten(1), kernel.bias)
    hidden_FPC = hidden_FPC + position_embeddings(visual, height, width)
    angles_PD = rotary_angles(visual, height, width)
    cos_PD, sin_PD = angles_PD.cos(), angles_PD.sin()
    deepstack = []
    for index, block in enumerate(visual.blocks):
        hidden_FPC = hidden_FPC + _attend(block.attn, block.norm1(hidden_FPC), cos_PD, sin_PD)
        hidden_FPC = hidden_FPC + block.mlp(block.norm2(hidden_FPC))
        if index in visual.deepstack_visual_indexes:
            merger = visual.deepstack_merger_list[visual.deepstack_visual_indexes.index(index)]
            deepstack.append(merger(hidden_FPC.flatten(0, 1)).unflatten(0, (images, -1)))
    tokens_FNH = visual.merger(hidden_FPC.flatten(0, 1)).unflatten(0, (images, -1))
    return tokens_FNH, torch.stack(deepstack)


def _attend(attention: Any, hidden_FPC: Tensor, cos_PD: Tensor, sin_PD: Tensor) -> Tensor:
    """The vision model's self-attention over a stack of images.

    While training on CPU as two plain matrix products: `scaled_dot_product_attention`'s backward takes about half of
    a training step there at small head sizes.
    """
    images, count, _ = hidden_FPC.shape
    qkv = attention.qkv(hidden_FPC).reshape(images, count, 3, attention.num_heads, -1).permute(2, 0, 3, 1, 4)
    query, key = _rotate(qkv[:2], cos_PD, sin_PD).unbind(0)
    value = qkv[2]
    if query.device.type == "cpu" and torch.is_grad_enabled():
        weights = (query * attention.scaling) @ key.transpose(-1, -2)
        mixed = weights.softmax(dim=-1) @ value
    else:
        mixed = nn.functional.scaled_dot_product_attention(query, key, value, scale=attention.scaling)
    return attention.proj(mixed.transpose(1, 2).reshape(images, count, -1))


def _rotate(states: Tensor, cos_PD: Tensor, sin_PD: Tensor) -> Tensor:
    first, second = states.chunk(2, dim=-1)
    return torch.addcmul(states * cos_PD, torch.cat((-second, first), dim=-1), sin_PD).to(states.dtype)


def _size(features: Features) -> int:
    return features.tokens_NH.nbytes + features.deepstack_LNH.nbytes
