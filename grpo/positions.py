"""Qwen3-VL's three-axis rotary positions (time, height, width) for a piece of a sequence.

Written for pieces, because a rollout appends to its sequence turn by turn; transformers' `get_rope_index` wants the
whole of it at once. Equal to that function by test.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


def positions(
    token_ids: Sequence[int] | np.ndarray, image_token: int, grids: Sequence[tuple[int, int]], start: int
) -> tuple[np.ndarray, int]:
    """Positions of consecutive tokens, and the position that follows.

    `grids` holds height and width, in visual tokens, of each image whose placeholders occur in `token_ids`.
    Returns int64[3, T] and the next start. An image takes one step of time, and the text after it goes on from the
    larger of its sides (Qwen2-VL, arXiv 2409.12191, section 2.1).

    Raises ValueError if the placeholders are not exactly those of the images.
    """
    ids = np.asarray(token_ids, dtype=np.int64)
    expected = sum(height * width for height, width in grids)
    found = int((ids == image_token).sum())
    if found != expected:
        raise ValueError(f"{found} image placeholders for {len(grids)} images that need {expected}")
    result = np.empty((3, len(ids)), dtype=np.int64)
    at, position = 0, start
    for height, width in grids:
        first = at + int(np.argmax(ids[at:] == image_token))
        size = height * width
        if not (ids[first : first + size] == image_token).all():
            raise ValueError(f"the {size} placeholders of one image are not consecutive at token {first}")
        result[:, at:first] = np.arange(position, position + first - at)
        position += first - at
        result[0, first : first + size] = position
        result[1, first : first + size] = position + np.repeat(np.arange(height), width)
        result[2, first : first + size] = position + np.tile(np.arange(width), height)
        position += max(height, width)
        at = first + size
    rest = len(ids) - at
    result[:, at:] = np.arange(position, position + rest)
    return result, position + rest
