"""What a benchmark hands back, and how time is taken.

CPU seconds stand beside wall seconds because a machine that does other work stretches only the latter: ratios are
formed from CPU seconds.
"""

from __future__ import annotations

import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Any, Literal


@dataclass(frozen=True, kw_only=True)
class Goal:
    of: Literal["ratio", "ours"]
    sense: Literal["at least", "at most"]
    value: float

    def met(self, figure: Figure) -> bool | None:
        """None where the figure was not measured."""
        value = figure.ratio if self.of == "ratio" else figure.ours
        if value is None:
            return None
        return value >= self.value if self.sense == "at least" else value <= self.value


@dataclass(frozen=True, kw_only=True)
class Figure:
    """One line of the table."""

    name: str
    unit: str
    ours: float
    peer: float | None = None
    ratio: float | None = None
    """How many times better ours is than the peer's."""
    goal: Goal | None = None


@dataclass(frozen=True, kw_only=True)
class Result:
    """What one benchmark found."""

    name: str
    peer: str
    """Whom `Figure.peer` is about; empty where nobody."""
    figures: tuple[Figure, ...]
    details: Mapping[str, Any]
    """Everything measured, JSON values only."""
    remarks: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Spent:
    wall: float
    cpu: float


@dataclass(frozen=True, kw_only=True)
class Played:
    """Episodes that one side of the rollout benchmark played."""

    actions: Sequence[Sequence[str | None]]
    token_ids: Sequence[Sequence[int]]
    """Of each whole conversation, its last reply included."""
    tokens: int
    """Sampled."""
    spent: Spent
    parts: Mapping[str, float]
    """CPU seconds of named parts of the work."""


@dataclass(frozen=True, kw_only=True)
class Finished:
    """A command that ran to its end, its child processes included."""

    exit_code: int
    spent: Spent
    peak_gib: float
    """Largest resident memory of any one of its processes."""
    output: str
    """Standard output and error together."""


def at_least(value: float) -> Goal:
    """Of a ratio."""
    return Goal(of="ratio", sense="at least", value=value)


def at_most(value: float) -> Goal:
    """Of our own figure."""
    return Goal(of="ours", sense="at most", value=value)


def faster(name: str, unit: str, ours: float, peer: float | None, goal: float | None = None) -> Figure:
    """A rate: more is better."""
    ratio = None if peer is None else ours / peer
    return Figure(name=name, unit=unit, ours=ours, peer=peer, ratio=ratio, goal=at_least(goal) if goal else None)


def shorter(name: str, unit: str, ours: float, peer: float | None, goal: float | None = None) -> Figure:
    """A duration: less is better."""
    ratio = None if peer is None else peer / ours
    return Figure(name=name, unit=unit, ours=ours, peer=peer, ratio=ratio, goal=at_least(goal) if goal else None)


def alone(name: str, unit: str, ours: float, goal: Goal | None = None) -> Figure:
    """A figure with nobody to compare with."""
    return Figure(name=name, unit=unit, ours=ours, goal=goal)


class Stopwatch:
    """Time of this process since it was made."""

    def __init__(self) -> None:
        self._wall, self._cpu = time.perf_counter(), time.process_time()

    def spent(self) -> Spent:
        return Spent(wall=time.perf_counter() - self._wall, cpu=time.process_time() - self._cpu)


def middle(repeats: int, work: Callable[[], Spent]) -> Spent:
    """Medians of several runs of `work`."""
    runs = [work() for _ in range(repeats)]
    return Spent(wall=median(run.wall for run in runs), cpu=median(run.cpu for run in runs))


def run_command(words: Sequence[str], *, folder: Path, environment: Mapping[str, str] | None = None) -> Finished:
    """Run a command in `folder` with additions to the environment. A failing one is returned, not raised."""
    with tempfile.TemporaryFile("w+") as output:
        start = time.perf_counter()
        process = subprocess.Popen(
            words,
            cwd=folder,
            env={**os.environ, **(environment or {})},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
        )
        # Not process.wait(): only this tells what one command used, apart from those that ran before.
        _, status, usage = os.wait4(process.pid, 0)
        wall = time.perf_counter() - start
        process.returncode = os.waitstatus_to_exitcode(status)
        output.seek(0)
        text = output.read()
    # Kilobytes on Linux, bytes on macOS.
    unit = 1 if sys.platform == "darwin" else 1024
    return Finished(
        exit_code=process.returncode,
        spent=Spent(wall=wall, cpu=usage.ru_utime + usage.ru_stime),
        peak_gib=usage.ru_maxrss * unit / 2**30,
        output=text,
    )


def checked(finished: Finished, what: str) -> Finished:
    """`finished`, if it ended well. Raises RuntimeError with the end of its output otherwise."""
    if finished.exit_code != 0:
        raise RuntimeError(f"{what} ended with exit code {finished.exit_code}:\n{finished.output[-3000:]}")
    return finished


def machine() -> dict[str, Any]:
    """What the figures were measured on, and when."""
    cores = os.cpu_count() or 1
    load = os.getloadavg()[0]
    return {
        "processor": _processor(),
        "cores": cores,
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "load_at_start": round(load, 2),
        "busy": load > 0.5 * cores,
    }


def _processor() -> str:
    info = Path("/proc/cpuinfo")
    if info.is_file():
        for line in info.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
