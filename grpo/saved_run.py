"""A run folder read back, in a notebook or a script: `grpo.load_run(folder)`. No Hydra state, no torch.

A run that goes on, crashed, or was made by an older version loads too, with what is there and can be read. Only the
typed config is read when it is asked for: one that this version no longer takes must not hide the numbers.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from grpo import config
from grpo.schema import RunConfig
from grpo.storage import local_copy
from grpo.tracking import METRICS_FILE, ROLLOUTS_FILE, read_lines

if TYPE_CHECKING:
    import pandas

log = logging.getLogger(__name__)

ADAPTER_FILE = "adapter_config.json"


@dataclass(frozen=True, kw_only=True)
class SavedRun:
    folder: Path
    settings: Mapping[str, Any]
    """config.yaml as plain data; empty without one."""
    metrics: pandas.DataFrame
    """One row a step, indexed by it; NaN where a step has no such metric."""
    rollouts: list[dict[str, Any]]
    """The lines of rollouts.jsonl; images are paths that can be opened."""
    made_from: Mapping[str, Any]
    """run.json; empty without one."""
    summary: Mapping[str, Any] | None
    """Final evaluation on the test split; None before it."""
    result: Mapping[str, Any] | None
    adapter: Path | None
    """The final adapter's folder, or that of the newest checkpoint; None before there is one."""

    @property
    def config(self) -> RunConfig:
        """Raises ConfigError with every key that this version reads otherwise."""
        return config.recall(self.settings)


def load_run(folder: str | Path) -> SavedRun:
    """The run in `folder`, which may be an s3:// address. Raises FileNotFoundError if there is none."""
    import pandas

    folder = local_copy(str(folder)).expanduser().resolve()
    if not any((folder / name).is_file() for name in ("config.yaml", METRICS_FILE)):
        raise FileNotFoundError(f"{folder} holds no run: it has neither config.yaml nor {METRICS_FILE}")
    steps = {int(record["step"]): record for record in _lines(folder / METRICS_FILE)}
    metrics = pandas.DataFrame(list(steps.values()), columns=None if steps else ["step"]).set_index("step")
    return SavedRun(
        folder=folder,
        settings=_settings(folder),
        metrics=metrics,
        rollouts=[_with_paths(record, folder) for record in _lines(folder / ROLLOUTS_FILE)],
        made_from=_json(folder / "run.json") or {},
        summary=_json(folder / "summary.json"),
        result=_json(folder / "result.json"),
        adapter=_adapter(folder),
    )


def _lines(file: Path) -> list[dict[str, Any]]:
    return list(read_lines(file)) if file.is_file() else []


def _settings(folder: Path) -> dict[str, Any]:
    try:
        return config.saved(folder) if (folder / "config.yaml").is_file() else {}
    except (ValueError, yaml.YAMLError) as error:
        log.warning("%s is damaged and passed over: %s", folder / "config.yaml", error)
        return {}


def _json(file: Path) -> dict[str, Any] | None:
    try:
        return json.loads(file.read_text(encoding="utf-8")) if file.is_file() else None
    except ValueError as error:
        log.warning("%s is damaged and passed over: %s", file, error)
        return None


def _with_paths(record: dict[str, Any], folder: Path) -> dict[str, Any]:
    turns = [turn | {"images": [str(folder / image) for image in turn["images"]]} for turn in record["turns"]]
    return record | {"turns": turns}


def _adapter(folder: Path) -> Path | None:
    checkpoints = sorted(folder.glob("checkpoints/step_*/adapter"), reverse=True)
    complete = (path for path in checkpoints if (path.parent / "DONE").is_file())
    return next((path for path in (folder / "adapter", *complete) if (path / ADAPTER_FILE).is_file()), None)
