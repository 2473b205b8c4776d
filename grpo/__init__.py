"""hydra-grpo: GRPO with LoRA for vision-language models on multi-turn visual tasks, run from Hydra configs.

Reading order: types, interfaces, config, then engines/local (the loop), advantage, loss, rollout, policy.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from grpo.saved_run import load_run

__all__ = ["load_run"]


def __getattr__(name: str) -> Any:
    # On demand: every start of train.py imports this package, and pandas takes longer than a refusal.
    if name == "load_run":
        from grpo.saved_run import load_run

        return load_run
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
