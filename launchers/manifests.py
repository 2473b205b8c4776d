"""What KubeRay is asked to make, as plain data: RayCluster, RayJob, the shared claim.

Pure: the same config gives the same manifest. Secrets appear by the names of their Kubernetes objects only.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from grpo import provenance
from grpo.cluster_schema import HyperpodCluster, HyperpodRayjobCluster, KubeRayCluster
from grpo.config import ConfigError, Fault
from launchers.cluster import Attempt
from launchers.entrypoint import remote_folder, shell_line
from launchers.trial import CONFIG

Manifest = dict[str, Any]

RAY_VERSION = "2.56.0"
"""That of the [ray] extra, and of the image."""
CONFIG_DIR = "/etc/hydra-grpo"
QUEUE_LABEL, PRIORITY_LABEL = "kueue.x-k8s.io/queue-name", "kueue.x-k8s.io/priority-class"
PORTS = {"gcs-server": 6379, "dashboard": 8265, "client": 10001, "metrics": 8080}
KEPT_SECONDS = 3600
"""How long a RayJob that ended stays, for whoever wants to look at it."""


def check_image(settings: KubeRayCluster) -> None:
    """Raises ConfigError for an image that can change under its name."""
    if not re.fullmatch(r"\S+@sha256:[0-9a-f]{64}", settings.image):
        problem = f"wants an image by digest (ADDRESS@sha256:64 hex digits), got {settings.image!r}"
        way_out = "a tag, latest above all, can mean another image tomorrow; launchers/image/push.sh prints the digest"
        raise ConfigError([Fault(key="cluster.image", problem=f"{problem}; {way_out}")])


def ray_cluster(settings: HyperpodCluster) -> Manifest:
    """The standing cluster. Raises ConfigError as check_image does."""
    return {
        "apiVersion": "ray.io/v1",
        "kind": "RayCluster",
        "metadata": _metadata(settings, settings.cluster_name),
        "spec": _cluster_spec(settings, volumes=(), mounts=()),
    }


def claim(settings: KubeRayCluster) -> Manifest:
    """The file system that head and workers share."""
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": settings.shared_claim, "namespace": settings.namespace},
        "spec": {
            "accessModes": ["ReadWriteMany"],
            "storageClassName": settings.storage_class,
            "resources": {"requests": {"storage": f"{settings.storage_gib}Gi"}},
        },
    }


def ray_job(attempt: Attempt) -> Manifest:
    """A cluster for one attempt, which ends with it. Raises ConfigError as check_image does."""
    settings = attempt.run.cluster
    assert isinstance(settings, HyperpodRayjobCluster)
    mounted = {"name": "config", "configMap": {"name": attempt.id}}
    mount = {"name": "config", "mountPath": CONFIG_DIR, "readOnly": True}
    line = shell_line(settings.python, f"{CONFIG_DIR}/{CONFIG}", remote_folder(attempt))
    return {
        "apiVersion": "ray.io/v1",
        "kind": "RayJob",
        "metadata": _metadata(settings, attempt.id),
        "spec": {
            "entrypoint": line,
            "jobId": attempt.id,
            # KubeRay takes quotes apart on the way, so the line above is plain words and needs no `cd`.
            "runtimeEnvYAML": f"env_vars:\n  PYTHONPATH: {settings.code_dir}\n  PYTHONUNBUFFERED: '1'\n",
            "submissionMode": "K8sJobMode",
            # Retries are the launcher's, which knows the cause and counts them.
            "backoffLimit": 0,
            "submitterConfig": {"backoffLimit": 0},
            "shutdownAfterJobFinishes": True,
            "ttlSecondsAfterFinished": KEPT_SECONDS,
            "rayClusterSpec": _cluster_spec(settings, volumes=[mounted], mounts=[mount]),
        },
    }


def config_map(attempt: Attempt, text: str, owner: Mapping[str, Any]) -> Manifest:
    """The attempt's frozen config; it goes when its RayJob (`owner`, as the API knows it) goes."""
    of = {"apiVersion": owner["apiVersion"], "kind": owner["kind"], "name": attempt.id, "uid": owner["metadata"]["uid"]}
    namespace = owner["metadata"]["namespace"]
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": attempt.id, "namespace": namespace, "ownerReferences": [of]},
        "data": {CONFIG: text},
    }


