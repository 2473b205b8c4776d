"""One run: its folder, its parts, its engine, and what is left at the end."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import torch

from grpo import base, pair, provenance, report, resume
from grpo.checkpoint import latest_checkpoint, load_checkpoint, reached, recover, save_final_adapter
from grpo.config import RunConfig, build_env, build_rewards, to_yaml
from grpo.console import Console
from grpo.engines import local
from grpo.engines.given import Given
from grpo.evaluate import evaluate, held_out
from grpo.evaluation import Evaluation
from grpo.faults import ConfigError, Fault
from grpo.files import write_json, write_text, writing
from grpo.heartbeat import beat, beat_failed
from grpo.mirror import mirrored
from grpo.policy import load_policy
from grpo.provenance import RUN_FILE
from grpo.reward import Mixture, make_mixture
from grpo.tracking import METRICS_FILE, RunLog, make_tracker, read_lines

log = logging.getLogger(__name__)

Closing = Sequence[tuple[str, str, Evaluation]]
"""(policy, decoding, result) on the test split."""


def run(config: RunConfig, folder: Path, overrides: Sequence[str]) -> float:
    """Train as configured, in `folder`; returns the last eval/all/pass_at_1 (greedy, validation tasks)."""
    console = Console(config.runtime.steps)
    with console.logging_to(folder / "train.log"), mirrored(config, folder):
        try:
            # Its worker processes start while the model is loaded.
            with closing(make_mixture(config.reward, build_rewards(config))) as mixture:
                return _run(config, folder, overrides, console, mixture)
        except BaseException:
            # Into train.log; the terminal gets it from whoever called.
            log.exception("the run ended early")
            beat_failed(folder)
            raise


def _run(config: RunConfig, folder: Path, overrides: Sequence[str], console: Console, mixture: Mixture) -> float:
    start = time.monotonic()
    env = build_env(config)
    _enter(config, folder, overrides)
    tracker = make_tracker(config.tracker)
    given = Given(
        run=config,
        env=env,
        mixture=mixture,
        folder=folder,
        made_from=_made_from(config, folder),
        log=RunLog(folder, tracker),
        console=console,
    )
    log.info("run folder: %s", folder)
    train = _local(given) if config.engine.name == "local" else _skyrl(given)
    tracker.start(folder=str(folder), name=f"{config.name}/{folder.name}", config=config.model_dump(by_alias=True))
    exit_code = 1
    try:
        objective, results = train()
        rows = [_row(*each) for each in results]
        exit_code = 0
    finally:
        tracker.finish(exit_code)
    seconds = time.monotonic() - start
    summary = {"rows": rows, "seconds": seconds, "tokens_per_second": _tokens_per_second(folder)}
    with writing("result", folder / "result.json", folder):
        write_json(folder / "summary.json", summary)
        _report(folder)
        # Last: with it the run is finished, and whatever a kill left undone before it is made up by a resume.
        write_json(folder / "result.json", {"objective": objective})
    console.closing_table(summary)
    beat(folder, "done", config.runtime.steps)
    log.info("run folder: %s", folder)
    return objective


def _enter(config: RunConfig, folder: Path, overrides: Sequence[str]) -> None:
    """Make the folder ready: clear away what a killed process left, and write down what the run is made from."""
    recover(folder)
    beat(folder, "starting", resume.steps_done(folder))
    with writing("config", folder / "config.yaml", folder):
        if config.resume is not None:
            resume.enter(folder, config)
            return
        write_text(folder / "config.yaml", to_yaml(config))
        write_text(folder / "overrides.txt", "".join(f"{word}\n" for word in overrides))
        record = provenance.of_run(config)
        write_json(folder / RUN_FILE, record)
        if record["commit"] is None:
            log.warning("run.json names no commit: git does not answer here, so nothing says which code this run is of")


def _made_from(config: RunConfig, folder: Path) -> dict[str, Any]:
    """run.json, completed by what is known of a base from the hub only once it is downloaded.

    Raises ConfigError if a resumed run got another base than it was started on.
    """
    record: dict[str, Any] = json.loads((folder / RUN_FILE).read_text())
    now = base.describe(config.model)
    recorded = record.get("base", {})
    faults = [
        Fault(key="model", problem=f"the {each.part} was {each.recorded} when the run started, now {each.now}")
        for each in pair.mismatches(recorded, now)
    ]
    if faults:
        raise ConfigError(faults)
    if recorded.get("content") is None:
        record["base"] = asdict(now)
        write_json(folder / RUN_FILE, record)
    return record


def _local(given: Given) -> Callable[[], tuple[float, Closing]]:
    """Everything loaded, up to the steps that are left."""
    run, folder, engine = given.run, given.folder, given.run.engine
    assert engine.name == "local"
    if engine.threads is not None:
        torch.set_num_threads(engine.threads)
    policy = load_policy(run.model, run.adapter, device=_device(engine.device), seed=run.runtime.seed)
    optimizer = local.make_optimizer(policy, run)
    parts = local.Parts(
        run=run,
        env=given.env,
        mixture=given.mixture,
        policy=policy,
        optimizer=optimizer,
        folder=folder,
        made_from=given.made_from,
        log=given.log,
        console=given.console,
    )
    newest = latest_checkpoint(folder) if run.resume is not None else None
    step = None if newest is None else load_checkpoint(newest, policy, optimizer)
    history = _history(given, newest, step)

    def train() -> tuple[float, Closing]:
        objective = local.train(parts, history)[local.OBJECTIVE]
        *_, last = read_lines(folder / METRICS_FILE)
        metrics = {name: value for name, value in last.items() if name != "step"}
        save_final_adapter(folder, policy, pair.record(given.made_from, run, int(last["step"]), metrics))
        beat(folder, "evaluation", run.runtime.steps)
        return objective, _final_evaluations(parts)

    return train


def _skyrl(given: Given) -> Callable[[], tuple[float, Closing]]:
    """The same for SkyRL, which loads everything itself."""
    from grpo.engines import skyrl_run

    newest = latest_checkpoint(given.folder) if given.run.resume is not None else None
    step = None if newest is None else reached(newest)
    return partial(skyrl_run.train, given, _history(given, newest, step), newest)


def _report(folder: Path) -> None:
    try:
        log.info("report: %s", report.build(folder))
    except (OSError, ValueError) as error:
        # The run is done and its numbers are safe; scripts/report.py can try again.
        log.warning("report.html could not be written: %s", error)


def _tokens_per_second(folder: Path) -> float:
    """Sampled tokens over the time that sampling them took, in all training steps."""
    records = [record for record in read_lines(folder / METRICS_FILE) if "perf/rollout_seconds" in record]
    seconds = sum(record["perf/rollout_seconds"] for record in records)
    tokens = sum(record["perf/tokens_per_second"] * record["perf/rollout_seconds"] for record in records)
    return tokens / seconds if seconds else 0.0


def _history(given: Given, newest: Path | None, step: int | None) -> list[local.Metrics]:
    """Metrics of steps 0, 1, … up to the checkpoint that a resumed run goes on from; nothing for a new one."""
    if given.run.resume is None:
        return []
    if newest is None or step is None:
        given.log.truncate(-1)
        return []
    given.log.truncate(step)
    metrics_file = given.folder / METRICS_FILE
    records = list(read_lines(metrics_file))
    if [record["step"] for record in records] != list(range(step + 1)):
        told = f"has lines of steps {[record['step'] for record in records]}, wanted each of 0 to {step}, once"
        raise RuntimeError(f"{metrics_file} {told}: it does not belong to {newest}; put the right one back")
    if step >= given.run.runtime.steps:
        log.info("all %d steps were done before; what is missing is the final evaluation", step)
    else:
        log.info("resuming after step %d, from %s", step, newest)
    return [{name: value for name, value in record.items() if name != "step"} for record in records]


def _final_evaluations(parts: local.Parts) -> Closing:
    """Start policy and trained policy, greedy and sampled, on the test split."""
    tasks = held_out(parts.env, "test", parts.run.runtime.test_episodes)

    def play(greedy: bool) -> Evaluation:
        with parts.console.progress("test") as progress:
            return evaluate(
                parts.policy,
                parts.env,
                parts.mixture,
                parts.run,
                tasks,
                greedy=greedy,
                purpose="test",
                progress=progress,
            )

    decodings = [("greedy", True), (f"T={parts.run.algorithm.temperature:g}", False)]
    with parts.policy.start_policy():
        results = [("start", name, play(greedy)) for name, greedy in decodings]
    return results + [("trained", name, play(greedy)) for name, greedy in decodings]


def _row(policy: str, decoding: str, result: Evaluation) -> dict[str, Any]:
    metrics = result.metrics
    low, high = result.interval
    return {
        "policy": policy,
        "decoding": decoding,
        "solved": result.solved,
        "low": low,
        "high": high,
        "episodes": len(result.rollouts),
        "reward": metrics["reward/total/mean"],
        "terms": {name: metrics.get(f"reward/{name}/mean") for name in result.scores[0].terms},
        "turns": metrics["rollout/turns"],
        "invalid_actions": metrics["rollout/invalid_actions"],
    }


def _device(wanted: str) -> torch.device:
    """Raises ConfigError for a GPU that torch does not see."""
    if wanted == "auto":
        wanted = "cuda" if torch.cuda.is_available() else "cpu"
    if wanted.startswith("cuda") and not torch.cuda.is_available():
        problem = f"{wanted!r}, but torch {torch.__version__} sees no GPU here; use cpu, or auto"
        raise ConfigError([Fault(key="engine.device", problem=problem)])
    return torch.device(wanted)
