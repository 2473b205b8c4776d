from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import configs
import pytest
from safetensors.numpy import load_file, save_file
from test_local_engine import SMALL

from grpo import config
from grpo.reproduce import Difference, MetricDifference, differences, metric_differences
from grpo.rerun import changes, compare
from grpo.run import run


def test_differences_have_the_full_key_and_both_values() -> None:
    old = {"commit": "a", "packages": {"torch": "2.12", "peft": "0.18.1"}}
    new = {"commit": "a", "packages": {"torch": "2.13", "peft": "0.18.1", "numpy": "2.4"}}
    assert differences(old, new) == [
        Difference(key="packages.numpy", old=None, new="2.4"),
        Difference(key="packages.torch", old="2.12", new="2.13"),
    ]


def test_metrics_are_compared_step_by_step_and_times_are_not() -> None:
    old = [{"step": 0, "a": 1.0}, {"step": 1, "a": 2.0, "perf/step_seconds": 3.0}]
    new = [{"step": 0, "a": 1.0}, {"step": 1, "a": 2.5, "perf/step_seconds": 9.0}, {"step": 2, "a": 3.0}]
    found = list(metric_differences(old, new))
    assert found[0] == MetricDifference(step=1, name="a", old=2.0, new=2.5)
    assert [(each.step, each.name, each.old) for each in found[1:]] == [(2, "a", None), (2, "step", None)]
    assert [each.size for each in found[:2]] == [0.5, float("inf")]


def test_identical_metrics_have_no_difference() -> None:
    same = [{"step": 0, "a": 1.0}]
    assert list(metric_differences(same, same)) == []


def reproduce(*words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(configs.ROOT / "scripts/reproduce.py"), *words]
    path = os.pathsep.join([str(configs.ROOT), str(configs.ROOT / "launchers/plugin")])
    environment = {**os.environ, "PYTHONPATH": path, "COLUMNS": "200"}
    return subprocess.run(command, capture_output=True, text=True, env=environment, timeout=300)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("old")
    run(configs.run(SMALL), made, [])
    return made


def test_a_run_is_reproduced_bit_for_bit_into_a_folder_that_names_it(folder: Path, tmp_path: Path) -> None:
    done = reproduce(str(folder), "--output", str(tmp_path / "new"))
    assert "identical: every metric of every step" in done.stdout, done.stdout + done.stderr
    assert done.returncode == 0
    assert json.loads((tmp_path / "new" / "run.json").read_text())["reproduces"] == str(folder)
    assert config.load(tmp_path / "new") == config.load(folder)


def test_another_reward_code_is_named_and_refused_when_strict(folder: Path, tmp_path: Path) -> None:
    record = json.loads((folder / "run.json").read_text())
    changed = tmp_path / "changed"
    changed.mkdir()
    (changed / "config.yaml").write_text((folder / "config.yaml").read_text())
    record["code_hashes"]["task_success"] = "0" * 64
    (changed / "run.json").write_text(json.dumps(record))
    done = reproduce(str(changed), "--strict")
    assert done.returncode == 2
    assert "code_hashes.task_success" in done.stdout
    assert "nothing was run" in done.stderr
    assert reproduce(str(changed), "--check").returncode == 1


def test_a_folder_that_holds_no_run_is_refused(tmp_path: Path) -> None:
    done = reproduce(str(tmp_path))
    assert (done.returncode, "is no run folder: it has no config.yaml" in done.stderr) == (2, True)


def copied(
    folder: Path, target: Path, *, record: dict[str, Any] | None = None, edit: tuple[str, str] = ("", "")
) -> Path:
    """The run's config and record alone, changed."""
    target.mkdir()
    text = (folder / "config.yaml").read_text()
    assert edit[0] in text
    (target / "config.yaml").write_text(text.replace(*edit))
    old = json.loads((folder / "run.json").read_text())
    (target / "run.json").write_text(json.dumps(old | (record or {})))
    return target


