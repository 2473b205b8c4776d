"""Kill a real training at many places, resume it, and compare what comes out with a run that was never stopped.

    GRPO_KILL_POINTS=200 python -m pytest -s --timeout=0 tests/test_kill_points.py        prints the table

Half of the points are calls into the file system, counted, and half of those are in a save, so that saves are hit in
the middle of everything they do; the other half are moments. In every third point the resumed run is killed again.
Each run is a child of one warm parent, which has loaded the libraries and the model: a point takes a few seconds.
"""

from __future__ import annotations

import json
import os
import random
import signal
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from unittest import mock

import audit
import configs
import torch

import grpo.run
from grpo import checkpoint, lock, resume
from grpo.config import RunConfig, to_yaml
from grpo.policy import load_policy
from grpo.tracking import read_lines

STEPS, INTERVAL = 5, 2
PHASES = ("before the first sign", "starting", "evaluation", "rollouts", "update", "saving", "done")
SETTINGS = {
    "algorithm.prompts_per_step": 2,
    "algorithm.group_size": 4,
    "algorithm.updates_per_step": 1,
    "algorithm.warmup_steps": 0,
    "adapter.rank": 4,
    "runtime.steps": STEPS,
    "env.max_turns": 9,
    "reward.workers": 0,  # a process that each run would start anew, and that does not outlive it
    "runtime.per_device_batch_size": 8,
    "runtime.eval_interval": 5,
    "runtime.eval_episodes": 2,
    "runtime.test_episodes": 2,
    "runtime.checkpoint_interval": INTERVAL,
    "runtime.keep_checkpoints": 1,
    "engine.threads": 1,
    "tracker": {"name": "none"},
}


@dataclass(frozen=True, kw_only=True)
class Point:
    """One run that was killed and resumed."""

    phase: str
    """What its heartbeat said when it was killed."""
    resumed_after: int
    """Step of the checkpoint that the resumed run started from; 0: from the start."""
    lost: int
    """Steps that had been done and were done again."""
    kills: int
    differences: tuple[str, ...]
    """Files that are not those of the straight run; empty: identical."""


def measure(points: int, seed: int, scratch: Path) -> list[Point]:
    """Kill and resume `points` runs. Raises RuntimeError if one of them does not come to its end."""
    config = configs.run(SETTINGS)
    torch.set_num_threads(1)
    policy = load_policy(config.model, config.adapter, device=torch.device("cpu"), seed=config.runtime.seed)
    with mock.patch("grpo.run.load_policy", return_value=policy):
        straight = _prepared(scratch / "straight", config)
        started = time.monotonic()
        _finish(config, straight)
        seconds = time.monotonic() - started
        calls = _calls(_prepared(scratch / "counted", config), config)
        rng = random.Random(seed)
        return [
            _point(number, config, straight, scratch / str(number), rng, calls, seconds) for number in range(points)
        ]


