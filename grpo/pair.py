"""pair.json: what an adapter belongs to, kept beside its adapter_config.json and checked wherever it is loaded.

An adapter is no model: on another base, tokenizer or chat template of the same shape it loads without a word and
answers nonsense. peft and vLLM pass over the file.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

from grpo import base
from grpo.config import RunConfig
from grpo.faults import Fault
from grpo.hashing import hash_file
from grpo.redact import redact

PAIR_FILE = "pair.json"
WEIGHTS_FILE = "adapter_model.safetensors"
PARTS = {"content": "weights", "tokenizer": "tokenizer", "processor": "processor", "chat_template": "chat template"}


@dataclass(frozen=True, kw_only=True)
class Mismatch:
    part: str
    """Such as "chat template"."""
    recorded: str
    now: str


def record(made_from: Mapping[str, Any], run: RunConfig, step: int, metrics: Mapping[str, float]) -> dict[str, Any]:
    """What pair.json will say of the adapter after `step`; `made_from` is the run's run.json."""
    diff = made_from.get("dirty_diff")
    rest = {key: value for key, value in made_from.items() if key != "dirty_diff"}
    return {
        **rest,
        "dirty_diff_hash": hashlib.sha256(diff.encode()).hexdigest() if diff else None,
        "config": redact(run.model_dump(by_alias=True)),
        "step": step,
        "metrics": dict(metrics),
    }


def seal(content: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """`content` with the hash of the adapter that lies in `folder`."""
    return {**content, "adapter_hash": hash_file(folder / WEIGHTS_FILE)}


def read(folder: Path) -> dict[str, Any] | None:
    """The record of the adapter in `folder`; None if it has none. Raises ValueError if it cannot be read."""
    file = folder / PAIR_FILE
    if not file.is_file():
        return None
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{file} is not JSON ({error}); take the adapter from its checkpoint again") from error
    if not isinstance(found, dict) or not isinstance(found.get("base"), dict):
        raise ValueError(f"{file} names no base; take the adapter from its checkpoint again")
    return found


def mismatches(recorded: Mapping[str, Any], now: base.Base) -> Iterator[Mismatch]:
    """Parts of the recorded base that are others now; what either side does not know is passed over."""
    today = asdict(now)
    for key, part in PARTS.items():
        old, new = recorded.get(key), today[key]
        if old is not None and new is not None and old != new:
            yield Mismatch(part=part, recorded=old, now=new)
    same_id = recorded.get("id") == now.id
    old, new = recorded.get("revision"), now.revision
    # Hashes say more than a name; the name is all there is where the files are not here yet.
    if now.content is None and same_id and None not in (old, new) and old != new:
        yield Mismatch(part="revision", recorded=str(old), now=str(new))


def faults(run: RunConfig) -> list[Fault]:
    """Why the adapter that the run starts from does not belong to the run's base; read from files alone."""
    if run.adapter.type != "lora" or run.adapter.start_from is None:
        return []
    key, folder = "adapter.start_from", Path(run.adapter.start_from)
    try:
        recorded = read(folder)
        now = base.describe(run.model)
        # Its header is read and compared with the file's length: half a copy is refused here.
        with safe_open(folder / WEIGHTS_FILE, "numpy"):
            pass
    except (OSError, ValueError) as error:
        return [Fault(key=key, problem=str(error))]
    except SafetensorError as error:
        damage = f"{folder / WEIGHTS_FILE} cannot be read ({error}); take the adapter from its checkpoint again"
        return [Fault(key=key, problem=damage)]
    if recorded is None:
        return []
    return [
        Fault(key=key, problem=told(folder, recorded["base"], now, mismatch))
        for mismatch in mismatches(recorded["base"], now)
    ]


def told(adapter: Path, recorded: Mapping[str, Any], now: base.Base, mismatch: Mismatch) -> str:
    return (
        f"{adapter} was trained on {recorded.get('id')} with the {mismatch.part} {mismatch.recorded}, but "
        f"model.name_or_path={now.id} has {mismatch.now}; give the base that the adapter belongs to"
    )


def parent(start_from: str | None) -> dict[str, Any] | None:
    """What a run that starts from another adapter records of it; None for a run that starts from the base."""
    if start_from is None:
        return None
    folder = Path(start_from)
    recorded = read(folder) or {}
    return {
        "folder": str(folder.resolve()),
        "step": recorded.get("step"),
        "adapter_hash": hash_file(folder / WEIGHTS_FILE),
    }
