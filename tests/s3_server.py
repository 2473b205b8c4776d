"""A real S3 over HTTP for tests: moto's server, behind a proxy that breaks what a test asks it to break.

The proxy also does what S3 does and moto does not: it refuses a body that is not what its checksum says.
"""

from __future__ import annotations

import base64
import hashlib
import http.client
import json
import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Literal

import boto3
from moto.server import ThreadedMotoServer

Fault = Literal["busy", "denied", "cut", "lost", "short", "slow", "hang", "corrupt"] | None
"""
busy     503 SlowDown, nothing done          denied   403, nothing done
cut      the connection closes in the middle of the body, nothing done
lost     done, but the answer never comes    short    the answer's body ends in the middle
slow     done after a while                  hang     no answer until the test ends
corrupt  a bit of the body flips on its way
"""

BUCKET = "runs"


@dataclass(frozen=True, kw_only=True)
class Request:
    number: int
    """Counted from 1."""
    method: str
    path: str

    @property
    def key(self) -> str:
        return self.path.partition("?")[0].removeprefix(f"/{BUCKET}/")


class S3:
    """`fault` decides about each request, `after` is called when one that changes something is done."""

    def __init__(self, moto: tuple[str, int]) -> None:
        self.fault: Callable[[Request], Fault] = lambda request: None
        self.after: Callable[[], None] = lambda: None
        self.seen: list[Request] = []
        self.lock = threading.Lock()
        self.released = threading.Event()
        self.moto = moto
        self._server = _Server(self)
        self.address = f"http://127.0.0.1:{self._server.server_address[1]}"
        self.direct: Any = boto3.client("s3", endpoint_url=f"http://{moto[0]}:{moto[1]}")
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def die(self) -> None:
        """Nobody listens any more."""
        self.released.set()
        self._server.shutdown()
        self._server.server_close()

    def reset(self) -> None:
        """No fault, no requests seen, an empty bucket."""
        self.fault, self.after = (lambda request: None), (lambda: None)
        self.seen.clear()
        for key in self.keys():
            self.direct.delete_object(Bucket=BUCKET, Key=key)

    def keys(self, prefix: str = "") -> list[str]:
        """Past the proxy, as all that follows."""
        return [each["Key"] for each in self.direct.list_objects_v2(Bucket=BUCKET, Prefix=prefix).get("Contents", [])]

    def objects(self, prefix: str = "") -> dict[str, bytes]:
        """{key: content}."""
        return {key: self.direct.get_object(Bucket=BUCKET, Key=key)["Body"].read() for key in self.keys(prefix)}

    def broken_promise(self, prefix: str) -> str | None:
        """Why a checkpoint with a DONE could not be resumed from; None if all could."""
        objects = self.objects(prefix)
        for key, content in objects.items():
            if not key.endswith("/DONE"):
                continue
            folder = key.removesuffix("DONE")
            for name, digest in json.loads(content).items():
                if hashlib.sha256(objects.get(folder + name, b"")).hexdigest() != digest:
                    return f"{key} is there, {name} is not what it says"
            step = int(folder.rstrip("/").rpartition("_")[2])
            metrics = objects.get(f"{prefix}metrics.jsonl", b"").decode()
            if not metrics.endswith("\n") or step not in [json.loads(line)["step"] for line in metrics.splitlines()]:
                return f"{key} is there, metrics.jsonl ends before step {step}"
        return None


@contextmanager
def s3_server() -> Iterator[S3]:
    """With an empty bucket `runs`. AWS_ENDPOINT_URL is for the test to set."""
    logging.getLogger("werkzeug").setLevel(logging.WARNING)
    moto = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    moto.start()
    s3 = S3(moto.get_host_and_port())
    s3.direct.create_bucket(Bucket=BUCKET)
    try:
        yield s3
    finally:
        s3.die()
        s3.reset()
        s3.direct.delete_bucket(Bucket=BUCKET)  # moto keeps its buckets as long as the process
        moto.stop()


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, s3: S3) -> None:
        self.s3 = s3
        super().__init__(("127.0.0.1", 0), _Handler)


class _Handler(BaseHTTPRequestHandler):
    server: _Server  # pyright: ignore[reportIncompatibleVariableOverride]
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def _any(self) -> None:
        s3 = self.server.s3
        with s3.lock:
            request = Request(number=len(s3.seen) + 1, method=self.command, path=self.path)
            s3.seen.append(request)
        fault = s3.fault(request)
        length = int(self.headers.get("Content-Length", 0))
        body = self.rfile.read(length // 2 if fault == "cut" else length)
        if fault == "cut":
            self._hang_up()
        elif fault == "busy":
            self._answer(
                503, b"<Error><Code>SlowDown</Code><Message>Please reduce your request rate.</Message></Error>"
            )
        elif fault == "denied":
            self._answer(403, b"<Error><Code>AccessDenied</Code><Message>Access Denied</Message></Error>")
        elif fault == "hang":
            s3.released.wait()
            self._hang_up()
        else:
            if fault == "slow":
                time.sleep(0.3)
            self._forward(request, _flipped(body) if fault == "corrupt" else body, fault)

    def _forward(self, request: Request, body: bytes, fault: Fault) -> None:
        s3 = self.server.s3
        wanted = self.headers.get("x-amz-checksum-sha256")
        if wanted and base64.b64decode(wanted) != hashlib.sha256(body).digest():
            self._answer(400, b"<Error><Code>BadDigest</Code><Message>The SHA256 did not match.</Message></Error>")
            return
        backend = http.client.HTTPConnection(*s3.moto, timeout=30)
        with s3.lock:
            backend.request(self.command, self.path, body, dict(self.headers.items()))
            answer = backend.getresponse()
            content = answer.read()
            if request.method in ("PUT", "POST", "DELETE"):
                s3.after()
        if fault == "lost":
            self._hang_up()
            return
        self.send_response(answer.status)
        for name, value in answer.getheaders():
            if name.lower() not in ("connection", "transfer-encoding", "content-length", "date", "server"):
                self.send_header(name, value)
        told = answer.getheader("Content-Length") if self.command == "HEAD" else str(len(content))
        self.send_header("Content-Length", told or "0")
        self.end_headers()
        if fault == "short" and self.command == "GET":
            self.wfile.write(content[: len(content) // 2])
            self._hang_up()
            return
        self.wfile.write(content)

    def _answer(self, status: int, content: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def _hang_up(self) -> None:
        self.close_connection = True
        self.wfile.flush()
        self.connection.close()

    do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = _any


def _flipped(body: bytes) -> bytes:
    return bytes([body[0] ^ 1]) + body[1:] if body else body
