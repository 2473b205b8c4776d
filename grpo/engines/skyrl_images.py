"""Images as vLLM and SkyRL's trainer take them, prepared here instead of in vLLM's server.

vLLM's render endpoint takes 15 ms an image and holds up generation meanwhile; the model's own image processor takes
0.3 ms. The server is asked once, at the first image: only if both make the same pixels of it is the work done here.
"""
# pyright: reportMissingImports=false

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any
from uuid import uuid4

import numpy as np
import torch
from skyrl.backends.renderer import decode_mm_kwargs
from transformers import AutoImageProcessor
from vllm.entrypoints.serve.disagg.mm_serde import decode_mm_kwargs_item, encode_mm_kwargs_item
from vllm.multimodal.inputs import MultiModalKwargsItem

from grpo.openai_content import image_url
from grpo.vision import digest

log = logging.getLogger(__name__)

REMEMBERED = 512
"""Images kept, the oldest going first: siblings see the same first image, and mazes are walked in circles."""


@dataclass(frozen=True, kw_only=True)
class Prepared:
    """One image."""

    digest: str
    data: str
    """vLLM's own encoding."""
    tokens: int
    """How many placeholders stand for it in a prompt."""
    pixel_values: torch.Tensor
    grid_thw: torch.Tensor


class Images:
    def __init__(self, client: Any, model: str, merged_patches: int) -> None:
        """`merged_patches`: how many patches make one visual token."""
        self._client = client
        self._processor = AutoImageProcessor.from_pretrained(model, trust_remote_code=False)
        self._merged_patches = merged_patches
        self._kept: OrderedDict[str, asyncio.Task[Prepared]] = OrderedDict()
        self._probe: asyncio.Task[MultiModalKwargsItem | None] | None = None

    async def prepare(self, images: Sequence[np.ndarray]) -> list[Prepared]:
        return [await self._one(image) for image in images]

    async def _one(self, image: np.ndarray) -> Prepared:
        key = digest(image).hex()
        task = self._kept.get(key)
        if task is None:
            task = self._kept[key] = asyncio.create_task(self._make(image, key))
            while len(self._kept) > REMEMBERED:
                self._kept.popitem(last=False)
        self._kept.move_to_end(key)
        return await task

    async def _make(self, image: np.ndarray, key: str) -> Prepared:
        if self._probe is None:
            self._probe = asyncio.create_task(self._compare(image))
        template = await self._probe
        if template is None:
            return await self._ask(image)
        pixels, grid = self._process(image)
        values = {"pixel_values": pixels.to(template["pixel_values"].data.dtype), "image_grid_thw": grid[0]}
        item = MultiModalKwargsItem({name: replace(template[name], data=data) for name, data in values.items()})
        return Prepared(
            digest=key,
            data=encode_mm_kwargs_item(item),
            tokens=int(grid.prod()) // self._merged_patches,
            pixel_values=values["pixel_values"],
            grid_thw=grid,
        )

    async def _compare(self, image: np.ndarray) -> MultiModalKwargsItem | None:
        """vLLM's item of an image, to make others after; None if ours would differ from it."""
        theirs = await self._ask(image)
        pixels, grid = self._process(image)
        same = torch.equal(grid, theirs.grid_thw) and torch.equal(
            pixels.to(theirs.pixel_values.dtype), theirs.pixel_values
        )
        if same:
            return decode_mm_kwargs_item(theirs.data)
        log.warning("vLLM prepares images otherwise than the model's processor does here; it is asked for each of them")
        return None

    def _process(self, image: np.ndarray) -> tuple[torch.Tensor, torch.Tensor]:
        made = self._processor(images=[image.copy()], return_tensors="pt")  # torch warns of read-only arrays
        return made["pixel_values"], made["image_grid_thw"]

    async def _ask(self, image: np.ndarray) -> Prepared:
        """Raises RuntimeError if placeholders and patches do not go together."""
        # A name of its own: for an image that it has named already, the server would leave the data out.
        content = [{"type": "image_url", "image_url": {"url": image_url(image)}, "uuid": uuid4().hex}]
        request = {"model": self._client.model_name, "messages": [{"role": "user", "content": content}]}
        features = (await self._client.render_chat_completion({"json": request}))["features"]
        (place,), (data,) = features["mm_placeholders"]["image"], features["kwargs_data"]["image"]
        decoded = decode_mm_kwargs({"image": [data]})
        patches = int(decoded["image_grid_thw"].prod())
        if patches != place["length"] * self._merged_patches:
            raise RuntimeError(
                f"vLLM gave {place['length']} placeholders for an image of {patches} patches; wanted one for "
                f"{self._merged_patches}: its processor is not the model's"
            )
        return Prepared(
            digest=features["mm_hashes"]["image"][0],
            data=data,
            tokens=place["length"],
            pixel_values=decoded["pixel_values"],
            grid_thw=decoded["image_grid_thw"],
        )
