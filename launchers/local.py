"""Sweeps on this machine: one process a trial, one after the other, and a record from which a sweep continues.

A process of its own, and not a call in this one, because a trial that runs out of memory must not take the others with
it, and because `config.yaml` in, `result.json` out is how a cluster runs the same trial.
"""

from __future__ import annotations

import contextlib
import csv
import dataclasses
import fcntl
import hashlib
import itertools
import json
import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from rich.console import Console
from rich.table import Column, Table

from grpo import config
from grpo.config import ConfigError, Fault, RunConfig

State = Literal["waiting", "running", "finished", "failed", "interrupted"]

TRAIN = Path(__file__).resolve().parents[1] / "train.py"
RECORD, LOG, RESULT = "sweep.json", "output.log", "result.json"
STOP_SECONDS = 10.0
"""How long an interrupted trial may take to save its state before it is killed."""


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
    objective: float | None
    reason: str | None
    """Why it failed."""
    seconds: float | None


def trial_command(folder: Path) -> list[str]:
    """What runs the trial that is prepared in `folder`; tests put a quick program in its place.

    It must leave `result.json` with `{"objective": number}` in the folder and exit with 0.
    """
    resume = [f"resume={folder}"] if any(folder.glob("checkpoints/*/DONE")) else []
    saved = ["--config-path", str(folder), "--config-name", "config"]
    return [sys.executable, str(TRAIN), *saved, f"hydra.run.dir={folder}", *resume]


def fingerprint(run: RunConfig) -> str:
    """A hash of everything that decides the outcome: not where it is written, nor what the run is called."""
    content = run.model_dump(by_alias=True, exclude={"name": True, "resume": True, "runtime": {"output_dir"}})
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


def launch(
    jobs: Sequence[Job],
    sweep: Path,
    *,
    stop_on_error: bool,
    console: Console,
    command: Callable[[Path], list[str]] = trial_command,
) -> list[TrialRecord]:
    """Run the jobs that have no result in `sweep` yet; one record a job, in their order.

    Raises ConfigError if another process works on the sweep, and KeyboardInterrupt after it stopped the running trial.
    """
    sweep.mkdir(parents=True, exist_ok=True)
    with _locked(sweep), _terminated_as_interrupt():
        records = read(sweep)
        places = [_place(job, records) for job in jobs]
        write(sweep, records)
        for number, place in enumerate(places):
            if records[place].state == "finished":
                console.print(
                    f"trial {number}: {_told(records[place])} (done before)",
                    markup=False,
                    highlight=False,
                    soft_wrap=True,
                )
                continue
            _run(place, records, jobs[number], sweep, command, console)
            if stop_on_error and records[place].state == "failed":
                left = sum(records[other].state != "finished" for other in places[number + 1 :])
                console.print(
                    f"stopped after this failure: {left} trial(s) were not run",
                    markup=False,
                    highlight=False,
                    soft_wrap=True,
                )
                break
        return [records[place] for place in places]


def _place(job: Job, records: list[TrialRecord]) -> int:
    """Where the job's record is; a new one, in a folder of its own, if it has none."""
    key = fingerprint(job.run)
    known = [index for index, record in enumerate(records) if record.fingerprint == key]
    if known:
        return known[0]
    taken = {record.folder for record in records}
    names = itertools.chain([job.folder], map(str, itertools.count(len(records))))
    folder = next(name for name in names if name not in taken)
    records.append(
        TrialRecord(
            overrides=job.overrides,
            folder=folder,
            fingerprint=key,
            state="waiting",
            objective=None,
            reason=None,
            seconds=None,
        )
    )
    return len(records) - 1


def _run(
    place: int,
    records: list[TrialRecord],
    job: Job,
    sweep: Path,
    command: Callable[[Path], list[str]],
    console: Console,
) -> None:
    """Run one trial to its end and record every change of its state."""

    def record(**changes: object) -> None:
        records[place] = dataclasses.replace(records[place], **changes)
        write(sweep, records)

    folder = sweep / records[place].folder
    label = " ".join(records[place].overrides) or "(no overrides)"
    _prepare(folder, job.run)
    record(state="running", objective=None, reason=None, seconds=None)
    console.print(
        f"trial {folder.name}: {label} started; its output: {folder / LOG}",
        markup=False,
        highlight=False,
        soft_wrap=True,
    )
    started = time.monotonic()
    try:
        code = _wait(command(folder), folder, f"trial {folder.name}: {label}", console)
    except KeyboardInterrupt:
        record(state="interrupted", seconds=time.monotonic() - started)
        again = f"the same command with hydra.sweep.dir={sweep} runs what is missing"
        console.print(f"trial {folder.name} interrupted; {again}", markup=False, highlight=False, soft_wrap=True)
        raise
    objective, reason = _result(folder, code)
    state: State = "failed" if objective is None else "finished"
    record(state=state, objective=objective, reason=reason, seconds=time.monotonic() - started)
    style = "red" if reason else None
    console.print(
        f"trial {folder.name}: {_told(records[place])}", style=style, markup=False, highlight=False, soft_wrap=True
    )


