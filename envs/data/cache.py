"""Where what was worked out from data is kept for the next run, and how it gets there without ever being half there."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


def cache_folder(name: str) -> Path:
    """A folder of this user's cache (XDG_CACHE_HOME, else ~/.cache); it may not exist yet."""
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(base).expanduser() / "hydra-grpo" / name


@contextmanager
def written_whole(target: Path) -> Iterator[Path]:
    """A temporary folder that becomes `target` at the end, or nothing; whoever was first wins.

    Raises OSError where nothing can be written.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    work = Path(tempfile.mkdtemp(dir=target.parent, prefix=".making-"))
    try:
        yield work
        with suppress(OSError):  # it exists already: another process made the same
            os.replace(work, target)
    finally:
        shutil.rmtree(work, ignore_errors=True)
