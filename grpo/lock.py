"""One process a run folder: the second is refused with the first one's name.

The kernel holds the lock, not the file: it is gone with its process, whatever the file still says. On a shared mount
that knows no locks, the holder's pid decides on the same host; another host's holder cannot be asked, so the run goes
on with a warning: a restart on a new node must not be stopped by the node that died.
"""

from __future__ import annotations

import errno
import fcntl
import json
import logging
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TextIO

from grpo.faults import ConfigError, Fault

log = logging.getLogger(__name__)

LOCK = "run.lock"
NO_LOCKS = (errno.ENOLCK, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL)


@contextmanager
def held(folder: Path) -> Iterator[None]:
    """Within this context the run folder is this process's alone.

    Raises ConfigError if another process has it, or if nothing can be written there.
    """
    try:
        file = _locked(folder)
    except OSError as error:
        problem = f"{folder} cannot be written ({error.strerror}); permit writing or free space, then try again"
        raise ConfigError([Fault(key="", problem=problem)]) from error
    with file:
        try:
            yield
        finally:
            # While it is still locked: whoever has it open by now finds that it is no longer the folder's.
            (folder / LOCK).unlink(missing_ok=True)


def holder(folder: Path) -> int | None:
    """The pid of the process that is at work in the run folder on this host; None if there is none, or no telling."""
    found: dict[str, Any] = {}
    try:
        with (folder / LOCK).open("r+", encoding="utf-8") as file:
            # Before it is asked who holds it: a holder that ends takes the file away.
            found = _holder(file.read())
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return found.get("pid") if found.get("host") == socket.gethostname() else None
    except OSError:
        return None
    return None


def _locked(folder: Path) -> TextIO:
    """The lock file, open, locked, and holding this process's name."""
    while True:
        file = (folder / LOCK).open("a+", encoding="utf-8")
        file.seek(0)
        holder = _holder(file.read())
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise _taken(folder, holder) from None
        except OSError as error:
            if error.errno not in NO_LOCKS:
                raise
            _decide_without_lock(folder, holder)
        if _is_in_place(file, folder / LOCK):
            break
        file.close()
    file.truncate(0)
    json.dump({"pid": os.getpid(), "host": socket.gethostname()}, file)
    file.flush()
    return file


def _is_in_place(file: TextIO, path: Path) -> bool:
    """Whether the file is still the one of that name; its last holder may just have removed it."""
    try:
        return os.path.samestat(os.fstat(file.fileno()), path.stat())
    except FileNotFoundError:
        return False


def _holder(text: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _taken(folder: Path, holder: dict[str, Any]) -> ConfigError:
    who = f"process {holder['pid']} on {holder['host']}" if {"pid", "host"} <= holder.keys() else "another process"
    problem = f"{who} is at work in {folder}; wait for its end, or stop it, then resume"
    return ConfigError([Fault(key="resume", problem=problem)])


def _decide_without_lock(folder: Path, holder: dict[str, Any]) -> None:
    if not {"pid", "host"} <= holder.keys():
        return
    if holder["host"] != socket.gethostname():
        log.warning(
            "%s cannot be locked on this file system; process %s on %s had it last: make sure that it has ended",
            folder,
            holder["pid"],
            holder["host"],
        )
    elif holder["pid"] != os.getpid() and Path(f"/proc/{holder['pid']}").exists():
        raise _taken(folder, holder)
