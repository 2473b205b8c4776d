"""What a sweep knows about its trials, kept in `sweep.json` so that any later process can go on from it.

Trials are known by what they train, not by their place in the command: the same command with one more value finds the
others done.
"""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import hashlib
import itertools
import json
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from grpo.config import ConfigError, Fault, RunConfig

State = Literal["waiting", "pending", "running", "finished", "failed", "interrupted"]
"""`pending`: sent to the cluster, which has not started it yet."""

ACTIVE: tuple[State, ...] = ("pending", "running")
RECORD, LOCK, PACKAGE = "sweep.json", "sweep.lock", "package.zip"
PREPARED = frozenset({LOCK, PACKAGE, "package.part", "multirun.yaml", "config.yaml"})
"""What a sweep's folder holds, below it too, before the first trial is sent; Hydra writes one of them."""


@dataclass(frozen=True, kw_only=True)
class Job:
    """A trial as asked for."""

    overrides: tuple[str, ...]
    folder: str
    """The wanted folder's name below the sweep's."""
    run: RunConfig


@dataclass(frozen=True, kw_only=True)
class TrialRecord:
    """A trial as it stands; a line of sweep.json."""

    overrides: tuple[str, ...]
    folder: str
    fingerprint: str
    """Of its config; the same command again finds its finished trials by it."""
    state: State
    attempts: int
    """How often it was sent; the newest attempt's id on the cluster follows from it."""
    objective: float | None
    cause: str | None
    """The kind of the last failure, which decided whether it was tried again."""
    reason: str | None
    """Why it failed, or why it waits."""
    started: float | None
    """Seconds since the epoch, of the newest attempt."""
    seconds: float | None


def fingerprint(run: RunConfig) -> str:
    """A hash of everything that decides the outcome: not where it runs and writes, nor what the run is called."""
    places = {"output_dir", "scratch_dir", "mirror_wait_seconds"}
    aside = dict.fromkeys(("name", "resume", "resume_accepts_changes", "dry_run", "cluster"), True) | {
        "runtime": places
    }
    content = run.model_dump(by_alias=True, exclude=aside)
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:16]


def read(sweep: Path) -> list[TrialRecord]:
    """The trials of a sweep; empty where none was started. Raises ValueError for a damaged record."""
    path = sweep / RECORD
    if not path.exists():
        return []
    rows = json.loads(path.read_text(encoding="utf-8"))["trials"]
    return [TrialRecord(**{**row, "overrides": tuple(row["overrides"])}) for row in rows]


def write(sweep: Path, records: Sequence[TrialRecord]) -> None:
    """Replace the record in one move, so that a reader or a crash never sees half of it."""
    text = json.dumps({"trials": [dataclasses.asdict(record) for record in records]}, indent=1)
    aside = sweep / f"{RECORD}.part"
    aside.write_text(text + "\n", encoding="utf-8")
    aside.replace(sweep / RECORD)


def place(job: Job, records: list[TrialRecord]) -> int:
    """Where the job's record is; a new one, in a folder of its own, is added if it has none."""
    key = fingerprint(job.run)
    known = [index for index, record in enumerate(records) if record.fingerprint == key]
    if known:
        return known[0]
    taken = {record.folder for record in records}
    names = itertools.chain([job.folder], map(str, itertools.count(len(records))))
    records.append(
        TrialRecord(
            overrides=job.overrides,
            folder=next(name for name in names if name not in taken),
            fingerprint=key,
            state="waiting",
            attempts=0,
            objective=None,
            cause=None,
            reason=None,
            started=None,
            seconds=None,
        )
    )
    return len(records) - 1


@contextlib.contextmanager
def locked(sweep: Path) -> Iterator[None]:
    """Raises ConfigError while another process works on the sweep."""
    with (sweep / LOCK).open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            problem = f"another process runs the trials of {sweep}; wait for it, or give another folder"
            raise ConfigError([Fault(key="hydra.sweep.dir", problem=problem)]) from None
        yield


def withdraw(sweep: Path) -> bool:
    """Remove a sweep's folder if nothing of it was ever sent; whether that was so."""
    with contextlib.suppress(ConfigError, OSError), locked(sweep):
        if all(path.name in PREPARED for path in sweep.rglob("*") if not path.is_dir()):
            shutil.rmtree(sweep)
            return True
    return False
