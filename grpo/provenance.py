"""What a run was made from, written to run.json before anything is trained."""

from __future__ import annotations

import hashlib
import inspect
import platform
import subprocess
from collections.abc import Iterable, Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

from grpo import config
from grpo.paths import model_path
from grpo.redact import hide_in_code
from grpo.schema import RunConfig

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = (
    "hydra-core",
    "omegaconf",
    "pydantic",
    "torch",
    "transformers",
    "peft",
    "tokenizers",
    "safetensors",
    "numpy",
    "pillow",
    "wandb",
)


def of_run(run: RunConfig) -> dict[str, Any]:
    """The record of a run that would start now."""
    base = Path(model_path(run.model.name_or_path))
    components = {"env": config.build_env(run), **config.build_rewards(run)}
    return record(components, base if base.is_dir() else None, run.runtime.seed)


def record(components: Mapping[str, object], base: Path | None, seed: int) -> dict[str, Any]:
    """Commit and uncommitted changes, package versions, hashes of the base and of the components' source files.

    `components` are the built env and reward terms under their config keys; `base` is the model's folder, None for a
    model that is named by hub id.
    """
    changes = _git("diff", "HEAD")
    return {
        "commit": _git("rev-parse", "HEAD"),
        "dirty_diff": None if changes is None else hide_in_code(changes),
        "python": platform.python_version(),
        "machine": f"{platform.system()} {platform.machine()}",
        "packages": packages(),
        "base_hash": None if base is None else hash_files(path for path in base.iterdir() if path.is_file()),
        "code_hashes": {key: _source_hash(component) for key, component in components.items()},
        "seed": seed,
    }


def packages() -> dict[str, str | None]:
    """Versions of what decides a run's numbers; None for what is not installed."""
    return {name: _version(name) for name in PACKAGES}


def hash_files(paths: Iterable[Path]) -> str:
    """Of the names and contents of some files of one folder, whatever their order."""
    total = hashlib.sha256()
    for path in sorted(paths):
        total.update(path.name.encode())
        total.update(hashlib.sha256(path.read_bytes()).digest())
    return total.hexdigest()


def _source_hash(component: object) -> str:
    return hashlib.sha256(Path(inspect.getfile(type(component))).read_bytes()).hexdigest()


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _git(*arguments: str) -> str | None:
    """Output of a git command in the project; None where there is no repository or no git."""
    try:
        done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, timeout=30, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()
