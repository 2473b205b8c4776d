"""The clusters of a config: where a run goes, and how a sweep deals with the place."""

from __future__ import annotations

import re
from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from grpo.strict import NotNegative, OptionalText, Positive, PositiveFloat, Strict


class LocalCluster(Strict):
    name: Literal["local"]
    gpus_per_node: Positive


class SentCluster(Strict):
    """A cluster that trials are sent to, and how a sweep deals with it."""

    max_concurrent: Positive
    """Trials at once; the others wait in the launcher."""
    retries: NotNegative
    """Further attempts after a failure that was not the trial's own (preemption, lost node, broken connection)."""
    on_interrupt: Literal["stop", "detach"]
    start_minutes: PositiveFloat
    """How long an attempt may wait to start, and the cluster to answer."""
    stall_minutes: PositiveFloat
    """Without a new line of output or a heartbeat for so long, a running attempt counts as stalled."""
    on_stall: Literal["warn", "retry"]


def _no_secret_names(variables: dict[str, str]) -> dict[str, str]:
    for name in variables:
        if re.search(r"KEY|TOKEN|SECRET|PASSW|CREDENTIAL", name, re.IGNORECASE):
            raise ValueError(
                f"{name} looks like a secret, and whoever reaches the cluster's API can read a job's variables; "
                "let the nodes have it, from a Kubernetes secret or their own environment"
            )
    return variables


class RayJobsCluster(SentCluster):
    """What is reached through Ray's Jobs API."""

    shared_dir: OptionalText
    """A folder that all nodes see, for the runs' folders; null: this machine's paths hold there too."""
    python: Annotated[str, Field(min_length=1)]
    env_vars: Annotated[dict[str, str], AfterValidator(_no_secret_names)]
    stop_seconds: Positive
    """Between the request to stop and the kill."""
    check_capacity: bool
    """Refuse trials that want more GPUs than the cluster has now; false for one that grows on demand."""
    package_limit_mib: Positive


class RayCluster(RayJobsCluster):
    name: Literal["ray"]
    address: Annotated[str, Field(min_length=1)]
    nodes: Positive
    gpus_per_node: Positive
    token_env: Annotated[str, Field(min_length=1)]
    """Name of the environment variable that holds the token, where the cluster asks for one."""
    allow_insecure: bool
    """Plain http without a token to a host that is neither this machine nor inside the cluster."""


class KubeRayCluster(SentCluster):
    """What KubeRay is asked to make on Kubernetes."""

    namespace: Annotated[str, Field(min_length=1)]
    kube_context: OptionalText
    """Of the kubeconfig; null: its current one."""
    image: Annotated[str, Field(min_length=1)]
    """By digest, ADDRESS@sha256:…; whatever else is refused when a manifest is made from it."""
    head_instance_type: str
    head_cpus: Positive
    head_memory_gib: Positive
    worker_instance_type: str
    nodes: Positive
    gpus_per_node: Positive
    worker_cpus: Positive
    worker_memory_gib: Positive
    shared_claim: Annotated[str, Field(min_length=1)]
    """The ReadWriteMany claim behind shared_dir."""
    storage_class: str
    storage_gib: Positive
    service_account: OptionalText
    secrets: list[str]
    """Names of Kubernetes secrets; each of their keys becomes a variable of head and workers."""
    labels: dict[str, str]
    annotations: dict[str, str]
    """Of the RayCluster or RayJob, for what add-ons of the cluster ask for."""
    queue_name: OptionalText
    """Kueue's."""
    priority_class: OptionalText
    """Kueue's."""


class HyperpodCluster(RayJobsCluster, KubeRayCluster):
    """A standing cluster that takes jobs through HyperPod's authenticated endpoint."""

    name: Literal["hyperpod"]
    cluster_name: Annotated[str, Field(min_length=1)]


class HyperpodRayjobCluster(KubeRayCluster):
    """A cluster of its own for every trial, made and removed by KubeRay; the image holds the code."""

    name: Literal["hyperpod_rayjob"]
    shared_dir: Annotated[str, Field(min_length=1)]
    code_dir: Annotated[str, Field(min_length=1)]
    """Where the image has this project."""
    python: Annotated[str, Field(min_length=1)]


class SlurmCluster(SentCluster):
    name: Literal["slurm"]
    partition: Annotated[str, Field(min_length=1)]
    account: str | None
    nodes: Positive
    gpus_per_node: NotNegative
    cpus_per_task: Positive
    memory_gib: Positive
    """Of a node."""
    time_minutes: Positive
    signal_seconds: Positive
    """Before the time is up, the job is asked to save and is requeued."""
    requeues: NotNegative
    use_srun: bool
    setup: list[str]


AnyCluster = LocalCluster | RayCluster | HyperpodCluster | HyperpodRayjobCluster | SlurmCluster
