"""Reads SkyRL's keys and types from its dataclasses, and as a program writes them to grpo/engines/skyrl_keys.json."""
# pyright: reportMissingImports=false

from __future__ import annotations

import dataclasses
import json
import types
import typing
from pathlib import Path
from typing import Any

FILE = Path(__file__).resolve().parents[2] / "grpo/engines/skyrl_keys.json"


def read() -> dict[str, list[str]]:
    from skyrl.train.config import SkyRLTrainConfig

    return dict(sorted(_walk(SkyRLTrainConfig, "").items()))


def _walk(cls: Any, prefix: str) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    hints = typing.get_type_hints(cls)
    for field in dataclasses.fields(cls):
        key, hint = prefix + field.name, hints[field.name]
        choices = _choices(hint)
        inner = [choice for choice in choices if dataclasses.is_dataclass(choice)]
        if inner:
            found |= _walk(inner[0], f"{key}.")
        else:
            found[key] = [_kind(choice) for choice in choices]
    return found


def _choices(hint: Any) -> tuple[Any, ...]:
    return typing.get_args(hint) if typing.get_origin(hint) in (typing.Union, types.UnionType) else (hint,)


def _kind(hint: Any) -> str:
    if hint is type(None):
        return "null"
    return "dict" if hint is Any else (typing.get_origin(hint) or hint).__name__


if __name__ == "__main__":
    lines = ",\n".join(f"  {json.dumps(key)}: {json.dumps(kinds)}" for key, kinds in read().items())
    FILE.write_text(f"{{\n{lines}\n}}\n")
