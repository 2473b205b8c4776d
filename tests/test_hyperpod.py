"""A sweep through sagemaker_ray://, with everything going wrong that AWS's side can do."""

from __future__ import annotations

import contextlib
import io
import os
import signal
import subprocess
import sys
import threading
import time
import zipfile
from collections.abc import Iterator
from pathlib import Path

import configs
import pytest
import requests
from hyperpod_stub import HyperpodStub, wait_for
from ray_head import Head, trivial_project
from rich.console import Console

from grpo.cluster_schema import HyperpodCluster
from grpo.config import ConfigError, RunConfig
from launchers import clusters, record, sweep
from launchers.ray_jobs import RayJobs
from launchers.record import Job, TrialRecord

ADDRESS = "sagemaker_ray://skyrl-visgym/default"


@pytest.fixture
def stub(ray_head: Head, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[HyperpodStub]:
    folder = tmp_path / "stub"
    folder.mkdir()
    made = HyperpodStub(ray_head, folder)
    for name, value in made.environment.items():
        monkeypatch.setenv(name, value)
    made.start()
    yield made
    made.stop()


class Sweep:
    def __init__(self, tmp_path: Path, **changes: object) -> None:
        self.folder = tmp_path / "sweep"
        self.root = trivial_project(tmp_path / "project")
        self.console = Console(file=io.StringIO(), width=400)
        self.settings = {
            **configs.typed(["cluster=hyperpod", "cluster.image=a@sha256:0"])[0].cluster.model_dump(),
            "shared_dir": str(tmp_path / "shared"),
            "python": sys.executable,
            "max_concurrent": 2,
            "start_minutes": 2,
            "stop_seconds": 2,
            **changes,
        }

    def run(self, seed: int) -> RunConfig:
        return configs.run({"runtime.seed": seed, "cluster": self.settings})

    def launch(self, *seeds: int) -> list[TrialRecord]:
        jobs = [
            Job(overrides=(f"runtime.seed={seed}",), folder=str(number), run=self.run(seed))
            for number, seed in enumerate(seeds)
        ]
        settings = jobs[0].run.cluster
        assert isinstance(settings, HyperpodCluster)
        cluster = RayJobs(settings, ADDRESS, token=None, say=self.console.print, root=self.root)
        policy = clusters.policy(jobs[0].run)
        return sweep.launch(
            jobs, self.folder, cluster=cluster, policy=policy, stop_on_error=False, console=self.console
        )

    @property
    def told(self) -> str:
        assert isinstance(self.console.file, io.StringIO)
        return self.console.file.getvalue()

    def lines(self, number: int) -> list[str]:
        text = (self.folder / str(number) / "output.log").read_text()
        return [line for line in text.splitlines() if line.startswith(("seed", "line", "GRPO"))]

    def starts(self, number: int) -> str:
        return (self.shared / str(number) / "starts").read_text()

    @property
    def shared(self) -> Path:
        return Path(str(self.settings["shared_dir"])) / "outputs/maze/sweep"


def whole(seed: int) -> list[str]:
    return [f"seed {seed}", *(f"line {n}" for n in range(seed)), f'GRPO_RESULT {{"objective": {seed / 10}}}']


@pytest.mark.parametrize("answer", ["401", "302"])
def test_sessions_that_run_out_lose_no_line_and_no_result(stub: HyperpodStub, tmp_path: Path, answer: str) -> None:
    stub.faults.session_seconds, stub.faults.on_expiry = 1.5, answer
    made = Sweep(tmp_path)
    records = made.launch(150, 2)
    assert [(each.state, each.objective, each.attempts) for each in records] == [
        ("finished", 15.0, 1),
        ("finished", 0.2, 1),
    ]
    assert made.lines(0) == whole(150)
    assert stub.faults.links > 2


@pytest.mark.parametrize("cut", [False, True])
def test_streams_that_end_early_are_opened_again(stub: HyperpodStub, tmp_path: Path, cut: bool) -> None:
    stub.faults.close_streams_after, stub.faults.cut_streams = 3, cut
    made = Sweep(tmp_path)
    (only,) = made.launch(150)
    assert (only.state, only.attempts) == ("finished", 1)
    assert made.lines(0) == whole(150)


def test_an_endpoint_that_is_not_there_yet_is_waited_for(stub: HyperpodStub, tmp_path: Path) -> None:
    stub.faults.down_until = time.monotonic() + 6
    made = Sweep(tmp_path)
    (only,) = made.launch(1)
    assert only.state == "finished"
    assert f"waiting up to 2 minutes for {ADDRESS}" in made.told


def test_an_endpoint_that_goes_away_for_a_while_ends_no_trial(stub: HyperpodStub, tmp_path: Path) -> None:
    made = Sweep(tmp_path)
    log = made.folder / "0/output.log"

    def go_away() -> None:
        wait_for(lambda: log.exists() and "line 3" in log.read_text())
        stub.faults.down_until = time.monotonic() + 8

    thread = threading.Thread(target=go_away)
    thread.start()
    (only,) = made.launch(150)
    thread.join()
    assert (only.state, only.attempts) == ("finished", 1)
    assert made.lines(0) == whole(150)
    assert made.starts(0) == "x"


def test_a_package_that_the_server_finds_too_large_fails_with_the_servers_words(
    stub: HyperpodStub, tmp_path: Path
) -> None:
    stub.faults.upload_limit = 1000
    made = Sweep(tmp_path)
    (only,) = made.launch(1)
    assert (only.state, only.cause, only.attempts) == ("failed", "refused", 1)
    assert "HTTP 413: Maximum request body size 1000 exceeded" in (only.reason or "")


@pytest.mark.parametrize(
    ("status", "said"),
    [
        (403, "Only the cluster creator can submit jobs"),
        (404, "Verify the cluster name and namespace"),
        (401, "Your EKS credentials may have expired"),
        (200, "public endpoint may not be enabled"),
    ],
)
def test_what_waiting_does_not_mend_is_told_at_once(stub: HyperpodStub, tmp_path: Path, status: int, said: str) -> None:
    stub.faults.link_status = status
    made = Sweep(tmp_path)
    with pytest.raises(ConfigError, match=said):
        made.launch(1)
    assert [each.state for each in record.read(made.folder)] in ([], ["waiting"])


def test_one_package_is_uploaded_for_a_whole_sweep_and_holds_no_secret(
    stub: HyperpodStub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WANDB_API_KEY", "wandb-secret-4711")
    made = Sweep(tmp_path)
    made.launch(1, 2, 5)
    uploads = [line for line in stub.faults.seen if line.startswith("PUT /api/packages")]
    assert len(uploads) == 1
    archive = zipfile.ZipFile(made.folder / "package.zip")
    assert {name.split("/")[0] for name in archive.namelist()} == {
        *("train.py", "pyproject.toml", "conf", "grpo", "rewards", "envs", "launchers", "trials", "commit.json")
    }
    assert not [name for name in archive.namelist() if b"4711" in archive.read(name)]
    jobs = f"{stub.head.address}/api/jobs/"
    listed = requests.get(jobs, headers={"Authorization": f"Bearer {stub.head.token}"}, timeout=10).text
    assert "4711" not in listed


@pytest.mark.slow
def test_a_sweep_of_eight_real_trainings_survives_a_killed_and_a_failing_trial_and_the_same_command_ends_it(
    stub: HyperpodStub, tmp_path: Path
) -> None:
    short = [
        *("runtime.steps=2", "runtime.test_episodes=4", "runtime.eval_episodes=4", "runtime.eval_interval=2"),
        *("algorithm.prompts_per_step=2", "algorithm.updates_per_step=1", "runtime.per_device_batch_size=4"),
        *("runtime.checkpoint_interval=1", "algorithm.warmup_steps=0", "tracker=none"),
    ]
    there = [
        *("cluster=hyperpod", "cluster.image=a@sha256:0", f"cluster.shared_dir={tmp_path}/shared"),
        *(f"cluster.python={sys.executable}", "cluster.max_concurrent=2", f"hydra.sweep.dir={tmp_path}/sweep"),
    ]
    swept = ["algorithm.group_size=2,4", "algorithm.kl_coefficient=0,0.02", "adapter.rank=8,16"]
    command = [sys.executable, str(configs.ROOT / "train.py"), "-m", *there, *short, *swept]
    shared = tmp_path / "shared/outputs/maze/sweep"

    def run() -> tuple[int, str]:
        done = subprocess.run(command, env={**os.environ, "OMP_NUM_THREADS": "1"}, capture_output=True, text=True)
        return done.returncode, done.stdout + done.stderr

    def harm() -> None:
        """Trial 2 is killed after its first checkpoint."""
        wait_for(lambda: list(shared.glob("2/checkpoints/*/DONE")), 300)
        for pid in filter(str.isdigit, os.listdir("/proc")):
            with contextlib.suppress(OSError):
                if f"{shared}/2\0" in Path(f"/proc/{pid}/cmdline").read_bytes().decode():
                    os.kill(int(pid), signal.SIGKILL)

    (shared / "5/config.yaml").mkdir(parents=True)  # trial 5 cannot write its config
    thread = threading.Thread(target=harm)
    thread.start()
    code, told = run()
    thread.join()
    first = record.read(tmp_path / "sweep")
    states = [each.state for each in first]
    assert (code, states.count("finished")) == (1, 7), told
    assert (first[2].attempts, first[5].state) == (2, "failed")
    (shared / "5/config.yaml").rmdir()
    code, told = run()
    assert code == 0, told
    second = record.read(tmp_path / "sweep")
    assert [each.state for each in second] == ["finished"] * 8
    assert [each.attempts for each in second] == [1, 1, 2, 1, 1, 2, 1, 1]
    assert told.count("(done before)") == 7
