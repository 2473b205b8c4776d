"""Trials over two nodes of a real Slurm, with a real Ray on both; each node is a slurmd on this machine."""

from __future__ import annotations

import contextlib
import io
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import configs
import pytest
import slurm_node as slurm_nodes
from hyperpod_stub import wait_for
from ray_head import trivial_project
from rich.console import Console
from slurm_node import SlurmNode

from grpo.cluster_schema import SlurmCluster
from grpo.config import ConfigError
from launchers import clusters, record, slurm_ray, sweep
from launchers.record import Job, TrialRecord
from launchers.slurm import SlurmJobs
from launchers.slurm_ray import RayLost

TWO_NODES = [
    *("engine=skyrl", "model=qwen3_vl_8b", "cluster=slurm", "cluster.nodes=2", "cluster.gpus_per_node=1"),
    *("cluster.partition=debug", "cluster.cpus_per_task=2", "cluster.memory_gib=2", "cluster.signal_seconds=5"),
    *("cluster.start_minutes=5", "cluster.max_concurrent=1"),
]
TRAIN = """
# Its first start waits to be stopped, the next one ends well.
import json, os, pathlib, sys, time
import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy
folder = pathlib.Path(next(word for word in sys.argv if word.startswith("hydra.run.dir=")).partition("=")[2])
with (folder / "starts").open("a") as file:
    file.write("x")
ray.init(log_to_driver=False)
nodes = {node["NodeID"]: node["NodeName"] for node in ray.nodes() if node["Alive"]}
who = ray.remote(num_cpus=1)(lambda: os.environ["SLURMD_NODENAME"])
tasks = [
    who.options(scheduling_strategy=NodeAffinitySchedulingStrategy(node, soft=False)).remote() for node in nodes
]
seen = {"alive": sorted(nodes.values()), "answered": sorted(ray.get(tasks)), "environment": dict(os.environ)}
token = os.stat(os.environ["RAY_AUTH_TOKEN_PATH"])
seen["token"] = [oct(token.st_mode & 0o777), pathlib.Path(os.environ["RAY_AUTH_TOKEN_PATH"]).read_text()]
first = not (folder / "seen.json").exists()
(folder / "checkpoints/step_000001").mkdir(parents=True, exist_ok=True)
(folder / "checkpoints/step_000001/DONE").touch()
(folder / "seen.part").write_text(json.dumps(seen))
(folder / "seen.part").rename(folder / "seen.json")
if first and not (folder.parent / "no_wait").exists():
    time.sleep(600)
(folder / "result.json").write_text(json.dumps({"objective": 0.5}))
"""


