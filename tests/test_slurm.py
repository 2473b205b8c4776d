"""Trials on a real Slurm: crashed, requeued, cancelled, and every one of them accounted for."""

from __future__ import annotations

import contextlib
import io
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import configs
import pytest
import slurm_node as slurm_nodes
from hyperpod_stub import wait_for
from ray_head import trivial_project
from rich.console import Console
from slurm_node import SlurmNode

from grpo.cluster_schema import SlurmCluster
from grpo.config import ConfigError
from launchers import clusters, outcome, record, slurm_commands, sweep
from launchers.cluster import Attempt, Unreachable
from launchers.record import Job, TrialRecord
from launchers.slurm import SlurmJobs

WAITS = """
# Its first start waits to be ended from outside, the next one finishes.
import json, pathlib, sys, time
folder = pathlib.Path(next(word for word in sys.argv if word.startswith("hydra.run.dir=")).partition("=")[2])
(folder / "starts").touch()
waited = folder.parent / "waited"
if not waited.exists():
    waited.touch()
    time.sleep(600)
(folder / "result.json").write_text(json.dumps({"objective": 0.5}))
"""
ONE_CPU = {"partition": "debug", "gpus_per_node": 0, "cpus_per_task": 1, "memory_gib": 1, "signal_seconds": 5}


