"""`hydra/launcher=grpo`: the trials of a sweep on the cluster that their config names.

Hydra loads launchers from the namespace package `hydra_plugins` only, and imports every module there at each start; so
this one is thin, and what it does is in `launchers.sweep`. Hydra does so without registering the module, which a
dataclass under `from __future__ import annotations` does not survive.
"""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from hydra.core.config_store import ConfigStore
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.utils import JobReturn, JobStatus
from hydra.errors import CompactHydraException
from hydra.plugins.launcher import Launcher
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig, open_dict

if TYPE_CHECKING:
    from launchers.record import Job, TrialRecord


@dataclass
class GrpoLauncherConf:
    _target_: str = "hydra_plugins.grpo_launcher.GrpoLauncher"
    on_error: str = "continue"
    """`continue` with the other trials after a failure, or `stop`."""


ConfigStore.instance().store(group="hydra/launcher", name="grpo", node=GrpoLauncherConf, provider="hydra-grpo")


class TrialFailed(CompactHydraException):
    """Compact, because its reason is all there is to say: Hydra prints no stack trace for it."""


class GrpoLauncher(Launcher):
    def __init__(self, on_error: str) -> None:
        self.stop_on_error = on_error == "stop"
        self.config: DictConfig | None = None
        self.hydra_context: HydraContext | None = None

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        self.config, self.hydra_context = config, hydra_context

    def launch(self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int) -> Sequence[JobReturn]:
        """One JobReturn a trial, in order. A config fault in any of them ends the command with 2 before one starts."""
        from rich.console import Console

        from grpo.config import ConfigError
        from launchers import clusters, table
        from launchers.sweep import launch

        assert self.config is not None
        sweep = Path(self.config.hydra.sweep.dir)
        try:
            composed = [self._compose(words, initial_job_idx + index) for index, words in enumerate(job_overrides)]
            jobs = _jobs(composed, job_overrides, self.config)
            first, console = jobs[0].run, Console()
            records = launch(
                jobs,
                sweep,
                cluster=clusters.connect(first, table.plainly(console)),
                policy=clusters.policy(first),
                stop_on_error=self.stop_on_error,
                console=console,
            )
        except ConfigError as error:
            sys.stderr.write(f"{error}\n")
            raise SystemExit(2) from error
        return [_job_return(*each) for each in zip(composed, records, strict=True)]

    def _compose(self, words: Sequence[str], number: int) -> DictConfig:
        assert self.config is not None and self.hydra_context is not None
        composed = self.hydra_context.config_loader.load_sweep_config(self.config, list(words))
        with open_dict(composed):
            composed.hydra.job.id = str(number)
            composed.hydra.job.num = number
        return composed


def _jobs(composed: Sequence[DictConfig], job_overrides: Sequence[Sequence[str]], master: DictConfig) -> "list[Job]":
    """The trials as the launcher's logic takes them. Raises ConfigError with the faults of all."""
    from grpo import config
    from launchers.record import Job

    jobs, faults = [], []
    # By key: Hydra's sweeper escapes values, so the word that comes back is not the one that was given.
    given = OverridesParser.create().parse_overrides(list(master.hydra.overrides.task))
    fixed = {_key(str(word.input_line)) for word in given if not word.is_sweep_override()}
    for trial, words in zip(composed, job_overrides, strict=True):
        swept = tuple(word.lstrip("+") for word in words if _key(word) not in fixed)
        try:
            run = config.parse(config.plain(trial))
            jobs.append(Job(overrides=swept, folder=str(trial.hydra.sweep.subdir), run=run))
        except config.ConfigError as error:
            faults.extend(error.faults)
    if faults:
        raise config.ConfigError(faults)
    return jobs


def _key(word: str) -> str:
    return word.partition("=")[0].lstrip("+")


def _job_return(composed: DictConfig, record: "TrialRecord") -> JobReturn:
    hydra = DictConfig({"hydra": composed.hydra})
    done = JobReturn(overrides=record.overrides, cfg=composed, hydra_cfg=hydra, working_dir=record.folder)
    if record.objective is None:
        done.status = JobStatus.FAILED
        done.return_value = TrialFailed(f"trial {record.folder} {record.state}; the table has all")
    else:
        done.status = JobStatus.COMPLETED
        done.return_value = record.objective
    return done
