"""The command line in a process of its own: exit codes, refusals, folders, saved configs."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from configs import ROOT

from grpo import config


def train(*words: str, cwd: Path, program: str = "tests/stub_train.py") -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(ROOT / program), *words]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "200"}
    return subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=120)


def folders(where: Path) -> list[Path]:
    return sorted(path.parent for path in where.glob("outputs/**/config.yaml"))


def test_a_run_ends_with_0_and_leaves_its_config_and_its_words(tmp_path: Path) -> None:
    done = train("runtime.seed=7", "model.revision=695e0514", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    (folder,) = folders(tmp_path)
    assert folder.parent == tmp_path / "outputs/maze"
    assert (folder / "overrides.txt").read_text() == "runtime.seed=7\nmodel.revision=695e0514\n"
    assert config.load(folder).model.revision == "695e0514"
    assert sorted(path.name for path in folder.iterdir()) == ["config.yaml", "overrides.txt", "result.json"]


def test_a_crash_ends_with_1_and_its_traceback(tmp_path: Path) -> None:
    done = train("runtime.seed=3", cwd=tmp_path)
    assert done.returncode == 1
    assert done.stderr.endswith("RuntimeError: seed 3 is broken\n")


def test_a_refusal_ends_with_2_tells_all_faults_and_starts_nothing(tmp_path: Path) -> None:
    words = ["reward=maze_strickt", "+algorithm.grop_size=8", "runtime.steps=three", "adapter.target_modules=(q|v)"]
    done = train(*words, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert [line.split(":")[0] for line in done.stderr.removeprefix("config error: ").splitlines()] == [
        "adapter.target_modules",
        "reward",
        "algorithm.grop_size",
        "runtime.steps",
    ]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("words", [["-m", "adapter=none", "runtime.seed=0,1"], ["adapter=none"]])
def test_what_cannot_run_yet_ends_with_2_and_a_sentence(words: list[str], tmp_path: Path) -> None:
    done = train(*words, cwd=tmp_path)
    assert done.returncode == 2
    assert "can be composed and checked, but" in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_an_unreachable_goal_ends_with_2(tmp_path: Path) -> None:
    done = train("env.max_turns=5", cwd=tmp_path)
    assert done.returncode == 2
    assert "below the shortest possible solution" in done.stderr


def test_a_fault_in_a_yaml_file_is_told_like_one_on_the_command_line(tmp_path: Path) -> None:
    preset = tmp_path / "more/experiment/mine.yaml"
    preset.parent.mkdir(parents=True)
    preset.write_text("# @package _global_\nalgorithm:\n  grop_size: 8\n  group_size: on\nruntime:\n  seed: 012\n")
    done = train("--config-dir", "more", "experiment=mine", cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr.removeprefix("config error: ").splitlines() == [
        "algorithm.group_size: wants a whole number, got 'on'",
        "algorithm.grop_size: no such key; did you mean group_size?",
        "runtime.seed: wants a whole number, got '012'",
    ]
    preset.write_text("# @package _global_\nname: ${algorithm.grp}\n")
    done = train("--config-dir", "more", "experiment=mine", cwd=tmp_path)
    assert f"did you mean algorithm.group_size? (in {preset})" in done.stderr
    preset.write_text("a: [1\n")
    assert train("--config-dir", "more", "experiment=mine", cwd=tmp_path).returncode == 2


def test_a_saved_config_runs_again_in_a_new_folder_and_takes_single_keys(tmp_path: Path) -> None:
    train("name=first", "reward=maze_shaped", cwd=tmp_path)
    (first,) = folders(tmp_path)
    saved = ["--config-path", str(first.relative_to(tmp_path)), "--config-name", "config"]
    assert train(*saved, "runtime.seed=9", cwd=tmp_path).returncode == 0
    again = next(folder for folder in folders(tmp_path) if folder != first)
    assert again.parent == first.parent
    before, after = config.load(first).model_dump(), config.load(again).model_dump()
    assert {key for key in before if before[key] != after[key]} == {"runtime"}
    done = train(*saved, "algorithm.grop_size=8", "adapter=none", cwd=tmp_path)
    assert done.returncode == 2
    assert "algorithm.grop_size: no such key" in done.stderr
    assert "group options exist only in conf/" in done.stderr


def test_a_folder_that_holds_a_run_is_refused(tmp_path: Path) -> None:
    assert train("hydra.run.dir=here", cwd=tmp_path).returncode == 0
    done = train("hydra.run.dir=here", cwd=tmp_path)
    assert done.returncode == 2
    assert f"hydra.run.dir: {tmp_path}/here holds a run already" in done.stderr
    done = train("--config-path", "here", "--config-name", "config", "hydra.run.dir=here", cwd=tmp_path)
    assert done.returncode == 2


def test_of_runs_started_together_each_has_a_folder_or_is_refused(tmp_path: Path) -> None:
    command = [sys.executable, str(ROOT / "tests/stub_train.py")]
    own = [subprocess.Popen(command, cwd=tmp_path) for _ in range(3)]
    same = [subprocess.Popen([*command, "hydra.run.dir=same"], cwd=tmp_path, stderr=-3) for _ in range(3)]
    assert [process.wait() for process in own] == [0, 0, 0]
    assert sorted(process.wait() for process in same) == [0, 2, 2]
    assert len(folders(tmp_path)) == 3


def test_a_dry_run_shows_config_plan_and_ceiling_and_writes_nothing(tmp_path: Path) -> None:
    done = train("dry_run=true", "env.max_turns=12", cwd=tmp_path)
    assert done.returncode == 0
    shown = " ".join(done.stdout.split())
    assert "prompts_per_step: 16" in shown
    assert "rows a step │ 128" in shown
    assert "ceiling, validation: " in shown
    assert "warning: env.max_turns=12 lets only" in shown
    assert "would run: one run, engine=local, cluster=local" in shown
    assert list(tmp_path.iterdir()) == []


def test_a_dry_sweep_lists_its_trials(tmp_path: Path) -> None:
    done = train("-m", "algorithm.group_size=4,8", "adapter.rank=8,32", "dry_run=true", cwd=tmp_path)
    assert done.returncode == 0
    assert "algorithm.group_size=8 adapter.rank=32" in done.stdout
    assert "a sweep of 4 trials" in done.stdout
    assert list(tmp_path.iterdir()) == []


def test_a_dry_run_says_what_would_be_refused(tmp_path: Path) -> None:
    done = train("engine=skyrl", "dry_run=true", cwd=tmp_path)
    assert done.returncode == 0
    assert "would be refused: engine.name: engine=skyrl needs SkyRL" in done.stdout


def test_cfg_shows_the_composed_config(tmp_path: Path) -> None:
    done = train("--cfg", "job", "--package", "adapter", "adapter.rank=32", cwd=tmp_path, program="train.py")
    assert done.returncode == 0
    assert "rank: 32" in done.stdout


def test_help_lists_groups_and_every_option_with_what_it_is(tmp_path: Path) -> None:
    done = train("--help", cwd=tmp_path, program="train.py")
    assert done.returncode == 0
    assert " * algorithm=grpo " in done.stdout
    for option in ("reward=maze_strict", "cluster=hyperpod", "experiment=maze_laptop", "tracker=none"):
        assert option in done.stdout


def test_a_flag_that_does_not_exist_ends_with_2(tmp_path: Path) -> None:
    assert train("--flag", cwd=tmp_path, program="train.py").returncode == 2


def test_a_config_path_without_a_config_ends_with_2(tmp_path: Path) -> None:
    done = train("--config-path", "nowhere", "--config-name", "config", cwd=tmp_path)
    assert done.returncode == 2
    assert "--config-path wants a folder with config.yaml" in done.stderr
