"""SkyRL's VisGym recipe and our settings, step by step in turns: `-m scripts.gpu_proof.compare SECONDS [key=value] ...`

One engine and one trainer serve both, so that weights, tasks, the budget of tokens and CUDA graphs are the same, and
nothing is paid twice to start. What differs is what the recipe chooses (SkyRL's own generator, rows of a pass, updates
a step) and what the config given here does. Step 1 is warm-up; a line a step, then the table. Exit code 1 unless ours
takes 1.3 times fewer GPU-seconds a rollout. No step is begun that would not end within SECONDS.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from grpo import cli
from grpo.config import build_env, build_rewards
from grpo.console import Console
from grpo.engines import skyrl_environment
from grpo.engines.given import Given
from grpo.reward import make_mixture
from grpo.tracking import NullTracker, RunLog
from scripts.gpu_proof.table import table

START = time.monotonic()
ENDING_SECONDS = 20
ROOT = Path(__file__).resolve().parents[2]
WANTED = 1.3


def main(seconds: float, words: Sequence[str]) -> int:
    sys.path.append(str(ROOT / "launchers/plugin"))  # as train.py does, for Hydra
    command = cli.read(cli.flags(words), words, ROOT / "conf")
    run, folder = command.trials[0].run, cli.claim(command)
    skyrl_environment.prepare()
    from grpo.engines import skyrl_experiment, skyrl_records, skyrl_run
    from scripts.gpu_proof import comparison

    comparison.Comparing.deadline = START + seconds - ENDING_SECONDS
    # Where the run looks for them.
    skyrl_experiment.Experiment = comparison.Comparing  # pyright: ignore[reportPrivateImportUsage, reportAttributeAccessIssue]
    skyrl_records.Records = comparison.Rows  # pyright: ignore[reportPrivateImportUsage, reportAttributeAccessIssue]
    console = Console(run.runtime.steps)
    given = Given(
        run=run,
        env=build_env(run),
        mixture=make_mixture(run.reward, build_rewards(run)),
        folder=folder,
        made_from={},
        log=RunLog(folder, NullTracker()),
        console=console,
    )
    with console.logging_to(folder / "train.log"):
        skyrl_run.train(given, [], None)
    rows = [json.loads(text) for text in (folder / "compare.jsonl").read_text().splitlines()]
    return int(table(rows) < WANTED)


if __name__ == "__main__":
    sys.exit(main(float(sys.argv[1]), sys.argv[2:]))
