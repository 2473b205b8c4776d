"""What a run is doing right now, for whoever watches it: a slow save must not look like a stall.

Written at each change of phase and never synced: it costs microseconds, and after a power cut nobody needs it.
"""

from __future__ import annotations

import json
import os
import socket
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

from grpo.files import DiskError, writing

FILE = "heartbeat.json"
Phase = Literal["starting", "rollouts", "update", "evaluation", "saving", "done", "failed"]


def beat(folder: Path, phase: Phase, step: int) -> None:
    """Say that `phase` of `step` begins. A reader sees the old file or the new one, never half of one."""
    content = {
        "phase": phase,
        "step": step,
        "time": datetime.now(UTC).isoformat(timespec="milliseconds"),
        "pid": os.getpid(),
        "host": socket.gethostname(),
    }
    aside = folder / f".{FILE}.part"
    with writing("heartbeat", folder / FILE, folder):
        aside.write_text(json.dumps(content) + "\n", encoding="utf-8")
        aside.replace(folder / FILE)


def beat_failed(folder: Path) -> None:
    """Say that the run ended early, at the step that it was in; nothing where the disk takes nothing."""
    with suppress(DiskError, OSError, ValueError, KeyError):
        beat(folder, "failed", json.loads((folder / FILE).read_text(encoding="utf-8"))["step"])
