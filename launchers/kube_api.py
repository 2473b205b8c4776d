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
ORDINARY_WAITS = frozenset({"ContainerCreating", "PodInitializing"})


class KubeError(Exception):
    """The API's refusal, in its words."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(f"HTTP {code}: {text}")
        self.code = code


class KubeApi:
    """Methods raise Unreachable, and KubeError for a refusal. Raises ConfigError if the kubeconfig names no cluster."""

    def __init__(self, namespace: str, context: str | None) -> None:
        from kubernetes import client, config

        kube.use_context(context)
        self._namespace = namespace
        try:
            # Named, because the client reads the variable only once, when it is imported.
            made = config.new_client_from_config(config_file=os.environ.get("KUBECONFIG"))
        except config.ConfigException as error:
            raise kube.no_cluster(error) from error
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

    def create_plain(self, manifest: Any) -> None:
        """A config map or a claim; one that is there already stays as it is."""
        make: Any = {
            "ConfigMap": self._core.create_namespaced_config_map,
            "PersistentVolumeClaim": self._core.create_namespaced_persistent_volume_claim,
        }[manifest["kind"]]
        try:
            self._call(lambda: make(self._namespace, manifest, _request_timeout=REQUEST_SECONDS))
        except KubeError as error:
            if error.code != 409:
                raise

    def get(self, kind: str, name: str) -> Any:
        return self._call(
            lambda: self._objects.get_namespaced_custom_object(
                GROUP, VERSION, self._namespace, PLURALS[kind], name, _request_timeout=REQUEST_SECONDS
            )
        )

    def replace_spec(self, manifest: Any) -> None:
        """Bring an object of KubeRay that exists to the manifest's labels, annotations and spec."""
        change = {"metadata": {k: manifest["metadata"][k] for k in ("labels", "annotations")}, "spec": manifest["spec"]}
        self._call(
            lambda: self._objects.patch_namespaced_custom_object(
                GROUP,
                VERSION,
                self._namespace,
                PLURALS[manifest["kind"]],
                manifest["metadata"]["name"],
                change,
                _request_timeout=REQUEST_SECONDS,
            )
        )

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
            if error.code != 404:
                raise

    def pods(self, selector: str) -> list[Any]:
        return self._call(
            lambda: self._core.list_namespaced_pod(
                self._namespace, label_selector=selector, _request_timeout=REQUEST_SECONDS
            )
        ).items

    def waits(self, selector: str) -> str:
        """Why pods do not start, as Kubernetes gives it; empty where none has a reason."""
        return "; ".join(reason for pod in self.pods(selector) if (reason := _why(pod)))

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
                raise Unreachable(f"HTTP {code}: {error.reason}") from error
            raise KubeError(code, _message(error.body) or str(error.reason)) from error
        except (HTTPError, OSError) as error:
            raise Unreachable(f"{type(error).__name__}: {error}") from error


def _message(body: Any) -> str:
    try:
        return str(json.loads(body)["message"])
    except (TypeError, ValueError, KeyError):
        return str(body or "")[:300]


def _why(pod: Any) -> str:
    for status in pod.status.container_statuses or ():
        waiting = status.state.waiting if status.state else None
        if waiting is not None and waiting.reason not in ORDINARY_WAITS:
            return f"{pod.metadata.name}: {waiting.reason}: {waiting.message or ''}"
    for condition in pod.status.conditions or ():
        if condition.type == "PodScheduled" and condition.status == "False":
            return f"{pod.metadata.name}: {condition.reason}: {condition.message or ''}"
    return ""
