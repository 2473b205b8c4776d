"""What travels to a cluster: the code that runs, and the trials' frozen configs. Nothing else, however it got here.

An allow-list, because a list of exceptions lets through whatever nobody thought of (.git, old outputs, data sets). The
same content makes the same file bit for bit, so a cluster that has it is not sent it again.
"""

from __future__ import annotations

import json
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from grpo import config, provenance
from grpo.config import ConfigError, Fault
from launchers.cluster import Attempt
from launchers.trial import CONFIG

ROOT = Path(__file__).resolve().parents[1]
CODE = ("train.py", "pyproject.toml", "conf", "grpo", "rewards", "envs", "launchers")
SKIPPED_FOLDERS = frozenset({"__pycache__", ".ipynb_checkpoints"})
LARGEST_SHOWN = 5
MIB = 1024 * 1024
_DATE = (1980, 1, 1, 0, 0, 0)


@dataclass(frozen=True, kw_only=True)
class Package:
    path: Path
    sizes: Mapping[str, int]
    """{name in the package: bytes before compression}."""

    @property
    def mib(self) -> float:
        return self.path.stat().st_size / MIB

    def largest(self) -> str:
        names = sorted(self.sizes, key=lambda name: -self.sizes[name])[:LARGEST_SHOWN]
        return ", ".join(f"{name} ({self.sizes[name] / MIB:.1f} MiB)" for name in names)


def config_name(attempt: Attempt) -> str:
    """Where the attempt's config lies in the package."""
    return f"trials/{attempt.folder}/{CONFIG}"


def build(attempts: Sequence[Attempt], target: Path, limit_mib: int, root: Path | None = None) -> Package:
    """Write the package of these attempts to `target`. Raises ConfigError above the limit, with the largest files."""
    root = root or ROOT
    files = {str(path.relative_to(root)): path for path in _files(root, _models(attempts, root))}
    made = {config_name(attempt): config.to_yaml(attempt.run).encode() for attempt in attempts}
    made[provenance.COMMIT_FILE] = json.dumps(provenance.commit(), indent=1).encode()
    aside = target.with_suffix(".part")
    with zipfile.ZipFile(aside, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, path in files.items():
            _add(archive, name, path.read_bytes())
        for name, content in sorted(made.items()):
            _add(archive, name, content)
    aside.replace(target)
    sizes = {name: path.stat().st_size for name, path in files.items()}
    package = Package(path=target, sizes=sizes | {name: len(content) for name, content in made.items()})
    if package.mib > limit_mib:
        told = f"the package has {package.mib:.1f} MiB, above {limit_mib}; its largest files: {package.largest()}"
        problem = f"{told}; move data out of the project's code folders, a shared folder is the place for it"
        raise ConfigError([Fault(key="cluster.package_limit_mib", problem=problem)])
    return package


def _add(archive: zipfile.ZipFile, name: str, content: bytes) -> None:
    entry = zipfile.ZipInfo(name, date_time=_DATE)
    entry.compress_type = zipfile.ZIP_DEFLATED
    entry.external_attr = 0o644 << 16
    archive.writestr(entry, content)


def _models(attempts: Sequence[Attempt], root: Path) -> list[str]:
    """Models that are part of the project, such as the tiny one; others are fetched or found by the nodes."""
    names = {attempt.run.model.name_or_path for attempt in attempts}
    return sorted(name for name in names if not Path(name).is_absolute() and (root / name).is_dir())


def _files(root: Path, models: Sequence[str]) -> Iterator[Path]:
    for name in (*CODE, *models):
        path = root / name
        found = [path] if path.is_file() else sorted(path.rglob("*"))
        for file in found:
            parts = file.relative_to(root).parts
            if file.is_file() and file.suffix != ".pyc" and not SKIPPED_FOLDERS.intersection(parts):
                yield file


def listing(package: Package) -> str:
    """The package in a few lines: its parts with their sizes."""
    parts: dict[str, int] = {}
    for name, size in package.sizes.items():
        parts[name.split("/")[0]] = parts.get(name.split("/")[0], 0) + size
    lines = [f"  {name}: {size / 1024:,.0f} KiB" for name, size in parts.items()]
    return "\n".join([f"package: {package.mib:.2f} MiB compressed, {len(package.sizes)} files", *lines])
