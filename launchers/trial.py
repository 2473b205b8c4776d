"""One trial on the machine that runs it: `python -m launchers.trial --config FILE --folder FOLDER`.

What is run is the frozen config, whatever conf/ says today. The folder outlives the attempt: a complete checkpoint in
it is continued, a result in it is the answer, and remains of a try without a checkpoint are moved aside, never mixed.
Nothing but the standard library is loaded before train.py is, so that the detour costs no time.
"""

from __future__ import annotations

import argparse
import runpy
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from grpo.words import word
from launchers.outcome import MARK, RESULT, known

CONFIG = "config.yaml"
TRAIN = Path(__file__).resolve().parents[1] / "train.py"


def command(folder: Path) -> list[str]:
    """What runs the trial that is prepared in `folder`, in this process's own python."""
    resume = [word("resume", folder)] if _resumable(folder) else []
    saved = ["--config-path", str(folder), "--config-name", "config"]
    # hydra.mode=RUN: the config says which cluster the trial was sent to, and this is that cluster.
    return [sys.executable, str(TRAIN), *saved, "hydra.mode=RUN", word("hydra.run.dir", folder), *resume]


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
    if not (_is_of(folder, text) and known([folder], folder / "no log")):
        prepare(folder, text, keep=("output",))
        code = _train(command(folder)[2:])
        if code != 0:
            return code
    sys.stdout.write(f"{MARK}{(folder / RESULT).read_text(encoding='utf-8').strip()}\n")
    return 0


def _is_of(folder: Path, text: str) -> bool:
    """Whether the folder is of a run with this config, resumed or not."""
    saved = (folder / CONFIG).read_text(encoding="utf-8") if (folder / CONFIG).is_file() else ""
    told, wanted = ([line for line in each.splitlines() if not line.startswith("resume")] for each in (saved, text))
    return told == wanted


def _train(words: list[str]) -> int:
    """train.py in this process; what asks the process to end lets the run close its files first."""

    def interrupt(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, interrupt)
    sys.argv = [str(TRAIN), *words]
    try:
        runpy.run_path(str(TRAIN), run_name="__main__")
    except SystemExit as end:
        if end.code is None or isinstance(end.code, int):
            return end.code or 0
        sys.stderr.write(f"{end.code}\n")
        return 1
    return 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--config", type=Path, required=True)
    parser.add_argument("--folder", type=Path, required=True)
    given = parser.parse_args()
    return run(given.config, given.folder)


if __name__ == "__main__":
    sys.exit(main())
