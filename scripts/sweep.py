"""Look after a sweep whose folder is known: watch it again, see how it stands, stop it, or run what it lacks.

  python scripts/sweep.py attach SWEEP_FOLDER   watch what runs, and send what still waits
  python scripts/sweep.py status SWEEP_FOLDER   how every trial stands, asked of the cluster
  python scripts/sweep.py stop SWEEP_FOLDER     end what runs; checkpoints stay
  python scripts/sweep.py retry SWEEP_FOLDER    as attach, and failed and stopped trials are tried again

Every trial runs from the config.yaml in its folder, whatever conf/ says today.
Exit codes: 0 all trials finished; 1 some did not; 2 the folder is no sweep, or its cluster cannot take it.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from rich.console import Console

from grpo import config
from grpo.config import ConfigError, Fault
from launchers import clusters, record, sweep, table
from launchers.record import ACTIVE, Job, TrialRecord

OPEN = ("waiting", *ACTIVE)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("action", choices=("attach", "status", "stop", "retry"))
    parser.add_argument("folder", type=Path)
    parser.add_argument("--on-error", choices=("continue", "stop"), default="continue", help="after a failed trial")
    given = parser.parse_args()
    console = Console()
    try:
        return _act(given.action, given.folder.resolve(), console, stop_on_error=given.on_error == "stop")
    except ConfigError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    except KeyboardInterrupt:
        sys.stderr.write("interrupted\n")
        return 1


def _act(action: str, folder: Path, console: Console, *, stop_on_error: bool) -> int:
    records = record.read(folder)
    if not records:
        problem = f"wants a sweep's folder (with its {record.RECORD}), got {folder}"
        raise ConfigError([Fault(key="", problem=problem)])
    jobs = [_job(folder, each) for each in records if action == "retry" or each.state in OPEN]
    if not jobs:
        return table.finish(folder, console)
    run = jobs[0].run
    cluster, policy = clusters.connect(run, table.plainly(console)), clusters.policy(run)
    if action == "status":
        sweep.show(jobs, folder, cluster=cluster, console=console)
    elif action == "stop":
        sweep.stop(jobs, folder, cluster=cluster, policy=policy, console=console)
    else:
        sweep.launch(jobs, folder, cluster=cluster, policy=policy, stop_on_error=stop_on_error, console=console)
    return table.finish(folder, console)


def _job(folder: Path, trial: TrialRecord) -> Job:
    return Job(overrides=trial.overrides, folder=trial.folder, run=config.load(folder / trial.folder))


if __name__ == "__main__":
    sys.exit(main())
