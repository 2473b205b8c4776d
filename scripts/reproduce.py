"""Run a saved run again and say whether it came out the same.

    python scripts/reproduce.py outputs/maze/2026-11-30_18-48-50-762343
    python scripts/reproduce.py s3://my-bucket/runs/maze/2026-11-30_18-48-50-762343
    python scripts/reproduce.py RUN_FOLDER --strict          # refuse if anything that it was made from differs
    python scripts/reproduce.py RUN_FOLDER --check           # only list what differs, run nothing

First it lists what differs from the record in run.json (commit and changes, packages, image, base, tokenizer,
processor, chat template, data, reward and env code), each with old and new value. Then it runs the saved config into a
new folder, which names the old one in its run.json, and compares step by step; of a run that crashed, the steps that
it has.
Exit codes: 0 identical; 1 the run failed or differs (--check: something differs); 2 refused, or not a run that can be
run again.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Column, Table

from grpo import config
from grpo.files import write_json
from grpo.reproduce import Difference
from grpo.rerun import Comparison, changes, compare, is_runnable
from grpo.s3 import StorageError, is_remote
from grpo.storage import local_copy
from grpo.words import word

ROOT = Path(__file__).resolve().parent.parent
LONGEST = 70
"""Characters of a value in the table; a diff of changed files is longer than a screen."""


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", metavar="RUN_FOLDER", help="or its s3:// address")
    parser.add_argument("--strict", action="store_true", help="refuse to run if anything differs")
    parser.add_argument("--check", action="store_true", help="list what differs and run nothing")
    parser.add_argument("--output", type=Path, help="the new run's folder (default: beside the old one)")
    options = parser.parse_args(arguments)
    console = Console()
    try:
        folder = local_copy(options.folder).expanduser().resolve()
        if not (folder / "config.yaml").is_file():
            return _refuse(f"{options.folder} is no run folder: it has no config.yaml; give outputs/<name>/<date_time>")
        changed = changes(folder)
    except (OSError, ValueError, StorageError) as error:
        return _refuse(f"{options.folder} cannot be reproduced: {error}")
    _show(console, changed)
    if options.check:
        return 1 if changed else 0
    if not is_runnable(folder):
        return _refuse(f"{folder} cannot be run again as it is (see above); nothing was run")
    if options.strict and changed:
        return _refuse(f"--strict: {len(changed)} things differ from what {folder} was made from; nothing was run")
    stamp = datetime.now().strftime("%Y-%m-%d_%H-%M-%S-%f")
    new = (options.output or folder.parent / f"{stamp}-reproduces-{folder.name}").resolve()
    return _run_and_compare(console, folder, new)


def _refuse(reason: str) -> int:
    sys.stderr.write(f"{reason}\n")
    return 2


def _show(console: Console, changed: Sequence[Difference]) -> None:
    if not changed:
        console.print(
            "made from the same: commit, packages, image, base, tokenizer, processor, chat template, data, "
            "reward and env code",
            soft_wrap=True,
        )
        return
    table = Table(Column("what differs", no_wrap=True), Column("then", overflow="fold"), Column("now", overflow="fold"))
    for difference in changed:
        table.add_row(difference.key, _short(difference.old), _short(difference.new))
    console.print(table)


def _short(value: Any) -> str:
    text = "none" if value is None else str(value)
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}… ({len(text)} characters)"


def _run_and_compare(console: Console, old: Path, new: Path) -> int:
    saved = ["--config-path", str(old), "--config-name", "config"]
    if is_remote(config.load(old).runtime.output_dir):
        # Made again here: who may read a run on S3 need not be allowed to write there.
        saved.append(word("runtime.output_dir", new.parent))
    done = subprocess.run([sys.executable, str(ROOT / "train.py"), *saved, word("hydra.run.dir", new)])
    record = new / "run.json"
    if record.is_file():
        write_json(record, json.loads(record.read_text()) | {"reproduces": str(old)})
    if done.returncode == 2:
        return _refuse("nothing was run, for the reason above; --output FOLDER gives the new run another place")
    console.print(f"old: {old}\nnew: {new}", soft_wrap=True, highlight=False)
    if done.returncode != 0:
        console.print(f"the new run failed with exit code {done.returncode}; its train.log says why")
        return 1
    return _tell(console, compare(old, new))


def _tell(console: Console, result: Comparison) -> int:
    def say(text: str) -> None:
        console.print(text, soft_wrap=True, highlight=False, markup=False)

    if result.last_step is None:
        say("the old run has no metrics: there is nothing to compare with")
        return 1
    if result.last_step < result.steps:
        say(f"the old run ended after step {result.last_step} of {result.steps}; the steps up to there are compared")
    adapter = {None: "", True: ", and the adapter", False: ""}[result.same_adapter]
    if result.identical:
        say(f"identical: every metric of every step (times aside){adapter}")
        return 0
    if result.differences:
        first = result.differences[0]
        largest = max(result.differences, key=lambda difference: difference.size)
        for name, each in (("first difference", first), ("largest", largest)):
            size = f" (by {each.size:.3g})" if each.size != float("inf") else ""
            say(f"{name}: step {each.step}, {each.name}: {each.old} then, {each.new} now{size}")
        say(f"{len(result.differences)} values differ")
    if result.same_adapter is not None:
        say(f"the adapter is {'identical' if result.same_adapter else 'another one'}")
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
