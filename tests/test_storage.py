"""A run's folder on S3: what is there at every moment, whatever breaks, and how it comes back."""

from __future__ import annotations

import hashlib
import json
import logging
import random
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import configs
import pytest
from s3_server import BUCKET, S3, Fault, Request, s3_server

from grpo import mirror as mirror_module
from grpo import s3 as s3_module
from grpo import storage
from grpo.checkpoint import damage
from grpo.mirror import Mirror
from grpo.replica import Replica
from grpo.s3 import Remote, StorageError

ADDRESS = f"s3://{BUCKET}/team/maze/run"
PREFIX = "team/maze/run/"


@pytest.fixture(scope="module")
def server() -> Iterator[S3]:
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("AWS_ACCESS_KEY_ID", "AKIAABCDEFGHIJKLMNOP")
        environment.setenv("AWS_SECRET_ACCESS_KEY", "a-secret-that-must-not-show")
        environment.setenv("AWS_DEFAULT_REGION", "us-east-1")
        with s3_server() as running:
            environment.setenv("AWS_ENDPOINT_URL", running.address)
            yield running


@pytest.fixture
def s3(server: S3, monkeypatch: pytest.MonkeyPatch) -> Iterator[S3]:
    monkeypatch.setattr(mirror_module, "LOOK_SECONDS", 0.02)
    monkeypatch.setattr(mirror_module, "RECORDS_SECONDS", 0.1)
    monkeypatch.setattr(mirror_module, "pause", lambda failures, longest: 0.02)
    monkeypatch.setattr(s3_module, "pause", lambda failures, longest: 0.01)
    server.reset()
    yield server
    server.reset()


def impatient(address: str = ADDRESS) -> Remote:
    """Without boto3's own tries, whose pauses would make the tests slow."""
    return Remote(address, attempts=1)


class FakeRun:
    """Writes what a run writes, in its order."""

    def __init__(self, folder: Path, *, keep: int = 2) -> None:
        self.folder, self.keep = folder, keep
        folder.mkdir(parents=True)
        for name in ("config.yaml", "overrides.txt", "run.json"):
            (folder / name).write_text(f"{name}\n")

    def step(self, step: int, *, checkpoint: bool = True, word: str = "") -> None:
        with (self.folder / "metrics.jsonl").open("a") as file:
            file.write(json.dumps({"step": step}) + "\n")
        (self.folder / "images").mkdir(exist_ok=True)
        (self.folder / "images" / f"{step}.png").write_bytes(bytes([step]) * 50)
        if checkpoint:
            self.checkpoint(step, word)

    def checkpoint(self, step: int, word: str = "") -> None:
        target = self.folder / f"checkpoints/step_{step:06d}"
        aside = target.with_name(f".{target.name}.part")
        files = {"adapter/adapter_model.safetensors": f"weights {step} {word}" * 40, "state.json": f"state {step}"}
        for name, content in files.items():
            (aside / name).parent.mkdir(parents=True, exist_ok=True)
            (aside / name).write_text(content)
        hashes = {name: hashlib.sha256(content.encode()).hexdigest() for name, content in files.items()}
        (aside / "DONE").write_text(json.dumps(hashes))
        if target.exists():
            self._remove(target)
        aside.rename(target)
        for path in sorted(target.parent.glob("step_*"))[: -self.keep]:
            self._remove(path)

    def _remove(self, checkpoint: Path) -> None:
        gone = checkpoint.with_name(f".{checkpoint.name}.gone")
        checkpoint.rename(gone)
        shutil.rmtree(gone)

    def end(self) -> None:
        (self.folder / "adapter").mkdir()
        (self.folder / "adapter/adapter_model.safetensors").write_text("the last weights")
        (self.folder / "result.json").write_text('{"objective": 1.0}')


def mirror(folder: Path, *, keep: int = 2) -> Mirror:
    return Mirror(impatient(), folder, keep=keep, checkpoint_interval=1)


def copied(s3: S3, folder: Path) -> bool:
    """Whether every file of the folder is on S3 as it is here."""
    here = {
        PREFIX + path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()
    }
    there = s3.objects(PREFIX)
    return here.keys() == there.keys() and all(
        there[key] == content for key, content in here.items() if not key.endswith("mirror.json")
    )


def test_all_of_a_run_is_on_s3_at_its_end_and_nothing_else(s3: S3, tmp_path: Path) -> None:
    run = FakeRun(tmp_path / "run")
    running = mirror(run.folder)
    for step in range(1, 6):
        run.step(step)
        time.sleep(0.05)
    run.end()
    assert running.finish(10)
    assert copied(s3, run.folder)
    assert json.loads((run.folder / "mirror.json").read_text()) == {
        "address": ADDRESS,
        "safe_step": 5,
        "everything": True,
        "fault": None,
    }
    assert storage.complete_steps(Remote(ADDRESS).names()) == [4, 5]


