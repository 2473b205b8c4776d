"""train.py with a run that trains nothing: it leaves what a real one leaves, quickly, and fails on demand.

python tests/stub_train.py WORDS…     seed 3 crashes, seed 4 leaves no result, seed 5 leaves a NaN, seed 6 sleeps
"""

from __future__ import annotations

import json
import sys
import time
import types
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

import train  # noqa: E402
from grpo import config  # noqa: E402
from launchers import trial  # noqa: E402


def run(settings: config.RunConfig, folder: Path, overrides: Sequence[str]) -> float:
    (folder / "config.yaml").write_text(config.to_yaml(settings))
    (folder / "overrides.txt").write_text("".join(f"{word}\n" for word in overrides))
    seed = settings.runtime.seed
    if seed == 3:
        raise RuntimeError("seed 3 is broken")
    if seed == 6:
        (folder / "asleep").write_text("yes")
        time.sleep(60)
    objective = float("nan") if seed == 5 else settings.algorithm.learning_rate
    if seed != 4:
        (folder / "result.json").write_text(json.dumps({"objective": objective}))
    return objective


stub = types.ModuleType("grpo.run")
vars(stub)["run"] = run
sys.modules["grpo.run"] = stub
trial.TRAIN = Path(__file__)

if __name__ == "__main__":
    sys.exit(train.main(sys.argv[1:]))