def _point(
    number: int, config: RunConfig, straight: Path, folder: Path, rng: random.Random, calls: audit.Calls, seconds: float
) -> Point:
    _prepared(folder, config)
    counted = rng.randint(1, calls.total) if number % 4 == 1 else rng.choice(calls.saving)
    at = counted if number % 2 else rng.uniform(0, seconds)
    _killed(config, folder, at)
    phase = _phase(folder)
    logged, kept = _last_step(folder), resume.steps_done(folder)
    kills = 1
    if number % 3 == 0 and not (folder / "result.json").exists():
        _killed(config, folder, rng.randint(1, calls.total // 2) if rng.random() < 0.5 else rng.uniform(0, seconds / 2))
        kills += 1
        again = resume.steps_done(folder)
        if again < kept:
            raise RuntimeError(f"{folder}: the second kill took the checkpoint of step {kept}; {again} is left")
    if not (folder / "result.json").exists():
        _finish(config, folder)
    return Point(
        phase=phase, resumed_after=kept, lost=max(0, logged - kept), kills=kills, differences=_compare(straight, folder)
    )


def _prepared(folder: Path, config: RunConfig) -> Path:
    """As train.py leaves it before it loads torch."""
    folder.mkdir(parents=True)
    (folder / "config.yaml").write_text(to_yaml(config))
    return folder


def _train(config: RunConfig, folder: Path) -> None:
    """Start the run, or resume it if a process has been in its folder, under the rules and the lock of the command."""
    again = (folder / lock.LOCK).exists()
    now = config.model_copy(update={"resume": str(folder)}) if again else config
    faults = resume.faults(folder, now) if again else []
    if faults:
        raise RuntimeError(str(faults))
    with lock.held(folder):
        grpo.run.run(now, folder, [])


def _child(work: Callable[[], None]) -> int:
    """Process id of a child that does `work` and says nothing."""
    child = os.fork()
    if child:
        return child
    code = 1
    try:
        silent = os.open(os.devnull, os.O_WRONLY)
        os.dup2(silent, 1)
        os.dup2(silent, 2)
        work()
        code = 0
    finally:
        os._exit(code)


def _finish(config: RunConfig, folder: Path) -> None:
    child = _child(lambda: _train(config, folder))
    if os.waitpid(child, 0)[1] != 0:
        raise RuntimeError(f"{folder} did not come to its end; see its train.log")


def _killed(config: RunConfig, folder: Path, at: float) -> None:
    """Run until the `at`-th call into the file system (a whole number), or for `at` seconds."""

    def counted() -> None:
        audit.kill_at(int(at))
        _train(config, folder)

    if isinstance(at, int):
        os.waitpid(_child(counted), 0)
        return
    child = _child(lambda: _train(config, folder))
    time.sleep(at)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)


def _calls(folder: Path, config: RunConfig) -> audit.Calls:
    """The calls into the file system that a straight run makes."""
    reader, writer = os.pipe()

    def work() -> None:
        calls = audit.counted()
        _train(config, folder)
        os.write(writer, json.dumps([calls.total, calls.saving]).encode())

    child = _child(work)
    os.close(writer)
    with os.fdopen(reader) as pipe:
        total, saving = json.loads(pipe.read())
    os.waitpid(child, 0)
    return audit.Calls(total=total, saving=saving)


def _phase(folder: Path) -> str:
    path = folder / "heartbeat.json"
    return json.loads(path.read_text())["phase"] if path.exists() else "before the first sign"


def _last_step(folder: Path) -> int:
    path = folder / "metrics.jsonl"
    return max((int(record["step"]) for record in read_lines(path)), default=0) if path.exists() else 0


def _compare(straight: Path, folder: Path) -> tuple[str, ...]:
    """The files that differ between two finished runs; what a clock says is left out."""
    newest = f"checkpoints/step_{STEPS:06d}"
    same_bytes = ("rollouts.jsonl", "config.yaml", "result.json", "adapter/adapter_model.safetensors")
    same_bytes += (f"{newest}/adapter/adapter_model.safetensors", f"{newest}/optimizer.safetensors")
    wrong = [name for name in same_bytes if (straight / name).read_bytes() != (folder / name).read_bytes()]
    if _untimed(straight / "metrics.jsonl") != _untimed(folder / "metrics.jsonl"):
        wrong.append("metrics.jsonl")
    rows = [json.loads((each / "summary.json").read_text())["rows"] for each in (straight, folder)]
    if rows[0] != rows[1]:
        wrong.append("summary.json")
    for name in (newest, "adapter"):
        if checkpoint.damage(folder / name) is not None:
            wrong.append(name)
    left = [path.name for path in folder.rglob(".*")]
    return (*wrong, *left)


def _untimed(path: Path) -> list[dict[str, float]]:
    return [{name: v for name, v in record.items() if not name.startswith("perf/")} for record in read_lines(path)]


def table(points: Sequence[Point]) -> str:
    """Markdown: a line for each phase in which a kill fell."""
    lines = ["| killed while | points | killed twice | resumed after step | steps lost | differences |"]
    lines.append("|---|---|---|---|---|---|")
    for phase in dict.fromkeys((*PHASES, *(point.phase for point in points))):
        lines += [_row(phase, chosen)] if (chosen := [point for point in points if point.phase == phase]) else []
    return "\n".join([*lines, _row("all", points)])


def _row(phase: str, points: Sequence[Point]) -> str:
    def counted(values: Sequence[int]) -> str:
        return ", ".join(f"{value}: {count}x" for value, count in sorted(Counter(values).items()))

    twice = sum(point.kills > 1 for point in points)
    after, lost = (counted([getattr(point, name) for point in points]) for name in ("resumed_after", "lost"))
    different = sum(bool(point.differences) for point in points)
    return f"| {phase} | {len(points)} | {twice} | {after} | {lost} | {different} |"
