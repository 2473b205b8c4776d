"""Standing clusters in the Kubernetes API: server-side apply, pods with reasons, Kueue, and what an API refuses."""

from __future__ import annotations

import copy
import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from aiohttp import web
from hyperpod_stub import BEARER, HyperpodStub
from ray_head import Head

CLUSTERS = "/apis/ray.io/v1/namespaces/default/rayclusters"
CORE = "/api/v1/namespaces/default"
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def pod(name: str, *, ready: bool, waiting: tuple[str, str] | None = None, unscheduled: str | None = None) -> Any:
    conditions = [{"type": "Ready", "status": str(ready)}]
    if unscheduled:
        conditions.append(
            {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": unscheduled}
        )
    state = {"waiting": {"reason": waiting[0], "message": waiting[1]}} if waiting else {}
    container = {"name": "c", "image": "", "imageID": "", "ready": ready, "restartCount": 0, "state": state}
    status = {"phase": "Running" if ready else "Pending", "conditions": conditions, "containerStatuses": [container]}
    return {"metadata": {"name": name}, "status": status}


@dataclass
class RayClusterStub:
    """What lies in the API is in the fields, for tests to change as KubeRay, Kueue and the scheduler would."""

    folder: Path
    refusal: tuple[int, str] | None = None
    """Status and words of every answer."""
    operator: bool = True
    """False: a Kubernetes that has never heard of KubeRay."""
    clusters: dict[str, Any] = field(default_factory=dict)
    claims: dict[str, Any] = field(default_factory=dict)
    pods: list[Any] = field(default_factory=list)
    workloads: list[Any] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.server = HyperpodStub(Head(port=1, token="", folder=self.folder), self.folder)
        one = CLUSTERS + "/{name}"
        self.server.routes = [
            web.patch(one, self._guarded(self._apply)),
            web.get(one, self._guarded(self._get)),
            web.delete(one, self._guarded(self._delete)),
            web.post(CORE + "/persistentvolumeclaims", self._guarded(self._claim)),
            web.get(CORE + "/pods", self._guarded(self._pods)),
            web.get("/apis/kueue.x-k8s.io/v1beta1/namespaces/default/workloads", self._guarded(self._workloads)),
        ]

    def _guarded(self, handler: Handler) -> Handler:
        async def answer(request: web.Request) -> web.StreamResponse:
            if request.headers.get("Authorization") != f"Bearer {BEARER}":
                return _status(401, "Unauthorized")
            if self.refusal is not None:
                return _status(*self.refusal)
            if not self.operator and request.path.startswith(CLUSTERS):
                return web.Response(status=404, text="404 page not found\n")
            return await handler(request)

        return answer

    async def _apply(self, request: web.Request) -> web.Response:
        wanted, name = json.loads(await request.text()), request.match_info["name"]
        if request.content_type != "application/apply-patch+yaml" or not request.query.get("fieldManager"):
            return _status(415, "no server-side apply")
        before = self.clusters.get(name)
        spec = {**(before["spec"] if before else {"autoscalerOptions": {}}), **wanted["spec"]}
        changed = before is None or before["spec"] != spec
        made = copy.deepcopy(before or {**wanted, "metadata": {**wanted["metadata"], "generation": 0}})
        made["spec"] = spec
        made["metadata"]["generation"] += changed
        self.clusters[name] = made
        return web.json_response(made, status=201 if before is None else 200)

    async def _get(self, request: web.Request) -> web.Response:
        name = request.match_info["name"]
        return web.json_response(self.clusters[name]) if name in self.clusters else _missing(name)

    async def _delete(self, request: web.Request) -> web.Response:
        name = request.match_info["name"]
        if name not in self.clusters:
            return _missing(name)
        # KubeRay's finalizer ends the pods first.
        self.clusters[name]["metadata"]["deletionTimestamp"] = "2026-12-01T00:00:00Z"
        return web.json_response(self.clusters[name])

    async def _claim(self, request: web.Request) -> web.Response:
        claim = await request.json()
        name = claim["metadata"]["name"]
        if name in self.claims:
            return _status(409, f"persistentvolumeclaims {name!r} already exists", "AlreadyExists")
        self.claims[name] = claim
        return web.json_response(claim, status=201)

    async def _pods(self, request: web.Request) -> web.Response:
        wanted = request.query["labelSelector"] == "ray.io/cluster=skyrl-visgym"
        return web.json_response({"items": self.pods if wanted else []})

    async def _workloads(self, request: web.Request) -> web.Response:
        return web.json_response({"items": self.workloads})


def _status(code: int, message: str, reason: str = "") -> web.Response:
    return web.json_response({"kind": "Status", "code": code, "message": message, "reason": reason}, status=code)


def _missing(name: str) -> web.Response:
    return _status(404, f'rayclusters.ray.io "{name}" not found', "NotFound")
