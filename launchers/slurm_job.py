"""What a Slurm job runs: the trial as a child process, and its hand-over to the next start of the same job.

submitit pickles one object a job. This one holds text alone, so that it is read back by whatever python is there.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from submitit.helpers import DelayedSubmission

STOP_SECONDS = 30.0


class SlurmTrial:
    """`words` is run in `folder`; its output goes to `log`, and its exit code, once it has one, to `code_file`."""

    def __init__(self, words: Sequence[str], folder: str, log: str, code_file: str) -> None:
        self.words, self.folder, self.log, self.code_file = list(words), folder, log, code_file
        self._child: subprocess.Popen[bytes] | None = None

    def __call__(self) -> None:
        with Path(self.log).open("ab") as log:
            environment = {**os.environ, "PYTHONPATH": self.folder, "PYTHONUNBUFFERED": "1"}
            # Slurm sends its signals to every process of the job; this one alone answers the one that requeues.
            self._child = subprocess.Popen(
                self.words, cwd=self.folder, env=environment, stdout=log, stderr=log, preexec_fn=_ignore_requeue
            )
        # Asked again and again, not waited for: `checkpoint` runs as a signal handler inside this loop.
        while (code := self._child.poll()) is None:
            time.sleep(0.2)
        aside = Path(f"{self.code_file}.part")
        aside.write_text(str(code), encoding="utf-8")
        aside.replace(self.code_file)

    def checkpoint(self) -> DelayedSubmission:
        """submitit's call before a requeue: end the child, and say what the next start runs."""
        from submitit.helpers import DelayedSubmission

        if self._child is not None:
            self._child.terminate()
            deadline = time.monotonic() + STOP_SECONDS
            while self._child.poll() is None and time.monotonic() < deadline:
                time.sleep(0.1)
            self._child.kill()
        return DelayedSubmission(SlurmTrial(self.words, self.folder, self.log, self.code_file))


def _ignore_requeue() -> None:
    signal.signal(signal.SIGUSR2, signal.SIG_IGN)
