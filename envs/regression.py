"""Prompts that have nothing to do with the training tasks: what else did a policy forget or change?

A fixed set, drawn by code, of three kinds: text alone, one image, several images. Nothing is solved here: the answers
are compared with those of the base, and how likely the base's answers still are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from PIL import Image, ImageDraw

from grpo.interfaces import Env, Episode
from grpo.types import Observation, Outcome, Split, Task

KINDS = ("text only", "one image", "many images")
SIDE = 128
"""Pixels; a multiple of every patch size in use, so that no image is resized."""

_TEXTS = (
    "What is the capital of France? Answer in one word.",
    "Write one sentence about the sea.",
    "What is 17 + 25?",
    "Name three fruits, separated by commas.",
    "Translate into German: The house is small.",
    "Is a whale a fish? Answer yes or no and say why in one sentence.",
    "Sort these numbers: 9, 2, 7, 4.",
    'Give {"name": "Ada", "born": 1815} back as a list of its keys.',
)
_ONE_IMAGE = (
    "What shape is in the picture?",
    "What colour is the shape?",
    "Describe the picture in one sentence.",
    "Is there a circle in the picture? Answer yes or no.",
    "How many shapes are in the picture?",
    "What colour is the background?",
    "Which corner is the shape nearest to?",
    "Is the shape larger than half of the picture?",
)
_MANY_IMAGES = (
    "What differs between the pictures?",
    "Which picture shows a circle: the first, the second or the third?",
    "Do all pictures show the same colour?",
    "In which picture is the shape largest?",
    "Describe each picture in a few words.",
    "How many pictures are there?",
    "How many of the pictures show a square?",
    "What colour is the shape in the last picture?",
)
_COLOURS = ((220, 40, 40), (40, 90, 220), (40, 160, 70), (230, 160, 30))
_SHAPES = ("circle", "square", "triangle")


@dataclass(frozen=True, kw_only=True)
class RegressionPrompts(Env):
    """Every split holds the same prompts: nobody trains on them."""

    max_turns: int = 1

    def tasks(self, split: Split, count: int, seed: int) -> Sequence[Task]:
        everything = [
            Task(
                id=f"{kind}/{number}", split=split, seed=number, data={"kind": kind, "prompt": prompt, "images": images}
            )
            for kind, prompts, images in zip(KINDS, (_TEXTS, _ONE_IMAGE, _MANY_IMAGES), (0, 1, 3), strict=True)
            for number, prompt in enumerate(prompts)
        ]
        return everything[:count]

    def episode(self, task: Task) -> Episode:
        return _Prompt(task)

    def min_turns(self, task: Task) -> int | None:
        return None


class _Prompt(Episode):
    def __init__(self, task: Task) -> None:
        images = tuple(_shape(task.seed * 3 + place) for place in range(task.data["images"]))
        self._shown = Observation(text=task.data["prompt"], images=images)
        self._done = False

    def observe(self) -> Observation:
        return self._shown

    def state(self) -> Mapping[str, Any]:
        return {}

    def act(self, reply: str) -> Outcome:
        if self._done:
            raise RuntimeError("a prompt is answered once; make another episode with env.episode(task)")
        self._done = True
        return Outcome(action=None, feedback="", done=True, solved=False)

    def expert(self) -> str | None:
        return None

    def text(self) -> str:
        return self._shown.text


def _shape(number: int) -> np.ndarray:
    """uint8[SIDE, SIDE, 3]: one shape; its kind, colour, size and place follow from the number."""
    image = Image.new("RGB", (SIDE, SIDE), (245, 245, 245))
    draw = ImageDraw.Draw(image)
    colour, shape = _COLOURS[number % len(_COLOURS)], _SHAPES[number % len(_SHAPES)]
    size = 32 + 16 * (number % 3)
    left, top = 8 + 24 * (number % 2), 8 + 24 * (number // 2 % 2)
    box = (left, top, left + size, top + size)
    if shape == "circle":
        draw.ellipse(box, fill=colour)
    elif shape == "square":
        draw.rectangle(box, fill=colour)
    else:
        draw.polygon([(left, top + size), (left + size, top + size), (left + size // 2, top)], fill=colour)
    drawn = np.asarray(image)
    drawn.setflags(write=False)
    return drawn
