"""Kill this process at a call into the file system that is counted, not timed, so that a test hits every one."""

from __future__ import annotations

import os
import signal
import sys
from dataclasses import dataclass

EVENTS = ("open", "os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.truncate", "shutil.rmtree")


@dataclass(kw_only=True)
class Calls:
    """Filled in while the process goes on."""

    total: int
    saving: list[int]
    """Numbers, counted from 1, of those on a checkpoint or on the final adapter."""


def counted() -> Calls:
    """Counts the calls from now on."""
    calls = Calls(total=0, saving=[])

    def count(event: str, arguments: tuple[object, ...]) -> None:
        if event in EVENTS:
            calls.total += 1
            if "/checkpoints" in str(arguments) or "adapter" in str(arguments):
                calls.saving.append(calls.total)

    sys.addaudithook(count)
    return calls


def kill_at(number: int) -> None:
    """SIGKILL just before the `number`-th such call from now on, counted from 1."""
    seen = 0

    def count(event: str, arguments: tuple[object, ...]) -> None:
        nonlocal seen
        if event not in EVENTS:
            return
        seen += 1
        if seen == number:
            os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(count)
