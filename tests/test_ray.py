"""Trials on a real Ray head: every one accounted for, whatever happens to it, to the launcher or to the head."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
import threading
import time
import zipfile
from pathlib import Path

import configs
import pytest
from hyperpod_stub import wait_for
from ray_head import Head, trivial_project
from rich.console import Console

from grpo import provenance
from grpo.cluster_schema import RayCluster
from grpo.config import ConfigError, RunConfig
from launchers import clusters, package, record, sweep
from launchers.cluster import Attempt
from launchers.ray_jobs import RayJobs, check_address
from launchers.record import Job, TrialRecord


def ray_run(head: Head, seed: int, **changes: object) -> RunConfig:
    cluster = {
        **dict(configs.typed(["cluster=ray"])[0].cluster),
        "address": head.address,
        "python": sys.executable,
        "max_concurrent": 2,
        "stop_seconds": 2,
        "start_minutes": 2,
        **changes,
    }
    return configs.run({"runtime.seed": seed, "cluster": cluster})


class Sweep:
    """A sweep of trivial trials, each known by its seed."""

    def __init__(self, head: Head, folder: Path, **changes: object) -> None:
        self.head, self.folder, self.changes = head, folder / "sweep", changes
        self.root = folder / "project" if (folder / "project").exists() else trivial_project(folder / "project")
        self.console = Console(file=io.StringIO(), width=400)

    def cluster(self) -> RayJobs:
        settings = ray_run(self.head, 0, **self.changes).cluster
        assert isinstance(settings, RayCluster)
        return RayJobs(settings, settings.address, token=self.head.token, say=self.console.print, root=self.root)

    def jobs(self, *seeds: int) -> list[Job]:
        runs = [ray_run(self.head, seed, **self.changes) for seed in seeds]
        words = [f"runtime.seed={seed}" for seed in seeds]
        return [
            Job(overrides=(word,), folder=str(number), run=run)
            for number, (word, run) in enumerate(zip(words, runs, strict=True))
        ]

    def launch(self, *seeds: int) -> list[TrialRecord]:
        jobs = self.jobs(*seeds)
        return sweep.launch(
            jobs,
            self.folder,
            cluster=self.cluster(),
            policy=clusters.policy(jobs[0].run),
            stop_on_error=False,
            console=self.console,
        )

    @property
    def told(self) -> str:
        assert isinstance(self.console.file, io.StringIO)
        return self.console.file.getvalue()

    def starts(self, number: int) -> str:
        return (self.folder / str(number) / "starts").read_text()


def test_a_failed_and_a_killed_trial_hide_no_other_and_the_killed_one_goes_on(ray_head: Head, tmp_path: Path) -> None:
    made = Sweep(ray_head, tmp_path)
    records = made.launch(1, 3, 4, 2)
    assert [(each.state, each.objective, each.attempts) for each in records] == [
        ("finished", 0.1, 1),
        ("failed", None, 1),
        ("finished", 0.4, 2),
        ("finished", 0.2, 1),
    ]
    assert records[1].cause == "failed"
    assert (records[1].reason or "").startswith("exit code 1: seed 3 is broken")
    assert "trial 2 is tried again (killed; 2 more at most)" in made.told
    assert (tmp_path / "sweep/0/output.log").read_text().endswith('\nseed 1\nGRPO_RESULT {"objective": 0.1}\n')
    again = made.launch(1, 3, 4, 2)
    assert [each.attempts for each in again] == [1, 2, 2, 1]
    assert [made.starts(number) for number in (0, 2, 3)] == ["x", "xx", "x"]


def test_the_output_is_followed_while_the_trial_runs_and_comes_home_whole(ray_head: Head, tmp_path: Path) -> None:
    made = Sweep(ray_head, tmp_path)
    made.launch(120)
    lines = (tmp_path / "sweep/0/output.log").read_text().splitlines()
    assert lines[lines.index("seed 120") :] == [
        "seed 120",
        *(f"line {number}" for number in range(120)),
        'GRPO_RESULT {"objective": 12.0}',
    ]


def test_without_a_common_folder_the_result_comes_home_in_the_log(ray_head: Head, tmp_path: Path) -> None:
    made = Sweep(ray_head, tmp_path, shared_dir=str(tmp_path / "nodes"))
    (only,) = made.launch(7)
    assert only.objective == 0.7
    assert not (tmp_path / "sweep/0/result.json").exists()
    assert (tmp_path / f"nodes/outputs/maze/{made.folder.name}/0/result.json").exists()


def test_sending_an_attempt_again_gets_hold_of_it_instead_of_running_it_twice(ray_head: Head, tmp_path: Path) -> None:
    made = Sweep(ray_head, tmp_path)
    made.folder.mkdir()
    run = ray_run(ray_head, 8)
    attempt = Attempt(sweep=made.folder, folder="0", number=1, fingerprint=record.fingerprint(run), run=run)
    attempt.here.mkdir()
    cluster = made.cluster()
    cluster.check([attempt])
    cluster.submit(attempt)
    cluster.submit(attempt)
    made.cluster().submit(attempt)
    deadline = time.monotonic() + 60
    while cluster.status(attempt).phase != "ended" and time.monotonic() < deadline:
        cluster.wait(0.2)
    assert made.starts(0) == "x"
    cluster.close()


def test_a_trial_that_wants_more_gpus_than_there_are_is_refused_before_it_is_sent(
    ray_head: Head, tmp_path: Path
) -> None:
    made = Sweep(ray_head, tmp_path)
    rows = ["algorithm.prompts_per_step=24", "algorithm.updates_per_step=1", "runtime.per_device_batch_size=1"]
    (run,) = configs.typed(["cluster=ray", "engine=skyrl", "cluster.nodes=3", "cluster.gpus_per_node=2", *rows])
    attempt = Attempt(sweep=made.folder, folder="0", number=1, fingerprint="0" * 16, run=run)
    with pytest.raises(ConfigError, match=r"a trial needs 6 GPUs \(3 x 2\), the cluster has 4"):
        made.cluster().check([attempt])


def test_a_wrong_token_is_told_at_once_and_starts_nothing(ray_head: Head, tmp_path: Path) -> None:
    made = Sweep(ray_head, tmp_path, start_minutes=0.01)
    made.head = Head(port=ray_head.port, token="wrong" * 8, folder=ray_head.folder)
    with pytest.raises(ConfigError, match="refuses this session or token"):
        made.launch(1)
    assert [each.state for each in record.read(made.folder)] in ([], ["waiting"])


def test_a_package_above_the_limit_names_its_largest_file_and_is_not_sent(ray_head: Head, tmp_path: Path) -> None:
    made = Sweep(ray_head, tmp_path, package_limit_mib=1)
    (made.root / "models/big").mkdir(parents=True)
    (made.root / "models/tiny_qwen3_vl").mkdir()
    (made.root / "models/tiny_qwen3_vl/model.safetensors").write_bytes(os.urandom(3 * package.MIB))
    with pytest.raises(ConfigError, match=r"above 1; its largest files: models/tiny_qwen3_vl/model.safetensors \(3.0"):
        made.launch(1)


def command(head: Head, tmp_path: Path, *words: str) -> list[str]:
    """train.py on the head, with the real laptop training cut short."""
    short = [
        *("runtime.steps=2", "runtime.test_episodes=4", "runtime.eval_episodes=4", "runtime.eval_interval=2"),
        *("algorithm.prompts_per_step=2", "algorithm.updates_per_step=1", "runtime.checkpoint_interval=1"),
        *("algorithm.warmup_steps=0", "tracker=none", f"cluster.python={sys.executable}"),
    ]
    return [
        *(sys.executable, str(configs.ROOT / "train.py"), "cluster=ray", f"cluster.address={head.address}"),
        *(*short, f"hydra.sweep.dir={tmp_path}/sweep", *words),
    ]


def sent(head: Head, where: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """train.py, started in `where`, with the project's own folders."""
    command = [sys.executable, str(configs.ROOT / "train.py"), "cluster=ray", f"cluster.address={head.address}", *words]
    return subprocess.run(command, env=head.environment, cwd=where, capture_output=True, text=True, timeout=300)


