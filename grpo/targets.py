"""Whether a base has the modules that an adapter is to be put on, decided from its files before torch is loaded.

Only the last part of a name is asked for: older checkpoints have other prefixes than the model that is made from them.
What a regular expression matches is told when the model is there (grpo.policy).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

from grpo.base import base_folder, existing
from grpo.faults import Fault, nearest
from grpo.schema import RunConfig

HEAD = "lm_head"
"""Where it is tied to the embeddings, no file has it."""


def unmatched(target: str, names: Iterable[str]) -> Fault:
    """The fault of a target module that is not there; `names` are the last parts of those that are."""
    meant = nearest(target, names)
    hint = f"did you mean {meant}?" if meant else f"the model has {', '.join(sorted(names))}"
    return Fault(key="adapter.target_modules", problem=f"{target!r} matches nothing; {hint}")


def faults(run: RunConfig) -> Iterator[Fault]:
    """A fault for each target module that no weight of the base has; none where its files are not on this machine."""
    if run.adapter.type != "lora" or isinstance(run.adapter.target_modules, str):
        return
    folder = base_folder(run.model.name_or_path, run.model.revision)
    names = _modules(folder) if folder is not None else set()
    for target in run.adapter.target_modules:
        if names and target.rpartition(".")[2] not in names | {HEAD}:
            yield unmatched(target, names)


def _modules(folder: Path) -> set[str]:
    """The last part of the name of every module that has a weight matrix; empty where there are no safetensors."""
    from safetensors import SafetensorError, safe_open

    names: set[str] = set()
    for file in existing(folder, ("*.safetensors",)):
        try:
            with safe_open(file, "numpy") as tensors:
                matrices = [name for name in tensors.keys() if len(tensors.get_slice(name).get_shape()) == 2]  # noqa: SIM118
        except SafetensorError:
            return set()  # a damaged base is told where it is loaded
        names |= {name.split(".")[-2] for name in matrices if name.endswith(".weight")}
    return names - {"embed_tokens", "pos_embed"}