SCHEDULES = range(12)
"""Of faults, each drawn from its seed; all 12 take a minute."""


@pytest.mark.slow
@pytest.mark.parametrize("seed", SCHEDULES)
def test_whatever_breaks_a_done_on_s3_never_lies_and_all_arrives_in_the_end(
    seed: int, s3: S3, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "grpo")
    draws = random.Random(seed)
    faults: list[Fault] = ["busy", "cut", "lost", "short", "slow", "corrupt"]
    broken: list[str] = []
    s3.after = lambda: broken.extend(filter(None, [s3.broken_promise(PREFIX)]))
    s3.fault = lambda request: draws.choice(faults) if draws.random() < 0.35 else None
    run = FakeRun(tmp_path / "run", keep=draws.choice([1, 2, 3]))
    running = mirror(run.folder, keep=run.keep)
    for step in range(1, 9):
        run.step(step, checkpoint=draws.random() < 0.7, word=str(seed))
        time.sleep(draws.choice([0.0, 0.03, 0.1]))
    run.checkpoint(8)
    run.end()
    time.sleep(0.2)
    s3.fault = lambda request: None
    assert running.finish(20), caplog.text
    assert broken == []
    assert copied(s3, run.folder), caplog.text
    assert "a-secret-that-must-not-show" not in caplog.text


@pytest.mark.parametrize("fault", ["busy", "cut"])
def test_a_store_that_fails_on_the_third_object_gets_it_again(fault: Fault, s3: S3, tmp_path: Path) -> None:
    puts: list[str] = []

    def third(request: Request) -> Fault:
        if request.method == "PUT":
            puts.append(request.key)
        return fault if request.method == "PUT" and 3 <= len(puts) <= 5 else None

    s3.fault = third
    run = FakeRun(tmp_path / "run")
    run.step(1)
    assert mirror(run.folder).finish(10)
    assert puts[2:6] == [PREFIX + "run.json"] * 4
    assert copied(s3, run.folder)


def test_records_go_before_the_files_of_a_checkpoint_and_done_goes_last(s3: S3, tmp_path: Path) -> None:
    run = FakeRun(tmp_path / "run")
    run.step(1)
    Replica(impatient(), run.folder, keep=2).catch_up(records=True)
    puts = [request.key.removeprefix(PREFIX) for request in s3.seen if request.method == "PUT"]
    assert puts == [
        "config.yaml",
        "overrides.txt",
        "run.json",
        "metrics.jsonl",
        "checkpoints/step_000001/adapter/adapter_model.safetensors",
        "checkpoints/step_000001/state.json",
        "checkpoints/step_000001/DONE",
        "images/1.png",
    ]


def test_a_run_waits_for_a_store_that_hangs_only_at_its_end_and_only_so_long(
    s3: S3, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    s3.fault = lambda request: "hang"
    run = FakeRun(tmp_path / "run")
    run.step(1)
    running = mirror(run.folder)
    assert not running.finish(0.3)
    assert f"NOT all of this run is at {ADDRESS}: no checkpoint is safe remotely" in caplog.text
    assert f"aws s3 sync {run.folder} {ADDRESS}" in caplog.text
    s3.released.set()


def test_a_dead_store_is_told_once_with_what_is_safe_and_its_return_too(
    s3: S3, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "grpo")
    run = FakeRun(tmp_path / "run", keep=1)
    run.step(1)
    running = mirror(run.folder, keep=1)
    wait_for(lambda: "safe remotely up to step 1" in caplog.text)
    s3.fault = lambda request: "cut"
    for step in (2, 3, 4):
        run.step(step)
    wait_for(lambda: len([request for request in s3.seen if request.method == "GET"]) > 20)
    s3.fault = lambda request: None
    assert running.finish(10)
    told = [record.getMessage() for record in caplog.records]
    assert sum("S3 unreachable since" in line and "safe remotely only up to step 1" in line for line in told) == 1
    assert sum("S3 is reachable again" in line for line in told) == 1
    assert "safe remotely up to step 4 (without 2, 3: pruned here before they were copied)" in told


def wait_for(happened: Callable[[], bool]) -> None:
    end = time.monotonic() + 20
    while not happened():
        assert time.monotonic() < end
        time.sleep(0.01)


def test_a_file_that_grows_is_copied_up_to_its_last_whole_line(s3: S3, tmp_path: Path) -> None:
    run = FakeRun(tmp_path / "run")
    run.step(1)
    with (run.folder / "metrics.jsonl").open("a") as file:
        file.write('{"step": 2, "rew')
    Replica(impatient(), run.folder, keep=2).catch_up(records=True)
    assert s3.objects(PREFIX)[PREFIX + "metrics.jsonl"] == b'{"step": 1}\n'


def test_what_is_no_part_of_a_run_is_not_copied(s3: S3, tmp_path: Path) -> None:
    run = FakeRun(tmp_path / "run")
    (run.folder / "secret.txt").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "elsewhere").write_text("not ours")
    for name in ("run.lock", "wandb/run.wandb", "images/a.tmp", ".adapter.part/x", "checkpoints/.step_000002.part/x"):
        (run.folder / name).parent.mkdir(parents=True, exist_ok=True)
        (run.folder / name).write_text("x")
    Replica(impatient(), run.folder, keep=2).catch_up(records=True)
    assert s3.keys() == [PREFIX + name for name in ("config.yaml", "overrides.txt", "run.json")]


