"""Files that are there whole or not at all, and one clear error where a disk takes no more.

safetensors reports what the system said inside an error of its own, so both kinds are read here.
"""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from safetensors import SafetensorError

from grpo.words import pasted

REFUSALS = {
    errno.ENOSPC: "the disk is full",
    errno.EDQUOT: "the quota is used up",
    errno.EFBIG: "the file may not grow any further",
    errno.EROFS: "the file system is read-only",
    errno.EACCES: "writing is not allowed",
    errno.EPERM: "writing is not allowed",
}


class DiskError(RuntimeError):
    """A disk refused what a run had to write; the message says what, where, and how to go on."""


@contextmanager
def writing(what: str, path: Path, run_folder: Path, *, needed: int | None = None) -> Iterator[None]:
    """Raises DiskError where the block could not write for want of room or of permission; other errors pass.

    `needed` is what it takes, in bytes, where that is known.
    """
    try:
        yield
    except (OSError, SafetensorError) as error:
        number = _system_error(error)
        if number not in REFUSALS:
            raise
        room = f"{shutil.disk_usage(run_folder).free / 2**20:.2f} MiB are free"
        if needed is not None:
            room = f"{needed / 2**20:.2f} MiB are needed, {room}"
        raise DiskError(
            f"{path}: the {what} could not be written: {REFUSALS[number]} ({room}). Complete checkpoints are kept; "
            f"free space or permit writing, then go on with {pasted('resume', run_folder)}"
        ) from error


def _system_error(error: Exception) -> int | None:
    if isinstance(error, OSError):
        return error.errno
    found = re.search(r"os error (\d+)", str(error))
    return int(found[1]) if found else None


def write_text(file: Path, text: str) -> None:
    """Atomically and for good, so that a reader, a crash or a power cut never leaves half of it."""
    aside = file.with_name(f".{file.name}.part")
    aside.write_text(text, encoding="utf-8")
    sync(aside)
    aside.rename(file)
    sync(file.parent)


def write_json(file: Path, content: object) -> None:
    """As `write_text`."""
    write_text(file, json.dumps(content, indent=2, sort_keys=True) + "\n")


def sync(path: Path) -> None:
    """Wait until a file, or the names in a folder, are on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        # Some shared mounts cannot sync a folder; what they promise about names, they promise without it.
        if error.errno not in (errno.EINVAL, errno.ENOTSUP) or not path.is_dir():
            raise
    finally:
        os.close(descriptor)
