"""Whether an adapter's own files are sound, and whether vLLM can serve them; decided without loading a model.

What vLLM serves was read in its source (vllm/config/lora.py, vllm/lora/peft_helper.py, vllm/lora/lora_model.py, 0.23):
the ranks below, one rank and one alpha for all modules, plain LoRA on linear layers, the vision tower only where
enable_tower_connector_lora is set. Weights on the tower are otherwise loaded and passed over without a word.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

SERVED_RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)
SERVED_MODULES = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
TENSOR_NAME = re.compile(r"base_model\.model\.(?P<module>.+)\.lora_(?P<side>[AB])\.weight")
UNSERVED = {
    "bias": "biases",
    "modules_to_save": "whole modules (modules_to_save)",
    "use_dora": "DoRA",
    "rank_pattern": "a rank for some modules (rank_pattern)",
    "alpha_pattern": "an alpha for some modules (alpha_pattern)",
    "trainable_token_indices": "trained token embeddings (trainable_token_indices)",
}
SHOWN = 3
"""Names told of many."""


@dataclass(frozen=True, kw_only=True)
class Check:
    name: str
    verdict: Literal["ok", "unknown", "fails"]
    detail: str
    serving: bool = False
    """Only matters to a server that takes the adapter as it is; a merged model does without."""


def check(name: str, faults: list[str], fine: str, *, serving: bool = False) -> Check:
    told = "; ".join(faults[:SHOWN]) + (f"; and {len(faults) - SHOWN} more" if len(faults) > SHOWN else "")
    return Check(name=name, verdict="fails" if faults else "ok", detail=told or fine, serving=serving)


def file_checks(settings: Mapping[str, Any], tensors: Mapping[str, Tensor], *, tower_lora: bool) -> Iterator[Check]:
    """Of adapter_config.json and adapter_model.safetensors; `tower_lora`: the server adapts the vision tower too."""
    modules = sorted({match["module"] for name in tensors if (match := TENSOR_NAME.fullmatch(name))})
    sides = f"{len(tensors)} tensors on {len(modules)} modules, every one finite, none all zero"
    yield check("tensors", list(_tensor_faults(tensors, modules)), sides)
    rank = settings.get("r")
    served = served_rank(rank) if isinstance(rank, int) else None
    faults = [] if served else [f"rank {rank!r} is none that vLLM serves (1 to {SERVED_RANKS[-1]})"]
    yield check("rank", faults, f"{rank}; serve with --max-lora-rank {served}", serving=True)
    kind = settings.get("peft_type")
    odd = [f"{kind!r} is not LORA"] if kind != "LORA" else []
    odd += [
        f"it has {told}" for key, told in UNSERVED.items() if settings.get(key) not in (None, False, "none", [], {})
    ]
    yield check("kind", odd, "plain LoRA", serving=True)
    targets = ", ".join(sorted({module.rsplit(".", 1)[-1] for module in modules}))
    yield check("modules", list(_module_faults(modules, tower_lora)), targets, serving=True)


def served_rank(rank: int) -> int | None:
    """The smallest --max-lora-rank that takes `rank`; None if there is none."""
    return next((served for served in SERVED_RANKS if 0 < rank <= served), None)


def _tensor_faults(tensors: Mapping[str, Tensor], modules: list[str]) -> Iterator[str]:
    if not tensors:
        yield "the file holds no tensors: nothing was saved"
        return
    effects = [tensor for name, tensor in tensors.items() if name.endswith("lora_B.weight")]
    # peft starts every lora_B at zero: one sentence then, not one a module.
    untrained = bool(effects) and not any(bool(tensor.any()) for tensor in effects)
    if untrained:
        yield "every lora_B is zero: the adapter was never trained and changes nothing"
    for name, tensor in tensors.items():
        fault = _tensor_fault(name, tensor, zero_is_told=untrained)
        if fault is not None:
            yield f"{name} {fault}"
    for module in modules:
        for side, other in (("A", "B"), ("B", "A")):
            if f"base_model.model.{module}.lora_{side}.weight" not in tensors:
                yield f"{module} has lora_{other} but no lora_{side}"


def _tensor_fault(name: str, tensor: Tensor, *, zero_is_told: bool) -> str | None:
    if not TENSOR_NAME.fullmatch(name):
        return "is no LoRA matrix"
    if tensor.numel() == 0:
        return "is empty"
    if not bool(torch.isfinite(tensor).all()):
        return "holds numbers that are not finite"
    if not zero_is_told and not bool(tensor.any()):
        return "is all zero: its module was not trained and changes nothing"
    return None


def _module_faults(modules: list[str], tower_lora: bool) -> Iterator[str]:
    for module in modules:
        last = module.rsplit(".", 1)[-1]
        if "visual." in module:
            if not tower_lora:
                yield f"{module} is in the vision tower, where vLLM passes adapters over (--tower-lora: yours does not)"
        elif last not in SERVED_MODULES:
            yield f"{module} is no language-model layer that vLLM adapts ({', '.join(SERVED_MODULES)})"