def _metadata(settings: KubeRayCluster, name: str) -> Manifest:
    wanted = {QUEUE_LABEL: settings.queue_name, PRIORITY_LABEL: settings.priority_class}
    queue = {label: value for label, value in wanted.items() if value is not None}
    return {
        "name": name,
        "namespace": settings.namespace,
        "labels": {"app.kubernetes.io/managed-by": "hydra-grpo", **settings.labels, **queue},
        "annotations": dict(settings.annotations),
    }


def _cluster_spec(settings: KubeRayCluster, volumes: Sequence[Manifest], mounts: Sequence[Manifest]) -> Manifest:
    check_image(settings)
    return {
        "rayVersion": RAY_VERSION,
        "headGroupSpec": {
            "serviceType": "ClusterIP",
            # No CPUs: tasks and actors belong on the workers; a job's driver runs here all the same.
            "rayStartParams": {"dashboard-host": "0.0.0.0", "num-cpus": "0"},
            "template": _pod(settings, head=True, volumes=volumes, mounts=mounts),
        },
        "workerGroupSpecs": [
            {
                "groupName": "gpu",
                "replicas": settings.nodes,
                "minReplicas": settings.nodes,
                "maxReplicas": settings.nodes,
                "rayStartParams": {"num-gpus": str(settings.gpus_per_node)},
                "template": _pod(settings, head=False, volumes=(), mounts=()),
            }
        ],
    }


def _pod(settings: KubeRayCluster, *, head: bool, volumes: Sequence[Manifest], mounts: Sequence[Manifest]) -> Manifest:
    cpus, memory, instance = (
        (settings.head_cpus, settings.head_memory_gib, settings.head_instance_type)
        if head
        else (settings.worker_cpus, settings.worker_memory_gib, settings.worker_instance_type)
    )
    amounts: dict[str, Any] = {"cpu": str(cpus), "memory": f"{memory}Gi"}
    if not head:
        amounts["nvidia.com/gpu"] = str(settings.gpus_per_node)
    ports = PORTS if head else {"metrics": PORTS["metrics"]}
    container = {
        "name": "ray-head" if head else "ray-worker",
        "image": settings.image,
        "ports": [{"name": name, "containerPort": port} for name, port in ports.items()],
        # HyperPod's job monitor runs on the node itself; its rules for hung jobs are sent there.
        "env": [
            {"name": "HYPERPOD_JMA_HOST", "valueFrom": {"fieldRef": {"fieldPath": "status.hostIP"}}},
            {"name": provenance.IMAGE_DIGEST, "value": settings.image.rpartition("@")[2]},
            # A worker that is killed takes along what it started: vLLM's engine would keep its share of the GPU.
            {"name": "RAY_process_group_cleanup_enabled", "value": "1"},
        ],
        "envFrom": [{"secretRef": {"name": name}} for name in settings.secrets],
        "resources": {"limits": amounts, "requests": amounts},
        "lifecycle": {"preStop": {"exec": {"command": ["/bin/sh", "-c", "ray stop"]}}},
        "volumeMounts": [
            {"name": "shared", "mountPath": _shared_dir(settings)},
            # Ray's object store and NCCL; a container's own /dev/shm has 64 MiB.
            {"name": "shm", "mountPath": "/dev/shm"},
            *mounts,
        ],
    }
    spec = {
        "nodeSelector": {
            "node.kubernetes.io/instance-type": instance,
            "sagemaker.amazonaws.com/node-health-status": "Schedulable",
        },
        "containers": [container],
        "volumes": [
            {"name": "shared", "persistentVolumeClaim": {"claimName": settings.shared_claim}},
            {"name": "shm", "emptyDir": {"medium": "Memory"}},
            *volumes,
        ],
    }
    if settings.service_account is not None:
        spec["serviceAccountName"] = settings.service_account
    return {"spec": spec}


def _shared_dir(settings: KubeRayCluster) -> str:
    assert isinstance(settings, HyperpodCluster | HyperpodRayjobCluster)
    if settings.shared_dir is None:
        problem = "must be given: without a shared folder, checkpoints go with their pod"
        raise ConfigError([Fault(key="cluster.shared_dir", problem=problem)])
    return settings.shared_dir
