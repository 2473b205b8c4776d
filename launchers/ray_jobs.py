"""A Ray cluster behind its Jobs API: one job a trial.

The job asks Ray for nothing. Its driver only starts the training, which asks for the GPUs itself: with one GPU held by
the driver, a run that wants all of them would wait for ever.
"""

from __future__ import annotations

import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from grpo.cluster_schema import RayJobsCluster
from grpo.config import ConfigError, Fault
from grpo.layout import layout
from launchers import address as addresses
from launchers import package
from launchers.cluster import Attempt, Cluster, Refused, Status, Unreachable
from launchers.entrypoint import remote_folder, shell_line
from launchers.outcome import MARK, tail
from launchers.ray_api import Answer, RayApi
from launchers.ray_logs import LogStream, complete
from launchers.record import PACKAGE

NODES = "/api/v0/nodes?detail=true&limit=10000"


class RayJobs(Cluster):
    """`root` is the project whose code is sent; `say` tells the person who waits."""

    def __init__(
        self, settings: RayJobsCluster, address: str, *, token: str | None, say: Callable[[str], None], root: Path
    ) -> None:
        self._settings, self._say, self._root = settings, say, root
        self._api = RayApi(address, token)
        self._package: package.Package | None = None
        self._streams: dict[str, LogStream] = {}
        self._changed = threading.Event()

    def check(self, attempts: Sequence[Attempt]) -> None:
        self._await_answer()
        if not attempts:
            return
        if self._settings.check_capacity and any(layout(e.run.engine, e.run.cluster).all_gpus for e in attempts):
            self._check_gpus(attempts)
        self._package = self._build(attempts)
        self._say(f"package: {self._package.mib:.2f} MiB, {len(self._package.sizes)} files")

    def submit(self, attempt: Attempt) -> None:
        if self._package is None:
            self._package = self._build([attempt])
        packed = str(self._package.path)
        environment = {**self._settings.env_vars, "RAY_JOB_STOP_WAIT_TIME_S": str(self._settings.stop_seconds)}
        try:
            self._api.call(
                lambda client: client.submit_job(
                    entrypoint=self._entrypoint(attempt),
                    submission_id=attempt.id,
                    # A dict of its own each time: the client writes into it.
                    runtime_env={"working_dir": packed, "env_vars": environment},
                )
            )
        except Answer as error:
            if error.code in (401, 403, 404):  # of what stands before the cluster, which may be back soon
                raise Unreachable(str(error)) from error
            if not error.exists:
                raise Refused(f"the cluster refused the job: {error}") from error

    def status(self, attempt: Attempt) -> Status:
        try:
            job = self._api.call(lambda client: client.get_job_info(attempt.id))
        except Answer as error:
            if error.code == 404:
                return Status(phase="lost", code=None, note="")
            raise Unreachable(str(error)) from error
        if attempt.id not in self._streams:
            self._streams[attempt.id] = LogStream(self._api, attempt.id, attempt.log, self._changed)
        state, said = job.status.value, " ".join((job.message or "").split())
        if state == "PENDING":
            return Status(phase="pending", code=None, note=said[:200])
        if state == "RUNNING":
            return Status(phase="running", code=None, note="")
        if state == "SUCCEEDED":
            return Status(phase="ended", code=0, note="")
        note = "stopped by someone" if state == "STOPPED" else said[:300] if job.driver_exit_code is None else ""
        return Status(phase="ended", code=job.driver_exit_code, note=note)

    def stop(self, attempt: Attempt) -> None:
        try:
            self._api.call(lambda client: client.stop_job(attempt.id))
        except Answer as error:
            if error.code != 404:
                raise Unreachable(str(error)) from error

    def collect(self, attempt: Attempt) -> None:
        if stream := self._streams.pop(attempt.id, None):
            stream.finish()
        if MARK in tail(attempt.log):
            return
        # Asked for once more: the stream would bring the same, but a second or two later.
        try:
            complete(self._api, attempt.id, attempt.log)
        except Answer as error:
            if error.code == 404:  # a head that forgot the job, and its output
                return
            self._say(f"the output of {attempt.id} could not be completed: {error}")

    def result_folders(self, attempt: Attempt) -> list[Path]:
        there = Path(remote_folder(attempt))
        return [there] if there == attempt.here.resolve() else [there, attempt.here]

    def wait(self, seconds: float) -> None:
        self._changed.wait(seconds)
        self._changed.clear()

    def close(self) -> None:
        for stream in self._streams.values():
            stream.finish()

    def preview(self, attempts: Sequence[Attempt]) -> str:
        with tempfile.TemporaryDirectory() as scratch:
            built = package.build(attempts, Path(scratch) / PACKAGE, self._settings.package_limit_mib, self._root)
            listed = package.listing(built)
        jobs = [f"  {attempt.id}: {self._entrypoint(attempt)}" for attempt in attempts]
        return "\n".join([f"address: {self._api.address}", listed, "jobs:", *jobs])

    def _entrypoint(self, attempt: Attempt) -> str:
        return shell_line(self._settings.python, package.config_name(attempt), remote_folder(attempt))

    def _build(self, attempts: Sequence[Attempt]) -> package.Package:
        target = attempts[0].sweep / PACKAGE
        return package.build(attempts, target, self._settings.package_limit_mib, self._root)

    def _await_answer(self) -> None:
        """Wait for a cluster that is still starting. Raises ConfigError with its last words after the limit."""
        limit = time.monotonic() + self._settings.start_minutes * 60
        told = ""
        while True:
            try:
                self._api.get("/api/version")
                return
            except (Unreachable, Answer) as error:
                if time.monotonic() > limit or isinstance(error, Answer):
                    problem = f"{self._api.address} does not answer: {error}"
                    raise ConfigError([Fault(key="cluster.address", problem=problem)]) from error
                if str(error) != told:
                    told = str(error)
                    self._say(f"waiting up to {self._settings.start_minutes:g} minutes for {self._api.address}: {told}")
                self._changed.wait(1.0)

    def _check_gpus(self, attempts: Sequence[Attempt]) -> None:
        nodes = self._api.get(NODES)["data"]["result"]["result"]
        has = [node["resources_total"].get("GPU", 0) for node in nodes if node["state"] == "ALIVE"]
        needs = max((layout(each.run.engine, each.run.cluster) for each in attempts), key=lambda each: each.all_gpus)
        each_node = needs.all_gpus // needs.all_nodes
        if needs.all_gpus > sum(has) or sum(count // max(each_node, 1) for count in has) < needs.all_nodes:
            wanted = f"a trial needs {needs.all_gpus} GPUs ({needs.all_nodes} x {each_node})"
            problem = f"{wanted}, the cluster has {sum(has):g} (by node: {', '.join(f'{count:g}' for count in has)})"
            way_out = "use fewer, or cluster.check_capacity=false for a cluster that grows on demand"
            raise ConfigError([Fault(key="cluster", problem=f"{problem} and would wait for ever; {way_out}")])


def check_address(address: str, *, has_token: bool, allow_insecure: bool) -> None:
    """Raises ConfigError for an address that is none, or none to be used like this."""
    problem = addresses.problem(address, has_token=has_token, allow_insecure=allow_insecure)
    if problem:
        raise ConfigError([Fault(key="cluster.address", problem=problem)])