@pytest.fixture(autouse=True)
def slurm(slurm_node: SlurmNode, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("SLURM_CONF", str(slurm_node.conf))
    slurm_node.clear()
    yield
    slurm_node.clear()


def launch(tmp_path: Path, *words: str) -> tuple[TrialRecord, str]:
    root = tmp_path / "project"
    if not root.exists():
        trivial_project(root)
        (root / "train.py").write_text(TRAIN)
    (run,) = configs.typed([*TWO_NODES, *words])
    console = Console(file=io.StringIO(), width=400)
    assert isinstance(run.cluster, SlurmCluster)
    (trial,) = sweep.launch(
        [Job(overrides=(), folder="0", run=run)],
        tmp_path / "sweep",
        cluster=SlurmJobs(run.cluster, say=console.print, root=root),
        policy=clusters.policy(run),
        stop_on_error=False,
        console=console,
    )
    assert isinstance(console.file, io.StringIO)
    return trial, console.file.getvalue()


def of_the_job(tmp_path: Path) -> dict[int, str]:
    """{process id: its command} of everything that runs with the token of a trial of this test."""
    mark, found = f"RAY_AUTH_TOKEN_PATH={tmp_path}".encode(), {}
    for pid in map(int, filter(str.isdigit, os.listdir("/proc"))):
        with contextlib.suppress(OSError):
            if mark in Path(f"/proc/{pid}/environ").read_bytes():
                found[pid] = Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ")
    return found


def leaves_nothing(tmp_path: Path) -> bool:
    return not of_the_job(tmp_path) and not list(tmp_path.rglob("token")) and not list(tmp_path.rglob("head.json"))


def seen(tmp_path: Path) -> dict[str, Any]:
    return json.loads((tmp_path / "sweep/0/seen.json").read_text())


def jobs() -> list[str]:
    return subprocess.run(["squeue", "-h", "-o", "%A"], capture_output=True, text=True, check=True).stdout.split()


@contextlib.contextmanager
def once(happened: Callable[[], bool], then: Callable[[], None]) -> Iterator[None]:
    """`then` is called beside what runs in this context, once it `happened`."""
    failures: list[BaseException] = []

    def act() -> None:
        try:
            wait_for(happened, 240)
            then()
        except BaseException as error:
            failures.append(error)

    thread = threading.Thread(target=act)
    thread.start()
    yield
    thread.join()
    assert not failures


def in_a_process(tmp_path: Path, then: str) -> subprocess.Popen[bytes]:
    code = f"import sys; sys.path[:0] = sys.argv[2:]; import pathlib, test_slurm_ray; {then}"
    words = [sys.executable, "-c", code, str(tmp_path), str(configs.ROOT / "tests"), str(configs.ROOT)]
    return subprocess.Popen(words, stderr=subprocess.DEVNULL)


def test_nodes_that_the_engine_could_not_use_are_refused_before_anything_is_sent() -> None:
    assert configs.refusal("cluster=slurm", "cluster.nodes=2", "cluster.use_srun=false") == [
        "cluster.nodes: 2 nodes, and engine=local trains on one; use 1, or engine=skyrl",
        "cluster.use_srun: false, and with cluster.nodes=2 it is srun that starts a task on each; use true",
    ]


def test_more_nodes_than_there_are_of_that_size_are_refused(tmp_path: Path) -> None:
    wanted = r"cluster\.nodes: 3 wanted, and partition debug has 2 with 2 CPUs, 2 GiB, 1 GPUs each; use fewer"
    with pytest.raises(ConfigError, match=wanted):
        launch(tmp_path, "cluster.nodes=3", "algorithm.prompts_per_step=12")


def test_a_dry_run_shows_the_nodes_and_the_ray_over_them(tmp_path: Path) -> None:
    told = clusters.preview(configs.typed(TWO_NODES), tmp_path)
    assert "  nodes: 2\n  tasks_per_node: 1\n" in told
    assert "Ray over each job's 2 nodes, as long as its trial runs" in told


@pytest.mark.slow
def test_nodes_that_do_not_join_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_JOB_NODELIST", "n[1-2]")
    monkeypatch.setenv("SLURMD_NODENAME", "n1")
    head = slurm_ray.Head(tmp_path / "output_1.ray_0", os.environ, cpus=1, memory_gib=1)
    try:
        with pytest.raises(RayLost, match=r"^n2 did not join Ray within 20 s; the nodes' own words: /.*output_1.ray_0"):
            head.join(seconds=20)
    finally:
        head.close()
    assert leaves_nothing(tmp_path)


def test_a_node_without_a_head_to_join_says_what_it_waited_for(tmp_path: Path) -> None:
    with pytest.raises(RayLost, match=r"no Ray to join: /.*/0/head.json did not appear within 0.1 s"):
        slurm_ray.follow(tmp_path / "0", os.environ, cpus=1, memory_gib=1, seconds=0.1)


@pytest.mark.slow
def test_a_trial_over_two_nodes_has_one_ray_on_both_and_leaves_nothing_of_it(tmp_path: Path) -> None:
    (tmp_path / "sweep").mkdir()
    (tmp_path / "sweep/no_wait").touch()
    trial, told = launch(tmp_path)
    assert (trial.state, trial.objective, trial.attempts) == ("finished", 0.5, 1), told
    there = seen(tmp_path)
    assert (there["alive"], there["answered"]) == (["n1", "n2"], ["n1", "n2"])
    mode, token = there["token"]
    assert mode == "0o600" and len(token) == 64
    assert token not in json.dumps(there["environment"])
    kept = [path for path in tmp_path.rglob("*") if path.is_file() and path.name != "seen.json"]
    assert not [path for path in kept if token.encode() in path.read_bytes()]
    wait_for(lambda: leaves_nothing(tmp_path), 120)


@pytest.mark.slow
def test_a_node_that_is_lost_ends_the_trial_which_goes_on_in_a_new_job(tmp_path: Path) -> None:
    def kill() -> None:
        (pid,) = [
            pid for pid, words in of_the_job(tmp_path).items() if "start --block" in words and "-name=n2" in words
        ]
        os.kill(pid, signal.SIGKILL)

    with once(lambda: (tmp_path / "sweep/0/seen.json").exists(), kill):
        trial, told = launch(tmp_path)
    assert (trial.state, trial.attempts) == ("finished", 2), told
    assert "exit code 1: node lost: n2: its Ray ended with exit code -9" in told
    assert "is tried again (node lost; 2 more at most)" in told
    wait_for(lambda: leaves_nothing(tmp_path), 120)


@pytest.mark.slow
def test_an_interrupt_ends_ray_on_all_nodes_and_keeps_no_token(tmp_path: Path) -> None:
    launcher = in_a_process(tmp_path, "test_slurm_ray.launch(pathlib.Path(sys.argv[1]))")
    try:
        wait_for(lambda: (tmp_path / "sweep/0/seen.json").exists(), 240)
        launcher.send_signal(signal.SIGINT)
        launcher.wait(180)
    finally:
        launcher.kill()
    wait_for(lambda: jobs() == [] and leaves_nothing(tmp_path), 120)
    assert [each.state for each in record.read(tmp_path / "sweep")] == ["interrupted"]


@pytest.mark.slow
def test_a_requeued_job_starts_ray_anew_on_all_nodes(tmp_path: Path) -> None:
    def requeue() -> None:
        (job,) = jobs()
        subprocess.run(["scancel", job, "--signal=USR2"], check=True)
        wait_for(lambda: leaves_nothing(tmp_path), 120)
        slurm_nodes.start_again(job)

    with once(lambda: (tmp_path / "sweep/0/seen.json").exists(), requeue):
        trial, told = launch(tmp_path)
    assert (trial.state, trial.attempts) == ("finished", 1), told
    assert (tmp_path / "sweep/0/starts").read_text() == "xx"
    wait_for(lambda: leaves_nothing(tmp_path), 120)