def test_everything_that_a_run_is_made_from_is_compared(folder: Path, tmp_path: Path) -> None:
    old = json.loads((folder / "run.json").read_text())
    older = {
        "commit": "0" * 40,
        "dirty_diff": "diff --git a/x",
        "untracked": {"rewards/mine.py": "1"},
        "packages": old["packages"] | {"torch": "1.0"},
        "image_digest": "sha256:2",
        "base": old["base"] | {"content": "3", "tokenizer": "4", "processor": "5", "chat_template": "6"},
        "code_hashes": old["code_hashes"] | {"env": "7", "task_success": "8"},
        "data_version": "9",
        "reproduces": "said later, so not compared",
    }
    found = {each.key: each.old for each in changes(copied(folder, tmp_path / "older", record=older))}
    assert found == {
        "commit": "0" * 40,
        "dirty_diff": "diff --git a/x",
        "untracked.rewards/mine.py": "1",
        "packages.torch": "1.0",
        "image_digest": "sha256:2",
        "base.content": "3",
        "base.tokenizer": "4",
        "base.processor": "5",
        "base.chat_template": "6",
        "code_hashes.env": "7",
        "code_hashes.task_success": "8",
        "data_version": "9",
    } | {key: value for key, value in found.items() if key.startswith("untracked.")}
    assert {each.key: each.new for each in changes(folder)} == {}


def test_a_reward_that_moved_is_listed_and_nothing_is_run(folder: Path, tmp_path: Path) -> None:
    moved = copied(folder, tmp_path / "moved", edit=("rewards.task_success", "rewards.elsewhere"))
    done = reproduce(str(moved))
    assert (done.returncode, "Traceback" in done.stderr) == (2, False)
    assert "reward.terms.task_success._target_" in done.stdout
    assert "rewards.elsewhere.TaskSuccess" in done.stdout
    assert "cannot be run again as it is" in done.stderr


def test_a_key_that_is_no_longer_read_and_a_lost_record_are_listed(folder: Path, tmp_path: Path) -> None:
    lost = copied(folder, tmp_path / "lost", edit=("group_size:", "replies:"))
    (lost / "run.json").unlink()
    assert [each.key for each in changes(lost)] == ["algorithm.group_size", "algorithm.replies", "run.json"]


def cut(folder: Path, target: Path, *, lines: int) -> Path:
    """The run as a crash in step `lines` would have left it."""
    shutil.copytree(folder, target)
    shutil.rmtree(target / "adapter")
    kept = (target / "metrics.jsonl").read_text().splitlines(keepends=True)
    (target / "metrics.jsonl").write_text("".join(kept[:lines]) + '{"step": ')
    return target


def test_of_a_crashed_run_the_steps_that_it_has_are_compared(folder: Path, tmp_path: Path) -> None:
    found = compare(cut(folder, tmp_path / "crashed", lines=2), folder)
    assert (found.last_step, found.steps, found.identical, found.same_adapter) == (1, 3, True, None)
    assert compare(cut(folder, tmp_path / "at_once", lines=0), folder).last_step is None


def test_the_first_differing_step_and_metric_are_found_and_by_how_much(folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder, tmp_path / "other")
    records = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    records[2]["rollout/solved"] += 0.25
    (tmp_path / "other" / "metrics.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    found = compare(folder, tmp_path / "other")
    (only,) = found.differences
    assert (only.step, only.name, only.size) == (2, "rollout/solved", 0.25)
    assert (found.same_adapter, found.identical) == (True, False)


def test_another_adapter_after_the_same_metrics_is_a_difference(folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder, tmp_path / "other")
    file = tmp_path / "other" / "adapter" / "adapter_model.safetensors"
    save_file({name: tensor + 1 for name, tensor in load_file(file).items()}, file)
    found = compare(folder, tmp_path / "other")
    assert (found.differences, found.same_adapter, found.identical) == ((), False, False)
