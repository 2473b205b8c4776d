"""Many faults at random during a sweep: no result is lost, and nothing runs again after it succeeded.

`FAULTS=100 pytest tests/test_faults.py` for more of them; the table of what was injected is printed (`-s`).
"""

from __future__ import annotations

import os
import random
import re
import signal
import sys
import threading
import time
from collections import Counter
from pathlib import Path

import pytest
from hyperpod_stub import HyperpodStub
from test_hyperpod import Sweep, stub, whole

__all__ = ["stub"]

COUNT = int(os.environ.get("FAULTS", "20"))


class Injector(threading.Thread):
    """One fault after the other, drawn from a seed, until there were enough."""

    def __init__(self, stub: HyperpodStub, made: Sweep) -> None:
        super().__init__(daemon=True)
        self.stub, self.made = stub, made
        self.done: Counter[str] = Counter()
        self.over = threading.Event()
        self.draw = random.Random(7)

    def run(self) -> None:
        kinds = [self.expire, self.log_out, self.away, self.close_streams, self.cut_streams, self.kill]
        while self.done.total() < COUNT and not self.over.is_set():
            kind = self.draw.choice(kinds)
            if kind():
                self.done[kind.__name__] += 1
            time.sleep(self.draw.uniform(0.3, 1.2))

    def expire(self) -> bool:
        self.stub.faults.on_expiry = "401"
        self.stub.faults.sessions.clear()
        return True

    def log_out(self) -> bool:
        self.stub.faults.on_expiry = "302"
        self.stub.faults.sessions.clear()
        return True

    def away(self) -> bool:
        self.stub.faults.down_until = time.monotonic() + 1.5
        return True

    def close_streams(self) -> bool:
        self.stub.faults.close_streams_after, self.stub.faults.cut_streams = self.draw.randint(1, 4), False
        return True

    def cut_streams(self) -> bool:
        self.stub.faults.close_streams_after, self.stub.faults.cut_streams = self.draw.randint(1, 4), True
        return True

    def kill(self) -> bool:
        """A trial that has begun, as the kernel does when memory runs out."""
        found = [pid for pid in filter(str.isdigit, os.listdir("/proc")) if self._is_running_trial(int(pid))]
        if not found:
            return False
        os.kill(int(self.draw.choice(found)), signal.SIGKILL)
        return True

    def _is_running_trial(self, pid: int) -> bool:
        try:
            words = Path(f"/proc/{pid}/cmdline").read_bytes().decode().split("\0")
        except OSError:
            return False
        if "launchers.trial" not in words or str(self.made.shared) not in " ".join(words):
            return False
        folder = Path(words[words.index("--folder") + 1])
        return (folder / "starts").exists() and not (folder / "result.json").exists() and "python" in words[0]


@pytest.mark.slow
def test_faults_lose_no_result_and_repeat_none(stub: HyperpodStub, tmp_path: Path) -> None:
    made = Sweep(tmp_path, retries=1000)
    injector = Injector(stub, made)
    injector.start()
    seeds = [100 + number for number in range(max(4, COUNT // 3))]
    records = made.launch(*seeds)
    injector.over.set()
    injector.join()
    sys.stderr.write(f"{dict(injector.done)}\n")
    assert [(each.state, each.objective) for each in records] == [("finished", seed / 10) for seed in seeds]
    assert sum(each.attempts - 1 for each in records) == injector.done["kill"]
    for number, (seed, each) in enumerate(zip(seeds, records, strict=True)):
        starts = [path.read_text() for path in made.shared.glob(f"{number}/starts")]
        starts += [path.read_text() for path in made.shared.glob(f"{number}_attempt_*/starts")]
        assert len("".join(starts)) == each.attempts
        log = "output.log" if each.attempts == 1 else f"output_{each.attempts}.log"
        lines = (made.folder / str(number) / log).read_text().splitlines()
        assert [line for line in lines if re.match("seed|line|GRPO", line)] == whole(seed)
