"""Rollouts to padded tensors. Letters: B rows, T tokens of the longest row."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from grpo.positions import positions
from grpo.types import TokenTrace

Grid = Callable[[np.ndarray], tuple[int, int]]
"""Height and width of an image in visual tokens."""


@dataclass(frozen=True, kw_only=True)
class Batch:
    """Right-padded rows on one device."""

    token_ids_BT: Tensor
    positions_3BT: Tensor
    action_mask_BT: Tensor
    """True where the policy sampled the token: what the loss is about."""
    old_logprobs_BT: Tensor
    images: tuple[np.ndarray, ...]
    """Of all rows, row by row, in the order of their placeholders."""


def collate(
    traces: Sequence[TokenTrace], *, grid: Grid, image_token: int, pad_token: int, device: torch.device
) -> Batch:
    """Stack traces of different length. Raises ValueError if a row's placeholders are not those of its images."""
    width = max(len(trace.token_ids) for trace in traces)
    rows = len(traces)
    token_ids = np.full((rows, width), pad_token, dtype=np.int64)
    places = np.zeros((3, rows, width), dtype=np.int64)
    mask = np.zeros((rows, width), dtype=bool)
    logprobs = np.zeros((rows, width), dtype=np.float32)
    images: list[np.ndarray] = []
    for row, trace in enumerate(traces):
        length = len(trace.token_ids)
        token_ids[row, :length] = trace.token_ids
        mask[row, :length] = trace.action_mask
        logprobs[row, :length] = trace.logprobs
        places[:, row, :length], _ = positions(trace.token_ids, image_token, [grid(i) for i in trace.images], start=0)
        images.extend(trace.images)
    return Batch(
        token_ids_BT=torch.from_numpy(token_ids).to(device),
        positions_3BT=torch.from_numpy(places).to(device),
        action_mask_BT=torch.from_numpy(mask).to(device),
        old_logprobs_BT=torch.from_numpy(logprobs).to(device),
        images=tuple(images),
    )
