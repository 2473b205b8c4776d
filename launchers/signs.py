"""Is a running attempt alive? It is if its log grows or its heartbeat changes.

Saving is never a stall: a slow disk may take any time, and the run says that it is saving.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from launchers.outcome import last_line

HEARTBEAT = "heartbeat.json"


class SignsOfLife:
    def __init__(self, log: Path, folders: Sequence[Path]) -> None:
        self._log, self._folders = log, folders
        self._seen = self._marks()
        self._changed = time.monotonic()

    def silence(self, limit_minutes: float) -> str:
        """What was last seen, once that is longer ago than the limit; empty before."""
        seen = self._marks()
        now = time.monotonic()
        if seen != self._seen:
            self._seen, self._changed = seen, now
        beat = self._heartbeat()
        if now - self._changed < limit_minutes * 60 or beat.get("phase") == "saving":
            return ""
        where = f"step {beat.get('step')}, {beat.get('phase')} on {beat.get('host')}" if beat else "no heartbeat"
        return f"no sign of life for {limit_minutes:g} minutes; last: {where}, {last_line(self._log) or 'no output'!r}"

    def _marks(self) -> tuple[int, ...]:
        marks = (path.stat() for path in self._files() if path.exists())
        return tuple(part for mark in marks for part in (mark.st_size, mark.st_mtime_ns))

    def _files(self) -> list[Path]:
        return [self._log, *(folder / HEARTBEAT for folder in self._folders)]

    def _heartbeat(self) -> dict[str, Any]:
        for path in self._files()[1:]:
            try:
                return json.loads(path.read_text(encoding="utf-8"))
            except (OSError, ValueError):
                continue  # not there, or between two writes
        return {}
