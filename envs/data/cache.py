"""Where what was worked out from data is kept for the next run, and how it gets there without ever being half there."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from filelock import FileLock


def cache_folder(name: str) -> Path:
    """A folder of this user's cache (XDG_CACHE_HOME, else ~/.cache); it may not exist yet."""
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(base).expanduser() / "hydra-grpo" / name


@contextmanager
def alone(target: Path) -> Iterator[None]:
    """Wait until no other process of this machine is at work on `target`; where nothing can be locked, do not wait."""
    with ExitStack() as stack:
        with suppress(OSError, NotImplementedError):
            target.parent.mkdir(parents=True, exist_ok=True)
            stack.enter_context(FileLock(target.with_name(f"{target.name}.lock")))
        yield


@contextmanager
def written_whole(target: Path) -> Iterator[Path]:
    """A temporary folder that takes the place of `target` at the end, or leaves nothing.

    Raises OSError where nothing can be written.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    work = Path(tempfile.mkdtemp(dir=target.parent, prefix=".making-"))
    try:
        yield work
        shutil.rmtree(target, ignore_errors=True)  # what was there was damaged or is out of date
        os.replace(work, target)
    finally:
        shutil.rmtree(work, ignore_errors=True)
