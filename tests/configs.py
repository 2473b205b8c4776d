"""The shipped config, composed as train.py does, for tests to start from."""

from __future__ import annotations

import copy
import sys
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from grpo import compose, config
from grpo.faults import ConfigError

ROOT = Path(__file__).resolve().parents[1]
CONF = ROOT / "conf"
sys.path.append(str(ROOT / "launchers/plugin"))  # as train.py does
SOURCE = compose.Source(folder=CONF, name="config", extra=None)


@cache
def _loader() -> Any:
    return compose.loader(SOURCE)


@cache
def _default() -> dict[str, Any]:
    return config.plain(compose.composed(_loader(), "config", []))


def container(changes: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """The default config as plain data, with dotted keys set to other values."""
    data = copy.deepcopy(_default())
    for key, value in (changes or {}).items():
        section, path = data, key.split(".")
        for part in path[:-1]:
            section = section[part]
        section[path[-1]] = value
    return data


def run(changes: Mapping[str, Any] | None = None) -> config.RunConfig:
    return config.parse(container(changes))


def faults(changes: Mapping[str, Any]) -> list[str]:
    """What is wrong with the default config once it is changed like this."""
    try:
        run(changes)
    except ConfigError as error:
        return [str(fault) for fault in error.faults]
    return []


def typed(words: Sequence[str], *, sweep: bool = False) -> list[config.RunConfig]:
    """The runs that a command line with these words asks for. Raises ConfigError with all faults."""
    overrides, faults = compose.parse_words(words, _loader())
    normal, more = compose.normalised(overrides, _loader(), sweep=sweep)
    trials, last = compose.trials(_loader(), "config", normal)
    if faults or more or last:
        raise ConfigError([*faults, *more, *last])
    return [trial.run for trial in trials]


def refusal(*words: str, sweep: bool = False) -> list[str]:
    try:
        typed(words, sweep=sweep)
    except ConfigError as error:
        return [str(fault) for fault in error.faults]
    return []