@pytest.fixture(autouse=True)
def slurm(slurm_node: SlurmNode, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("SLURM_CONF", str(slurm_node.conf))
    slurm_node.clear()
    yield
    slurm_node.clear()


def launch(tmp_path: Path, *seeds: int, **changes: object) -> tuple[list[TrialRecord], str]:
    settings = configs.typed(["cluster=slurm"])[0].cluster.model_dump() | ONE_CPU | {"start_minutes": 3, **changes}
    runs = [configs.run({"runtime.seed": seed, "cluster": settings}) for seed in seeds]
    jobs = [
        Job(overrides=(f"seed={seed}",), folder=str(number), run=run)
        for number, (seed, run) in enumerate(zip(seeds, runs, strict=True))
    ]
    console = Console(file=io.StringIO(), width=400)
    root = tmp_path / "project" if (tmp_path / "project").exists() else trivial_project(tmp_path / "project")
    wanted = runs[0].cluster
    assert isinstance(wanted, SlurmCluster)
    records = sweep.launch(
        jobs,
        tmp_path / "sweep",
        cluster=SlurmJobs(wanted, say=console.print, root=root),
        policy=clusters.policy(runs[0]),
        stop_on_error=False,
        console=console,
    )
    assert isinstance(console.file, io.StringIO)
    return records, console.file.getvalue()


def waits(tmp_path: Path) -> None:
    """Make a project whose trial does."""
    trivial_project(tmp_path / "project")
    (tmp_path / "project/train.py").write_text(WAITS)


def queue() -> list[str]:
    return subprocess.run(["squeue", "-h", "-o", "%A"], capture_output=True, text=True, check=True).stdout.split()


def tasks(tmp_path: Path) -> list[int]:
    """The processes that srun started for the jobs of this test."""
    found = []
    for pid in map(int, filter(str.isdigit, os.listdir("/proc"))):
        with contextlib.suppress(OSError):
            words = Path(f"/proc/{pid}/cmdline").read_text().split("\0")
            if words[1:4] == ["-u", "-m", "submitit.core._submit"] and str(tmp_path) in words[4]:
                found.append(pid)
    return found


@contextlib.contextmanager
def beside(act: Callable[[], None]) -> Iterator[None]:
    """`act` runs in a thread beside what this context holds."""
    with ThreadPoolExecutor(1) as pool:
        acting = pool.submit(act)
        yield
        acting.result()


def test_a_crashed_and_a_killed_job_hide_no_other(tmp_path: Path) -> None:
    records, told = launch(tmp_path, 1, 3, 4)
    assert [(each.state, each.objective, each.attempts) for each in records] == [
        ("finished", 0.1, 1),
        ("failed", None, 1),
        ("finished", 0.4, 2),
    ]
    assert (records[1].reason or "").startswith("exit code 1: seed 3 is broken")
    assert "trial 2 is tried again (killed; 2 more at most)" in told


def test_a_job_whose_processes_are_killed_is_told_by_its_state_and_sent_again(tmp_path: Path) -> None:
    def kill() -> None:
        wait_for(lambda: (tmp_path / "sweep/waited").exists(), 180)
        (task,) = tasks(tmp_path)
        os.killpg(os.getpgid(task), signal.SIGKILL)

    waits(tmp_path)
    with beside(kill):
        (only,), told = launch(tmp_path, 5)
    assert (only.state, only.attempts) == ("finished", 2)
    assert "FAILED NonZeroExitCode; srun: error: " in told
    assert "is tried again (killed; 2 more at most)" in told


def test_a_job_that_slurm_requeues_goes_on_in_the_same_attempt(tmp_path: Path) -> None:
    def requeue() -> None:
        wait_for(lambda: (tmp_path / "sweep/waited").exists(), 180)
        (job,) = queue()
        subprocess.run(["scontrol", "requeue", job], check=True)
        slurm_nodes.start_again(job)

    waits(tmp_path)
    with beside(requeue):
        (only,), told = launch(tmp_path, 5)
    assert (only.state, only.attempts) == ("finished", 1), told
    # No checkpoint was there to go on from, so the first start's files were moved aside.
    assert (tmp_path / "sweep/0_attempt_1/starts").exists()


def test_a_job_that_a_person_cancels_is_not_sent_again(tmp_path: Path) -> None:
    def cancel() -> None:
        wait_for(lambda: (tmp_path / "sweep/waited").exists(), 180)
        subprocess.run(["scancel", *queue()], check=True)

    waits(tmp_path)
    with beside(cancel):
        (only,), told = launch(tmp_path, 5)
    assert (only.state, only.attempts, only.cause) == ("failed", 1, "cancelled"), told
    assert "cancelled by someone" in (only.reason or "")


@pytest.mark.parametrize(
    ("code", "note", "cause", "again"),
    [
        (None, "Slurm job 7: cancelled by someone", "cancelled", False),
        (-15, "Slurm job 7: NODE_FAIL None", "node lost", True),
        (-15, "Slurm job 7: PREEMPTED None", "preempted", True),
        (1, "Slurm job 7: FAILED None; *** JOB 7 ON n1 CANCELLED DUE TO JOB REQUEUE ***", "preempted", True),
        (-15, "Slurm job 7: TIMEOUT TimeLimit", "killed", True),
        (1, "Slurm job 7: FAILED None; its time was up more often than it may be requeued (…)", "time limit", False),
        (-9, "Slurm job 7: OUT_OF_MEMORY OutOfMemory", "out of memory", False),
    ],
)
def test_what_slurm_says_of_an_end_decides_whether_the_trial_is_sent_again(
    tmp_path: Path, code: int | None, note: str, cause: str, again: bool
) -> None:
    ended = outcome.of_exit(code, note, [tmp_path], tmp_path / "output.log")
    assert (ended.cause, ended.worth_another) == (cause, again)


def test_an_unknown_partition_is_refused_before_a_job_is_submitted(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"cluster\.partition: no partition 'nope' \(there are debug\)"):
        launch(tmp_path, 1, partition="nope")
    assert not (tmp_path / "sweep/slurm").exists()


def test_jobs_that_would_wait_for_ever_are_refused_with_what_there_is(tmp_path: Path) -> None:
    way_out = "use fewer, or another cluster.partition"
    with pytest.raises(ConfigError) as told:
        launch(tmp_path, 1, cpus_per_task=3, memory_gib=100, gpus_per_node=2)
    assert [str(fault) for fault in told.value.faults] == [
        f"cluster.{key} a node, and the largest node of partition debug has {has}; {way_out}"
        for key, has in (
            ("cpus_per_task: 3 CPUs", "2"),
            ("memory_gib: 100 GiB", "3.9062"),
            ("gpus_per_node: 2 GPUs", "1"),
        )
    ]


@pytest.mark.parametrize(
    ("limit", "minutes"), [("infinite", None), ("30:00", 30), ("1:00:00", 60), ("2-01:30:00", 2970), ("n/a", None)]
)
def test_a_partition_s_limit_is_read_in_minutes(limit: str, minutes: int | None) -> None:
    assert slurm_commands.minutes(limit) == minutes


@pytest.mark.slow
def test_a_job_that_slurm_was_too_busy_to_answer_for_is_there_once(tmp_path: Path, slurm_node: SlurmNode) -> None:
    settings = configs.typed(["cluster=slurm"])[0].cluster.model_dump() | ONE_CPU
    run = configs.run({"runtime.seed": 5, "cluster": settings})
    assert isinstance(run.cluster, SlurmCluster)
    cluster = SlurmJobs(run.cluster, say=print, root=trivial_project(tmp_path / "project"))
    attempt = Attempt(sweep=tmp_path / "sweep", folder="0", number=1, fingerprint="0" * 16, run=run)
    attempt.here.mkdir(parents=True)
    cluster.check([attempt])
    controller = int((slurm_node.folder / "slurmctld.pid").read_text())
    os.kill(controller, signal.SIGSTOP)
    try:
        with pytest.raises(Unreachable, match="timed out"):
            cluster.submit(attempt)
    finally:
        os.kill(controller, signal.SIGCONT)
    cluster.submit(attempt)
    wait_for(lambda: cluster.status(attempt).phase == "ended", 120)
    assert cluster.status(attempt).code == 0
    assert (attempt.here / "starts").read_text() == "x"


@pytest.mark.slow
def test_a_requeued_job_goes_on_from_its_checkpoint_as_if_nothing_had_been(tmp_path: Path) -> None:
    short = [
        *("runtime.steps=9", "runtime.test_episodes=4", "runtime.eval_episodes=4", "runtime.eval_interval=9"),
        *("algorithm.prompts_per_step=2", "algorithm.updates_per_step=1", "runtime.checkpoint_interval=1"),
        *("algorithm.warmup_steps=0", "tracker=none"),
    ]
    slurm = ["cluster=slurm", *(f"cluster.{key}={value}" for key, value in ONE_CPU.items())]
    command = [sys.executable, str(configs.ROOT / "train.py")]
    launcher = subprocess.Popen(
        [*command, *slurm, *short, f"hydra.sweep.dir={tmp_path}/sweep"],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        wait_for(lambda: list(tmp_path.glob("sweep/0/checkpoints/step_00000[2-9]/DONE")), 240)
        (job,) = queue()
        subprocess.run(["scancel", job, "--signal=USR2"], check=True)
        slurm_nodes.start_again(job)
        told, _ = launcher.communicate(timeout=400)
    finally:
        launcher.kill()
    assert launcher.returncode == 0, told
    (only,) = record.read(tmp_path / "sweep")
    assert (only.state, only.attempts) == ("finished", 1)
    assert "resuming after step" in (tmp_path / "sweep/0/output.log").read_text()
    straight = [*command, *short, f"hydra.run.dir={tmp_path}/straight"]
    subprocess.run(straight, env={**os.environ, "OMP_NUM_THREADS": "1"}, check=True, capture_output=True)
    adapters = [
        folder / "adapter/adapter_model.safetensors" for folder in (tmp_path / "sweep/0", tmp_path / "straight")
    ]
    assert adapters[0].read_bytes() == adapters[1].read_bytes()


@pytest.mark.slow
def test_an_interrupt_cancels_what_runs_and_what_waits(tmp_path: Path) -> None:
    code = (
        "import sys; sys.path[:0] = sys.argv[2:]; import pathlib, test_slurm; "
        "test_slurm.launch(pathlib.Path(sys.argv[1]), 9000, 9001, 9002, 9003, 9004)"
    )
    words = [sys.executable, "-c", code, str(tmp_path), str(configs.ROOT / "tests"), str(configs.ROOT)]
    launcher = subprocess.Popen(words, stderr=subprocess.DEVNULL)
    try:
        wait_for(lambda: (tmp_path / "sweep/0/starts").exists() and len(queue()) == 5, 240)
        launcher.send_signal(signal.SIGINT)
        launcher.wait(180)
    finally:
        launcher.kill()
    wait_for(lambda: queue() == [], 60)
    assert {each.state for each in record.read(tmp_path / "sweep")} == {"interrupted"}