def test_a_sweep_that_the_cluster_would_not_take_leaves_nothing_behind(ray_head: Head, tmp_path: Path) -> None:
    rows = ["algorithm.prompts_per_step=24", "algorithm.updates_per_step=1", "runtime.per_device_batch_size=1"]
    too_many = ["engine=skyrl", "cluster.nodes=3", "cluster.gpus_per_node=2", *rows]
    done = sent(ray_head, tmp_path, *too_many)
    assert (done.returncode, list(tmp_path.iterdir())) == (2, [])
    assert "a trial needs 6 GPUs (3 x 2), the cluster has 4" in done.stderr
    (tmp_path / "outputs/mine").mkdir(parents=True)
    done = sent(ray_head, tmp_path, "-m", *too_many, "runtime.seed=1,2")
    assert (done.returncode, list((tmp_path / "outputs").iterdir())) == (2, [tmp_path / "outputs/mine"])


def test_a_folder_that_was_there_before_is_kept(ray_head: Head, tmp_path: Path) -> None:
    (tmp_path / "sweep").mkdir()
    (tmp_path / "sweep/notes.txt").write_text("mine")
    done = sent(ray_head, tmp_path, "cluster.package_limit_mib=1", f"hydra.sweep.dir={tmp_path}/sweep")
    assert done.returncode == 2
    assert "cluster.package_limit_mib: the package has" in done.stderr
    assert (tmp_path / "sweep/notes.txt").read_text() == "mine"


