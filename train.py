"""Compose, check, run: `python train.py [group=option] [key=value] ...`; `--help` lists what there is.

Hydra composes and drives sweeps; the check before it (`grpo.cli`) decides about exit code 2, so that a wrong command
starts nothing.
"""

from __future__ import annotations

import sys
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import hydra
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig
from rich.console import Console

from grpo import cli, cli_view, config, lock, plan
from grpo.faults import ConfigError
from grpo.files import DiskError
from grpo.redact import hide
from grpo.words import pasted
from launchers import clusters, record, table

ROOT = Path(__file__).resolve().parent
CONF = ROOT / "conf"

# Hydra looks for the sweep launcher in the namespace package hydra_plugins; an installed project has it on its path.
sys.path.append(str(ROOT / "launchers/plugin"))


def main(arguments: Sequence[str]) -> int:
    """The exit code: 0 done, 1 the run or a trial failed, 2 config or command wrong and nothing started."""
    console = Console()
    try:
        flags = cli.flags(arguments)
        if flags.help:
            console.print(cli_view.help_text(CONF), markup=False, highlight=False, soft_wrap=True)
            return 0
        command = cli.read(flags, arguments, CONF)
        if not command.trials:
            return _hydra(command)
        if command.dry:
            cli_view.show_plan(command, cli.reach(command), console)
            _show_cluster(command, console)
            return 0
        cli.refuse_unavailable(command)
        cli_view.show_warnings(command, cli.reach(command), console)
        missing = cli.missing(command)
        folder = cli.claim(command)
        with _one_sweep(folder, missing) if command.sweep else _one_run(folder):
            code = _hydra(command)
        return max(code, table.finish(folder, console)) if command.sweep and code != 2 else code
    except ConfigError as error:
        sys.stderr.write(f"{hide(str(error))}\n")
        return 2
    except KeyboardInterrupt:
        sys.stderr.write("interrupted\n")
        return 1


@contextmanager
def _one_run(folder: Path) -> Iterator[None]:
    """The folder is this process's alone; whoever interrupts the run is told how it goes on."""
    try:
        with lock.held(folder):
            yield
    except KeyboardInterrupt:
        saved = max((done.parent.name for done in folder.glob("checkpoints/step_*/DONE")), default=None)
        start = f"from {saved}" if saved else "from the start: there is no checkpoint yet"
        sys.stderr.write(f"{pasted('resume', folder)} goes on {start}\n")
        raise


@contextmanager
def _one_sweep(folder: Path, made: Sequence[Path]) -> Iterator[None]:
    """A sweep that its cluster would not take leaves nothing of the folders that it made."""
    try:
        yield
    finally:
        if made and record.withdraw(folder):
            for parent in made[1:]:
                with suppress(OSError):  # another run has come to lie there
                    parent.rmdir()


def _show_cluster(command: cli.Command, console: Console) -> None:
    if command.folder is not None and not any(plan.blockers(trial.run) for trial in command.trials):
        told = clusters.preview([trial.run for trial in command.trials], command.folder)
        console.print(told, markup=False, highlight=False, soft_wrap=True)


def _hydra(command: cli.Command) -> int:
    """Let hydra.main run the checked words, which it reads from sys.argv; its exit code."""

    def job(composed: DictConfig) -> float:
        # Both leave as SystemExit: Hydra would answer every exception with 1, and end a crash with a line of its own
        # in the place where a sweep looks for the reason.
        try:
            from grpo.run import run

            folder = Path(HydraConfig.get().runtime.output_dir)
            return run(config.parse(config.plain(composed)), folder, command.typed)
        except ConfigError as error:
            sys.stderr.write(f"{hide(str(error))}\n")
            raise SystemExit(2) from error
        except DiskError as error:
            sys.stderr.write(f"{hide(str(error))}\n")
            raise SystemExit(1) from error
        except Exception as error:
            sys.stderr.write(hide(traceback.format_exc()))
            raise SystemExit(1) from error

    typed = sys.argv
    sys.argv = [typed[0], *command.arguments]
    try:
        hydra.main(version_base="1.3", config_path=str(CONF), config_name="config")(job)()
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else 1
    finally:
        sys.argv = typed
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
