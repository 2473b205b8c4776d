from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import configs
import pytest
from test_local_engine import SMALL

from grpo.reproduce import Difference, MetricDifference, differences, metric_differences
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
    assert (done.returncode, "cannot be reproduced" in done.stderr) == (2, True)
