"""SHA-256 of files, remembered for large ones, so that a base of 16 GB is not read anew at each start.

What is remembered is bound to the file's path, size and time of change, in the user's cache folder; it can be deleted
at any time.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
from collections.abc import Iterable
from pathlib import Path

log = logging.getLogger(__name__)

REMEMBERED_FROM = 64 * 2**20
"""Bytes; a smaller file is read faster than its hash is worth keeping."""


def hash_file(file: Path) -> str:
    status = file.stat()
    if status.st_size < REMEMBERED_FROM:
        return _digest(file)
    key, stamp = str(file.resolve()), [status.st_size, status.st_mtime_ns]
    known = _remembered().get(key)
    if isinstance(known, list) and known[:2] == stamp:
        return known[2]
    digest = _digest(file)
    _remember(key, [*stamp, digest])
    return digest


def hash_files(paths: Iterable[Path]) -> str:
    """Of the names and contents of some files of one folder, whatever their order."""
    total = hashlib.sha256()
    for path in sorted(paths):
        total.update(path.name.encode())
        total.update(bytes.fromhex(hash_file(path)))
    return total.hexdigest()


def _digest(file: Path) -> str:
    with file.open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()


def _memory() -> Path:
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return Path(cache) / "hydra-grpo" / "hashes.json"


def _remembered() -> dict[str, list]:
    try:
        found = json.loads(_memory().read_text())
    except (OSError, ValueError):
        return {}  # never written, or half written by another program: everything is read again
    return found if isinstance(found, dict) else {}


def _remember(key: str, entry: list) -> None:
    memory = _memory()
    aside = memory.with_suffix(f".{os.getpid()}.part")
    try:
        memory.parent.mkdir(parents=True, exist_ok=True)
        aside.write_text(json.dumps(_remembered() | {key: entry}))
        aside.replace(memory)
    except OSError as error:
        log.info("the hash of %s is not remembered: %s", key, error)
