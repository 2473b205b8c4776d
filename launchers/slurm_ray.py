"""One Ray over the nodes of a Slurm job, for as long as its trial runs.

srun starts one task a node. Task 0 holds Ray's head and the trial, the others their node's part of Ray. They meet in a
folder beside the trial's output, because a file system is all that they surely have in common. Ray's token is a file in
there that its owner alone can read, so it is in no environment, command line or log.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from launchers.outcome import last_line

JOIN_SECONDS = 300.0
"""For Ray to answer on all nodes: many that read one python from a shared file system at once take their time."""
END_SECONDS = 15.0
FOLLOW_SECONDS = 5.0
"""Between the end of a node's Ray and the word about it."""
HEAD, TOKEN, LEFT = "head.json", "token", "left_"
SMALLEST_STORE = 80_000_000
"""Bytes; Ray takes no smaller object store."""


class RayLost(Exception):
    """Ray is not, or no longer, on all nodes of the job; says which and why."""


def ignore_requeue() -> None:
    """For a new process: Slurm sends its signals to every process of a job, and one alone answers this one."""
    signal.signal(signal.SIGUSR2, signal.SIG_IGN)


class Head:
    """Task 0's part. `meeting` is a new folder that all nodes see; `environment` that of the code to run."""

    def __init__(self, meeting: Path, environment: Mapping[str, str], *, cpus: int, memory_gib: int) -> None:
        self._meeting, self._plain = meeting, environment
        self._cpus, self._memory_gib = cpus, memory_gib
        self._nodes = _addresses()
        self._name = os.environ["SLURMD_NODENAME"]
        # Short, whatever TMPDIR is: unix sockets live in it. Of this job alone, as others have their own Ray.
        self._files = tempfile.mkdtemp(prefix="ray_", dir="/tmp")
        self._ray: subprocess.Popen[bytes] | None = None
        self.address = ""

    @property
    def environment(self) -> dict[str, str]:
        """For the trial: with it, `ray.init()` is on this Ray."""
        return {**_with_token(self._plain, self._meeting), "RAY_ADDRESS": self.address}

    def join(self, seconds: float) -> str:
        """Start Ray and wait until it is on all nodes; what it is, in words. Raises RayLost."""
        deadline = time.monotonic() + seconds
        self._start()
        self._until(lambda: _answers(self.address), deadline, f"{self._name}: Ray does not answer at {self.address}")
        _write(self._meeting / HEAD, json.dumps({"address": self.address, "files": self._files}))
        words = [sys.executable, "-m", "launchers.slurm_ray", str(seconds), *self._nodes]
        log = self._meeting / "join.log"
        with log.open("wb") as out:
            asking = subprocess.Popen(words, env=self.environment, stdout=out, stderr=out, preexec_fn=ignore_requeue)
        try:
            self._until(lambda: asking.poll() is not None, deadline + END_SECONDS, "Ray's head does not say its nodes")
        finally:
            asking.kill()
            asking.wait()
        if asking.returncode != 0:
            raise RayLost(f"{last_line(log)}; the nodes' own words: {self._meeting}")
        return f"Ray at {self.address} on {len(self._nodes)} nodes: {', '.join(self._nodes)}"

    def lost(self, wait: float = 0.0) -> str | None:
        """Which node's Ray has ended, and how; `wait` is how many seconds the word may be on its way."""
        deadline = time.monotonic() + wait
        while True:
            if self._ray is not None and self._ray.poll() is not None:
                return _ended(self._name, self._ray, self._meeting)
            for path in sorted(self._meeting.glob(f"{LEFT}*")):
                return path.read_text(encoding="utf-8")
            if time.monotonic() >= deadline:
                return None
            time.sleep(0.2)

    def close(self) -> None:
        """End Ray on all nodes."""
        # First: the others end when it is gone, and no token may stay behind when this is cut short.
        for name in (HEAD, TOKEN):
            (self._meeting / name).unlink(missing_ok=True)
        if self._ray is not None:
            _end(self._ray)
        shutil.rmtree(self._files, ignore_errors=True)

    def _start(self) -> None:
        self._meeting.mkdir(mode=0o700, parents=True)
        with os.fdopen(os.open(self._meeting / TOKEN, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(secrets.token_hex(32))
        here = _own_address(next(address for name, address in self._nodes.items() if name != self._name))
        port, client = _free_ports(2)
        self.address = f"{here}:{port}"
        words = [
            *("--head", f"--node-ip-address={here}", f"--port={port}", f"--ray-client-server-port={client}"),
            *("--include-dashboard=false", "--disable-usage-stats", f"--temp-dir={self._files}"),
        ]
        self._ray = _start(words, self._name, self._meeting, self._plain, self._cpus, self._memory_gib)

    def _until(self, true: Callable[[], bool], deadline: float, problem: str) -> None:
        while not true():
            if lost := self.lost():
                raise RayLost(lost)
            if time.monotonic() > deadline:
                raise RayLost(f"{problem}; see {self._meeting}")
            time.sleep(0.2)


def follow(meeting: Path, environment: Mapping[str, str], *, cpus: int, memory_gib: int, seconds: float) -> None:
    """Another task's part: hold this node's Ray until the head lets go. Raises RayLost if there is no head to join."""
    deadline = time.monotonic() + seconds
    while not (meeting / HEAD).exists():
        if time.monotonic() > deadline:
            raise RayLost(f"no Ray to join: {meeting / HEAD} did not appear within {seconds:g} s")
        time.sleep(0.5)
    head = json.loads((meeting / HEAD).read_text(encoding="utf-8"))
    name, place = os.environ["SLURMD_NODENAME"], head["address"]
    words = [f"--address={place}", f"--node-ip-address={_own_address(place.rpartition(':')[0])}"]
    ray = _start(words, name, meeting, environment, cpus, memory_gib)
    try:
        while (meeting / HEAD).exists():
            if ray.poll() is not None:
                _write(meeting / f"{LEFT}{name}", _ended(name, ray, meeting))
                return
            time.sleep(0.5)
    finally:
        _end(ray)
        shutil.rmtree(head["files"], ignore_errors=True)


def _start(
    words: Sequence[str], name: str, meeting: Path, environment: Mapping[str, str], cpus: int, memory_gib: int
) -> subprocess.Popen[bytes]:
    """`ray start` on this node. GPUs are for Ray to find, among those that Slurm gave: a broken one shall not count."""
    room = min(0.3 * memory_gib * 2**30, 0.9 * shutil.disk_usage("/dev/shm").free)
    given = [f"--node-name={name}", f"--num-cpus={cpus}", f"--object-store-memory={max(int(room), SMALLEST_STORE)}"]
    # Nothing on fixed ports: nodes may be shared with other jobs that run Ray.
    ports = ["--min-worker-port=0", "--max-worker-port=0", "--dashboard-agent-listen-port=0"]
    with (meeting / f"ray_{name}.log").open("wb") as log:
        return subprocess.Popen(
            [
                sys.executable,
                "-m",
                "ray.scripts.scripts",
                "start",
                "--block",
                "--log-color=false",
                *words,
                *given,
                *ports,
            ],
            env=_with_token(environment, meeting),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
            preexec_fn=ignore_requeue,
        )


def _end(ray: subprocess.Popen[bytes]) -> None:
    """Not `ray stop`, which ends every Ray of the user on the node."""
    ray.terminate()
    with contextlib.suppress(subprocess.TimeoutExpired):
        ray.wait(END_SECONDS)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(ray.pid, signal.SIGKILL)
    ray.wait()


def _ended(name: str, ray: subprocess.Popen[bytes], meeting: Path) -> str:
    log = meeting / f"ray_{name}.log"
    return f"{name}: its Ray ended with exit code {ray.returncode} ({last_line(log) or 'no output'}); see {log}"


def _with_token(environment: Mapping[str, str], meeting: Path) -> dict[str, str]:
    kept = {name: value for name, value in environment.items() if name not in ("RAY_ADDRESS", "RAY_AUTH_TOKEN")}
    return {**kept, "RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(meeting / TOKEN)}


def _addresses() -> dict[str, str]:
    """{name: address} of the job's nodes, as Slurm itself reaches them."""
    words = ["scontrol", "show", "node", os.environ["SLURM_JOB_NODELIST"], "--oneliner"]
    shown = subprocess.run(words, capture_output=True, text=True, check=True, timeout=60).stdout
    return dict(re.findall(r"NodeName=(\S+) .*?NodeAddr=(\S+)", shown))


def _own_address(peer: str) -> str:
    """This machine's address on the way to `peer`: its name may stand for loopback, its first card lead elsewhere."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((peer, 9))  # sends nothing
        return probe.getsockname()[0]


def _free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as held:
        sockets = [held.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("", 0))
        return [each.getsockname()[1] for each in sockets]


def _answers(address: str) -> bool:
    host, _, port = address.rpartition(":")
    with socket.socket() as probe:
        probe.settimeout(5)
        return probe.connect_ex((host, int(port))) == 0


def _write(path: Path, text: str) -> None:
    aside = path.with_name(f".{path.name}.part")
    aside.write_text(text, encoding="utf-8")
    aside.replace(path)


def _missing(names: Sequence[str], seconds: float) -> list[str]:
    """The nodes that are not on the Ray of this environment by then."""
    import ray

    deadline = time.monotonic() + seconds
    ray.init(log_to_driver=False)
    while True:
        alive = {node["NodeName"] for node in ray.nodes() if node["Alive"]}
        missing = [name for name in names if name not in alive]
        if not missing or time.monotonic() > deadline:
            return missing
        time.sleep(0.5)


def main() -> int:
    seconds, names = float(sys.argv[1]), sys.argv[2:]
    if missing := _missing(names, seconds):
        sys.stdout.write(f"{', '.join(missing)} did not join Ray within {seconds:g} s\n")
    return 1 if missing else 0


if __name__ == "__main__":
    sys.exit(main())
