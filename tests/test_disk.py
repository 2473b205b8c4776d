"""A full disk, a read-only one, and kills between two moves: one clear error, and no complete checkpoint lost.

The full disk is a real one, a tmpfs of a megabyte, where this process may mount it (root, as in CI's containers);
elsewhere a limit on the size of a file stands for it: the system refuses the same calls with another number.
"""

from __future__ import annotations

import json
import os
import re
import resource
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import audit
import configs
import pytest
import torch
from test_cli import train
from test_local_engine import SMALL, adapter, metrics, same

from grpo import checkpoint, heartbeat
from grpo.checkpoint import latest_checkpoint, prune, recover, save_checkpoint, write_folder
from grpo.console import Console
from grpo.files import DiskError, write_json, write_text, writing
from grpo.policy import Policy
from grpo.run import run
from grpo.tracking import NullTracker, RunLog


@dataclass(frozen=True, kw_only=True)
class SmallDisk:
    folder: Path
    """Takes little."""
    grow: Callable[[], None]
    """Make it take enough."""


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[SmallDisk]:
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=200k", "tmpfs", str(folder)]
    if subprocess.run(mount, capture_output=True).returncode == 0:
        remount = ["mount", "-o", "remount,size=8m", str(folder)]
        yield SmallDisk(folder=folder, grow=lambda: subprocess.run(remount, check=True) and None)
        subprocess.run(["umount", "-l", folder], check=True)
        return
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, before[1]))
    yield SmallDisk(folder=folder, grow=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, before))
    resource.setrlimit(resource.RLIMIT_FSIZE, before)


def optimizer(policy: Policy) -> torch.optim.Optimizer:
    """With a state of twice the adapter's size, as AdamW has after its first step."""
    made = torch.optim.AdamW(policy.trainable, lr=0.0, weight_decay=0.0)
    for parameter in policy.trainable:
        parameter.grad = torch.zeros_like(parameter)
    made.step()
    made.zero_grad(set_to_none=True)
    return made


def test_a_full_disk_fails_the_save_by_name_keeps_the_older_checkpoint_and_leaves_no_half_one(
    disk: SmallDisk, policy: Policy
) -> None:
    adam = optimizer(policy)
    for parameter in policy.trainable:
        adam.state[parameter]["ballast"] = torch.zeros(20_000)
    older = disk.folder / "checkpoints/step_000001"
    write_folder(older, lambda aside: write_json(aside / "state.json", {}))
    with pytest.raises(DiskError) as caught:
        save_checkpoint(disk.folder, 2, policy, adam, keep=1, record={})
    told = str(caught.value)
    assert told.startswith(f"{disk.folder}/checkpoints/step_000002: the checkpoint could not be written: the ")
    assert re.search(r"\(\d+\.\d+ MiB are needed, \d+\.\d+ MiB are free\)", told)
    assert told.endswith(f"free space or permit writing, then go on with resume={disk.folder}")
    assert [path.name for path in (disk.folder / "checkpoints").iterdir()] == ["step_000001"]
    assert latest_checkpoint(disk.folder) == older


def test_a_full_disk_is_told_for_records_and_heartbeats_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = RunLog(tmp_path, NullTracker())
    (tmp_path / "metrics.jsonl").symlink_to("/dev/full")
    with pytest.raises(DiskError, match=r"the line of metrics.jsonl could not be written: the disk is full"):
        log.step(1, {"rollout/solved": 1.0})


def test_a_disk_that_is_full_for_the_log_alone_prints_no_traceback(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "train.log").symlink_to("/dev/full")
    with Console(1).logging_to(tmp_path / "train.log"):
        checkpoint.log.warning("hello")
    assert capsys.readouterr() == ("hello\n", "")


def test_other_errors_of_the_system_are_not_taken_for_a_full_disk(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError), writing("x", tmp_path / "x", tmp_path):
        (tmp_path / "nowhere/x").write_text("x")


