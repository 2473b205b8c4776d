"""KubeRay's part of the Kubernetes API: a RayJob that is made runs its entrypoint as a process of this machine."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from aiohttp import web
from hyperpod_stub import BEARER, HyperpodStub
from ray_head import Head

from launchers.manifests import CONFIG_DIR

JOBS = "/apis/ray.io/v1/namespaces/default/rayjobs"
CORE = "/api/v1/namespaces/default"


@dataclass
class Job:
    manifest: dict[str, Any]
    process: subprocess.Popen[bytes] | None = None
    suspended: bool = False


@dataclass
class KubeRayStub:
    """`pull_fails`: images that cannot be had; `evicted`: RayJobs that are gone although nobody here deleted them."""

    folder: Path
    project: Path
    pull_fails: bool = False
    jobs: dict[str, Job] = field(default_factory=dict)
    deleted: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        nobody = Head(port=1, token="", folder=self.folder)
        self.server = HyperpodStub(nobody, self.folder)
        self.server.routes = [
            web.get("/version/", self._version),
            web.get("/version", self._version),
            web.post(JOBS, self._make),
            web.get(JOBS + "/{name}", self._get),
            web.delete(JOBS + "/{name}", self._delete),
            web.post(CORE + "/configmaps", self._config),
            web.get(CORE + "/pods", self._pods),
            web.get(CORE + "/pods/{pod}/log", self._log),
        ]

    async def _version(self, request: web.Request) -> web.Response:
        return web.json_response({"major": "1", "minor": "33", "gitVersion": "v1.33.0"} | dict.fromkeys(_MORE, ""))

    async def _make(self, request: web.Request) -> web.Response:
        if request.headers.get("Authorization") != f"Bearer {BEARER}":
            return web.json_response({"message": "Unauthorized"}, status=401)
        manifest = await request.json()
        name = manifest["metadata"]["name"]
        if name in self.jobs:
            return web.json_response({"message": f"rayjobs.ray.io {name!r} already exists"}, status=409)
        manifest["metadata"]["uid"] = f"uid-{name}"
        self.jobs[name] = Job(manifest=manifest)
        return web.json_response(manifest, status=201)

    async def _config(self, request: web.Request) -> web.Response:
        manifest = await request.json()
        name = manifest["metadata"]["name"]
        (self.folder / name).mkdir()
        (self.folder / name / "config.yaml").write_text(manifest["data"]["config.yaml"])
        if not self.pull_fails:
            self.start(name)
        return web.json_response(manifest, status=201)

    def start(self, name: str) -> None:
        words = shlex.split(self.jobs[name].manifest["spec"]["entrypoint"].replace(CONFIG_DIR, str(self.folder / name)))
        environment = {**os.environ, "PYTHONPATH": str(self.project), "PYTHONUNBUFFERED": "1"}
        with (self.folder / f"{name}.log").open("ab") as log:
            process = subprocess.Popen(words, cwd=self.project, env=environment, stdout=log, stderr=log)
        self.jobs[name].process = process

    async def _get(self, request: web.Request) -> web.Response:
        job = self.jobs.get(request.match_info["name"])
        if job is None:
            return web.json_response({"message": "not found", "reason": "NotFound"}, status=404)
        return web.json_response({**job.manifest, "status": {"rayClusterName": "made", **self._status(job)}})

    def _status(self, job: Job) -> dict[str, str]:
        if job.suspended:
            return {"jobDeploymentStatus": "Suspended"}
        if job.process is None:
            return {"jobDeploymentStatus": "Initializing"}
        code = job.process.poll()
        if code is None:
            return {"jobDeploymentStatus": "Running", "jobStatus": "RUNNING"}
        if code == 0:
            return {"jobDeploymentStatus": "Complete", "jobStatus": "SUCCEEDED"}
        said = f"Job entrypoint command failed with exit code {code}, last available logs"
        return {"jobDeploymentStatus": "Failed", "jobStatus": "FAILED", "reason": "AppFailed", "message": said}

    async def _delete(self, request: web.Request) -> web.Response:
        name = request.match_info["name"]
        self.evict(name)
        self.deleted.append(name)
        return web.json_response({"kind": "Status"})

    def evict(self, name: str) -> None:
        """Kueue takes the whole cluster away."""
        job = self.jobs.pop(name, None)
        if job and job.process:
            job.process.kill()
            job.process.wait()

    async def _pods(self, request: web.Request) -> web.Response:
        label, _, value = request.query["labelSelector"].partition("=")
        if label == "job-name":
            return web.json_response({"items": [{"metadata": {"name": value}, "status": {}}]})
        waiting = {"reason": "ImagePullBackOff", "message": "Back-off pulling image: not found"}
        container = {"name": "c", "image": "", "imageID": "", "ready": False, "restartCount": 0}
        status = {"containerStatuses": [{**container, "state": {"waiting": waiting}}]}
        return web.json_response({"items": [{"metadata": {"name": "head"}, "status": status}] * self.pull_fails})

    async def _log(self, request: web.Request) -> web.StreamResponse:
        path = self.folder / f"{request.match_info['pod']}.log"
        return web.Response(body=path.read_bytes() if path.exists() else b"")


_MORE = ("gitCommit", "gitTreeState", "buildDate", "goVersion", "compiler", "platform")


def dumped(stub: KubeRayStub) -> str:
    """Everything that was asked of Kubernetes."""
    return json.dumps([job.manifest for job in stub.jobs.values()])
