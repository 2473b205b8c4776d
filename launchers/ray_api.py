"""Ray's Jobs API through whatever stands before it: port-forwards, proxies with sessions that run out, restarts.

A client takes its session once and never renews it, and an expired one shows as three different errors. So any error
of the connection makes a new client, once; what still fails then is a cluster that does not answer, which says nothing
about its jobs.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from launchers.cluster import Unreachable

if TYPE_CHECKING:
    from ray.job_submission import JobSubmissionClient

T = TypeVar("T")
REQUEST_SECONDS = 60.0
EXISTS = "already exists"
"""In the answer to a second submission of one id, which Ray gives as an error of its own (500)."""
_STATUS = re.compile(r"status code (\d{3})[:.]? ?(.*)", re.DOTALL)


_TOOLKIT = {
    "Access denied": 403,
    "not authorized": 403,
    "Resource not found": 404,
    "credentials may have expired": 401,
    "public endpoint may not be enabled": 404,
    "ubeconfig": 400,
}
"""What HyperPod's toolkit says where waiting does not help, as the HTTP code that it stands for."""


class Answer(Exception):
    """The server's own refusal, in its words."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(f"HTTP {code}: {' '.join(text.split())[:500]}")
        self.code, self.exists = code, EXISTS in text


class RayApi:
    """Methods raise Unreachable, and Answer for a refusal. Safe to use from several threads."""

    def __init__(self, address: str, token: str | None) -> None:
        self.address = address
        self._headers = {"Authorization": f"Bearer {token}"} if token else None
        self._client: JobSubmissionClient | None = None
        self._lock = threading.Lock()

    def call(self, work: Callable[[JobSubmissionClient], T]) -> T:
        """The result of `work` on a client that is connected."""
        client = self._connected(stale=None)
        try:
            return self._translated(work, client)
        except Unreachable:
            return self._translated(work, self._connected(stale=client))

    def client(self) -> JobSubmissionClient:
        return self._connected(stale=None)

    def renew(self, stale: JobSubmissionClient) -> None:
        """A session turned out to be no good any more; the next caller gets a new one."""
        with self._lock:
            if self._client is stale:
                self._client = None

    def get(self, path: str) -> Any:
        """The JSON answer of the dashboard to GET `path`."""

        def ask(client: JobSubmissionClient) -> Any:
            answer = client._do_request("GET", path)
            if answer.status_code != 200:
                raise RuntimeError(f"Request failed with status code {answer.status_code}: {answer.text}")
            return answer.json()

        return self.call(ask)

    def _connected(self, stale: JobSubmissionClient | None) -> JobSubmissionClient:
        with self._lock:
            if self._client is None or self._client is stale:
                self._client = None
                self._client = self._translated(lambda _: _connect(self.address, self._headers), None)
            return self._client

    def _translated(self, work: Callable[[Any], T], client: Any) -> T:
        try:
            return work(client)
        except Exception as error:
            raise translated(error) from error


def translated(error: Exception) -> Exception:
    """What an error of Ray's client, of requests, aiohttp or HyperPod's toolkit means; unknown ones stay themselves."""
    import requests
    from aiohttp import ClientError
    from ray.exceptions import AuthenticationError

    if isinstance(error, Unreachable | Answer):
        return error
    found = _STATUS.search(str(error)) if isinstance(error, RuntimeError) else None
    if found and (EXISTS in found[2] or (int(found[1]) < 500 and int(found[1]) not in (408, 429))):
        return Answer(int(found[1]), found[2])
    if isinstance(error, AuthenticationError):
        # Ray's own text speaks of RAY_AUTH_MODE, which has nothing to do with a proxy's session.
        return Unreachable("the cluster refuses this session or token (HTTP 401 or 403)")
    from_toolkit = type(error).__name__ in ("TokenAcquisitionError", "KubeconfigError")
    if from_toolkit:
        code = next((code for sign, code in _TOOLKIT.items() if sign in str(error)), None)
        return Unreachable(str(error)) if code is None else Answer(code, str(error))
    away = (ConnectionError, OSError, ClientError, requests.RequestException)
    closed = isinstance(error, RuntimeError) and ("WebSocket" in str(error) or "Version check" in str(error))
    if isinstance(error, away) or found or closed:
        return Unreachable(f"{type(error).__name__}: {' '.join(str(error).split())[:300]}")
    return error


def _connect(address: str, headers: Mapping[str, str] | None) -> JobSubmissionClient:
    from ray.job_submission import JobSubmissionClient

    class Client(JobSubmissionClient):
        def _do_request(self, method: str, endpoint: str, **options: Any) -> Any:
            # Without a limit, a connection that a laptop's sleep cut would be waited on for ever.
            return super()._do_request(method, endpoint, **{"timeout": REQUEST_SECONDS, **options})

    # Its progress is told by the sweep.
    for name in ("ray.dashboard.modules.dashboard_sdk", "ray.dashboard.modules.job.sdk"):
        logging.getLogger(name).setLevel(logging.WARNING)
    with _without_ray_addresses():
        return Client(address, headers=dict(headers) if headers else None)


@contextlib.contextmanager
def _without_ray_addresses() -> Iterator[None]:
    """Ray's client prefers these variables to the address that it is given; the config's address is the one meant."""
    names = ("RAY_ADDRESS", "RAY_API_SERVER_ADDRESS")
    before = {name: os.environ.pop(name) for name in names if name in os.environ}
    try:
        yield
    finally:
        os.environ.update(before)
