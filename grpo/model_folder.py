"""Whether a folder holds a whole model, decided from its files before torch is loaded.

transformers makes do with less: without its tokenizer file it invents an empty tokenizer, and trains on that without a
word. A model of the hub is not asked about: what is missing of it is downloaded when it is loaded.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from grpo import base
from grpo.faults import Fault
from grpo.paths import model_path

MODEL_TYPES = ("qwen3_vl",)
LARGEST_HEADER = 100_000_000
"""Bytes; what the safetensors library takes at most."""


def faults(name_or_path: str) -> list[Fault]:
    """All that is wrong with the folder of that name; nothing where there is none."""
    folder = Path(model_path(name_or_path))
    if not folder.is_dir():
        return []
    return [
        Fault(key="model.name_or_path", problem=f"{name_or_path!r} is no whole model: {problem}")
        for problem in _problems(folder)
    ]


def _problems(folder: Path) -> Iterator[str]:
    yield from _config(folder)
    yield from _weights(folder)
    if not (folder / "tokenizer.json").is_file() and not (folder / "vocab.json").is_file():
        yield "it has no tokenizer.json, nor a vocab.json with merges.txt"
    if not base.existing(folder, ("preprocessor_config.json", "processor_config.json")):
        yield "it has no preprocessor_config.json, which says how images become patches"
    if base.chat_template(folder) is None:
        yield f"it has no chat template ({base.TEMPLATE_FILE}, or one in {base.TOKENIZER_CONFIG})"


def _config(folder: Path) -> Iterator[str]:
    file = folder / "config.json"
    if not file.is_file():
        yield "it has no config.json"
        return
    try:
        kind = base.read_json(file).get("model_type")
    except ValueError as error:
        yield str(error)
        return
    if kind not in MODEL_TYPES:
        yield f"its config.json says model_type {kind!r}, wanted {' or '.join(MODEL_TYPES)}"


def _weights(folder: Path) -> Iterator[str]:
    files = base.existing(folder, ("*.safetensors",))
    there = {file.name for file in files}
    missing = sorted(set(base.shards(folder)) - there)
    if missing:
        count = f"{len(missing)} of {len(missing) + len(there)} files"
        yield f"{', '.join(missing[:3])} of its weights are missing ({count})"
    elif not files and base.existing(folder, ("*.bin",)):
        yield "its weights are pickles (*.bin), which are not loaded from disk; save it as safetensors"
    elif not files:
        yield "it has no *.safetensors"
    for file in files:
        fault = _torn(file)
        if fault is not None:
            yield f"{file.name} {fault}"


def _torn(file: Path) -> str | None:
    """What is wrong with a safetensors file as its own header tells, without reading the tensors."""
    size = file.stat().st_size
    with file.open("rb") as content:
        start = content.read(8)
        if start.startswith(b"version "):
            return "is a pointer of Git LFS, not the file; git lfs pull fetches it"
        length = int.from_bytes(start, "little")
        if len(start) < 8 or length > min(size - 8, LARGEST_HEADER):
            return f"is cut or no safetensors file ({size:,} bytes)"
        try:
            tensors = json.loads(content.read(length))
            end = max(
                (tensor["data_offsets"][1] for name, tensor in tensors.items() if name != "__metadata__"), default=0
            )
        except (ValueError, LookupError, TypeError, AttributeError):
            return "has no readable header; it is damaged"
    wanted = 8 + length + end
    return None if size == wanted else f"has {size:,} bytes and should have {wanted:,}; copy or download it again"
