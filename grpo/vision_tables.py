"""Where a patch is: the two tables that the vision tower adds to and turns its states by, one row a patch.

Rows have the order of the processor's patches: those of one visual token next to each other.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn


def position_embeddings(visual: Any, height: int, width: int) -> Tensor:
    """The learned square grid of position embeddings, resampled to `height` x `width` patches, [P, C]."""
    side = int(visual.config.num_position_embeddings**0.5)
    learned = visual.pos_embed.weight.reshape(1, side, side, -1).permute(0, 3, 1, 2)
    resampled = nn.functional.interpolate(learned, size=(height, width), mode="bilinear", align_corners=True)
    return _in_patch_order(resampled[0].permute(1, 2, 0), visual.spatial_merge_size)


def rotary_angles(visual: Any, height: int, width: int) -> Tensor:
    """Angles of the two-axis rotary embedding, [P, head size]: rows, columns, and both once more."""
    frequencies = visual.rotary_pos_emb.inv_freq.float()
    rows_HWD = torch.outer(torch.arange(height, device=frequencies.device), frequencies)[:, None].expand(-1, width, -1)
    columns_HWD = torch.outer(torch.arange(width, device=frequencies.device), frequencies).expand(height, -1, -1)
    angles_PD = _in_patch_order(torch.cat((rows_HWD, columns_HWD), dim=-1), visual.spatial_merge_size)
    return torch.cat((angles_PD, angles_PD), dim=-1)


def _in_patch_order(values_HWD: Tensor, merge: int) -> Tensor:
    """[P, D] with the patches of one visual token next to each other, as `patchify` has them."""
    height, width, size = values_HWD.shape
    blocks = values_HWD.reshape(height // merge, merge, width // merge, merge, size)
    return blocks.permute(0, 2, 1, 3, 4).reshape(height * width, size)
