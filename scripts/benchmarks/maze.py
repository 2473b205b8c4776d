"""maze_2d against VisGym's own: resets, steps with their frame, whole expert episodes, 9x9 at 225x225 pixels.

Ours draws a frame once and shares it afterwards, so steps are measured twice: on mazes never seen before along ways
that never return, where every frame must be drawn, and on a random walk in one maze, where most have been.
"""

from __future__ import annotations

import argparse
import json
import random
import tempfile
from collections.abc import Mapping
from pathlib import Path
from statistics import median

from envs import maze_2d
from grpo.config import build_env
from grpo.interfaces import Env, Episode
from grpo.types import Task
from scripts.benchmarks.configured import configured
from scripts.benchmarks.measure import Result, Stopwatch, checked, faster, run_command
from scripts.benchmarks.paths import PEERS

MEASURES = (
    ("reset", "reset, new maze, with its frame", "resets", None),
    ("new_steps", "step, its frame drawn anew", "steps", 20.0),
    ("walk_steps", "step on a random walk (frames reused)", "steps", 20.0),
    ("episodes", "whole expert episode, new maze", "episodes", 10.0),
)
"""(key, name, what is counted, goal of the ratio)."""

WARM_UP = 100
"""Mazes; more than ours remembers pictures of, so that memory is given back and taken again as in a long run."""

HOW_TO = (
    "python -m venv VENV && VENV/bin/pip install numpy pygame cloudpickle typing-extensions farama-notifications; then "
    "--visgym CHECKOUT --visgym-python VENV/bin/python (CHECKOUT: github.com/visgym/VisGym)"
)


def measure(options: argparse.Namespace) -> Result:
    env = build_env(configured(["env=maze_2d_easy"]))
    runs, drawn = [], {}
    ours(env, WARM_UP, first_seed=10**9)
    for repeat in range(options.repeats):
        rates, drawn = ours(env, options.mazes, first_seed=4 * repeat * options.mazes)
        runs.append(rates)
    peers = visgym(options) if options.visgym else []
    figures = []
    for key, name, unit, goal in MEASURES:
        peer = median(run[key] for run in peers) if peers else None
        figures.append(faster(name, f"{unit} / CPU s", median(run[key] for run in runs), peer, goal))
    anew, walked = drawn["new_steps"], drawn["walk_steps"]
    remarks = [f"frames drawn: {anew:.0%} of the steps drawn anew, {walked:.2%} of the random walk's"]
    if not peers:
        remarks.append(f"without VisGym; to compare: {HOW_TO}")
    return Result(
        name="maze",
        peer="VisGym maze_2d",
        figures=tuple(figures),
        details={"mazes": options.mazes, "frames_drawn_per_step": drawn, "ours": runs, "visgym": peers},
        remarks=tuple(remarks),
    )


def ours(env: Env, count: int, first_seed: int) -> tuple[dict[str, float], dict[str, float]]:
    """Events per CPU second, and frames drawn per step; `count` new mazes for each kind of event."""
    blocks = [[_task(first_seed + block * count + index) for index in range(count)] for block in range(3)]
    rates, drawn = {}, {}

    watch = Stopwatch()
    for task in blocks[0]:
        env.episode(task).observe()
    rates["reset"] = count / watch.spent().cpu

    rates["new_steps"], drawn["new_steps"] = _steps_on_new_mazes(env, blocks[1])

    rng = random.Random(0)
    moves = [rng.choice(env.expert_replies[:4]) for _ in range(100 * count)]
    episode = env.episode(blocks[1][0])
    seconds, frames = _walk(episode, moves)
    rates["walk_steps"], drawn["walk_steps"] = len(moves) / seconds, frames / len(moves)

    watch = Stopwatch()
    for task in blocks[2]:
        _play_expert(env.episode(task))
    rates["episodes"] = count / watch.spent().cpu
    return rates, drawn


def _steps_on_new_mazes(env: Env, tasks: list[Task]) -> tuple[float, float]:
    """Steps a second, and frames drawn per step."""
    seconds, steps, frames = 0.0, 0, 0
    for task in tasks:
        moves = _expert_moves(env.episode(task))
        episode = env.episode(task)
        episode.observe()
        spent, drawn = _walk(episode, moves)
        seconds, steps, frames = seconds + spent, steps + len(moves), frames + drawn
    return steps / seconds, frames / steps


def _walk(episode: Episode, moves: list[str]) -> tuple[float, int]:
    """CPU seconds, and how many frames were new: each drawing makes an array of its own, which is held here."""
    shown = {}
    watch = Stopwatch()
    for move in moves:
        episode.act(move)
        frame = episode.observe().images[0]
        shown[id(frame)] = frame
    return watch.spent().cpu, len(shown)


def _expert_moves(episode: Episode) -> list[str]:
    """The moves of a shortest way, found without looking at a frame."""
    moves = []
    while (reply := episode.expert()) != maze_2d.Maze2D.expert_replies[-1]:
        assert reply is not None
        moves.append(reply)
        episode.act(reply)
    return moves


def _play_expert(episode: Episode) -> None:
    episode.observe()
    while True:
        reply = episode.expert()
        assert reply is not None
        outcome = episode.act(reply)
        if outcome.done:
            break
        episode.observe()
    assert outcome.solved


def _task(seed: int) -> Task:
    return Task(id=f"benchmark/{seed}", split="train", seed=seed, data={})


def visgym(options: argparse.Namespace) -> list[Mapping[str, float]]:
    """The same rates of VisGym's maze_2d, one mapping a repeat. Raises RuntimeError if its process fails."""
    with tempfile.TemporaryDirectory() as scratch:
        result = Path(scratch) / "result.json"
        script = PEERS / "visgym_maze.py"
        words = [
            options.visgym_python,
            str(script),
            str(max(50, options.mazes // 5)),
            str(result),
            str(options.repeats),
        ]
        finished = run_command(words, folder=Path(scratch), environment={"PYTHONPATH": str(options.visgym.resolve())})
        checked(finished, f"VisGym under {options.visgym_python} (needed: {HOW_TO})")
        return json.loads(result.read_text())
