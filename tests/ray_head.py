"""A project whose trials take a moment instead of minutes, for the real Ray head of the measurements."""

from __future__ import annotations

import shutil
from pathlib import Path

from configs import ROOT

from scripts.benchmarks.ray_head import Head, free_port, running

__all__ = ["Head", "free_port", "running", "trivial_project"]

TRIVIAL = """
import json, pathlib, re, sys, time
folder = pathlib.Path(next(word for word in sys.argv if word.startswith("hydra.run.dir=")).partition("=")[2])
text = (folder / "config.yaml").read_text()
seed = int(re.search(r"seed: (\\d+)", text)[1])
with (folder / "starts").open("a") as file:
    file.write("x")
print("seed", seed, flush=True)
if seed == 3:
    sys.exit("seed 3 is broken")
if seed == 4 and not list(folder.glob("checkpoints/*/DONE")):
    (folder / "checkpoints/step_000001").mkdir(parents=True)
    (folder / "checkpoints/step_000001/DONE").touch()
    import os
    os.kill(os.getpid(), 9)
if seed >= 100:
    for number in range(seed):
        print("line", number, flush=True)
        time.sleep(0.02)
(folder / "result.json").write_text(json.dumps({"objective": seed / 10}))
"""


def trivial_project(folder: Path) -> Path:
    """A project whose train.py ends at once; its objective is a tenth of the seed. 3 fails, 4 is killed once."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("conf", "grpo", "rewards", "envs", "pyproject.toml"):
        (folder / name).symlink_to(ROOT / name)
    # A copy: launchers.trial runs the train.py that lies beside it.
    shutil.copytree(ROOT / "launchers", folder / "launchers", ignore=shutil.ignore_patterns("__pycache__"))
    (folder / "train.py").write_text(TRIVIAL)
    return folder
