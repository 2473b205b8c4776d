"""The Kubernetes API in the words of a sweep: objects of KubeRay made, read and removed, pods asked why they wait."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from typing import Any, TypeVar

from launchers import kube
from launchers.cluster import Unreachable

T = TypeVar("T")
GROUP, VERSION = "ray.io", "v1"
PLURALS = {"RayCluster": "rayclusters", "RayJob": "rayjobs"}
REQUEST_SECONDS = 30
OWNER = "hydra-grpo"
"""Under this name the API keeps which fields of an object are ours."""
KUEUE, KUEUE_VERSIONS = "kueue.x-k8s.io", ("v1beta2", "v1beta1")
HELD = (("QuotaReserved", "False"), ("Admitted", "False"))
ORDINARY_WAITS = frozenset({"ContainerCreating", "PodInitializing"})
WAY_OUT = {
    401: "log in again, for example: aws eks update-kubeconfig --name CLUSTER",
    403: "ask for the role in this namespace, or choose another with cluster.namespace or cluster.kube_context",
}


class KubeError(Exception):
    """The API's refusal, in its words. `absent`: it knows the kind, and has no such object."""

    def __init__(self, code: int, text: str, *, absent: bool) -> None:
        super().__init__(f"HTTP {code}: {text}{f'; {WAY_OUT[code]}' if code in WAY_OUT else ''}")
        self.code, self.absent = code, absent


