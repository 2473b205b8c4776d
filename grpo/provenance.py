"""What a run was made from, written to run.json before anything is trained."""

from __future__ import annotations

import ast
import hashlib
import importlib.util
import inspect
import json
import os
import platform
import subprocess
from dataclasses import asdict
from importlib import metadata
from pathlib import Path
from typing import Any

from grpo import base, config, pair
from grpo.hashing import hash_file
from grpo.redact import hide_in_code, redact
from grpo.schema import RunConfig

ROOT = Path(__file__).resolve().parent.parent
COMMIT_FILE = "commit.json"
RUN_FILE = "run.json"
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
    "ray",
    "skyrl",
    "vllm",
)
IMAGE_DIGEST = "GRPO_IMAGE_DIGEST"
"""Environment variable that a container is started with: a process cannot see its own image's digest."""
CODE = ("train.py", "conf", "grpo", "rewards", "envs", "launchers")


def of_run(run: RunConfig) -> dict[str, Any]:
    """The record of a run that would start now.

    Commit and uncommitted changes, package versions, and hashes of config, base, data and the components' source code.
    Raises ConfigError if a component does not build, and ValueError for a base whose files are damaged.
    """
    env = config.build_env(run)
    components = {"env": env, **config.build_rewards(run)}
    start_from = run.adapter.start_from if run.adapter.type == "lora" else None
    return redact(
        {
            **surroundings(),
            "config_hash": config.digest(run),
            "base": asdict(base.describe(run.model)),
            "code_hashes": {key: source_hash(each) for key, each in components.items()},
            "data_version": env.data_version(),
            "parent": pair.parent(start_from),
            "seed": run.runtime.seed,
        }
    )


def surroundings() -> dict[str, Any]:
    """The part of the record that is the same for every run that starts here now."""
    return {
        **commit(),
        "python": platform.python_version(),
        "machine": f"{platform.system()} {platform.machine()}",
        "packages": packages(),
        "image_digest": os.environ.get(IMAGE_DIGEST),
    }


def commit() -> dict[str, Any]:
    """The commit, what differs from it in tracked files, and hashes of code that it does not know.

    Code that was sent to a cluster or built into an image has no repository; it brings the answer in a file.
    """
    if not (ROOT / ".git").exists() and (ROOT / COMMIT_FILE).is_file():
        return json.loads((ROOT / COMMIT_FILE).read_text(encoding="utf-8"))
    # -z: names as they are; git would otherwise quote those that are not plain ASCII.
    untracked = _git("ls-files", "-z", "--others", "--exclude-standard", "--", *CODE)
    files = [ROOT / name for name in (untracked or "").split("\0") if name]
    changes = _git("diff", "--no-color", "--no-ext-diff", "HEAD")
    return {
        "commit": _git("rev-parse", "HEAD"),
        "dirty_diff": None if changes is None else hide_in_code(changes),
        "untracked": {str(file.relative_to(ROOT)): hash_file(file) for file in files if file.is_file()},
    }


def packages() -> dict[str, str | None]:
    """Versions of what decides a run's numbers; None for what is not installed."""
    return {name: _version(name) for name in PACKAGES}


def source_hash(component: object) -> str:
    """Of the file of a component's class, and of the files of its own package that this one imports."""
    module = type(component).__module__
    files: dict[str, Path] = {}
    _gather(module, Path(inspect.getfile(type(component))), files)
    total = hashlib.sha256()
    for name in sorted(files):
        total.update(name.encode())
        total.update(bytes.fromhex(hash_file(files[name])))
    return total.hexdigest()


def _gather(module: str, file: Path, files: dict[str, Path]) -> None:
    files[module] = file
    package = module.partition(".")[0]
    for node in ast.walk(ast.parse(file.read_bytes())):
        if not (isinstance(node, ast.ImportFrom) and node.level == 0 and node.module):
            continue
        if node.module.startswith(f"{package}.") and node.module not in files:
            found = importlib.util.find_spec(node.module)
            if found is not None and found.origin is not None:
                _gather(node.module, Path(found.origin), files)


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _git(*arguments: str) -> str | None:
    """Output of a git command in the project; None where there is no repository or no git."""
    try:
        done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, timeout=30, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    # A changed file may be in any encoding, and so may the terminal.
    return done.stdout.decode("utf-8", errors="backslashreplace").strip()
