"""The base model as files: where its folder is, and what tells it from another base.

Weights, tokenizer, processor and chat template have a hash each, so that a pair that does not belong together is
refused with the part that differs named. Everything is read from files: no torch, and no network.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from grpo.config import ModelConfig
from grpo.hashing import hash_files
from grpo.paths import model_path

WEIGHTS = ("*.safetensors", "*.bin")
CONFIG_FILES = ("config.json",)
TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer.model",
    "vocab.json",
    "merges.txt",
    "added_tokens.json",
    "special_tokens_map.json",
)
TOKENIZER_CONFIG = "tokenizer_config.json"
PROCESSOR_FILES = ("preprocessor_config.json", "processor_config.json", "video_preprocessor_config.json")
TEMPLATE_FILE = "chat_template.jinja"
OLD_TEMPLATE_FILE = "chat_template.json"


@dataclass(frozen=True, kw_only=True)
class Base:
    """A hash is None where the files are not on this machine, or the folder has none of that kind."""

    id: str
    """As the config names it: a hub id or a folder."""
    revision: str | None
    """The commit of a model from the hub; None for a folder."""
    content: str | None
    """Of the weights and of config.json."""
    tokenizer: str | None
    processor: str | None
    chat_template: str | None


def describe(model: ModelConfig) -> Base:
    folder = base_folder(model.name_or_path, model.revision)
    if folder is None:
        return Base(
            id=model.name_or_path,
            revision=model.revision,
            content=None,
            tokenizer=None,
            processor=None,
            chat_template=None,
        )
    return Base(
        id=model.name_or_path,
        revision=folder.name if folder.parent.name == "snapshots" else model.revision,
        content=_content(folder),
        tokenizer=_tokenizer(folder),
        processor=hash_files(found) if (found := existing(folder, PROCESSOR_FILES)) else None,
        chat_template=chat_template(folder),
    )


def base_folder(name_or_path: str, revision: str | None) -> Path | None:
    """Where the files of a base are on this machine; None for a hub model that was not downloaded yet."""
    folder = Path(model_path(name_or_path))
    if folder.is_dir():
        return folder
    if not re.fullmatch(r"[\w.-]+(/[\w.-]+)?", name_or_path):
        return None
    from huggingface_hub import try_to_load_from_cache

    found = try_to_load_from_cache(name_or_path, "config.json", revision=revision)
    return Path(found).parent if isinstance(found, str) else None


def existing(folder: Path, names: tuple[str, ...]) -> list[Path]:
    """Those of the files that the folder has; names may be patterns."""
    return sorted(path for name in names for path in folder.glob(name) if path.is_file())


def _content(folder: Path) -> str | None:
    weights = existing(folder, WEIGHTS)
    if not weights or any(not (folder / shard).is_file() for shard in shards(folder)):
        return None  # half a download is not a base yet
    return hash_files([*weights, *existing(folder, CONFIG_FILES)])


def shards(folder: Path) -> Iterator[str]:
    for index in folder.glob("*.safetensors.index.json"):
        yield from set(read_json(index).get("weight_map", {}).values())


def _tokenizer(folder: Path) -> str | None:
    """Without the chat template, which older folders keep in the tokenizer's own config."""
    files = existing(folder, TOKENIZER_FILES)
    config = folder / TOKENIZER_CONFIG
    if not files and not config.is_file():
        return None
    total = hashlib.sha256(hash_files(files).encode())
    if config.is_file():
        settings = {key: value for key, value in read_json(config).items() if key != "chat_template"}
        total.update(json.dumps(settings, sort_keys=True).encode())
    return total.hexdigest()


def chat_template(folder: Path) -> str | None:
    template = folder / TEMPLATE_FILE
    if template.is_file():
        return _hash_text(template.read_text(encoding="utf-8"))
    for name in (TOKENIZER_CONFIG, OLD_TEMPLATE_FILE):
        found = read_json(folder / name).get("chat_template") if (folder / name).is_file() else None
        if found is not None:
            return _hash_text(found if isinstance(found, str) else json.dumps(found, sort_keys=True))
    return None


def _hash_text(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def read_json(file: Path) -> dict[str, Any]:
    """Raises ValueError, naming the file, if it holds no JSON object."""
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{file} is not JSON ({error}); the base is damaged, download or copy it again") from error
    if not isinstance(found, dict):
        raise ValueError(f"{file} holds {type(found).__name__}, wanted an object; the base is damaged")
    return found
