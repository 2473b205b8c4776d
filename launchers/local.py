"""This machine as a cluster: one process a trial.

A process of its own, and not a call in this one, because a trial that runs out of memory must not take the others with
it, and because `config.yaml` in, `result.json` out is how every other cluster runs the same trial.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

from launchers import trial
from launchers.cluster import Attempt, Cluster, Policy, Status

POLICY = Policy(
    max_concurrent=1,
    retries=0,
    on_interrupt="stop",
    start_minutes=1,
    stall_minutes=30,
    on_stall="warn",
)
STOP_SECONDS = 10.0
"""How long an interrupted trial may take to save its state before it is killed."""


class LocalProcesses(Cluster):
    """`command` makes what runs the trial that is prepared in a folder; tests put a quick program in its place."""

    def __init__(self, command: Callable[[Path], list[str]] = trial.command) -> None:
        self._command = command
        self._processes: dict[str, subprocess.Popen[bytes]] = {}

    def check(self, attempts: Sequence[Attempt]) -> None:
        return

    def submit(self, attempt: Attempt) -> None:
        trial.prepare(attempt.here, (attempt.here / "config.yaml").read_text(encoding="utf-8"), keep=())
        with attempt.log.open("ab") as log:
            # A session of its own: Ctrl-C reaches the launcher alone, which gives the trial time to save its state.
            self._processes[attempt.id] = subprocess.Popen(
                self._command(attempt.here), stdout=log, stderr=subprocess.STDOUT, start_new_session=True
            )

    def status(self, attempt: Attempt) -> Status:
        process = self._processes.get(attempt.id)
        if process is None:
            return Status(phase="lost", code=None, note="the process that started it is gone")
        code = process.poll()
        return Status(phase="running" if code is None else "ended", code=code, note="")

    def stop(self, attempt: Attempt) -> None:
        process = self._processes.get(attempt.id)
        if process is None:  # of a launcher that is gone
            return
        for number in (signal.SIGINT, signal.SIGKILL):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, number)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(timeout=STOP_SECONDS)
                return

    def collect(self, attempt: Attempt) -> None:
        self._processes.pop(attempt.id, None)
