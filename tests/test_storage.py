"""A run's folder on S3: what is there at every moment, whatever breaks, and how it comes back."""

from __future__ import annotations

import hashlib
import json
import logging
import random
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from s3_server import BUCKET, S3, Fault, s3_server

from grpo import mirror as mirror_module
from grpo import s3 as s3_module
from grpo import storage
from grpo.mirror import Mirror
from grpo.s3 import Remote

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
    server.fault, server.after = (lambda request: None), (lambda: None)
    server.seen.clear()
    yield server
    server.fault, server.after = (lambda request: None), (lambda: None)
    for key in server.objects():
        server.direct.delete_object(Bucket=BUCKET, Key=key)


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
        shutil.rmtree(target, ignore_errors=True)
        aside.rename(target)
        for path in sorted(target.parent.glob("step_*"))[: -self.keep]:
            shutil.rmtree(path)

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