def test_a_folder_that_may_not_be_written_is_refused_before_anything_starts(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for where in ("/proc/nowhere", str(tmp_path / "file")):
        done = train(f"runtime.output_dir={where}", cwd=tmp_path)
        assert (done.returncode, done.stdout) == (2, "")
        assert f"runtime.output_dir: {where}/maze/" in done.stderr
        assert "cannot be written" in done.stderr


@pytest.mark.slow
def test_a_run_that_meets_a_full_disk_ends_with_1_and_one_line_and_goes_on_exactly_when_there_is_room(
    disk: SmallDisk, tmp_path: Path
) -> None:
    settings = SMALL | {"runtime.steps": 2, "runtime.eval_interval": 9}
    words = [f"{key}={value}" for key, value in settings.items() if key != "tracker"]
    folder = disk.folder / "run"
    done = train(*words, "tracker=none", f"hydra.run.dir={folder}", cwd=tmp_path, program="train.py")
    assert done.returncode == 1
    assert "could not be written: the " in done.stderr.splitlines()[-1]
    assert done.stderr.endswith(f"then go on with resume={folder}\n")
    assert "Traceback" not in done.stderr
    disk.grow()
    assert train(f"resume={folder}", cwd=tmp_path, program="train.py").returncode == 0
    assert json.loads((folder / "heartbeat.json").read_text())["phase"] == "done"
    straight = tmp_path / "straight"
    straight.mkdir()
    run(configs.run(settings), straight, [])
    assert metrics(folder) == metrics(straight)
    assert same(adapter(folder), adapter(straight))


def test_a_kill_at_any_move_of_replacing_a_folder_leaves_the_old_one_or_the_new_one_whole(tmp_path: Path) -> None:
    found = []
    for last in range(1, 80):
        target = tmp_path / str(last) / "checkpoints/step_000001"
        write_folder(target, lambda aside: write_text(aside / "content", "old"))
        done = killed_at(last, lambda: write_folder(target, lambda aside: write_text(aside / "content", "new")))  # noqa: B023
        recover(tmp_path / str(last))
        assert checkpoint.damage(target) is None
        assert [path.name for path in target.parent.iterdir()] == ["step_000001"]
        found.append((target / "content").read_text())
        if done:
            break
    assert found == sorted(found, reverse=True), "once the new one is there, it stays"
    assert {"old", "new"} == set(found)


def test_a_kill_at_any_move_of_pruning_leaves_only_whole_checkpoints(tmp_path: Path) -> None:
    for last in range(1, 80):
        folder = tmp_path / str(last)
        for step in (1, 2, 3):
            write_folder(folder / f"checkpoints/step_{step:06d}", lambda aside: write_text(aside / "content", "x"))
        done = killed_at(last, lambda: prune(folder / "checkpoints", keep=1))  # noqa: B023
        recover(folder)
        left = sorted((folder / "checkpoints").iterdir())
        assert all(checkpoint.damage(path) is None for path in left)
        assert left[-1].name == "step_000003"
        if done:
            assert len(left) == 1
            return
    raise AssertionError("it never came to its end")


def killed_at(last: int, work: Callable[[], None]) -> bool:
    """Do `work` in a child process that is killed at its `last`-th call into the file system; False if it was."""
    child = os.fork()
    if child == 0:
        audit.kill_at(last)
        work()
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_remains_of_a_killed_process_are_cleared_at_the_next_start(tmp_path: Path) -> None:
    for name in ("checkpoints/.step_000002.part/adapter", ".adapter.part", "checkpoints/.step_000001.gone", "images"):
        (tmp_path / name).mkdir(parents=True)
    for name in (".config.yaml.part", ".heartbeat.json.part", "images/abc.12.tmp"):
        (tmp_path / name).write_text("half")
    write_folder(tmp_path / "adapter", lambda aside: write_text(aside / "content", "x"))
    (tmp_path / "adapter").rename(tmp_path / ".adapter.old")
    recover(tmp_path)
    assert sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*")) == [
        "adapter",
        "adapter/DONE",
        "adapter/content",
        "checkpoints",
        "images",
    ]


def test_the_heartbeat_says_the_phase_and_a_failure_keeps_its_step(tmp_path: Path) -> None:
    heartbeat.beat(tmp_path, "saving", 7)
    beaten = json.loads((tmp_path / "heartbeat.json").read_text())
    assert (beaten["phase"], beaten["step"], beaten["pid"]) == ("saving", 7, os.getpid())
    assert datetime.fromisoformat(beaten["time"]).tzinfo is not None
    heartbeat.beat_failed(tmp_path)
    beaten = json.loads((tmp_path / "heartbeat.json").read_text())
    assert (beaten["phase"], beaten["step"]) == ("failed", 7)


def test_a_slow_save_says_that_it_is_saving(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []

    def slow(folder: Path, *rest: object, **settings: object) -> None:
        seen.append(json.loads((folder / "heartbeat.json").read_text())["phase"])

    monkeypatch.setattr("grpo.engines.local.save_checkpoint", slow)
    run(configs.run(SMALL | {"runtime.steps": 1}), tmp_path, [])
    assert seen == ["saving"]
    assert json.loads((tmp_path / "heartbeat.json").read_text())["phase"] == "done"
