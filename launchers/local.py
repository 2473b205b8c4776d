"""This machine as a cluster: one process a trial.

A process of its own, and not a call in this one, because a trial that runs out of memory must not take the others with
it, and because `config.yaml` in, `result.json` out is how every other cluster runs the same trial.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from grpo import lock
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
            # A trial outlives a sweep that was killed; a second process in its folder would spoil both.
            pid = lock.holder(attempt.here)
            told = (
                "the process that started it is gone" if pid is None else f"process {pid}, of a sweep that was killed"
            )
            return Status(phase="lost" if pid is None else "running", code=None, note=told)
        code = process.poll()
        return Status(phase="running" if code is None else "ended", code=code, note="")

    def stop(self, attempt: Attempt) -> None:
        process = self._processes.get(attempt.id)
        pid = lock.holder(attempt.here) if process is None else process.pid
        if pid is None:
            return
        for number in (signal.SIGINT, signal.SIGKILL):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(pid, number)
            deadline = time.monotonic() + STOP_SECONDS
            while time.monotonic() < deadline:
                if self.status(attempt).phase != "running":
                    return
                time.sleep(0.1)

    def collect(self, attempt: Attempt) -> None:
        self._processes.pop(attempt.id, None)
