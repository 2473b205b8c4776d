"""KubeRay without a standing cluster: one RayJob an attempt, made through the Kubernetes API.

The code comes from the image and the config from a ConfigMap, so nothing is uploaded. Kueue may hold such a job back,
or suspend it again for one with a higher priority: it then waits, and goes on from its newest checkpoint.
"""

from __future__ import annotations

import contextlib
import re
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import yaml

from grpo import config
from grpo.cluster_schema import HyperpodRayjobCluster
from grpo.config import ConfigError, Fault
from launchers import manifests
from launchers.cluster import Attempt, Cluster, Refused, Status, Unreachable
from launchers.entrypoint import remote_folder
from launchers.kube_api import KubeApi, KubeError

KIND = "RayJob"
OVER = ("Complete", "Failed", "ValidationFailed")
HELD = ("Suspended", "Suspending")


class RayJobObjects(Cluster):
    def __init__(self, settings: HyperpodRayjobCluster, *, say: Callable[[str], None]) -> None:
        self._settings, self._say = settings, say
        self._api: KubeApi | None = None
        self._logs: dict[str, _PodLog] = {}

    def check(self, attempts: Sequence[Attempt]) -> None:
        manifests.check_image(self._settings)
        limit = time.monotonic() + self._settings.start_minutes * 60
        while True:
            try:
                self._kube().version()
                return
            except (Unreachable, KubeError) as error:
                if isinstance(error, KubeError) or time.monotonic() > limit:
                    problem = f"the Kubernetes API does not let us in: {error}"
                    raise ConfigError([Fault(key="cluster.kube_context", problem=problem)]) from error
                self._say(f"waiting for the Kubernetes API: {error}")
                time.sleep(2.0)

    def submit(self, attempt: Attempt) -> None:
        try:
            owner = self._kube().create(manifests.ray_job(attempt))
            try:
                self._kube().create_plain(manifests.config_map(attempt, config.to_yaml(attempt.run), owner))
            except KubeError:
                self._kube().delete(KIND, attempt.id)  # it would wait for its config for ever, with its GPUs
                raise
        except KubeError as error:
            if error.code == 401:  # whoever logs in again may go on
                raise Unreachable(str(error)) from error
            raise Refused(f"Kubernetes refused the RayJob: {error}") from error

    def status(self, attempt: Attempt) -> Status:
        try:
            job = self._kube().find(KIND, attempt.id)
        except KubeError as error:
            raise Unreachable(str(error)) from error
        if job is None:
            return Status(phase="lost", code=None, note="its RayJob is gone: preempted, or deleted by someone")
        found = job.get("status", {})
        state, said = found.get("jobDeploymentStatus", ""), f"{found.get('reason', '')} {found.get('message', '')}"
        if state in HELD:
            held = self._kube().queued(attempt.id)
            return Status(phase="pending", code=None, note=f"suspended: it waits in its queue{held and f'; {held}'}")
        if state in OVER:
            code = 0 if found.get("jobStatus") == "SUCCEEDED" else _exit_code(said)
            return Status(phase="ended", code=code, note="" if code == 0 else " ".join(said.split())[:300])
        if state == "Running":
            self._follow(attempt)
            return Status(phase="running", code=None, note="")
        waits = self._kube().waits(f"ray.io/cluster={found['rayClusterName']}") if "rayClusterName" in found else ""
        return Status(phase="pending", code=None, note=waits or " ".join(said.split()))

    def stop(self, attempt: Attempt) -> None:
        try:
            self._kube().delete(KIND, attempt.id)
        except KubeError as error:
            raise Unreachable(str(error)) from error

    def collect(self, attempt: Attempt) -> None:
        self._follow(attempt)
        if log := self._logs.get(attempt.id):
            with contextlib.suppress(KubeError):  # the pod is gone, and its output with it
                log.finish()
            del self._logs[attempt.id]

    def result_folders(self, attempt: Attempt) -> list[Path]:
        return [Path(remote_folder(attempt)), attempt.here]

    def preview(self, attempts: Sequence[Attempt]) -> str:
        return yaml.safe_dump_all([manifests.ray_job(attempt) for attempt in attempts], sort_keys=False)

    def _kube(self) -> KubeApi:
        if self._api is None:
            self._api = KubeApi(self._settings.namespace, self._settings.kube_context)
        return self._api

    def _follow(self, attempt: Attempt) -> None:
        """Of the submitter's pod, which prints what the job prints."""
        if attempt.id not in self._logs:
            with contextlib.suppress(KubeError):
                if pods := self._kube().pods(f"job-name={attempt.id}"):
                    self._logs[attempt.id] = _PodLog(self._kube(), pods[0].metadata.name, attempt.log)


class _PodLog:
    """A pod's output, followed into a file; a stream that breaks is opened again and what is known is skipped."""

    def __init__(self, api: KubeApi, pod: str, path: Path) -> None:
        self._api, self._pod, self._path = api, pod, path
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"log of {pod}", daemon=True)
        self._thread.start()

    def finish(self) -> None:
        """Once the pod has ended: what is not in the file yet. Raises Unreachable and KubeError."""
        self._ending.set()
        self._thread.join(5.0)
        self._copy(self._api.log(self._pod, follow=False))

    def _run(self) -> None:
        while not self._ending.is_set():
            with contextlib.suppress(Unreachable, KubeError):  # the status calls tell of it
                self._copy(self._api.log(self._pod, follow=True))
            self._ending.wait(1.0)

    def _copy(self, stream: Any) -> None:
        from urllib3.exceptions import HTTPError

        skip = self._path.stat().st_size if self._path.exists() else 0
        with contextlib.suppress(HTTPError, OSError), self._path.open("ab") as file:
            for piece in stream.stream(decode_content=False):
                file.write(piece[skip:])
                file.flush()
                skip = max(0, skip - len(piece))


def _exit_code(said: str) -> int | None:
    found = re.search(r"exit code (-?\d+)", said)
    return int(found[1]) if found else None