class KubeApi:
    """Methods raise Unreachable, and KubeError for a refusal. Raises ConfigError if the kubeconfig names no cluster."""

    def __init__(self, namespace: str, context: str | None) -> None:
        from kubernetes import client, config

        kube.use_context(context)
        self._namespace = namespace
        settings = client.Configuration()
        # Whoever waits for the API asks again by itself, and tells.
        settings.retries = False
        try:
            # Named, because the client reads the variable only once, when it is imported.
            config.load_kube_config(os.environ.get("KUBECONFIG"), client_configuration=settings)
        except config.ConfigException as error:
            raise kube.no_cluster(error) from error
        made = client.ApiClient(settings)
        self.server = settings.host
        self._objects, self._core = client.CustomObjectsApi(made), client.CoreV1Api(made)
        self._version = client.VersionApi(made)

    def version(self) -> str:
        return self._call(lambda: self._version.get_code(_request_timeout=REQUEST_SECONDS)).git_version

    def create(self, manifest: Any) -> Any:
        """The object of KubeRay as the API made it, or as it is there already under its name."""
        kind, name = manifest["kind"], manifest["metadata"]["name"]
        try:
            return self._call(
                lambda: self._objects.create_namespaced_custom_object(
                    GROUP, VERSION, self._namespace, PLURALS[kind], manifest, _request_timeout=REQUEST_SECONDS
                )
            )
        except KubeError as error:
            if error.code != 409:
                raise
            return self.get(kind, name)

    def apply(self, manifest: Any) -> None:
        """Make an object of KubeRay, or bring it to the manifest; fields that others added to it stay as they are."""
        self._call(
            lambda: self._objects.patch_namespaced_custom_object(
                GROUP,
                VERSION,
                self._namespace,
                PLURALS[manifest["kind"]],
                manifest["metadata"]["name"],
                manifest,
                field_manager=OWNER,
                force=True,
                _content_type="application/apply-patch+yaml",
                _request_timeout=REQUEST_SECONDS,
            )
        )

    def create_plain(self, manifest: Any) -> bool:
        """Make a config map or a claim. False: one was there already, and stays as it is."""
        make: Any = {
            "ConfigMap": self._core.create_namespaced_config_map,
            "PersistentVolumeClaim": self._core.create_namespaced_persistent_volume_claim,
        }[manifest["kind"]]
        try:
            self._call(lambda: make(self._namespace, manifest, _request_timeout=REQUEST_SECONDS))
        except KubeError as error:
            if error.code != 409:
                raise
            return False
        return True

    def get(self, kind: str, name: str) -> Any:
        return self._call(
            lambda: self._objects.get_namespaced_custom_object(
                GROUP, VERSION, self._namespace, PLURALS[kind], name, _request_timeout=REQUEST_SECONDS
            )
        )

    def find(self, kind: str, name: str) -> Any:
        """The object, or None."""
        try:
            return self.get(kind, name)
        except KubeError as error:
            if not error.absent:
                raise
            return None

    def delete(self, kind: str, name: str) -> None:
        """Nothing happens where there is none."""
        try:
            self._call(
                lambda: self._objects.delete_namespaced_custom_object(
                    GROUP,
                    VERSION,
                    self._namespace,
                    PLURALS[kind],
                    name,
                    propagation_policy="Background",
                    _request_timeout=REQUEST_SECONDS,
                )
            )
        except KubeError as error:
            if not error.absent:
                raise

    def pods(self, selector: str) -> list[Any]:
        return self._call(
            lambda: self._core.list_namespaced_pod(
                self._namespace, label_selector=selector, _request_timeout=REQUEST_SECONDS
            )
        ).items

    def waits(self, selector: str) -> str:
        """Why pods do not start, as Kubernetes gives it; empty where none has a reason."""
        return "; ".join(f"{pod.metadata.name}: {reason}" for pod in self.pods(selector) if (reason := why(pod)))

    def queued(self, name: str) -> str:
        """Why Kueue holds the object of that name back, in its words; empty where it says nothing about it."""
        try:
            loads = self._workloads()
        except KubeError as error:
            return f"Kueue's reason cannot be read ({error})"
        for load in loads:
            if name in {owner["name"] for owner in load["metadata"].get("ownerReferences", ())}:
                told = load.get("status", {}).get("conditions", ())
                return "; ".join(each["message"] for each in told if (each["type"], each["status"]) in HELD)
        return ""

    def _workloads(self) -> list[Any]:
        for version in KUEUE_VERSIONS:
            try:
                found: Any = self._call(lambda version=version: self._of_kueue(version))
                return found["items"]
            except KubeError as error:
                if error.code != 404:
                    raise
        return []

    def _of_kueue(self, version: str) -> Any:
        return self._objects.list_namespaced_custom_object(
            KUEUE, version, self._namespace, "workloads", _request_timeout=REQUEST_SECONDS
        )

    def log(self, pod: str, *, follow: bool) -> Any:
        """The pod's output from its beginning, as a stream of bytes."""
        return self._call(
            lambda: self._core.read_namespaced_pod_log(pod, self._namespace, follow=follow, _preload_content=False)
        )

    def _call(self, work: Callable[[], T]) -> T:
        from kubernetes.client import ApiException
        from urllib3.exceptions import HTTPError

        try:
            return work()
        except ApiException as error:
            code = error.status or 0
            if code in (0, 408, 429) or code >= 500:
                raise Unreachable(f"HTTP {code}: {error.reason}" if code else str(error.reason)) from error
            raise _refusal(code, str(error.body or ""), str(error.reason)) from error
        except (HTTPError, OSError) as error:
            raise Unreachable(f"{self.server}: {type(error).__name__}: {error}") from error


def why(pod: Any) -> str:
    """Why a pod does not start, as Kubernetes gives it; empty where there is no reason, or an ordinary one."""
    status = pod.status
    for container in (*(status.init_container_statuses or ()), *(status.container_statuses or ())):
        waiting = container.state.waiting if container.state else None
        if waiting is not None and waiting.reason not in ORDINARY_WAITS:
            ended = container.last_state.terminated if container.last_state else None
            before = f" (ended before with {ended.exit_code}: {ended.reason})" if ended else ""
            return f"{waiting.reason}: {waiting.message or ''}{before}"
    for condition in status.conditions or ():
        if condition.type == "PodScheduled" and condition.status == "False":
            return f"{condition.reason}: {condition.message or ''}"
    return ""


def _refusal(code: int, body: str, reason: str) -> KubeError:
    try:
        said = json.loads(body)
        text, known = str(said["message"]), said.get("reason") == "NotFound"
    except (TypeError, ValueError, KeyError):
        text, known = body[:300] or reason, False
        if code == 404:
            # A path that the API does not have at all, answered in plain text.
            text = f"{text.strip()}: it has no objects of {GROUP}/{VERSION}; is KubeRay's operator installed?"
    return KubeError(code, text, absent=known)
