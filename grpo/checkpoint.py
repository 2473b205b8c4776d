"""Write a folder so that it is there whole or not at all, and optimiser state without pickles.

A checkpoint is written aside, every file synced, then renamed into place; DONE is its last file and holds the hashes of
the others. A folder without DONE is no checkpoint, and one whose files are not those of DONE is damaged.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from grpo.policy import Policy

log = logging.getLogger(__name__)

DONE = "DONE"


def write_folder(target: Path, write: Callable[[Path], None]) -> None:
    """Let `write` fill a new folder, then put it in `target`'s place, replacing what was there."""
    aside = target.with_name(f".{target.name}.part")
    shutil.rmtree(aside, ignore_errors=True)
    aside.mkdir(parents=True)
    write(aside)
    write_json(aside / DONE, {str(path.relative_to(aside)): _hash(path) for path in _files(aside)})
    for path in (*aside.rglob("*"), aside):
        _sync(path)
    if target.exists():
        shutil.rmtree(target)
    aside.rename(target)
    _sync(target.parent)


def is_complete(folder: Path) -> bool:
    return (folder / DONE).is_file()


def damage(folder: Path) -> str | None:
    """What is wrong with a checkpoint, in words; None if it is whole."""
    if not is_complete(folder):
        return "it was never finished (no DONE)"
    try:
        wanted: Mapping[str, str] = json.loads((folder / DONE).read_text())
    except ValueError:
        return "its DONE is not readable"
    wrong = [name for name, digest in wanted.items() if not (folder / name).is_file() or _hash(folder / name) != digest]
    return f"{', '.join(wrong)} is missing or changed" if wrong else None


def prune(folder: Path, keep: int) -> None:
    """Keep the newest `keep` complete checkpoints of `folder`."""
    complete = sorted(path for path in folder.glob("step_*") if is_complete(path))
    for path in complete[:-keep]:
        shutil.rmtree(path)


def save_checkpoint(folder: Path, step: int, policy: Policy, optimizer: torch.optim.Optimizer, *, keep: int) -> None:
    """checkpoints/step_NNNNNN under the run folder: adapter, optimiser state and the step that is done."""

    def write(aside: Path) -> None:
        save_adapter(policy, aside / "adapter")
        save_optimizer(optimizer, aside / "optimizer.safetensors")
        write_json(aside / "state.json", {"step": step})

    checkpoints = folder / "checkpoints"
    write_folder(checkpoints / f"step_{step:06d}", write)
    prune(checkpoints, keep)


def load_checkpoint(checkpoint: Path, policy: Policy, optimizer: torch.optim.Optimizer) -> int:
    """Put adapter and optimiser back as they were; returns the step that was done."""
    from peft import set_peft_model_state_dict

    set_peft_model_state_dict(policy.model, load_file(checkpoint / "adapter" / "adapter_model.safetensors"))
    load_optimizer(optimizer, checkpoint / "optimizer.safetensors")
    return int(json.loads((checkpoint / "state.json").read_text())["step"])


def latest_checkpoint(folder: Path) -> Path | None:
    """The newest whole checkpoint of a run folder. Damaged newer ones are named and set aside, never deleted."""
    for path in sorted((folder / "checkpoints").glob("step_*"), reverse=True):
        fault = damage(path)
        if fault is None:
            return path
        aside = path.with_name(f"damaged_{path.name}")
        shutil.rmtree(aside, ignore_errors=True)
        path.rename(aside)
        log.warning("checkpoint %s is not used: %s; kept as %s", path.name, fault, aside.name)
    return None


def save_adapter(policy: Policy, folder: Path) -> None:
    """The adapter as peft writes it. Raises RuntimeError if it came out without tensors."""
    # Never the embeddings, which peft adds on its own account where an output head is adapted.
    policy.model.save_pretrained(
        str(folder), safe_serialization=True, selected_adapters=["default"], save_embedding_layers=False
    )
    # peft's model card is a form of blanks; nothing of a run is in it.
    (folder / "README.md").unlink(missing_ok=True)
    if not load_file(folder / "adapter_model.safetensors"):
        raise RuntimeError(f"the adapter written to {folder} holds no tensors; the checkpoint is not marked complete")


def save_optimizer(optimizer: torch.optim.Optimizer, file: Path) -> None:
    """Every state tensor of the optimizer; hyper-parameters come from the config again."""
    state: Mapping[int, Mapping[str, Tensor]] = optimizer.state_dict()["state"]
    tensors = {
        f"{index}.{name}": value.detach().cpu().contiguous()
        for index, values in state.items()
        for name, value in values.items()
    }
    save_file(tensors, file)


def load_optimizer(optimizer: torch.optim.Optimizer, file: Path) -> None:
    """The reverse of `save_optimizer`, on an optimizer made for the same parameters in the same order."""
    state: dict[int, dict[str, Tensor]] = {}
    for key, tensor in load_file(file).items():
        index, name = key.split(".", 1)
        state.setdefault(int(index), {})[name] = tensor
    optimizer.load_state_dict({"state": state, "param_groups": optimizer.state_dict()["param_groups"]})


def write_json(file: Path, content: object) -> None:
    """Atomically, so that a reader never sees half of it."""
    aside = file.with_name(f".{file.name}.part")
    aside.write_text(json.dumps(content, indent=2, sort_keys=True) + "\n")
    _sync(aside)
    aside.rename(file)


def _files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())


def _hash(file: Path) -> str:
    with file.open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
