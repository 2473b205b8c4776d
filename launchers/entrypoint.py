"""What a node is told to run for an attempt, and where the run's folder is for the nodes."""

from __future__ import annotations

import shlex
from pathlib import PurePosixPath

from grpo.schema import HyperpodRayjobCluster, RayJobsCluster
from launchers.cluster import Attempt


def remote_folder(attempt: Attempt) -> str:
    """Below shared_dir: output_dir / name / the sweep's name / the trial's; without one, this machine's path."""
    settings = attempt.run.cluster
    assert isinstance(settings, RayJobsCluster | HyperpodRayjobCluster)
    if settings.shared_dir is None:
        return str(attempt.here.resolve())
    output_dir = PurePosixPath(settings.shared_dir) / attempt.run.runtime.output_dir
    return str(output_dir / attempt.run.name / attempt.sweep.name / attempt.folder)


def shell_line(python: str, config: str, folder: str) -> str:
    """One line for a shell; whatever the paths hold reaches the trial as it is."""
    return shlex.join([python, "-m", "launchers.trial", "--config", config, "--folder", folder])