def _told(record: TrialRecord) -> str:
    outcome = record.reason if record.objective is None else f"objective {record.objective:.4f}"
    time_taken = f" in {record.seconds:.0f} s" if record.seconds is not None else ""
    return f"{' '.join(record.overrides)} {record.state}{time_taken}: {outcome}"


def _prepare(folder: Path, run: RunConfig) -> None:
    """A folder with the trial's config. An earlier try without a checkpoint is moved aside, never mixed or lost."""
    resumable = any(folder.glob("checkpoints/*/DONE"))
    if folder.exists() and not resumable:
        attempts = len(list(folder.parent.glob(f"{folder.name}_attempt_*")))
        folder.rename(folder.with_name(f"{folder.name}_attempt_{attempts + 1}"))
    folder.mkdir(parents=True, exist_ok=True)
    (folder / RESULT).unlink(missing_ok=True)
    (folder / "config.yaml").write_text(config.to_yaml(run), encoding="utf-8")


def _wait(command: Sequence[str], folder: Path, label: str, console: Console) -> int:
    """The exit code of `command`, whose output goes to the trial's log."""
    with (folder / LOG).open("ab") as log:
        # A session of its own: Ctrl-C reaches this process alone, which then gives the trial time to save its state.
        process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, start_new_session=True)
    try:
        with console.status(label) as status:
            while process.poll() is None:
                time.sleep(0.1)
                status.update(f"{label} | {_last_line(folder / LOG)}")
        return process.returncode
    except BaseException:
        _stop(process)
        raise


def _stop(process: subprocess.Popen[bytes]) -> None:
    for number in (signal.SIGINT, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout=STOP_SECONDS)
            return


def _last_line(path: Path) -> str:
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - 2000))
        lines = file.read().decode("utf-8", errors="replace").split("\n")
    kept = [line.strip() for line in lines if line.strip()]
    return kept[-1][:160] if kept else ""


def _result(folder: Path, code: int) -> tuple[float | None, str | None]:
    """(objective, None), or (None, why there is none)."""
    if code != 0:
        how = f"exit code {code}" if code > 0 else f"killed by {signal.Signals(-code).name}"
        return None, f"{how}: {_last_line(folder / LOG) or 'no output'}; see {folder / LOG}"
    try:
        found: object = json.loads((folder / RESULT).read_text(encoding="utf-8"))["objective"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        return None, f"it left no objective in {folder / RESULT} ({type(error).__name__}: {error})"
    if isinstance(found, bool) or not isinstance(found, int | float) or not math.isfinite(found):
        return None, f"its objective is no finite number: {found!r}"
    return float(found), None


def finish(sweep: Path, console: Console) -> int:
    """Print the sweep's table, best first, and write it to sweep.csv. 0 if every trial has finished, else 1."""
    records = sorted(read(sweep), key=_rank)
    if not records:
        return 0
    keys = list(dict.fromkeys(key for record in records for key in _settings(record)))
    # Full keys are in the file; in the table `algorithm.group_size` would be broken over three lines.
    short = [key.rsplit(".", 1)[-1] for key in keys]
    headings = short if len(set(short)) == len(short) else keys
    columns = [Column(heading, overflow="fold") for heading in headings]
    table = Table("trial", *columns, "objective", "state", "seconds", title=f"sweep {sweep}")
    with (sweep / "sweep.csv").open("w", encoding="utf-8", newline="") as file:
        sheet = csv.writer(file)
        sheet.writerow(["trial", *keys, "objective", "state", "seconds", "reason"])
        for record in records:
            settings = _settings(record)
            cells = [record.folder, *(settings.get(key, "") for key in keys)]
            numbers = ["" if record.objective is None else f"{record.objective:.4f}", record.state]
            seconds = "" if record.seconds is None else f"{record.seconds:.0f}"
            sheet.writerow([*cells, record.objective, record.state, seconds, record.reason])
            table.add_row(*cells, *numbers, seconds)
    console.print(table)
    return 0 if all(record.state == "finished" for record in records) else 1


def _rank(record: TrialRecord) -> float:
    return math.inf if record.objective is None else -record.objective


def _settings(record: TrialRecord) -> Mapping[str, str]:
    pairs = (word.partition("=") for word in record.overrides)
    return {key: value for key, _, value in pairs}


@contextlib.contextmanager
def _locked(sweep: Path) -> Iterator[None]:
    with (sweep / "sweep.lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            problem = f"another process runs the trials of {sweep}; wait for it, or give another folder"
            raise ConfigError([Fault(key="hydra.sweep.dir", problem=problem)]) from None
        yield


@contextlib.contextmanager
def _terminated_as_interrupt() -> Iterator[None]:
    """SIGTERM stops the running trial too, instead of leaving it behind."""

    def interrupt(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
