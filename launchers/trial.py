"""One trial on the machine that runs it: `python -m launchers.trial --config FILE --folder FOLDER`.

What is run is the frozen config, whatever conf/ says today. The folder outlives the attempt: a complete checkpoint in
it is continued, a result in it is the answer, and remains of a try without a checkpoint are moved aside, never mixed.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from launchers.outcome import MARK, known
from launchers.record import CONFIG, RESULT

TRAIN = Path(__file__).resolve().parents[1] / "train.py"


def command(folder: Path) -> list[str]:
    """What runs the trial that is prepared in `folder`, in this process's own python."""
    resume = [f"resume={folder}"] if _resumable(folder) else []
    saved = ["--config-path", str(folder), "--config-name", "config"]
    # hydra.mode=RUN: the config says which cluster the trial was sent to, and this is that cluster.
    return [sys.executable, str(TRAIN), *saved, "hydra.mode=RUN", f"hydra.run.dir={folder}", *resume]


def prepare(folder: Path, config_text: str, keep: Sequence[str]) -> None:
    """A folder with the trial's config, and without a result; files whose names begin as in `keep` stay."""
    folder.mkdir(parents=True, exist_ok=True)
    remains = [path for path in folder.iterdir() if path.name != CONFIG and not path.name.startswith(tuple(keep))]
    if remains and not _resumable(folder):
        attempts = len(list(folder.parent.glob(f"{folder.name}_attempt_*")))
        aside = folder.with_name(f"{folder.name}_attempt_{attempts + 1}")
        aside.mkdir()
        for path in remains:
            path.rename(aside / path.name)
    (folder / RESULT).unlink(missing_ok=True)
    (folder / CONFIG).write_text(config_text, encoding="utf-8")


def _resumable(folder: Path) -> bool:
    return any(folder.glob("checkpoints/*/DONE"))


def run(config: Path, folder: Path) -> int:
    """The exit code. A success prints the result as its last line, for a launcher that cannot see the folder."""
    text = config.read_text(encoding="utf-8")
    done_before = (folder / CONFIG).is_file() and (folder / CONFIG).read_text(encoding="utf-8") == text
    if not (done_before and known([folder], folder / "no log")):
        prepare(folder, text, keep=("output",))
        code = _run(command(folder))
        if code != 0:
            return code
    sys.stdout.write(f"{MARK}{(folder / RESULT).read_text(encoding='utf-8').strip()}\n")
    return 0


def _run(words: Sequence[str]) -> int:
    """The child's exit code, 128 + N after signal N. What asks this process to stop is passed on to it."""
    child = subprocess.Popen(words, env={**os.environ, "PYTHONUNBUFFERED": "1"})

    def pass_on(number: int, frame: object) -> None:
        child.send_signal(signal.SIGINT)

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, pass_on)
    code = child.wait()
    return code if code >= 0 else 128 - code


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--config", type=Path, required=True)
    parser.add_argument("--folder", type=Path, required=True)
    given = parser.parse_args()
    return run(given.config, given.folder)


if __name__ == "__main__":
    sys.exit(main())
