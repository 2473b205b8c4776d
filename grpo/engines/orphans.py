"""Ends what a run leaves behind on its host: vLLM's engines with their GPU memory, the router, Ray's daemons.

A `kill -9` leaves the run no time for that, so a guard does it: this file as a process in a session of its own, which
waits for the run's end. Processes are found by the run's mark alone, never by name: a variable in the environment of
what is started (Ray keeps process titles from being written over it), and an open file, which a plain fork inherits
although it shows the environment that the run itself was started with. Imports the standard library only, so that the
guard is small and there at once.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from uuid import uuid4

VARIABLE = "HYDRA_GRPO_MARK"
LOOK_SECONDS = 0.2
PATIENCE_SECONDS = 5.0
"""For processes that are ending by themselves when the run does."""
LIMIT_SECONDS = 60.0
"""A process that hangs in a driver's call cannot be ended by anyone."""


@contextmanager
def ended_with_this_process() -> Iterator[Mapping[str, str]]:
    """What is started in this context ends with it, or with this process if that comes first.

    Yields what has to be in the environment of processes that are not started by this one, such as the workers of a
    standing Ray. Of those, the ones on this host are ended.
    """
    mark = uuid4().hex
    file = os.memfd_create(_file(mark))
    guard = subprocess.Popen(
        [sys.executable, "-I", __file__, str(os.getpid()), mark],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    os.environ[VARIABLE] = mark
    try:
        yield {VARIABLE: mark}
    finally:
        del os.environ[VARIABLE]
        os.close(file)
        end(mark, patience_seconds=PATIENCE_SECONDS)
        guard.kill()
        guard.wait()


def end(mark: str, *, patience_seconds: float = 0.0) -> None:
    """Kill the processes that carry the mark, those first that do not go by themselves; returns once they are gone."""
    start = time.monotonic()
    killed: set[int] = set()
    while (left := {pid for pid in _processes() if _carries(pid, mark)}) or any(map(_lives, killed)):
        waited = time.monotonic() - start
        if waited > LIMIT_SECONDS:
            return
        if waited >= patience_seconds:
            for pid in left:
                _kill(pid)
            killed |= left
        time.sleep(LOOK_SECONDS)


def _processes() -> Iterator[int]:
    return (int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdecimal())


def _carries(pid: int, mark: str) -> bool:
    """Nobody else's process can: the mark is random, and of another user's nothing can be read."""
    process = Path(f"/proc/{pid}")
    try:
        if f"{VARIABLE}={mark}".encode() in (process / "environ").read_bytes().split(b"\0"):
            return True
        return any(f"memfd:{_file(mark)}" in os.readlink(each) for each in (process / "fd").iterdir())
    except OSError:  # it has ended meanwhile, or is someone else's
        return False


def _file(mark: str) -> str:
    return f"hydra-grpo-{mark}"


def _kill(pid: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def _lives(pid: int) -> bool:
    """A process gives its memory back a while after nothing can be read of it; then it has ended, or is a zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def _guard(run: int, mark: str) -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    while os.getppid() == run:
        time.sleep(LOOK_SECONDS)
    end(mark)


if __name__ == "__main__":
    _guard(int(sys.argv[1]), sys.argv[2])
