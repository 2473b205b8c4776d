"""What a trial that has ended brought home: its objective, or the reason why there is none and whether to try again.

The file comes first and the log second: a cluster without a folder in common with this machine brings back no file, so
the trial also prints its result as its last line.
"""

from __future__ import annotations

import json
import math
import re
import signal
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

RESULT = "result.json"
MARK = "GRPO_RESULT "
TAIL_BYTES = 20_000

CONFIG_EXIT = 2
_BY_SIGN = (
    ("cancelled", r"cancelled by someone"),
    ("time limit", r"its time was up more often"),
    ("node lost", r"\nnode lost: "),  # our own word, after whatever Ray guesses the reason to be
    ("out of memory", r"out.of.memory|OutOfMemoryError"),
    ("preempted", r"preempt|DUE TO (NODE|JOB REQUEUE)|evicted"),
    ("node lost", r"NODE_FAIL|BOOT_FAIL|node.{0,80}(died|lost|terminated|dead)"),
    ("node lost", r"ActorDiedError|RaySystemError|WorkerCrashedError"),
    ("communication", r"NCCL (error|WARN)|ncclSystemError|ncclRemoteError|ncclUnhandledCudaError|ECC error"),
    ("server error", r"\b50[0234]\b.{0,40}(error|unavailable|SlowDown)|ConnectionResetError|Too Many Requests"),
)
KILLED = frozenset({-2, -9, -15, 130, 137, 143})
"""Exit codes of a trial that someone outside ended: interrupted, killed or terminated."""
TRANSIENT = frozenset({"preempted", "node lost", "head lost", "communication", "server error", "killed", "stalled"})
"""Causes that lie outside the trial: another attempt, from its newest checkpoint, may do what this one could not."""


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """How an attempt ended. Exactly one of objective and reason is given."""

    objective: float | None
    cause: str | None
    reason: str | None

    @property
    def worth_another(self) -> bool:
        return self.cause in TRANSIENT


def failed(cause: str, reason: str) -> Outcome:
    return Outcome(objective=None, cause=cause, reason=reason)


def of_exit(code: int | None, note: str, folders: Iterable[Path], log: Path) -> Outcome:
    """The outcome of an attempt that ended with `code` (None: unknown; negative: a signal).

    `note` is what the cluster says about the end; `folders` are where a result file may lie.
    """
    if code not in (0, None):
        return _failure(code, note, log)
    found, problem = _objective(folders, log)
    if found is not None:
        return Outcome(objective=found, cause=None, reason=None)
    return failed("no result", problem) if code == 0 else _failure(None, note, log)


def known(folders: Iterable[Path], log: Path) -> Outcome | None:
    """The outcome of a trial that already left a sound result, whatever its cluster remembers of it."""
    found, _ = _objective(folders, log)
    return None if found is None else Outcome(objective=found, cause=None, reason=None)


def last_line(path: Path) -> str:
    """The last line of a log that says anything, shortened; empty where there is none."""
    kept = [line.strip() for line in tail(path).split("\n") if line.strip()]
    return kept[-1][:160] if kept else ""


def tail(path: Path) -> str:
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - TAIL_BYTES))
            return file.read().decode("utf-8", errors="replace")
    except FileNotFoundError:
        return ""


def _failure(code: int | None, note: str, log: Path) -> Outcome:
    said = last_line(log) or "no output"
    how = _ended(code) if code is not None else "ended without an exit code"
    told = f"{how}: {said}{f' ({note})' if note else ''}; see {log}"
    if code == CONFIG_EXIT:
        return failed("config", told)
    signs = f"{note}\n{tail(log)[-4000:]}"
    cause = next((name for name, sign in _BY_SIGN if re.search(sign, signs, re.IGNORECASE)), None)
    return failed(cause or ("killed" if code in KILLED else "failed"), told)


def _ended(code: int) -> str:
    number = -code if code < 0 else code - 128
    named = number in {each.value for each in signal.Signals}
    return f"killed by {signal.Signals(number).name}" if (code < 0 or code > 128) and named else f"exit code {code}"


def _objective(folders: Iterable[Path], log: Path) -> tuple[float | None, str]:
    """(objective, "") or (None, what is wrong with it)."""
    problem = ""
    for path in (folder / RESULT for folder in folders):
        try:
            return _number(path.read_text(encoding="utf-8"), str(path))
        except OSError as error:
            problem = problem or f"it left no objective in {path} ({type(error).__name__}: {error})"
    lines = [line for line in tail(log).split("\n") if line.startswith(MARK)]
    return _number(lines[-1].removeprefix(MARK), str(log)) if lines else (None, problem)


def _number(text: str, where: str) -> tuple[float | None, str]:
    try:
        found: object = json.loads(text)["objective"]
    except (ValueError, KeyError, TypeError) as error:
        return None, f"it left no objective in {where} ({type(error).__name__}: {error})"
    if isinstance(found, bool) or not isinstance(found, int | float) or not math.isfinite(found):
        return None, f"its objective is no finite number: {found!r}"
    return float(found), ""
