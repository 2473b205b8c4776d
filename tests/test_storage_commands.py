"""train.py and reproduce.py with s3:// addresses, each in a process of its own."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from configs import ROOT
from s3_server import BUCKET, S3, s3_server
from safetensors.numpy import load_file

from grpo.tracking import read_lines

OUTPUT = f"runtime.output_dir=s3://{BUCKET}/team"
SMALL = [
    "algorithm.prompts_per_step=4",
    "algorithm.group_size=4",
    "algorithm.updates_per_step=2",
    "algorithm.warmup_steps=0",
    "adapter.rank=4",
    "runtime.steps=4",
    "runtime.eval_interval=2",
    "runtime.eval_episodes=4",
    "runtime.test_episodes=4",
    "runtime.checkpoint_interval=1",
    "engine.threads=1",
    "tracker=none",
]
SECRET = "a-secret-that-must-not-show"


@pytest.fixture(scope="module")
def server() -> Iterator[S3]:
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("AWS_ACCESS_KEY_ID", "AKIAABCDEFGHIJKLMNOP")
        environment.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
        environment.setenv("AWS_DEFAULT_REGION", "us-east-1")
        with s3_server() as running:
            environment.setenv("AWS_ENDPOINT_URL", running.address)
            yield running


@pytest.fixture
def s3(server: S3) -> Iterator[S3]:
    server.reset()
    yield server
    server.reset()


def python(program: str, *words: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join([str(ROOT), str(ROOT / "launchers/plugin")])
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "200", "PYTHONPATH": path}
    command = [sys.executable, str(ROOT / program), *words]
    done = subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=300)
    assert SECRET not in done.stdout + done.stderr
    return done


def stub(*words: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return python("tests/stub_train.py", *words, cwd=cwd)


def test_a_run_with_an_address_is_made_below_the_scratch_folder_and_no_folder_is_called_s3(
    s3: S3, tmp_path: Path
) -> None:
    done = stub(OUTPUT, "runtime.scratch_dir=scratch", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    (folder,) = (path.parent for path in tmp_path.rglob("config.yaml"))
    assert folder.parent == tmp_path / "scratch/maze"
    assert [path.name for path in tmp_path.iterdir()] == ["scratch"]


def test_a_dry_run_with_an_address_asks_s3_nothing(s3: S3, tmp_path: Path) -> None:
    done = stub(OUTPUT, "dry_run=true", cwd=tmp_path)
    assert done.returncode == 0
    assert f"folder: {tmp_path}/outputs/maze/" in done.stdout
    assert (s3.seen, list(tmp_path.iterdir())) == ([], [])


def test_trials_of_a_sweep_are_made_below_the_scratch_folder(s3: S3, tmp_path: Path) -> None:
    done = stub("-m", OUTPUT, "runtime.seed=0,1", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    folders = sorted(path.parent for path in tmp_path.rglob("result.json"))
    assert [folder.name for folder in folders] == ["0", "1"]
    assert folders[0].parent.parent == tmp_path / "outputs/maze"
    assert not list(tmp_path.glob("s3*"))


def test_a_bucket_that_does_not_exist_is_refused_before_anything_starts(s3: S3, tmp_path: Path) -> None:
    done = stub("runtime.output_dir=s3://nowhere/team", cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr.startswith("config error: runtime.output_dir: bucket nowhere at http://127.0.0.1:")
    assert "it does not exist" in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_denied_access_and_an_endpoint_that_nobody_answers_are_refused(
    s3: S3, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    s3.fault = lambda request: "denied" if request.method == "PUT" else None
    done = stub(OUTPUT, cwd=tmp_path)
    assert (done.returncode, "access is denied (AccessDenied" in done.stderr) == (2, True)
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    done = stub(OUTPUT, cwd=tmp_path)
    assert (done.returncode, "Could not connect to the endpoint" in done.stderr) == (2, True)
    assert list(tmp_path.iterdir()) == []


def test_an_address_that_holds_a_run_is_refused(s3: S3, tmp_path: Path) -> None:
    s3.direct.put_object(Bucket=BUCKET, Key="team/maze/here/config.yaml", Body=b"name: maze\n")
    done = stub(OUTPUT, "hydra.run.dir=here", cwd=tmp_path)
    assert done.returncode == 2
    assert "s3://runs/team/maze/here holds a run already; resume=s3://runs/team/maze/here" in done.stderr


def test_an_address_without_a_run_cannot_be_resumed(s3: S3, tmp_path: Path) -> None:
    done = stub(f"resume=s3://{BUCKET}/team/maze/none", cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr.startswith(
        "config error: resume: reading s3://runs/team/maze/none/config.yaml: it does not exist"
    )


def metrics(folder: Path) -> list[dict[str, float]]:
    records = read_lines(folder / "metrics.jsonl")
    return [{name: value for name, value in each.items() if not name.startswith("perf/")} for each in records]


def only_run(where: Path) -> Path:
    (folder,) = (path.parent for path in where.glob("outputs/maze/*/config.yaml"))
    return folder


@pytest.mark.slow
def test_a_run_whose_folder_is_lost_goes_on_from_s3_elsewhere_and_equals_one_that_was_never_stopped(
    s3: S3, tmp_path: Path
) -> None:
    here, there, straight = (tmp_path / name for name in ("here", "there", "straight"))
    for folder in (here, there, straight):
        folder.mkdir()
    assert python("train.py", *SMALL, cwd=straight).returncode == 0
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(ROOT / "train.py"), *SMALL, OUTPUT]
    process = subprocess.Popen(command, cwd=here, env=environment, stdout=subprocess.DEVNULL)
    end = time.monotonic() + 120
    while not any(key.endswith("/DONE") for key in s3.keys()):  # noqa: SIM118
        assert time.monotonic() < end and process.poll() is None
        time.sleep(0.02)
    process.kill()
    process.wait()
    stamp = only_run(here).name
    shutil.rmtree(here)
    address = f"s3://{BUCKET}/team/maze/{stamp}"
    done = python("train.py", f"resume={address}", cwd=there)
    assert done.returncode == 0, done.stderr
    assert "resuming after step" in done.stdout
    assert f"everything of this run is safe at {address}" in done.stdout
    resumed = only_run(there)
    assert resumed.name == stamp
    assert metrics(resumed) == metrics(only_run(straight))
    adapters = [load_file(run / "adapter/adapter_model.safetensors") for run in (resumed, only_run(straight))]
    assert adapters[0].keys() == adapters[1].keys()
    assert all((adapters[0][name] == adapters[1][name]).all() for name in adapters[0])
    shutil.rmtree(there / "outputs")
    done = python("scripts/reproduce.py", address, cwd=there)
    assert "identical: every metric of every step" in done.stdout, done.stdout + done.stderr
    assert done.returncode == 0


@pytest.mark.slow
def test_training_ends_well_when_s3_dies_on_the_way_and_says_what_is_not_safe(s3: S3, tmp_path: Path) -> None:
    s3.fault = lambda request: "cut" if any(key.endswith("/DONE") for key in s3.keys()) else None  # noqa: SIM118
    done = python("train.py", *SMALL, OUTPUT, "runtime.mirror_wait_seconds=1", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "S3 unreachable since" in done.stdout
    assert "NOT all of this run is at s3://runs/team/maze/" in done.stdout
    folder = only_run(tmp_path)
    assert (folder / "result.json").is_file()
    state = json.loads((folder / "mirror.json").read_text())
    assert (state["everything"], state["fault"] is not None) == (False, True)
