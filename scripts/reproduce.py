"""Run a saved run again and say whether it came out the same.

    python scripts/reproduce.py outputs/maze/2026-11-30_18-48-50-762343
    python scripts/reproduce.py s3://my-bucket/runs/maze/2026-11-30_18-48-50-762343
    python scripts/reproduce.py RUN_FOLDER --strict          # refuse if anything that it was made from differs
    python scripts/reproduce.py RUN_FOLDER --check           # only list what differs, run nothing

First it lists what differs from the record in run.json (commit, changes, packages, base, reward and env code), each
with old and new value. Then it runs the saved config into a new folder and compares step by step.
Exit codes: 0 identical; 1 the run failed or differs; 2 refused, or no run folder.
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
from safetensors.numpy import load_file

from grpo import compose, config, provenance, storage
from grpo.faults import ConfigError
from grpo.files import write_json
from grpo.reproduce import Difference, differences, metric_differences
from grpo.tracking import METRICS_FILE, read_lines

ROOT = Path(__file__).resolve().parent.parent
LONGEST = 60
"""Characters of a value in the table; a diff of changed files is longer than a screen."""


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", metavar="RUN_FOLDER", help="or the address of a run on S3")
    parser.add_argument("--strict", action="store_true", help="refuse to run if anything differs")
    parser.add_argument("--check", action="store_true", help="list what differs and run nothing")
    parser.add_argument("--output", type=Path, help="the new run's folder (default: beside the old one)")
    options = parser.parse_args(arguments)
    console = Console()
    try:
        folder = storage.local_copy(options.folder).resolve()
        changed = _changed(folder)
    except (OSError, ConfigError, storage.StorageError) as error:
        sys.stderr.write(f"{options.folder} cannot be reproduced: {error}\n")
        return 2
    _show(console, changed)
    if options.check:
        return 1 if changed else 0
    if options.strict and changed:
        sys.stderr.write(f"--strict: {len(changed)} things differ from what {folder} was made from; nothing was run\n")
        return 2
    stamp = datetime.now().strftime("%Y-%m-%d_%H-%M-%S-%f")
    new = (options.output or folder.parent / f"{stamp}-reproduces-{folder.name}").resolve()
    if not _run(folder, new):
        return 1
    write_json(new / "run.json", json.loads((new / "run.json").read_text()) | {"reproduces": str(folder)})
    return _compare(console, folder, new)


def _changed(folder: Path) -> list[Difference]:
    today = provenance.of_run(config.load(folder))
    return differences(json.loads((folder / "run.json").read_text()), today)


def _show(console: Console, changed: Sequence[Difference]) -> None:
    if not changed:
        console.print("made from the same: commit, packages, base, reward and env code")
        return
    table = Table(Column("what differs", no_wrap=True), "then", "now")
    for difference in changed:
        table.add_row(difference.key, _short(difference.old), _short(difference.new))
    console.print(table)


def _short(value: Any) -> str:
    text = str(value)
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}… ({len(text)} characters)"


def _run(folder: Path, new: Path) -> bool:
    saved = ["--config-path", str(folder), "--config-name", "config"]
    if storage.is_remote(config.load(folder).runtime.output_dir):
        # Made again here: who may read a run on S3 need not be allowed to write there.
        saved.append(f"runtime.output_dir={compose.quoted(str(new.parent))}")
    return subprocess.run([sys.executable, str(ROOT / "train.py"), *saved, f"hydra.run.dir={new}"]).returncode == 0


def _compare(console: Console, old: Path, new: Path) -> int:
    found = list(metric_differences(*(list(read_lines(folder / METRICS_FILE)) for folder in (old, new))))
    adapters = [load_file(folder / "adapter" / "adapter_model.safetensors") for folder in (old, new)]
    same_adapter = adapters[0].keys() == adapters[1].keys() and all(
        (adapters[0][name] == adapters[1][name]).all() for name in adapters[0]
    )
    console.print(f"old: {old}\nnew: {new}")
    if not found and same_adapter:
        console.print("identical: every metric of every step (times aside), and the adapter")
        return 0
    if found:
        first, largest = found[0], max(found, key=lambda difference: difference.size)
        console.print(f"first difference: step {first.step}, {first.name}: {first.old} then, {first.new} now")
        console.print(f"largest: step {largest.step}, {largest.name}: {largest.old} then, {largest.new} now")
        console.print(f"{len(found)} values differ")
    console.print(f"the adapter is {'identical' if same_adapter else 'another one'}")
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
