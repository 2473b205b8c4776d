"""The benchmark script on small sizes: what it compares must be the same work, and its figures must be figures."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from conftest import model

from envs.maze_2d import Maze2D
from grpo.conversation import Sampling
from grpo.policy import load_policy
from grpo.schema import NoAdapter
from scripts import benchmark
from scripts.benchmarks import maze, measure, plain_rollouts, rollouts, step

ROOT = Path(__file__).resolve().parents[1]


def test_help_names_every_benchmark() -> None:
    script = str(ROOT / "scripts" / "benchmark.py")
    shown = subprocess.run([sys.executable, script, "--help"], capture_output=True, text=True, check=True).stdout
    assert all(name in shown for name in ("rollouts", "step", "maze", "checkpoint", "startup", "train", "all"))


def test_the_maze_benchmark_gives_positive_figures_and_writes_them(tmp_path: Path) -> None:
    output = tmp_path / "figures.json"
    assert benchmark.main(["maze", "--mazes", "5", "--repeats", "1", "--output", str(output)]) == 0
    written = json.loads(output.read_text())
    figures = written["results"][0]["figures"]
    assert [figure["unit"] for figure in figures] == [
        f"{what} / CPU s" for what in ("resets", "steps", "steps", "episodes")
    ]
    assert all(figure["ours"] > 0 for figure in figures)
    assert written["machine"]["cores"] >= 1


def test_every_reward_term_of_text_is_measured(tmp_path: Path) -> None:
    output = tmp_path / "figures.json"
    assert benchmark.main(["rewards", "--evaluations", "50", "--repeats", "1", "--output", str(output)]) == 0
    figures = json.loads(output.read_text())["results"][0]["figures"]
    assert len(figures) == 14
    assert all(figure["ours"] > 0 for figure in figures)


@pytest.mark.slow
def test_a_manifest_is_trained_on_from_nothing_and_read_faster_the_second_time(tmp_path: Path) -> None:
    output = tmp_path / "figures.json"
    assert benchmark.main(["manifest", "--rows", "20000", "--output", str(output)]) == 0
    details = json.loads(output.read_text())["results"][0]["details"]
    assert details["again"][1] < details["first"][1]


def test_every_step_on_a_new_maze_draws_a_frame_and_a_random_walk_draws_few() -> None:
    env = Maze2D(size=9, max_turns=20, cell_pixels=25, aligned=False, random_rooms=0.0, instructions="full")
    _, drawn = maze.ours(env, 5, first_seed=0)
    # A 9x9 maze is a tree of 16 rooms and the 15 passages between them: no more than 31 frames in 500 steps.
    assert drawn["new_steps"] == 1.0
    assert drawn["walk_steps"] <= 31 / 500


@pytest.mark.parametrize(("greedy", "siblings"), [(True, 1), (False, 3)])
def test_kept_cache_and_whole_history_play_the_same_episodes(greedy: bool, siblings: int) -> None:
    env = Maze2D(size=7, max_turns=4, cell_pixels=16, aligned=True, random_rooms=0.0, instructions="brief")
    policy = load_policy(model(), NoAdapter(type="none"), device=torch.device("cpu"), seed=0)
    work = {
        "siblings": siblings,
        "sampling": Sampling(temperature=1.0, greedy=greedy, max_completion_tokens=12),
        "purpose": ("test",),
    }
    kept = rollouts.play_kept(policy, env, env.tasks("test", 3, seed=0), **work)
    plain = plain_rollouts.play_plain(policy, env, env.tasks("test", 3, seed=0), **work)
    assert kept.actions == plain.actions
    assert kept.token_ids == plain.token_ids
    assert kept.tokens == plain.tokens > 0
    assert all(seconds > 0 for seconds in plain.parts.values())


def test_sides_that_played_other_episodes_are_not_compared() -> None:
    def played(*actions: list[str | None]) -> measure.Played:
        spent = measure.Spent(wall=1.0, cpu=1.0)
        return measure.Played(actions=actions, token_ids=[[1] for _ in actions], tokens=3, spent=spent, parts={})

    runs = {"ours": [played(["left"], ["up"])], "plain": [played(["left"], ["down"])]}
    with pytest.raises(RuntimeError, match="greedy: 1 of 2 episodes with the same actions"):
        rollouts.agreement("greedy", runs, 0.0)
    assert rollouts.agreement("sampled", runs, 0.5).endswith("2 turns, 3 tokens")


def test_a_step_is_measured_without_trl_and_says_how_to_get_it() -> None:
    sizes = [
        "env.max_turns=9",
        "algorithm.prompts_per_step=2",
        "algorithm.group_size=2",
        "algorithm.updates_per_step=1",
    ]
    words = [*sizes, "runtime.per_device_batch_size=4"]
    options = argparse.Namespace(model="models/tiny_qwen3_vl", words=words, steps=1, trl_python=None)
    result = step.measure(options)
    assert all(figure.ours > 0 for figure in result.figures)
    assert all(figure.ratio is None for figure in result.figures)
    assert "pip install trl==1.16.0" in result.remarks[0]


def test_visgym_without_its_interpreter_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as refused:
        benchmark.main(["maze", "--visgym", "somewhere"])
    assert refused.value.code == 2
    assert "--visgym-python" in capsys.readouterr().err


def test_a_rate_and_a_duration_are_both_better_with_a_larger_ratio() -> None:
    assert measure.faster("", "steps / s", 60.0, 20.0).ratio == 3.0
    assert measure.shorter("", "s", 20.0, 60.0).ratio == 3.0


def test_a_goal_is_met_at_its_bound_and_open_without_a_peer() -> None:
    assert measure.faster("", "", 24.0, 2.0, goal=12).goal == measure.at_least(12)
    goal = measure.at_least(12)
    assert goal.met(measure.faster("", "", 24.0, 2.0)) is True
    assert goal.met(measure.faster("", "", 23.9, 2.0)) is False
    assert goal.met(measure.faster("", "", 24.0, None)) is None
    limit = measure.Goal(of="ours", sense="at most", value=3.5)
    assert limit.met(measure.alone("", "GiB", 3.6)) is False


def test_a_command_is_measured_with_its_exit_code_and_output(tmp_path: Path) -> None:
    program = "import sys; print('said'); x = bytearray(50 * 2**20); sys.exit(3)"
    finished = measure.run_command([sys.executable, "-c", program], folder=tmp_path)
    assert finished.exit_code == 3
    assert finished.output == "said\n"
    assert 50 / 1024 < finished.peak_gib < 1
    with pytest.raises(RuntimeError, match="exit code 3:\nsaid"):
        measure.checked(finished, "the program")
