"""What a run leaves behind on its host ends with it, however it ends, and nothing else does."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import orphan_maker
import pytest
from configs import ROOT
from hyperpod_stub import wait_for
from ray_head import Head

from grpo.engines import orphans

SECONDS = 120


@contextmanager
def making(folder: Path, *words: str, **environment: str) -> Iterator[tuple[subprocess.Popen[bytes], list[int]]]:
    """A process that leaves others behind, and their pids, once they are there."""
    folder.mkdir(exist_ok=True)
    path = os.pathsep.join([str(ROOT), str(ROOT / "tests")])
    run = subprocess.Popen(
        [sys.executable, orphan_maker.__file__, str(folder), *words],
        env={**os.environ, "PYTHONPATH": path, **environment},
        start_new_session=True,
    )
    pids: list[int] = []
    try:
        wait_for(lambda: (folder / "pids").exists() or run.poll() is not None, SECONDS)
        pids += json.loads((folder / "pids").read_text())
        yield run, pids
    finally:
        for pid in (run.pid, *pids):
            if orphans._lives(pid):
                os.kill(pid, signal.SIGKILL)
        run.wait()


def living(pids: list[int]) -> list[int]:
    return [pid for pid in pids if orphans._lives(pid)]


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_a_stopped_run_takes_along_what_it_started_and_nothing_of_another_run(
    number: signal.Signals, tmp_path: Path
) -> None:
    with making(tmp_path / "other", "plain") as (_, others), making(tmp_path / "run", "plain") as (run, pids):
        assert living(pids) == pids
        run.send_signal(number)
        wait_for(lambda: not living(pids), SECONDS)
        assert living(others) == others


def test_a_run_that_ends_well_leaves_nothing_either_and_not_its_guard(tmp_path: Path) -> None:
    with making(tmp_path / "run", "plain") as (run, pids):
        (guard,) = [pid for pid in children(run.pid) if orphans.__file__ in command(pid)]
        (tmp_path / "run/end").touch()
        assert run.wait(SECONDS) == 0
        assert not living([*pids, guard])


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_what_a_ray_worker_spawned_ends_with_the_run(number: signal.Signals, tmp_path: Path) -> None:
    with making(tmp_path / "run", "ray") as (run, pids):
        assert living(pids) == pids
        daemons = [pid for pid in children(run.pid) if orphans.__file__ not in command(pid)]
        assert daemons
        os.kill(pids[0], signal.SIGKILL)  # so that it cannot end its engine any more: out of memory, `ray stop`
        run.send_signal(number)
        wait_for(lambda: not living([*pids, *daemons]), SECONDS)


def test_on_a_standing_ray_the_workers_end_with_the_run_and_ray_stays(ray_head: Head, tmp_path: Path) -> None:
    address = (ray_head.folder / "ray_current_cluster").read_text().strip()
    token = {name: value for name, value in ray_head.environment.items() if name.startswith("RAY_")}
    with making(tmp_path / "run", "ray", address, **token) as (run, pids):
        assert living(pids) == pids
        os.kill(pids[0], signal.SIGKILL)
        run.send_signal(signal.SIGKILL)
        wait_for(lambda: not living(pids), SECONDS)
    ray_head.await_answer()


def children(pid: int) -> list[int]:
    return [int(each) for each in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def command(pid: int) -> str:
    return Path(f"/proc/{pid}/cmdline").read_text()
