"""Observations as messages of the OpenAI API: what a server is sent, and what SkyRL's own generators hand on.

Images travel inside the message, as PNG: it loses nothing, and no server has to be able to reach a file.
"""

from __future__ import annotations

import base64
import io
from typing import Any

import numpy as np
from PIL import Image

from grpo.types import Observation, interleaved


def messages(observation: Observation) -> list[dict[str, Any]]:
    """What came before the observation, and itself as the user's message, its images where they stand in the text."""
    earlier = [{"role": said.role, "content": said.text} for said in observation.before]
    content = [
        {"type": "text", "text": piece}
        if isinstance(piece, str)
        else {"type": "image_url", "image_url": {"url": image_url(piece)}}
        for piece in interleaved(observation.text, observation.places, observation.images)
    ]
    return [*earlier, {"role": "user", "content": content}]


def image_url(image: np.ndarray) -> str:
    buffer = io.BytesIO()
    Image.fromarray(image).save(buffer, "PNG", compress_level=1)
    return "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode()
