"""Copies a run's folder to S3 while the run goes on; the run never waits for it and never fails with it.

The thread looks at the folder and is told nothing: a checkpoint is there once its DONE is, whatever engine wrote it,
and the training code has nothing to call that could hang.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path

from grpo.config import RunConfig
from grpo.files import write_json
from grpo.replica import STATE_FILE, Replica
from grpo.s3 import Remote, StorageError, pause
from grpo.storage import address_of

log = logging.getLogger(__name__)

LOOK_SECONDS = 2.0
RECORDS_SECONDS = 30.0
"""Between two copies of the records, which are copied whole where they have grown. A checkpoint goes at once."""
RETRY_SECONDS = 30.0
"""The longest pause before another try."""
REMIND_SECONDS = 300.0
PROGRESS_SECONDS = 10.0


@contextmanager
def mirrored(run: RunConfig, folder: Path) -> Iterator[None]:
    """Copies `folder` to the run's address, if it has one, while the block runs; waits for the rest at its end."""
    address = address_of(run, folder)
    if address is None:
        yield
        return
    runtime = run.runtime
    mirror = Mirror(
        Remote(address), folder, keep=runtime.keep_checkpoints, checkpoint_interval=runtime.checkpoint_interval
    )
    try:
        yield
    finally:
        mirror.finish(runtime.mirror_wait_seconds)


class Mirror:
    """Starts with the copying when it is made."""

    def __init__(self, remote: Remote, folder: Path, *, keep: int, checkpoint_interval: int) -> None:
        self._checkpoint_interval = checkpoint_interval
        self._remote, self._folder = remote, folder
        self._replica = Replica(remote, folder, keep=keep)
        self._finishing, self._abandoned = threading.Event(), threading.Event()
        self._safe_step: int | None = None
        self._told_up_to = self._replica.started_with
        self._everything = False
        self._fault: str | None = None
        self._unreachable_since = self._reminded = 0.0
        self._records_copied = float("-inf")
        self._state: dict[str, object] = {}
        log.info("this run is copied to %s while it goes on", remote.address)
        self._thread = threading.Thread(target=self._run, name="mirror", daemon=True)
        self._thread.start()

    def finish(self, wait_seconds: float) -> bool:
        """Whether all of the folder is on S3; what is not yet gets up to so many seconds more."""
        self._finishing.set()
        end = time.monotonic() + wait_seconds
        self._thread.join(min(wait_seconds, PROGRESS_SECONDS))
        while self._thread.is_alive() and (left := end - time.monotonic()) > 0:
            files = f"{self._replica.left or 'some'} files left"
            log.info("%s to copy to %s; waiting up to %.0f s more", files, self._remote.address, left)
            self._thread.join(min(left, PROGRESS_SECONDS))
        self._abandoned.set()
        if self._everything and not self._thread.is_alive():
            log.info("everything of this run is safe at %s", self._remote.address)
            return True
        by_hand = f"aws s3 sync {self._folder} {self._remote.address}"
        log.warning("NOT all of this run is at %s: %s", self._remote.address, self._told())
        log.warning("the folder has everything: %s; to copy it: %s", self._folder, by_hand)
        return False

    def _run(self) -> None:
        failures = 0
        while not self._abandoned.is_set():
            last = self._finishing.is_set()
            try:
                self._pass(last)
            except (StorageError, OSError) as error:
                failures += 1
                self._failed(str(error))
                # The end of a run cuts the pause short, and has no time for long ones.
                waits, longest = (self._abandoned, LOOK_SECONDS) if last else (self._finishing, RETRY_SECONDS)
                waits.wait(pause(failures, longest))
                continue
            except Exception as error:  # a fault of ours must end the copying alone, and be told
                log.exception("copying to %s has stopped", self._remote.address)
                self._fault = f"{type(error).__name__}: {error}"
                return
            failures = 0
            if last:
                return
            self._finishing.wait(LOOK_SECONDS)

    def _pass(self, last: bool) -> None:
        records = last or time.monotonic() - self._records_copied > RECORDS_SECONDS
        try:
            self._replica.catch_up(records=records)
        finally:
            self._tell_safe()
        if self._fault is not None:
            log.info("S3 is reachable again, after %.0f s", time.monotonic() - self._unreachable_since)
            self._fault = None
        if records:
            self._records_copied = time.monotonic()
        self._everything = last and not self._replica.damaged
        self._write_state()

    def _tell_safe(self) -> None:
        steps = self._replica.safe_steps
        if not steps or steps[-1] == self._safe_step:
            return
        self._safe_step = steps[-1]
        there = {*steps, *self._replica.local_steps()}
        due = range(self._checkpoint_interval, self._safe_step, self._checkpoint_interval)
        missed = [str(step) for step in due if step > self._told_up_to and step not in there]
        told = f" (without {', '.join(missed)}: pruned here before they were copied)" if missed else ""
        log.info("safe remotely up to step %d%s", self._safe_step, told)
        self._told_up_to = max(self._told_up_to, self._safe_step)

    def _failed(self, reason: str) -> None:
        now = time.monotonic()
        if self._fault is None:
            self._unreachable_since, self._reminded = now, float("-inf")
        self._fault = reason
        if now - self._reminded >= REMIND_SECONDS and not self._abandoned.is_set():
            self._reminded = now
            log.warning("%s", self._told())
            with suppress(OSError):  # the log has it; a full disk must not end the copying
                self._write_state()

    def _told(self) -> str:
        step = self._safe_step
        safe = "no checkpoint is safe remotely" if step is None else f"safe remotely only up to step {step}"
        if self._fault is None:
            return safe
        since = datetime.now().timestamp() - (time.monotonic() - self._unreachable_since)
        return f"S3 unreachable since {datetime.fromtimestamp(since):%Y-%m-%d %H:%M:%S}: {safe} ({self._fault})"

    def _write_state(self) -> None:
        """mirror.json, here and there, where it changed."""
        state = {
            "address": self._remote.address,
            "safe_step": self._safe_step,
            "everything": self._everything,
            "fault": self._fault,
        }
        if state == self._state:
            return
        write_json(self._folder / STATE_FILE, state)
        if self._fault is None:
            self._remote.put_bytes(STATE_FILE, (self._folder / STATE_FILE).read_bytes())
        self._state = state
