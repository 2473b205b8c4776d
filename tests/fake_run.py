"""Builders of invented rollouts and of a whole run folder, seeded; nothing in them comes from a model."""

from __future__ import annotations

import json
import math
import random
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from PIL import Image, ImageDraw

from grpo.tracking import NullTracker, Row, RunLog, rollout_row
from grpo.types import Observation, Outcome, Rollout, Score, Split, StopReason, Task, TokenTrace, Transcript, Turn

TERMS = ("task_success", "answer_format", "action_validity")
KEYWORDS = {(0, 1): "right", (-1, 0): "up", (0, -1): "left", (1, 0): "down"}
CELLS = 7
PIXELS = 14

CONFIG: dict[str, Any] = {
    "name": "maze_laptop",
    "model": {"name_or_path": "assets/tiny", "revision": "695e0514", "dtype": "float32"},
    "adapter": {"type": "lora", "rank": 16, "alpha": 32, "dropout": 0.0},
    "algorithm": {
        "name": "grpo",
        "group_size": 4,
        "prompts_per_step": 2,
        "learning_rate": 0.001,
        "kl_coefficient": 0.02,
        "clip_low": 0.2,
        "clip_high": 0.2,
        "temperature": 1.0,
        "max_completion_tokens": 24,
    },
    "reward": {"terms": {name: {"_target_": f"rewards.{name}.Term", "weight": 0.5} for name in TERMS}, "gate": None},
    "env": {"_target_": "envs.maze_2d.Maze2D", "max_turns": 12},
    "engine": {"name": "local"},
    "cluster": {"name": "local"},
    "tracker": {"name": "none"},
    "runtime": {"seed": 7, "steps": 40, "eval_interval": 10, "eval_episodes": 64, "output_dir": "outputs"},
}


def maze_image(player: tuple[int, int], seed: int) -> np.ndarray:
    """uint8[98, 98, 3]: grey walls, white paths, a blue circle at `player` (row, column), a red square as the goal."""
    rng = random.Random(seed)
    image = Image.new("RGB", (CELLS * PIXELS, CELLS * PIXELS), (128, 128, 128))
    draw = ImageDraw.Draw(image)
    for row in range(1, CELLS - 1):
        for column in range(1, CELLS - 1):
            if row % 2 or column % 2 or rng.random() < 0.3:
                draw.rectangle(_box((row, column), 0), fill=(255, 255, 255))
    draw.rectangle(_box((CELLS - 2, CELLS - 2), 2), fill=(220, 30, 30))
    draw.ellipse(_box(player, 2), fill=(30, 60, 220))
    return np.asarray(image)


def _box(cell: tuple[int, int], margin: int) -> tuple[int, int, int, int]:
    top, left = cell[0] * PIXELS, cell[1] * PIXELS
    return left + margin, top + margin, left + PIXELS - 1 - margin, top + PIXELS - 1 - margin


def turn(
    *,
    reply: str = "<observation>goal right</observation><action>right</action>",
    action: str | None = "right",
    feedback: str = "You moved right.",
    images: tuple[np.ndarray, ...] = (),
    state: dict[str, Any] | None = None,
    solved: bool = False,
    done: bool = False,
    truncated: bool = False,
) -> Turn:
    return Turn(
        observation=Observation(text="You see a maze. Reach the red square.", images=images),
        state=state or {"player": [1, 1], "goal": [5, 5]},
        reply=reply,
        completion_tokens=12,
        truncated=truncated,
        outcome=Outcome(action=action, feedback=feedback, done=done, solved=solved),
    )


def rollout(
    *turns: Turn, task: str = "maze/train/0", split: Split = "train", sample: int = 0, stop: StopReason = "finished"
) -> Rollout:
    """A rollout whose token side is empty: logs and report never look at it."""
    empty = TokenTrace(
        token_ids=np.zeros(0, np.int64), action_mask=np.zeros(0, bool), logprobs=np.zeros(0, np.float32), images=()
    )
    transcript = Transcript(task=Task(id=task, split=split, seed=1, data={}), turns=turns, stop=stop, error=None)
    return Rollout(transcript=transcript, sample=sample, trace=empty, final_text=None, drift=0)


def played_row(step: int, *, task: int, sample: int, split: Split, skill: float, rng: random.Random) -> Row:
    """An episode that walks to the goal with probability `skill` a turn, as a row of the run log."""
    player, turns, solved = (1, 1), [], False
    while len(turns) < 12 and not solved:
        image = maze_image(player, seed=task)
        state = {"player": list(player), "goal": [5, 5]}
        if player == (5, 5):
            turns.append(
                turn(
                    reply="<action>stop</action>",
                    action="stop",
                    feedback="Stopped.",
                    images=(image,),
                    state=state,
                    solved=True,
                    done=True,
                )
            )
            solved = True
        elif rng.random() < skill:
            move = (0, 1) if player[1] < 5 else (1, 0)
            player = (player[0] + move[0], player[1] + move[1])
            reply = f"<observation>me {state['player']}, goal [5, 5]</observation><action>{KEYWORDS[move]}</action>"
            turns.append(
                turn(
                    reply=reply,
                    action=KEYWORDS[move],
                    feedback=f"You moved {KEYWORDS[move]}.",
                    images=(image,),
                    state=state,
                )
            )
        else:
            turns.append(
                turn(
                    reply="I think the way is",
                    action=None,
                    feedback="No action found in the reply.",
                    images=(image,),
                    state=state,
                    truncated=True,
                )
            )
    terms = {
        "task_success": float(solved),
        "answer_format": skill,
        "action_validity": None if rng.random() < 0.1 else skill,
    }
    played = rollout(
        *turns, task=f"maze/{split}/{task}", split=split, sample=sample, stop="finished" if solved else "turn_limit"
    )
    score = Score(total=0.8 * solved + 0.2 * skill, terms=terms)
    return rollout_row(
        step,
        played,
        score,
        rng.gauss(0, 1) if split == "train" else None,
        "#######\n#S    #\n#     #\n#    G#\n#######",
    )


