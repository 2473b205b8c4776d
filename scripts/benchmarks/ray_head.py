"""A real Ray head on loopback with token auth, for measurements and tests: started, and ended with all that it runs."""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import requests

BIN = Path(sys.executable).parent
SESSIONS = "sessions"


@dataclass(frozen=True, kw_only=True)
class Head:
    port: int
    token: str
    folder: Path
    """Its session files; a head that is started here again knows nothing of the one before."""

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        gcs, client, first = free_port(), free_port(), 20_000 + os.getpid() % 20_000
        words = [
            *("--head", "--node-ip-address=127.0.0.1", "--dashboard-host=127.0.0.1", f"--port={gcs}"),
            *(f"--dashboard-port={self.port}", f"--ray-client-server-port={client}", "--dashboard-agent-listen-port=0"),
            *(f"--min-worker-port={first}", f"--max-worker-port={first + 1000}", "--num-cpus=2", "--num-gpus=4"),
            *("--disable-usage-stats", "--object-store-memory=100000000", f"--temp-dir={self.folder}"),
        ]
        with (self.folder / "start.log").open("w") as log:
            # Not in a pipe: what Ray leaves running would hold it open for ever.
            started = subprocess.Popen(
                [str(BIN / "ray"), "start", *words],
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        with (self.folder / SESSIONS).open("a") as file:
            file.write(f"{started.pid}\n")
        started.wait(180)
        self.await_answer()

    def await_answer(self) -> None:
        deadline = time.monotonic() + 120
        while time.monotonic() < deadline:
            with contextlib.suppress(requests.RequestException):
                answer = requests.get(
                    f"{self.address}/api/version", headers={"Authorization": f"Bearer {self.token}"}, timeout=5
                )
                if answer.ok:
                    return
            time.sleep(0.2)
        raise TimeoutError(f"no Ray at {self.address}: {(self.folder / 'start.log').read_text()[-2000:]}")

    def stop(self) -> None:
        """End the processes of this head alone, its jobs' too: as when its pod is gone."""
        sessions = {int(line) for line in (self.folder / SESSIONS).read_text().split()}
        for _ in range(3):
            every = map(int, filter(str.isdigit, os.listdir("/proc")))
            found = [pid for pid in every if self._is_ours(pid, sessions)]
            for pid in found:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, 9)
            time.sleep(0.3)

    def _is_ours(self, pid: int, sessions: set[int]) -> bool:
        with contextlib.suppress(OSError):
            # Ray's own processes stay in the session of `ray start`; a job's works in what was unpacked for it.
            return os.getsid(pid) in sessions or os.readlink(f"/proc/{pid}/cwd").startswith(str(self.folder))
        return False

    @property
    def environment(self) -> dict[str, str]:
        """For the head and its jobs: the one thread is for the tiny model, which more would slow down."""
        return {
            **os.environ,
            "PATH": f"{BIN}:{os.environ['PATH']}",
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN": self.token,
            "OMP_NUM_THREADS": "1",
            "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0",
        }


@contextlib.contextmanager
def running() -> Iterator[Head]:
    # A short path of its own: Ray's sockets live in it, and their names have a length limit.
    folder = Path("/tmp") / f"ray-{secrets.token_hex(4)}"
    folder.mkdir()
    (folder / SESSIONS).touch()
    head = Head(port=free_port(), token=secrets.token_hex(20), folder=folder)
    try:
        head.start()
        yield head
    finally:
        head.stop()
        shutil.rmtree(folder, ignore_errors=True)


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]
