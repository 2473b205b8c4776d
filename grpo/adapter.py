"""Put an adapter's file onto a model, and refuse one of which any tensor does not land.

peft warns about tensors that it has no place for and goes on; what then trains or answers is another adapter.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from grpo.faults import ConfigError, Fault
from grpo.pair import WEIGHTS_FILE

SHOWN = 5
"""Tensors named in a refusal; an adapter of another model has hundreds."""


def tensors_of(adapted: Any, name: str = "default") -> dict[str, Tensor]:
    """The adapter's tensors of a peft model, under the names that its file has."""
    from peft import get_peft_model_state_dict

    # Never the embeddings, which peft adds on its own account where an output head is adapted. Its type says str.
    options: Any = {"adapter_name": name, "save_embedding_layers": False}
    return get_peft_model_state_dict(adapted, **options)


def misfits(wanted: Mapping[str, Tensor], found: Mapping[str, Tensor]) -> list[str]:
    """Why the tensors `found` in a file are not those that the model has places for; empty if each lands."""
    return [
        *(f"{name} has no place in the model" for name in sorted(found.keys() - wanted.keys())),
        *(f"{name} is missing" for name in sorted(wanted.keys() - found.keys())),
        *_other_shapes(wanted, found),
    ]


def _other_shapes(wanted: Mapping[str, Tensor], found: Mapping[str, Tensor]) -> Iterator[str]:
    for name in sorted(wanted.keys() & found.keys()):
        if wanted[name].shape != found[name].shape:
            yield f"{name} is {list(found[name].shape)}, the model has {list(wanted[name].shape)}"


def add(network: Any, folder: Path, *, name: str, trainable: bool) -> Any:
    """`network`, bare or adapted, with the adapter in `folder` under `name`.

    Raises ConfigError listing the tensors that do not land.
    """
    from peft import PeftConfig, PeftModel, get_peft_model

    try:
        config = PeftConfig.from_pretrained(str(folder))
        config.inference_mode = not trainable
        if isinstance(network, PeftModel):
            network.add_adapter(name, config)
        else:
            network = get_peft_model(network, config, adapter_name=name)
    except (ValueError, TypeError) as error:  # peft's words for target modules that the model lacks, and for odd files
        raise _refusal(folder, [str(error)]) from error
    fill(network, folder, name=name)
    return network


def fill(adapted: Any, folder: Path, *, name: str = "default") -> None:
    """Give the adapter `name` the weights in `folder`. Raises ConfigError listing the tensors that do not land."""
    from peft import set_peft_model_state_dict

    try:
        found = load_file(folder / WEIGHTS_FILE)
    except (OSError, SafetensorError) as error:
        raise _refusal(folder, [f"{WEIGHTS_FILE} cannot be read ({error})"]) from error
    faults = misfits(tensors_of(adapted, name), found)
    faults += [f"{key} holds numbers that are not finite" for key in found if not bool(found[key].isfinite().all())]
    if faults:
        raise _refusal(folder, faults)
    set_peft_model_state_dict(adapted, found, adapter_name=name)


def _refusal(folder: Path, faults: list[str]) -> ConfigError:
    more = f"; and {len(faults) - SHOWN} more" if len(faults) > SHOWN else ""
    told = f"{folder} does not fit the model: {'; '.join(faults[:SHOWN])}{more}; give the base that it was trained on"
    return ConfigError([Fault(key="", problem=told)])
