"""The cluster that a config names, and how a sweep deals with it."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Sequence
from pathlib import Path, PurePosixPath

from grpo.cluster_schema import (
    HyperpodCluster,
    HyperpodRayjobCluster,
    LocalCluster,
    RayCluster,
    RayJobsCluster,
    SentCluster,
)
from grpo.config import ConfigError, Fault, RunConfig
from grpo.schema import RuntimeConfig
from grpo.storage import is_remote
from launchers import kube, local, package
from launchers.cluster import Attempt, Cluster, Policy
from launchers.record import fingerprint


def policy(run: RunConfig) -> Policy:
    settings = run.cluster
    if not isinstance(settings, SentCluster):
        return local.POLICY
    return Policy(
        max_concurrent=settings.max_concurrent,
        retries=settings.retries,
        on_interrupt=settings.on_interrupt,
        start_minutes=settings.start_minutes,
        stall_minutes=settings.stall_minutes,
        on_stall=settings.on_stall,
    )


def connect(run: RunConfig, say: Callable[[str], None]) -> Cluster:
    """Raises ConfigError for an address that must not be used, and for an extra that is not installed."""
    settings = run.cluster
    if isinstance(settings, LocalCluster):
        return local.LocalProcesses()
    if isinstance(settings, RayJobsCluster | HyperpodRayjobCluster):
        _check_place(run.runtime, settings.shared_dir)
    if isinstance(settings, RayCluster):
        from launchers.ray_jobs import RayJobs, check_address

        need("ray", "ray")
        token = os.environ.get(settings.token_env)
        check_address(settings.address, has_token=bool(token), allow_insecure=settings.allow_insecure)
        return RayJobs(settings, settings.address, token=token, say=say, root=package.ROOT)
    if isinstance(settings, HyperpodCluster):
        from launchers.ray_jobs import RayJobs

        need("sagemaker_ray", "hyperpod")
        kube.use_context(settings.kube_context)
        address = f"sagemaker_ray://{settings.cluster_name}/{settings.namespace}"
        return RayJobs(settings, address, token=None, say=say, root=package.ROOT)
    if isinstance(settings, HyperpodRayjobCluster):
        from launchers.rayjob import RayJobObjects

        need("kubernetes", "hyperpod")
        return RayJobObjects(settings, say=say)
    from launchers.slurm import SlurmJobs

    need("submitit", "slurm")
    if settings.nodes > 1:
        need("ray", "ray", key="cluster.nodes")  # here, because the nodes run the very python that submits
    return SlurmJobs(settings, say=say, root=package.ROOT)


def preview(runs: Sequence[RunConfig], sweep: Path) -> str:
    """What a dry run says about a cluster: where the trials would go, as what, and with what."""
    attempts = [
        Attempt(sweep=sweep, folder=str(number), number=1, fingerprint=fingerprint(run), run=run)
        for number, run in enumerate(runs)
    ]
    with contextlib.closing(connect(runs[0], lambda text: None)) as cluster:
        return cluster.preview(attempts)


def _check_place(runtime: RuntimeConfig, shared_dir: str | None) -> None:
    """Raises ConfigError where the runs' folders would lie on a pod's own disk, and go with it."""
    if shared_dir is None:
        return
    remote = is_remote(runtime.output_dir)
    key, place = ("scratch_dir", runtime.scratch_dir) if remote else ("output_dir", runtime.output_dir)
    below = PurePosixPath(place).is_relative_to(shared_dir)
    if below or (not remote and not PurePosixPath(place).is_absolute()):
        return
    problem = f"{place!r} is not below cluster.shared_dir={shared_dir}, so the run would be lost with its pod"
    raise ConfigError([Fault(key=f"runtime.{key}", problem=f"{problem}; use {shared_dir.rstrip('/')}/outputs")])


def need(module: str, extra: str, key: str = "cluster.name") -> None:
    """Raises ConfigError if the module of an extra is not installed."""
    import importlib.util

    if importlib.util.find_spec(module) is None:
        problem = f"needs the extra [{extra}]: pip install -e '.[{extra}]'"
        raise ConfigError([Fault(key=key, problem=problem)])
