"""Write a folder so that it is there whole or not at all, and optimiser state without pickles.

A checkpoint is written aside, every file synced, then renamed into place; DONE is its last file and holds the hashes of
the others. A folder without DONE is no checkpoint, and one whose files are not those of DONE is damaged.
"""

from __future__ import annotations

import hashlib
import json
import logging
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor

from grpo import pair
from grpo.adapter import fill, tensors_of
from grpo.files import sync, write_json, write_text, writing
from grpo.policy import Policy

log = logging.getLogger(__name__)

DONE = "DONE"
TRACKER_RUN = Path("wandb", "run_id")
"""Under the run folder: the tracker's name for the run. A checkpoint takes it along to where only checkpoints go."""
PART, OLD, GONE = ".part", ".old", ".gone"
"""Endings of hidden names: being written, being replaced, being deleted."""


def write_folder(target: Path, write: Callable[[Path], None]) -> None:
    """Let `write` fill a new folder, then put it in `target`'s place, replacing what was there.

    A kill at any place leaves the old folder or the new one, once `recover` has run. If `write` or the disk fails, the
    old one is as it was.
    """
    aside = target.with_name(f".{target.name}{PART}")
    shutil.rmtree(aside, ignore_errors=True)
    aside.mkdir(parents=True)
    try:
        write(aside)
        write_json(aside / DONE, {str(path.relative_to(aside)): _hash(path) for path in _files(aside)})
        for path in (*aside.rglob("*"), aside):
            sync(path)
    except BaseException:
        shutil.rmtree(aside, ignore_errors=True)
        raise
    if target.exists():
        target.rename(target.with_name(f".{target.name}{OLD}"))
    aside.rename(target)
    sync(target.parent)
    sync(target.parent.parent)
    shutil.rmtree(target.with_name(f".{target.name}{OLD}"), ignore_errors=True)


def recover(run_folder: Path) -> None:
    """Put back what a killed process had moved aside, and remove what it left half done."""
    for folder in (run_folder, run_folder / "checkpoints"):
        for old in folder.glob(f".*{OLD}"):
            target = old.with_name(old.name[1 : -len(OLD)])
            if target.exists():
                shutil.rmtree(old)
            else:
                old.rename(target)
        for left in (*folder.glob(f".*{PART}"), *folder.glob(f".*{GONE}")):
            shutil.rmtree(left) if left.is_dir() else left.unlink()
    for left in run_folder.glob("images/*.tmp"):
        left.unlink()


def is_complete(folder: Path) -> bool:
    return (folder / DONE).is_file()


def damage(folder: Path) -> str | None:
    """What is wrong with a checkpoint, in words; None if it is whole."""
    if not is_complete(folder):
        return "it was never finished (no DONE)"
    try:
        wanted: dict[str, str] = dict(json.loads((folder / DONE).read_text()))
    except (ValueError, TypeError):
        return "its DONE is not readable"
    wrong = [name for name, digest in wanted.items() if not (folder / name).is_file() or _hash(folder / name) != digest]
    return f"{', '.join(wrong)} is missing or changed" if wrong else None


def prune(folder: Path, keep: int) -> None:
    """Keep the newest `keep` complete checkpoints of `folder`."""
    complete = sorted(path for path in folder.glob("step_*") if is_complete(path))
    for path in complete[:-keep]:
        # Out of sight in one move: a kill half way through must not leave a checkpoint without some of its files.
        gone = path.with_name(f".{path.name}{GONE}")
        path.rename(gone)
        shutil.rmtree(gone)


def save_checkpoint(
    folder: Path,
    step: int,
    policy: Policy,
    optimizer: torch.optim.Optimizer,
    *,
    keep: int,
    record: Mapping[str, Any],
) -> None:
    """checkpoints/step_NNNNNN under the run folder: adapter, optimiser state, the step that is done, the tracker's run.

    That is everything: learning rate, tasks and every random draw are functions of the step, so neither a scheduler nor
    a generator has a state. `record` goes with the adapter (grpo.pair). Raises DiskError, and leaves the older
    checkpoints as they are, if the disk refuses.
    """
    checkpoints = folder / "checkpoints"
    target = checkpoints / f"step_{step:06d}"

    def write(aside: Path) -> None:
        save_adapter(policy, aside / "adapter", record)
        save_optimizer(optimizer, aside / "optimizer.safetensors")
        write_state(aside, step, folder)

    with writing("checkpoint", target, folder, needed=_size(policy, optimizer)):
        write_folder(target, write)
        prune(checkpoints, keep)


def write_state(checkpoint: Path, step: int, folder: Path) -> None:
    """state.json of a checkpoint in the making: what `reached` reads back."""
    tracker_run = folder / TRACKER_RUN
    run_id = tracker_run.read_text(encoding="utf-8") if tracker_run.is_file() else None
    write_json(checkpoint / "state.json", {"step": step, "tracker_run": run_id})


def save_final_adapter(folder: Path, policy: Policy, record: Mapping[str, Any]) -> None:
    """adapter/ under the run folder, whole or not at all. Raises DiskError."""
    with writing("final adapter", folder / "adapter", folder):
        write_folder(folder / "adapter", lambda aside: save_adapter(policy, aside, record))


def load_checkpoint(checkpoint: Path, policy: Policy, optimizer: torch.optim.Optimizer) -> int:
    """Put adapter, optimizer and the tracker's run back as they were; returns the step that was done.

    Raises ConfigError if a tensor of the adapter does not land.
    """
    fill(policy.model, checkpoint / "adapter")
    load_optimizer(optimizer, checkpoint / "optimizer.safetensors")
    return reached(checkpoint)


def reached(checkpoint: Path) -> int:
    """The step that was done at a whole checkpoint; puts the tracker's run back as well."""
    state = json.loads((checkpoint / "state.json").read_text())
    tracker_run = checkpoint.parent.parent / TRACKER_RUN
    if state.get("tracker_run") and not tracker_run.exists():
        tracker_run.parent.mkdir(exist_ok=True)
        write_text(tracker_run, state["tracker_run"])
    return int(state["step"])


def _size(policy: Policy, optimizer: torch.optim.Optimizer) -> int:
    """Of a checkpoint's tensors, in bytes."""
    tensors = [value for values in optimizer.state.values() for value in values.values()]
    return sum(tensor.nbytes for tensor in (*policy.trainable, *tensors))


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


def save_adapter(policy: Policy, folder: Path, record: Mapping[str, Any]) -> None:
    """The adapter as peft writes it, with `record` (grpo.pair) beside it.

    Raises RuntimeError if it came out without tensors, or without some of those that the model has.
    """
    # Never the embeddings, which peft adds on its own account where an output head is adapted.
    policy.model.save_pretrained(
        str(folder), safe_serialization=True, selected_adapters=["default"], save_embedding_layers=False
    )
    # peft's model card is a form of blanks; nothing of a run is in it.
    (folder / "README.md").unlink(missing_ok=True)
    with safe_open(folder / pair.WEIGHTS_FILE, "numpy") as written:
        names = set(written.keys())
    lacking = sorted(tensors_of(policy.model).keys() - names) if names else ["no tensors"]
    if lacking:
        told = "no tensors" if not names else f"not {', '.join(lacking[:3])} ({len(lacking)} lacking)"
        raise RuntimeError(f"the adapter written to {folder} holds {told}; the checkpoint is not marked complete")
    write_json(folder / pair.PAIR_FILE, pair.seal(record, folder))


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


def _files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())


def _hash(file: Path) -> str:
    with file.open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()
