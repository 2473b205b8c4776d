"""The shipped config and what it is made of, for benchmarks that call the library and not the command."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from transformers.utils.logging import disable_progress_bar

from grpo import compose
from grpo.faults import ConfigError
from grpo.policy import Policy, load_policy
from grpo.schema import NoAdapter, RunConfig
from scripts.benchmarks.paths import CONF


def configured(words: Sequence[str]) -> RunConfig:
    """The run that `python train.py WORDS` asks for. Raises ConfigError."""
    hydra_loader = compose.loader(compose.Source(folder=CONF, name="config", extra=None))
    overrides, faults = compose.parse_words(words, hydra_loader)
    normal, more = compose.normalised(overrides, hydra_loader, sweep=False)
    trials, last = compose.trials(hydra_loader, "config", normal)
    if faults or more or last:
        raise ConfigError([*faults, *more, *last])
    return trials[0].run


def without_adapter(run: RunConfig) -> RunConfig:
    return run.model_copy(update={"adapter": NoAdapter(type="none")})


def fresh_policy(run: RunConfig) -> Policy:
    """The configured model on one thread of the CPU, with nothing remembered."""
    torch.set_num_threads(1)
    disable_progress_bar()
    return load_policy(run.model, run.adapter, device=torch.device("cpu"), seed=run.runtime.seed)
