"""Draw the sample data: shapes to count, charts to read, pictures to compare; text-only, one-image and many-image rows.

    python scripts/sample_data.py                  # data/sample again, as shipped
    python scripts/sample_data.py OUT --rows 1000  # more, elsewhere: OUT/train.jsonl, OUT/eval.jsonl, OUT/images/

Every row follows from the seed and its own number. Pictures are small, so that the tiny model sees a few tokens each.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

from PIL import Image, ImageDraw
from rich.progress import track

ROOT = Path(__file__).resolve().parent.parent
COLOURS = {"red": "#d62728", "green": "#2ca02c", "blue": "#1f77b4", "orange": "#ff7f0e"}
SHAPES = ("circle", "square", "triangle")
CELL = 32
"""Pixels; one visual token of Qwen3-VL."""
ASK = "Answer in <answer>…</answer>."

Drawn = tuple[dict[str, Any], list[Image.Image]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", nargs="?", type=Path, default=ROOT / "data/sample", metavar="OUT")
    parser.add_argument("--rows", type=int, default=120, metavar="N", help="for training; half as many are held out")
    parser.add_argument("--seed", type=int, default=0, metavar="N")
    options = parser.parse_args()
    write(options.out, options.rows, options.seed)
    print(f"written: {options.out}/train.jsonl, {options.out}/eval.jsonl, {options.out}/images/")


def write(out: Path, rows: int, seed: int) -> None:
    """Both manifests and their images. What two rows would ask alike is drawn again, so none is there twice."""
    (out / "images").mkdir(parents=True, exist_ok=True)
    asked: set[bytes] = set()
    for name, count in (("train", rows), ("eval", rows // 2)):
        with (out / f"{name}.jsonl").open("w", encoding="utf-8") as file:
            for number in track(range(count), description=name):
                row, images = _new(f"{seed}/{name}/{number}", number, asked)
                row["images"] = [f"images/{name}_{number:04}_{index}.png" for index in range(len(images))]
                for path, image in zip(row["images"], images, strict=True):
                    image.quantize(16).save(out / path, optimize=True)
                row["id"] = f"{row['tags'][0]}-{number:04}"
                file.write(json.dumps(row, ensure_ascii=False) + "\n")


def _new(name: str, number: int, asked: set[bytes]) -> Drawn:
    for attempt in range(1000):
        row, images = KINDS[number % len(KINDS)](Random(f"{name}/{attempt}"))
        shown = b"".join([row["prompt"].encode(), *(image.tobytes() for image in images)])
        if shown not in asked:
            asked.add(shown)
            return row, images
    raise RuntimeError(f"row {name}: nothing new to ask after 1000 attempts; draw fewer rows")


def count_shapes(rng: Random) -> Drawn:
    image, things = _shapes(rng, columns=rng.choice([3, 4]), rows=3)
    colour = rng.choice(list(COLOURS))
    count = sum(of == colour for of, _ in things)
    facts = {name: sum(of == name for of, _ in things) for name in COLOURS}
    row = _row(f"How many {colour} shapes? {ASK}", count, "number", "counting")
    return row | {"facts": facts}, [image]


def read_chart(rng: Random) -> Drawn:
    names = rng.sample(list(COLOURS), 3)
    heights = dict(zip(names, rng.sample(range(1, 10), 3), strict=True))
    wanted = max if rng.random() < 0.5 else min
    answer = wanted(heights, key=lambda name: heights[name])
    letters = "ABC"[: len(names)]
    options = " ".join(f"{letter}. {name}" for letter, name in zip(letters, names, strict=True))
    superlative = "highest" if wanted is max else "lowest"
    row = _row(f"Which bar is {superlative}? {options} {ASK}", letters[names.index(answer)], "choice", "charts")
    return row | {"choices": names}, [_chart(heights)]


def find_shape(rng: Random) -> Drawn:
    columns, rows = rng.choice([3, 4, 5]), rng.choice([3, 4])
    image = Image.new("RGB", (columns * CELL, rows * CELL), "white")
    column, row = rng.randrange(columns), rng.randrange(rows)
    shape, colour = rng.choice(SHAPES), rng.choice(list(COLOURS))
    _draw(image, column, row, colour, shape)
    sides = (column / columns, row / rows, (column + 1) / columns, (row + 1) / rows)
    box = [round(1000 * side) for side in sides]
    prompt = f"Point at the {shape}: [x, y], 0 to 1000. {ASK}"
    return _row(prompt, box, "point", "grounding"), [image]


def compare_pictures(rng: Random) -> Drawn:
    pictures = [_shapes(rng, columns=rng.choice([2, 3]), rows=2) for _ in range(rng.choice([2, 3]))]
    counts = [len(things) for _, things in pictures]
    most = max(counts)
    if counts.count(most) > 1:
        return compare_pictures(rng)
    row = _row(f"Which image has most shapes? Give its number. {ASK}", counts.index(most) + 1, "number", "comparing")
    return row, [image for image, _ in pictures]


def calculate(rng: Random) -> Drawn:
    a, b = rng.randrange(2, 60), rng.randrange(2, 60)
    return _row(f"{a} + {b} = ? {ASK}", a + b, "number", "text"), []


KINDS: tuple[Callable[[Random], Drawn], ...] = (count_shapes, read_chart, find_shape, compare_pictures, calculate)


def _row(prompt: str, answer: Any, kind: str, tag: str) -> dict[str, Any]:
    return {"prompt": prompt, "images": [], "answer": answer, "kind": kind, "tags": [tag]}


def _shapes(rng: Random, columns: int, rows: int) -> tuple[Image.Image, list[tuple[str, str]]]:
    """A picture with some of its cells filled, and (colour, shape) of each."""
    image = Image.new("RGB", (columns * CELL, rows * CELL), "white")
    cells = rng.sample([(x, y) for x in range(columns) for y in range(rows)], rng.randint(1, columns * rows))
    things = [(rng.choice(list(COLOURS)), rng.choice(SHAPES)) for _ in cells]
    for (column, row), (colour, shape) in zip(cells, things, strict=True):
        _draw(image, column, row, colour, shape)
    return image, things


def _draw(image: Image.Image, column: int, row: int, colour: str, shape: str) -> None:
    left, top = column * CELL + 5, row * CELL + 5
    right, bottom = left + CELL - 11, top + CELL - 11
    canvas, fill = ImageDraw.Draw(image), COLOURS[colour]
    if shape == "circle":
        canvas.ellipse((left, top, right, bottom), fill=fill)
    elif shape == "square":
        canvas.rectangle((left, top, right, bottom), fill=fill)
    else:
        canvas.polygon([((left + right) // 2, top), (right, bottom), (left, bottom)], fill=fill)


def _chart(heights: dict[str, int]) -> Image.Image:
    image = Image.new("RGB", (len(heights) * CELL, 3 * CELL), "white")
    canvas = ImageDraw.Draw(image)
    for index, (colour, height) in enumerate(heights.items()):
        canvas.rectangle(
            (index * CELL + 6, 3 * CELL - 2 - 9 * height, index * CELL + 25, 3 * CELL - 2), fill=COLOURS[colour]
        )
    canvas.line((0, 3 * CELL - 1, image.width, 3 * CELL - 1), fill="black")
    return image


if __name__ == "__main__":
    main()
