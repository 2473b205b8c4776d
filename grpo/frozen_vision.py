"""A vision tower that is not trained, on a CPU in float32: the same weights in fewer passes over memory.

`grpo.vision` holds the version that can be trained. Here matrix products run in oneDNN (more than twice as fast as
torch's default, MKL, on the AMD processor that was measured) with the activation inside, and queries and keys are
rotated by one complex product in place. In place means without gradients, so this is for frozen towers alone. The
features of an image do not depend on what else is in the stack (by test), so a resumed run finds the very numbers of
the run that was stopped.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from grpo.vision_tables import position_embeddings, rotary_angles

MIDDLE = 255 / 2
"""Of a pixel's values."""


@dataclass(frozen=True, kw_only=True)
class _Projection:
    """Of queries, keys and values, in this order, with the two halves of each query and key interleaved."""

    weight: Tensor
    bias: Tensor


class FrozenTower:
    """Both ways in return tokens [F, N, H] and deepstack features [L, F, N, H] of F images of one size."""

    def __init__(self, visual: Any) -> None:
        self._visual = visual
        self._patch, self._merge = int(visual.patch_size), int(visual.spatial_merge_size)
        kernel = visual.patch_embed.proj
        # The patch convolution never overlaps, and an image is the same frame twice, see grpo.vision. The bytes of an
        # image are taken as they lie, color last and less their middle; scaling them to -1..1 is part of the weights.
        weight = kernel.weight.detach().sum(dim=2) / MIDDLE
        self._patch_weight, self._patch_bias = weight.permute(0, 2, 3, 1).flatten(1), kernel.bias
        self._buffer = torch.empty(0)
        self._projections = [_interleaved(block.attn) for block in visual.blocks]
        self._heads = int(visual.blocks[0].attn.num_heads)
        self._tables = lru_cache(maxsize=8)(self._make_tables)

    @staticmethod
    def suits(visual: Any) -> bool:
        """Whether this is the kind of tower and machine that it was written for.

        A linear layer with an adapter on it, for one, is more than its weights.
        """
        parameter = next(visual.parameters())
        return (
            all(type(module) is nn.Linear for module in _linear_modules(visual))
            and parameter.device.type == "cpu"
            and parameter.dtype == torch.float32
            and visual.config.hidden_act == "gelu_pytorch_tanh"
            and torch.backends.mkldnn.is_available()
            and hasattr(torch.ops.mkldnn, "_linear_pointwise")
        )

    @torch.inference_mode()
    def images(self, images_FHWC: np.ndarray) -> tuple[Tensor, Tensor]:
        """Of bytes that need no resizing."""
        images, height, width, _ = images_FHWC.shape
        patch, merge = self._patch, self._merge
        rows, columns = height // patch // merge, width // patch // merge
        blocks = torch.from_numpy(images_FHWC).reshape(images, rows, merge, patch, columns, merge, patch * 3)
        # Into memory that is kept: fresh pages for so much cost more than the conversion to float.
        if self._buffer.numel() < images_FHWC.size:
            self._buffer = torch.empty(images_FHWC.size)
        pixels = self._buffer[: images_FHWC.size].view(images, rows, columns, merge, merge, patch, patch * 3)
        pixels.copy_(blocks.permute(0, 1, 4, 2, 5, 3, 6))
        pixels -= MIDDLE
        return self._encode(pixels.view(images, -1, patch * patch * 3), height // patch, width // patch)

    @torch.inference_mode()
    def patches(self, patches_FPC: Tensor, height: int, width: int) -> tuple[Tensor, Tensor]:
        """Of pixel rows in -1..1, color first, see `grpo.vision.patchify`; `height` and `width` are in patches."""
        pixels_FPC = patches_FPC.unflatten(2, (3, -1)).transpose(2, 3).flatten(2)
        return self._encode(pixels_FPC * MIDDLE, height, width)

    def _encode(self, pixels_FPC: Tensor, height: int, width: int) -> tuple[Tensor, Tensor]:
        visual = self._visual
        embeddings_PC, turns_PD = self._tables(height, width)
        hidden_FPC = _product(pixels_FPC, self._patch_weight, self._patch_bias)
        hidden_FPC += embeddings_PC
        deepstack = []
        for index, (block, projection) in enumerate(zip(visual.blocks, self._projections, strict=True)):
            hidden_FPC += self._attend(block, projection, hidden_FPC, turns_PD)
            inner = block.mlp.linear_fc1
            widened = _product(block.norm2(hidden_FPC), inner.weight, inner.bias, activation="gelu")
            hidden_FPC += _linear(block.mlp.linear_fc2, widened)
            if index in visual.deepstack_visual_indexes:
                merger = visual.deepstack_merger_list[visual.deepstack_visual_indexes.index(index)]
                deepstack.append(_merge(merger, hidden_FPC))
        return _merge(visual.merger, hidden_FPC), torch.stack(deepstack)

    def _make_tables(self, height: int, width: int) -> tuple[Tensor, Tensor]:
        """Position embeddings [P, C]; turns of queries and keys [P, C], complex numbers of length one."""
        angles_PD = rotary_angles(self._visual, height, width)
        # The angles come twice over, for the two halves of a head.
        angles = angles_PD[:, : angles_PD.shape[1] // 2].repeat(1, 2 * self._heads)
        return position_embeddings(self._visual, height, width), torch.polar(torch.ones_like(angles), angles)

    def _attend(self, block: Any, projection: _Projection, hidden_FPC: Tensor, turns_PD: Tensor) -> Tensor:
        images, count, channels = hidden_FPC.shape
        qkv = _product(block.norm1(hidden_FPC), projection.weight, projection.bias)
        queries_and_keys = qkv[..., : 2 * channels].unflatten(-1, (channels, 2))
        torch.view_as_complex(queries_and_keys).mul_(turns_PD)
        query, key, value = qkv.reshape(images, count, 3, self._heads, -1).permute(2, 0, 3, 1, 4)
        mixed = nn.functional.scaled_dot_product_attention(query, key, value, scale=block.attn.scaling)
        return _linear(block.attn.proj, mixed.transpose(1, 2).reshape(images, count, channels))


def _interleaved(attention: Any) -> _Projection:
    """Rotary embedding turns dimension i together with i + half. Put next to each other they are one complex number;
    products of queries and keys stay what they are, because both are reordered alike.
    """

    def reordered(rows: Tensor) -> Tensor:
        split = rows.detach().reshape(3, attention.num_heads, 2, -1, *rows.shape[1:])
        return torch.cat((split[:2].transpose(2, 3).flatten(0, 3), split[2:].flatten(0, 3)))

    return _Projection(weight=reordered(attention.qkv.weight), bias=reordered(attention.qkv.bias))


def _linear_modules(visual: Any) -> Iterator[nn.Module]:
    for block in visual.blocks:
        yield from (block.attn.qkv, block.attn.proj, block.mlp.linear_fc1, block.mlp.linear_fc2)
    for merger in (visual.merger, *visual.deepstack_merger_list):
        yield from (merger.linear_fc1, merger.linear_fc2)


def _merge(merger: Any, hidden_FPC: Tensor) -> Tensor:
    """The patches of one visual token are consecutive, so that merging them is a change of shape."""
    images, shape = len(hidden_FPC), (len(hidden_FPC), -1, merger.hidden_size)
    if merger.use_postshuffle_norm:
        merged = merger.norm(hidden_FPC.reshape(shape))
    else:
        merged = merger.norm(hidden_FPC).reshape(images, -1, merger.hidden_size)
    return _linear(merger.linear_fc2, merger.act_fn(_linear(merger.linear_fc1, merged)))


def _linear(module: nn.Linear, states: Tensor) -> Tensor:
    return _product(states, module.weight, module.bias)


def _product(states: Tensor, weight: Tensor, bias: Tensor, activation: str = "none") -> Tensor:
    # What torch.compile calls for a linear layer on a CPU. `linear` itself never takes oneDNN for float32, and a 1x1
    # convolution, which does, changes its summation with the size of the stack.
    return torch.ops.mkldnn._linear_pointwise(states, weight, bias, activation, [], "tanh")
