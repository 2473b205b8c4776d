"""What a sweep asks of the place where its trials run; `launchers.clusters` makes the one that a config names.

A cluster answers for attempts by their ids, and an id is never used for two different things: whoever sends it again
gets hold of the same attempt. That is why a sweep can be continued by a process that knows only its folder.
"""

from __future__ import annotations

import hashlib
import re
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from grpo.config import RunConfig


class Unreachable(Exception):
    """The cluster does not answer now; says nothing about its trials."""


class Refused(Exception):
    """The cluster will not take this attempt, and says why; sending it again would change nothing."""


@dataclass(frozen=True, kw_only=True)
class Attempt:
    """One try at a trial."""

    sweep: Path
    folder: str
    """The trial's, below the sweep's; on this machine."""
    number: int
    """1, 2, …"""
    fingerprint: str
    run: RunConfig

    @property
    def here(self) -> Path:
        return self.sweep / self.folder

    @property
    def log(self) -> Path:
        """What the attempt prints; each has its own, so that a stream that breaks can go on where it stood."""
        return self.here / ("output.log" if self.number == 1 else f"output_{self.number}.log")

    @property
    def id(self) -> str:
        """The same for whoever asks: lower-case letters, digits and dashes, and at most the 47 that KubeRay takes."""
        place = hashlib.sha256(str(self.sweep.resolve()).encode()).hexdigest()[:8]
        name = re.sub(r"[^a-z0-9]+", "-", f"{self.run.name}-{self.folder}".lower()).strip("-")[:16].strip("-")
        return f"grpo-{name}-{place}-{self.fingerprint[:8]}-{self.number}"


@dataclass(frozen=True, kw_only=True)
class Status:
    phase: Literal["pending", "running", "ended", "lost"]
    """`lost`: the cluster is there and does not know the attempt."""
    code: int | None
    """The exit code of an ended attempt; -N for signal N; None where the cluster does not tell."""
    note: str
    """What the cluster says about it: why it waits, how it ended."""


@dataclass(frozen=True, kw_only=True)
class Policy:
    """How a sweep deals with its cluster."""

    max_concurrent: int
    retries: int
    """Further attempts after failures that were not the trial's own."""
    on_interrupt: Literal["stop", "detach"]
    start_minutes: float
    """How long an attempt may wait to start, and the cluster to answer."""
    stall_minutes: float
    """Without a sign of life for so long, a running attempt counts as stalled."""
    on_stall: Literal["warn", "retry"]


class Cluster(ABC):
    """Methods raise Unreachable while the cluster does not answer."""

    @abstractmethod
    def check(self, attempts: Sequence[Attempt]) -> None:
        """Before the first is sent: can the cluster take these? Raises ConfigError with what it lacks."""

    @abstractmethod
    def submit(self, attempt: Attempt) -> None:
        """Start it, or get hold of it if it was sent before. Raises Refused."""

    @abstractmethod
    def status(self, attempt: Attempt) -> Status: ...

    @abstractmethod
    def stop(self, attempt: Attempt) -> None:
        """Ask it to end. It may take its time, and may have ended already."""

    @abstractmethod
    def collect(self, attempt: Attempt) -> None:
        """After its end: bring home what it printed and what is still missing in `attempt.here`."""

    def preview(self, attempts: Sequence[Attempt]) -> str:
        """What would be sent, for a dry run; nothing is sent, and the cluster is not asked."""
        return ""

    def result_folders(self, attempt: Attempt) -> list[Path]:
        """Where this machine may find the attempt's result file."""
        return [attempt.here]

    def wait(self, seconds: float) -> None:
        """Until something may have changed, at most this long."""
        time.sleep(seconds)

    def close(self) -> None:
        """Let go of connections and threads; attempts go on."""
        return
