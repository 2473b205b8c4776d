"""Make the tiny model: build it, let it imitate an expert, write an ordinary Hugging Face folder.

    python scripts/warm_start.py                        # as shipped, in about ten minutes of one core
    python scripts/warm_start.py env.random_rooms=1.0 output=outputs/tiny

Goes on from its newest checkpoint when it is started again with the same output. Values: conf/warm_start.yaml.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import time
from pathlib import Path
from typing import Any

import torch
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from grpo.checkpoint import write_json
from grpo.compose import Source, script_config
from grpo.config import ConfigError, build, read
from grpo.conversation import Sampling
from grpo.hashing import hash_files
from grpo.interfaces import Env
from grpo.policy import Policy, load_image_processor
from grpo.provenance import packages
from grpo.rollout import play
from grpo.schema import EnvConfig
from grpo.tiny_model import build_model, build_tokenizer, save_processor
from grpo.types import Split
from grpo.warm_start import WarmStart, train, training_texts

ROOT = Path(__file__).resolve().parent.parent


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("overrides", nargs="*", help="key=value, as on train.py's command line")
    try:
        container = _composed("warm_start", parser.parse_args().overrides)
        config = read(WarmStart, container)
        env = build(config.env, Env, "env")
        games = [_shipped_env(option) for option in config.vocabulary_envs]
    except ConfigError as error:
        sys.stderr.write(f"{error}\n")
        sys.exit(2)
    torch.set_num_threads(1)  # a second thread gains nothing at this size, and one keeps the sums in one order
    output = ROOT / config.output
    policy = _new_policy(config, games, output)
    seconds = _train(policy, env, config, output.with_name(f".{output.name}.work"))
    policy.model.save_pretrained(output)
    solved = {split: _exam(policy, games[0], split) for split in ("train", "validation")}
    record = {
        "made_from": container,
        "packages": packages(),
        "seconds": round(seconds),
        "solved": solved,
        "weights_hash": hash_files([output / "model.safetensors"]),
    }
    write_json(output / "warm_start.json", record)
    print(f"solved: {solved}")
    print(f"written: {output}  ({seconds:.0f} s)")


def _composed(name: str, words: list[str]) -> dict[str, Any]:
    return script_config(Source(folder=ROOT / "conf", name=name, extra=None), words)


def _shipped_env(option: str) -> Env:
    return build(read(EnvConfig, _composed("config", [f"env={option}"])["env"]), Env, "env")


def _new_policy(config: WarmStart, games: list[Env], output: Path) -> Policy:
    output.mkdir(parents=True, exist_ok=True)
    texts = [text for game in games for text in training_texts(game, episodes=100)]
    tokenizer = build_tokenizer(texts, config.model.vocabulary)
    save_processor(tokenizer, output)
    network = build_model(tokenizer, config.model, config.phases[0].seed)
    return Policy(network, tokenizer, load_image_processor(str(output), None), name=config.output)


def _train(policy: Policy, env: Env, config: WarmStart, work: Path) -> float:
    """Runs the phases with a progress bar each; returns their seconds."""
    start = time.monotonic()
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[loss]}"))
    with Progress(*columns, TimeElapsedColumn(), TimeRemainingColumn()) as bar:
        for number, phase in enumerate(config.phases, start=1):
            task = bar.add_task(f"phase {number}", total=phase.steps, loss="")
            for report in train(policy, env, phase, work / f"phase_{number}"):
                bar.update(task, completed=report.step, loss=f"loss {report.loss:.4f}")
                if report.step % 100 == 0 and not bar.console.is_terminal:
                    print(f"phase {number}  step {report.step}/{phase.steps}  loss {report.loss:.4f}", flush=True)
    shutil.rmtree(work, ignore_errors=True)
    return time.monotonic() - start


def _exam(policy: Policy, env: Env, split: Split) -> dict[str, float]:
    """Share solved, greedy and sampled, on 64 tasks. The test split is left alone."""
    tasks = env.tasks(split, 64, seed=0)
    result = {}
    for name, greedy in (("greedy", True), ("T=1", False)):
        rollouts = play(
            policy,
            env,
            tasks,
            siblings=1,
            sampling=Sampling(temperature=1.0, greedy=greedy, max_completion_tokens=32),
            purpose=(0, "warm start", split),
            max_prompt_tokens=4096,
            rows_at_once=len(tasks),
        )
        result[name] = sum(rollout.transcript.solved for rollout in rollouts) / len(rollouts)
    return result


if __name__ == "__main__":
    main()