def step_metrics(step: int, rng: random.Random) -> dict[str, float]:
    """The metrics of one training step, under their real names."""
    progress = 1 - math.exp(-step / 15)
    metrics = {"rollout/solved": 0.3 + 0.6 * progress + rng.gauss(0, 0.04)}
    for name in (*(f"reward/{term}" for term in TERMS), "reward/total"):
        metrics[f"{name}/mean"] = 0.35 + 0.55 * progress + rng.gauss(0, 0.03)
        metrics[f"{name}/std"] = 0.3 - 0.2 * progress
    metrics |= {
        "rollout/turns": 9 - 2 * progress + rng.gauss(0, 0.2),
        "rollout/completion_tokens": 180 - 60 * progress + rng.gauss(0, 5),
        "rollout/invalid_actions": max(0.0, 1.5 - 1.5 * progress),
        "rollout/truncated": max(0.0, 0.2 - 0.2 * progress),
        "rollout/errors": 0,
        "group/zero_gradient": min(1.0, 0.1 + 0.6 * progress),
        "group/distinct_tasks": 2,
        "policy/loss": rng.gauss(0, 0.02),
        "policy/kl": 0.0004 * step + abs(rng.gauss(0, 0.0005)),
        "policy/entropy": 1.1 - 0.7 * progress,
        "policy/clip_fraction": abs(rng.gauss(0.03, 0.01)),
        "policy/ratio_mean": 1 + rng.gauss(0, 0.002),
        "policy/grad_norm": abs(rng.gauss(0.8, 0.2)),
        "policy/learning_rate": 0.001 * min(1.0, step / 5),
        "perf/step_seconds": 4.4 + rng.gauss(0, 0.1),
        "perf/rollout_seconds": 2.5 + rng.gauss(0, 0.1),
        "perf/train_seconds": 1.8 + rng.gauss(0, 0.05),
        "perf/tokens_per_second": 1650 + rng.gauss(0, 30),
    }
    if 18 <= step <= 22:
        metrics["alarm/shaping_up_solved_flat"] = 1
    if step == 33:
        metrics["alarm/no_signal"] = 1
    return metrics


def eval_metrics(step: int) -> dict[str, float]:
    progress = 1 - math.exp(-step / 15)
    return {
        "eval/all/pass_at_1": round(64 * (0.3 + 0.65 * progress)) / 64,
        "eval/all/reward": 0.4 + 0.5 * progress,
        "eval/ceiling": 0.98,
    }


def build_run(folder: Path, *, steps: int = 40, seed: int = 0) -> Path:
    """A finished run of `steps` steps: every file that a real run folder has for the report."""
    folder.mkdir(parents=True, exist_ok=True)
    rng = random.Random(seed)
    log = RunLog(folder, NullTracker())
    (folder / "config.yaml").write_text(yaml.safe_dump(CONFIG, sort_keys=False), encoding="utf-8")
    for step in range(steps + 1):
        metrics = step_metrics(step, rng) if step else {}
        skill = 0.4 + 0.55 * step / steps
        if step % 10 == 0:
            metrics |= eval_metrics(step)
            log.rollouts(
                step,
                [
                    played_row(step, task=task, sample=0, split="validation", skill=skill, rng=rng)
                    for task in (100, 101)
                ],
            )
        if step and step % 4 == 0:
            log.rollouts(
                step, [played_row(step, task=step, sample=s, split="train", skill=skill, rng=rng) for s in range(4)]
            )
        log.step(step, metrics)
    run = {
        "commit": "6d2e1f9c0ffee",
        "dirty": False,
        "seed": 7,
        "packages": {"torch": "2.13.0", "transformers": "5.8.0"},
    }
    (folder / "run.json").write_text(json.dumps(run), encoding="utf-8")
    rows = [
        {
            "policy": policy,
            "decoding": decoding,
            "solved": solved,
            "low": solved - 0.06,
            "high": min(1.0, solved + 0.04),
            "episodes": 400,
            "reward": solved * 0.9,
            "terms": {"task_success": solved, "answer_format": 0.97, "action_validity": 0.99},
            "turns": 7.4,
            "invalid_actions": 0.31,
        }
        for policy, decoding, solved in (
            ("start", "greedy", 0.71),
            ("start", "T=1", 0.66),
            ("trained", "greedy", 0.96),
            ("trained", "T=1", 0.93),
        )
    ]
    summary = {"rows": rows, "seconds": 214.7, "tokens_per_second": 1643.2}
    (folder / "summary.json").write_text(json.dumps(summary), encoding="utf-8")
    return folder
