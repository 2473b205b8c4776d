"""What a Slurm job runs: the trial as a child process, and its hand-over to the next start of the same job.

submitit pickles one object a job. This one holds text and numbers alone, so that whatever python is there reads it.
"""

from __future__ import annotations

import importlib.util
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from launchers import slurm_ray
from launchers.outcome import CONFIG_EXIT
from launchers.slurm_ray import Head, RayLost

if TYPE_CHECKING:
    from submitit.helpers import DelayedSubmission

STOP_SECONDS = 30.0


@dataclass(frozen=True, kw_only=True)
class Work:
    words: Sequence[str]
    """The trial's command."""
    folder: str
    """Where it is run; the code is there."""
    log: str
    code_file: str
    """For its exit code, once it has ended by itself."""
    nodes: int
    cpus: int
    """Of a node."""
    memory_gib: int
    """Of a node."""
    meeting: str
    """Where the tasks of several nodes find each other; each start of the job adds its number."""


class SlurmTrial:
    """Runs the trial, on every node of the job: the first has it, with a Ray over all nodes if there are others."""

    def __init__(self, work: Work) -> None:
        self.work = work
        self._child: subprocess.Popen[bytes] | None = None
        self._head: Head | None = None
        self._ending = False

    def __call__(self) -> None:
        # Slurm ends the job: cancelled, preempted, its node drained. It may start it again, so no end is recorded.
        signal.signal(signal.SIGTERM, self._note_end)
        environment = {**os.environ, "PYTHONPATH": self.work.folder, "PYTHONUNBUFFERED": "1"}
        if self.work.nodes == 1:
            code = self._run(environment, lambda: None)
        else:
            self._refuse_without_ray()
            # A folder for each start of the job: what a killed one left is never taken for this one's.
            meeting = Path(f"{self.work.meeting}_{os.environ.get('SLURM_RESTART_COUNT', '0')}")
            size = {"cpus": self.work.cpus, "memory_gib": self.work.memory_gib}
            if os.environ["SLURM_PROCID"] != "0":
                slurm_ray.follow(meeting, environment, seconds=slurm_ray.JOIN_SECONDS, **size)
                return
            code = self._run_on_ray(Head(meeting, environment, **size))
        if self._ending and code != 0:
            sys.exit(128 + signal.SIGTERM)
        self._record(code)

    def checkpoint(self) -> DelayedSubmission:
        """submitit's call before a requeue: end the child, and say what the next start runs."""
        from submitit.helpers import DelayedSubmission

        self._stop()
        if self._head is not None:
            self._head.close()
        return DelayedSubmission(SlurmTrial(self.work))

    def _run_on_ray(self, head: Head) -> int:
        self._head = head
        try:
            self._say(head.join(slurm_ray.JOIN_SECONDS))
            code = self._run(head.environment, head.lost)
            lost = head.lost(wait=slurm_ray.FOLLOW_SECONDS) if code != 0 else None
        except RayLost as error:
            code, lost = 1, str(error)
        finally:
            head.close()
        if lost and not self._ending:
            self._say(f"node lost: {lost}")
        return code

    def _run(self, environment: Mapping[str, str], lost: Callable[[], str | None]) -> int:
        """The trial's exit code. Raises RayLost once `lost` tells of a lost node; the trial has ended by then."""
        with Path(self.work.log).open("ab") as log:
            self._child = subprocess.Popen(
                self.work.words,
                cwd=self.work.folder,
                env=environment,
                stdout=log,
                stderr=log,
                preexec_fn=slurm_ray.ignore_requeue,
            )
        # Asked again and again, not waited for: `checkpoint` runs as a signal handler inside this loop.
        while (code := self._child.poll()) is None:
            if not self._ending and (told := lost()):
                self._stop()
                raise RayLost(told)
            time.sleep(0.2)
        return code

    def _stop(self) -> None:
        if self._child is None:
            return
        self._child.terminate()
        deadline = time.monotonic() + STOP_SECONDS
        while self._child.poll() is None and time.monotonic() < deadline:
            time.sleep(0.1)
        self._child.kill()

    def _refuse_without_ray(self) -> None:
        if importlib.util.find_spec("ray") is None:
            where = f"{sys.executable} on {os.environ['SLURMD_NODENAME']}"
            wanted = f"cluster.nodes={self.work.nodes} wants the extra [ray] there: pip install -e '.[ray]'"
            self._say(f"Ray is not installed for {where}, and {wanted}")
            self._record(CONFIG_EXIT)
            sys.exit(CONFIG_EXIT)

    def _record(self, code: int) -> None:
        aside = Path(f"{self.work.code_file}.part")
        aside.write_text(str(code), encoding="utf-8")
        aside.replace(self.work.code_file)

    def _say(self, text: str) -> None:
        with Path(self.work.log).open("a", encoding="utf-8") as log:
            log.write(f"{text}\n")

    def _note_end(self, number: int, frame: object) -> None:
        self._ending = True