def test_a_checkpoint_that_is_damaged_here_is_not_copied_and_the_one_before_it_stays(
    s3: S3, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run = FakeRun(tmp_path / "run", keep=1)
    replica = Replica(impatient(), run.folder, keep=1)
    run.step(1)
    replica.catch_up(records=True)
    run.step(2)
    (run.folder / "checkpoints/step_000002/state.json").write_text("other")
    replica.catch_up(records=True)
    assert replica.safe_steps == [1]
    assert "checkpoint of step 2 is damaged here and not copied: state.json is not what its DONE says" in caplog.text
    assert s3.broken_promise(PREFIX) is None


def test_a_checkpoint_made_again_with_other_weights_replaces_the_first(s3: S3, tmp_path: Path) -> None:
    broken: list[str] = []
    s3.after = lambda: broken.extend(filter(None, [s3.broken_promise(PREFIX)]))
    run = FakeRun(tmp_path / "run")
    replica = Replica(impatient(), run.folder, keep=2)
    run.step(1, word="first")
    replica.catch_up(records=True)
    run.checkpoint(1, word="second")
    replica.catch_up(records=True)
    assert b"second" in s3.objects(PREFIX)[PREFIX + "checkpoints/step_000001/adapter/adapter_model.safetensors"]
    assert broken == []


def test_a_start_takes_away_what_it_does_not_go_on_from_and_ends_open_uploads(s3: S3, tmp_path: Path) -> None:
    old = FakeRun(tmp_path / "old", keep=3)
    for step in (1, 2, 3):
        old.step(step)
    assert mirror(old.folder, keep=3).finish(10)
    s3.direct.create_multipart_upload(Bucket=BUCKET, Key=PREFIX + "checkpoints/step_000004/optimizer.safetensors")
    for step in (2, 3):
        shutil.rmtree(old.folder / f"checkpoints/step_00000{step}")
    assert mirror(old.folder, keep=3).finish(10)
    assert storage.complete_steps(Remote(ADDRESS).names()) == [1]
    assert s3.direct.list_multipart_uploads(Bucket=BUCKET).get("Uploads", []) == []


def test_a_run_that_was_given_more_steps_is_not_finished_on_s3(s3: S3, tmp_path: Path) -> None:
    run = FakeRun(tmp_path / "run")
    run.step(1)
    run.end()
    assert mirror(run.folder).finish(10)
    (run.folder / "result.json").unlink()
    assert mirror(run.folder).finish(10)
    assert PREFIX + "result.json" not in s3.keys()  # noqa: SIM118


def test_a_large_file_goes_in_parts_and_comes_back_the_same(
    s3: S3, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(s3_module, "MULTIPART_BYTES", 5 * 2**20)
    content = random.Random(0).randbytes(12 * 2**20)
    digest = hashlib.sha256(content).hexdigest()
    (tmp_path / "large").write_bytes(content)
    with (tmp_path / "large").open("rb") as file:
        Remote(ADDRESS).put("large", file, digest)
    assert sum("partNumber=" in request.path for request in s3.seen) == 3
    Remote(ADDRESS).download("large", tmp_path / "back", digest)
    assert (tmp_path / "back").read_bytes() == content


def test_a_run_comes_back_whole_through_bodies_that_end_early(s3: S3, tmp_path: Path) -> None:
    run = on_s3(tmp_path, steps=3)
    draws = random.Random(1)
    s3.fault = lambda request: draws.choice(["short", "busy", "cut", None, None, None])
    back = storage.local_copy(ADDRESS, tmp_path / "back")
    assert (back / "metrics.jsonl").read_bytes() == (run.folder / "metrics.jsonl").read_bytes()
    assert [path.name for path in (back / "checkpoints").iterdir()] == ["step_000003"]
    assert damage(back / "checkpoints/step_000003") is None
    assert sorted(path.name for path in tmp_path.iterdir()) == ["back", "run"]


def on_s3(tmp_path: Path, *, steps: int) -> FakeRun:
    run = FakeRun(tmp_path / "run")
    for step in range(1, steps + 1):
        run.step(step)
    assert mirror(run.folder).finish(10)
    return run


def test_a_checkpoint_that_is_damaged_on_s3_is_named_and_the_one_before_it_used(
    s3: S3, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    on_s3(tmp_path, steps=3)
    s3.direct.put_object(Bucket=BUCKET, Key=PREFIX + "checkpoints/step_000003/state.json", Body=b"other")
    back = storage.local_copy(ADDRESS, tmp_path / "back")
    assert [path.name for path in (back / "checkpoints").iterdir()] == ["step_000002"]
    assert "checkpoint of step 3 is not used: " in caplog.text


def test_a_folder_as_new_as_s3_is_used_and_an_older_one_is_kept_under_another_name(
    s3: S3, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run = on_s3(tmp_path, steps=2)
    run.step(3)
    assert storage.local_copy(ADDRESS, run.folder) == run.folder
    assert "(checkpoint of step 3); it is used as it is" in caplog.text
    assert (run.folder / "checkpoints/step_000003").is_dir()
    for step in (2, 3):
        shutil.rmtree(run.folder / f"checkpoints/step_00000{step}")
    storage.local_copy(ADDRESS, run.folder)
    assert (run.folder / "checkpoints/step_000002").is_dir()
    assert (tmp_path / "run_older_1/metrics.jsonl").read_text().count("\n") == 3


def test_names_that_lead_out_of_the_folder_are_refused(s3: S3, tmp_path: Path) -> None:
    on_s3(tmp_path, steps=1)
    s3.direct.put_object(Bucket=BUCKET, Key=PREFIX + "../../out", Body=b"x")
    with pytest.raises(StorageError, match="is no name of a file of a run"):
        storage.local_copy(ADDRESS, tmp_path / "back")
    assert not (tmp_path / "back").exists()


def test_a_fault_shows_no_secret() -> None:
    signed = "https://runs.s3/x?X-Amz-Credential=AKIAABCDEFGHIJKLMNOP&X-Amz-Signature=0123abcd"
    told = str(StorageError(f"no answer from {signed} for AKIAABCDEFGHIJKLMNOP", "unreachable"))
    assert told == "no answer from https://runs.s3/x?*** for ***"


def test_an_address_is_below_output_dir_as_the_folder_is_below_scratch_dir(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    run = configs.run({"runtime.output_dir": "s3://bucket/team"})
    assert storage.address_of(run, tmp_path / "outputs/maze/now") == "s3://bucket/team/maze/now"
    assert storage.address_of(run, tmp_path / "outputs/maze/sweep_1/0") == "s3://bucket/team/maze/sweep_1/0"
    assert storage.address_of(run, tmp_path / "elsewhere") == "s3://bucket/team/maze/elsewhere"
    (tmp_path / "many").mkdir()
    (tmp_path / "many/sweep.json").write_text("{}")
    assert storage.address_of(run, tmp_path / "many/0") == "s3://bucket/team/maze/many/0"
    assert storage.local_folder("s3://bucket/team/maze/sweep_1/0", run) == tmp_path / "outputs/maze/sweep_1/0"
    assert storage.local_folder("s3://moved/maze/now", run) == tmp_path / "outputs/maze/now"
    assert storage.address_of(configs.run(), tmp_path / "outputs/maze/now") is None


def test_a_tilde_is_the_home_folder_and_no_folder_of_that_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    here = configs.run({"runtime.output_dir": "~/runs"})
    assert storage.local_folder("~/runs/maze/now", here) == tmp_path / "runs/maze/now"
    there = configs.run({"runtime.output_dir": "s3://bucket/team", "runtime.scratch_dir": "~/runs"})
    assert storage.address_of(there, tmp_path / "runs/maze/sweep_1/0") == "s3://bucket/team/maze/sweep_1/0"


@pytest.mark.parametrize(
    "place",
    ["s3:/bucket/x", "S3://bucket/x", "s3://", "s3://B/x", "s3://key:word@bucket/x", "s3://bucket//x", "gs://a/b"],
)
def test_what_is_no_folder_and_no_address_is_refused(place: str) -> None:
    (told,) = configs.faults({"runtime.output_dir": place})
    assert told.startswith("runtime.output_dir: ")
    assert configs.faults({"runtime.scratch_dir": "s3://bucket/x"})
