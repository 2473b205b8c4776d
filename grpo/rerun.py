"""Run a saved run again: what it was made from that is no longer so, and whether the new run came out the same.

Nothing here fails on a run that another version left: what cannot be read or found is a difference like any other.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from grpo import config, pair, provenance
from grpo.faults import ConfigError
from grpo.reproduce import Difference, MetricDifference, differences, metric_differences
from grpo.tracking import METRICS_FILE, read_lines

ADDED_LATER = ("reproduces", "changes")
"""Keys of run.json that say what became of a run, not what it was made from."""


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Two runs of one config, step by step."""

    steps: int
    """That the config asks for."""
    last_step: int | None
    """Of the old run; None if it left no metrics."""
    differences: tuple[MetricDifference, ...]
    """In the order of the steps, up to `last_step`."""
    same_adapter: bool | None
    """None where the old run left no final adapter."""

    @property
    def identical(self) -> bool:
        return not self.differences and self.same_adapter is not False


def changes(folder: Path) -> list[Difference]:
    """What the run in `folder` was made from and is no longer so, with both values.

    A component that moved, a key that is no longer read and a lost record are differences like others. Raises
    FileNotFoundError or ConfigError if there is no config at all.
    """
    settings = config.saved(folder)
    file = folder / provenance.RUN_FILE
    recorded = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else None
    broken = list(_broken(settings))
    if recorded is None:
        told = "missing: nothing says what the run was made from"
        return [*broken, Difference(key=provenance.RUN_FILE, old=None, new=told)]
    today = provenance.surroundings() if broken else provenance.of_run(config.parse(settings))
    then = {key: value for key, value in recorded.items() if key not in ADDED_LATER and (not broken or key in today)}
    return [*broken, *differences(then, today)]


def is_runnable(folder: Path) -> bool:
    return not list(_broken(config.saved(folder)))


def _broken(settings: Mapping[str, Any]) -> Iterator[Difference]:
    """Why this version cannot run the saved config."""
    values = dict(config.leaves(dict(settings)))
    try:
        config.parse(settings)
    except ConfigError as error:
        for fault in error.faults:
            yield Difference(key=fault.key, old=values.get(fault.key, "as in config.yaml"), new=fault.problem)


def compare(old: Path, new: Path) -> Comparison:
    """The metrics of both runs up to the old one's last step, and their final adapters bit for bit."""
    before, after = (list(read_lines(path)) if path.is_file() else [] for path in _metrics(old, new))
    last = max((int(record["step"]) for record in before), default=None)
    within = [record for record in after if last is not None and record["step"] <= last]
    return Comparison(
        steps=config.saved(old)["runtime"]["steps"],
        last_step=last,
        differences=tuple(metric_differences(before, within)),
        same_adapter=_same_adapter(*(folder / "adapter" / pair.WEIGHTS_FILE for folder in (old, new))),
    )


def _metrics(*folders: Path) -> list[Path]:
    return [folder / METRICS_FILE for folder in folders]


def _same_adapter(old: Path, new: Path) -> bool | None:
    if not old.is_file():
        return None
    import torch
    from safetensors.torch import load_file

    # Not the file's bytes: its header is free in the order of what it says.
    before, after = load_file(old), load_file(new)
    return before.keys() == after.keys() and all(torch.equal(before[name], after[name]) for name in before)