@pytest.mark.slow
def test_one_run_is_a_sweep_of_one_and_trains_on_the_cluster(ray_head: Head, tmp_path: Path) -> None:
    done = subprocess.run(
        command(ray_head, tmp_path), env=ray_head.environment, cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    (only,) = record.read(tmp_path / "sweep")
    assert only.state == "finished"
    assert json.loads((tmp_path / "sweep/0/result.json").read_text())["objective"] == only.objective
    assert (tmp_path / "sweep/0/adapter/adapter_model.safetensors").exists()


@pytest.mark.slow
def test_a_launcher_that_lets_go_leaves_the_trial_running_and_attach_brings_it_home(
    ray_head: Head, tmp_path: Path
) -> None:
    words = command(ray_head, tmp_path, "runtime.steps=40")
    launcher = subprocess.Popen(
        words, env=ray_head.environment, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    deadline = time.monotonic() + 120
    while not list(tmp_path.glob("sweep/0/metrics.jsonl")) and time.monotonic() < deadline:
        time.sleep(0.2)
    launcher.send_signal(signal.SIGINT)
    told, _ = launcher.communicate(timeout=60)
    assert launcher.returncode == 1
    assert f"python scripts/sweep.py attach {tmp_path}/sweep" in told
    assert [each.state for each in record.read(tmp_path / "sweep")] == ["running"]
    attach = [sys.executable, str(configs.ROOT / "scripts/sweep.py"), "attach", str(tmp_path / "sweep")]
    environment = {**ray_head.environment, "PYTHONPATH": str(configs.ROOT)}
    done = subprocess.run(attach, env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    (only,) = record.read(tmp_path / "sweep")
    assert (only.state, only.attempts) == ("finished", 1)


@pytest.mark.slow
def test_a_head_that_is_started_anew_and_forgets_its_jobs_costs_an_attempt_and_no_result(
    ray_head: Head, tmp_path: Path
) -> None:
    made = Sweep(ray_head, tmp_path, max_concurrent=1)
    log = tmp_path / "sweep/0/output.log"

    def restart() -> None:
        wait_for(lambda: log.exists() and "line 3" in log.read_text())
        ray_head.stop()
        ray_head.start()

    thread = threading.Thread(target=restart)
    thread.start()
    records = made.launch(400, 2)
    thread.join()
    assert [(each.state, each.attempts) for each in records] == [("finished", 2), ("finished", 1)]
    assert "failed in" in made.told and "trial 0 is tried again (head lost; 2 more at most)" in made.told
    assert len(list((tmp_path / "sweep").glob("0_attempt_*/starts"))) == 1


def test_the_package_says_which_commit_its_code_is(tmp_path: Path) -> None:
    run = configs.typed(["cluster=ray"])[0]
    attempt = Attempt(sweep=tmp_path, folder="0", number=1, fingerprint="0" * 16, run=run)
    built = package.build([attempt], tmp_path / "package.zip", 95)
    with zipfile.ZipFile(built.path) as archive:
        archive.extractall(tmp_path / "there")
    ask = "import json; from grpo import provenance; print(json.dumps(provenance.commit()))"
    done = subprocess.run(
        [sys.executable, "-c", ask], cwd=tmp_path / "there", capture_output=True, text=True, check=True
    )
    assert json.loads(done.stdout) == provenance.commit()


@pytest.mark.parametrize(
    ("address", "said"),
    [
        ("http://ray.example.com:8265", "plain http to another host, without a token"),
        ("http://10.0.0.5:8265", "plain http to another host, without a token"),
        ("sagemaker_ray://", "wants http://HOST:PORT"),
        ("10.0.0.5:8265", "wants http://HOST:PORT"),
        ("https://me:secret@ray.example.com", "holds a user, password or query"),
    ],
)
def test_an_address_that_is_unsafe_or_none_is_refused(address: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        check_address(address, has_token=False, allow_insecure=False)


@pytest.mark.parametrize(
    "address", ["http://127.0.0.1:8265", "http://[::1]:8265", "http://head.team.svc.cluster.local:8265", "https://a.b"]
)
def test_this_machine_the_cluster_and_https_need_no_word_of_permission(address: str) -> None:
    check_address(address, has_token=False, allow_insecure=False)


def test_a_token_or_an_explicit_word_permits_plain_http() -> None:
    check_address("http://10.0.0.5:8265", has_token=True, allow_insecure=False)
    check_address("http://10.0.0.5:8265", has_token=False, allow_insecure=True)


def test_a_secret_among_a_jobs_variables_is_refused() -> None:
    (told,) = configs.refusal("cluster=ray", "+cluster.env_vars.WANDB_API_KEY=abc")
    assert told.startswith("cluster.env_vars") and "abc" not in told


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["runtime.output_dir=/tmp/runs"], "runtime.output_dir: '/tmp/runs' is not below cluster.shared_dir=/shared"),
        (
            ["runtime.output_dir=s3://bucket/runs"],
            "runtime.scratch_dir: 'outputs' is not below cluster.shared_dir=/shared",
        ),
    ],
)
def test_a_run_that_would_be_lost_with_its_pod_is_refused(words: list[str], told: str) -> None:
    (run,) = configs.typed(["cluster=hyperpod", "cluster.image=a", *words])
    with pytest.raises(ConfigError, match=told):
        clusters.connect(run, lambda text: None)
