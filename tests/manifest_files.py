"""Manifests and pictures in a test's own folder."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import configs
import pytest
from PIL import Image

from envs.manifest import Manifest
from grpo import config
from grpo.interfaces import DataError

SUM = {"prompt": "1 + 1?", "answer": 2, "kind": "number"}


def written(path: Path, rows: Sequence[Mapping[str, Any] | str]) -> Path:
    path.write_text("".join(f"{row if isinstance(row, str) else json.dumps(row)}\n" for row in rows))
    return path


def sums(first: int, count: int) -> list[dict[str, Any]]:
    return [
        {"prompt": f"{number} + 1?", "answer": number + 1, "kind": "number"} for number in range(first, first + count)
    ]


def built(folder: Path, train: Sequence[Any], held_out: Sequence[Any] | None = None, **changes: str) -> Manifest:
    """Manifests of these rows; without held-out rows, sums that no test trains on."""
    written(folder / "train.jsonl", train)
    written(folder / "eval.jsonl", sums(1000, 20) if held_out is None else held_out)
    words = [f"env.{key}={value}" for key, value in changes.items()]
    (run,) = configs.typed(
        ["env=manifest", f"env.train_manifest={folder}/train.jsonl", f"env.eval_manifest={folder}/eval.jsonl", *words]
    )
    env = config.build_env(run)
    assert isinstance(env, Manifest)
    return env


def faults(env: Manifest) -> list[tuple[str, str]]:
    with pytest.raises(DataError) as caught:
        env.tasks("train", 1, seed=0)
    return list(caught.value.faults)


def picture(path: Path, size: tuple[int, int] = (64, 32), colour: Any = "red", **save: Any) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", size, colour).save(path, **save)
    return path.name
