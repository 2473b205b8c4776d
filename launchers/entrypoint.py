"""What a node is told to run for an attempt, and where the run's folder is for the nodes."""

from __future__ import annotations

import shlex
from pathlib import PurePosixPath

from grpo.cluster_schema import HyperpodRayjobCluster, RayJobsCluster
from grpo.storage import is_remote
from launchers.cluster import Attempt


def remote_folder(attempt: Attempt) -> str:
    """Below shared_dir: output_dir / name / the sweep's name / the trial's; without one, this machine's path."""
    settings = attempt.run.cluster
    assert isinstance(settings, RayJobsCluster | HyperpodRayjobCluster)
    if settings.shared_dir is None:
        return str(attempt.here.resolve())
    runtime = attempt.run.runtime
    # A run that belongs on S3 is made in the scratch folder, and copied there by the run itself.
    output_dir = runtime.scratch_dir if is_remote(runtime.output_dir) else runtime.output_dir
    home = PurePosixPath(settings.shared_dir) / output_dir
    return str(home / attempt.run.name / attempt.sweep.name / attempt.folder)


def shell_line(python: str, config: str, folder: str) -> str:
    """One line for a shell; whatever the paths hold reaches the trial as it is."""
    return shlex.join([python, "-m", "launchers.trial", "--config", config, "--folder", folder])
