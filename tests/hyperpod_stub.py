"""HyperPod on loopback: a TLS Kubernetes API that hands out dashboard links, and a TLS proxy with sessions before Ray.

The Ray behind it, the toolkit and the client are the real ones; what is played are AWS's two servers, with switches for
what goes wrong with them.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import datetime
import ipaddress
import json
import secrets
import ssl
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from aiohttp import ClientError, ClientSession, WSMsgType, web
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from ray_head import Head, free_port

CONNECTIONS = "/apis/connection.access.sagemaker.amazonaws.com/v1alpha1/namespaces/{namespace}/raydashboardconnections"
BEARER = "k8s-aws-v1.stub"


@dataclass
class Faults:
    """What is wrong at the moment; nothing at first."""

    session_seconds: float = 3600
    on_expiry: str = "401"
    """Or `302`: a redirect to a login page that answers 200."""
    down_until: float = 0
    """503 for everything, on time.monotonic()'s clock."""
    close_streams_after: int | None = None
    """Messages that a log stream passes on before it is closed as if all were said."""
    cut_streams: bool = False
    """Such a stream is cut, not closed."""
    upload_limit: int = 200 * 1024 * 1024
    link_status: int = 201
    """The Kubernetes API's answer to the wish for a link."""
    sessions: dict[str, float] = field(default_factory=dict)
    links: int = 0
    seen: list[str] = field(default_factory=list)
    """Method and path of what reached the proxy."""


class HyperpodStub:
    def __init__(self, head: Head, folder: Path) -> None:
        self.head, self.faults, self.folder = head, Faults(), folder
        self.api_port, self.proxy_port = free_port(), free_port()
        self.routes: list[web.RouteDef] = []
        """More of the Kubernetes API; added before `start`."""
        self.kubeconfig, self.ca = _credentials(folder, self.api_port)
        self._tokens: set[str] = set()
        self._runners: list[web.AppRunner] = []
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)

    @property
    def environment(self) -> dict[str, str]:
        # requests, and aiohttp's websocket, each have their own way to be told of a certificate authority.
        return {"KUBECONFIG": str(self.kubeconfig), "REQUESTS_CA_BUNDLE": str(self.ca), "SSL_CERT_FILE": str(self.ca)}

    def start(self) -> None:
        self._thread.start()
        api, proxy = web.Application(), web.Application(client_max_size=1024**3)
        api.router.add_post(CONNECTIONS, self._link)
        api.router.add_routes(self.routes)
        proxy.router.add_get("/bearer-auth", self._log_in)
        proxy.router.add_get("/login", _login_page)
        proxy.router.add_route("*", "/{path:.*}", self._pass)
        for app, port in ((api, self.api_port), (proxy, self.proxy_port)):
            asyncio.run_coroutine_threadsafe(self._serve(app, port), self._loop).result(30)

    def stop(self) -> None:
        try:
            asyncio.run_coroutine_threadsafe(self._close(), self._loop).result(30)
        finally:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(10)
        self._loop.close()

    async def _close(self) -> None:
        """No handler is left in the middle of its work: what is dropped there is closed when another test runs."""
        for runner in self._runners:
            await runner.cleanup()
        left = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)
        await self._loop.shutdown_asyncgens()

    async def _serve(self, app: web.Application, port: int) -> None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self.folder / "server.pem", self.folder / "server.key")
        runner = web.AppRunner(app, shutdown_timeout=1)
        self._runners.append(runner)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", port, ssl_context=context).start()

    async def _link(self, request: web.Request) -> web.Response:
        if request.headers.get("Authorization") != f"Bearer {BEARER}":
            return web.json_response({"message": "Unauthorized"}, status=401)
        if self.faults.link_status != 201:
            return web.json_response({"message": "no"}, status=self.faults.link_status)
        wanted = await request.json()
        if (request.match_info["namespace"], wanted["spec"]["clusterName"]) != ("default", "skyrl-visgym"):
            return web.json_response({"message": "no such cluster"}, status=404)
        token = secrets.token_urlsafe(16)
        self._tokens.add(token)
        self.faults.links += 1
        link = f"https://127.0.0.1:{self.proxy_port}/?token={token}"
        return web.json_response({**wanted, "status": {"connectionUrl": link}}, status=201)

    async def _log_in(self, request: web.Request) -> web.StreamResponse:
        if time.monotonic() < self.faults.down_until:
            return web.Response(status=503, text="upstream connect error")
        token = request.query.get("token", "")
        if token not in self._tokens:
            return web.Response(status=401)
        self._tokens.remove(token)  # good for one log-in
        session = secrets.token_urlsafe(16)
        self.faults.sessions[session] = time.monotonic()
        answer = web.Response(status=302, headers={"Location": "/"})
        answer.set_cookie("ray_session", session, secure=True, httponly=True)
        return answer

    def _refusal(self, request: web.Request) -> web.Response | None:
        if time.monotonic() < self.faults.down_until:
            return web.Response(status=503, text="upstream connect error")
        begun = self.faults.sessions.get(request.cookies.get("ray_session", ""))
        if begun is None or time.monotonic() - begun > self.faults.session_seconds:
            if self.faults.on_expiry == "302":
                return web.Response(status=302, headers={"Location": "/login"})
            return web.Response(status=401, text="session expired")
        if (request.content_length or 0) > self.faults.upload_limit:
            return web.Response(status=413, text=f"Maximum request body size {self.faults.upload_limit} exceeded")
        return None

    async def _pass(self, request: web.Request) -> web.StreamResponse:
        refusal = self._refusal(request)
        if refusal is not None:
            return refusal
        self.faults.seen.append(f"{request.method} {request.path}")
        url = f"{self.head.address}{request.rel_url}"
        headers = {"Authorization": f"Bearer {self.head.token}"}
        if request.headers.get("Upgrade", "").lower() == "websocket":
            return await self._stream(request, url, headers)
        if kind := request.headers.get("Content-Type"):
            headers["Content-Type"] = kind
        try:
            async with (
                ClientSession() as session,
                session.request(request.method, url, headers=headers, data=await request.read()) as answer,
            ):
                body = await answer.read()
                return web.Response(status=answer.status, body=body, content_type=answer.content_type)
        except OSError as error:
            return web.Response(status=502, text=str(error))

    async def _stream(self, request: web.Request, url: str, headers: dict[str, str]) -> web.WebSocketResponse:
        to_client = web.WebSocketResponse(max_msg_size=0)
        await to_client.prepare(request)
        passed = 0
        # A client that goes away, and a head that is gone, end the stream too.
        with contextlib.suppress(ClientError, OSError):
            async with (
                ClientSession() as session,
                session.ws_connect(url, headers=headers, max_msg_size=0) as from_head,
            ):
                async for message in from_head:
                    if message.type != WSMsgType.TEXT:
                        break
                    await to_client.send_str(message.data)
                    passed += 1
                    if self.faults.close_streams_after is not None and passed >= self.faults.close_streams_after:
                        break
        if self.faults.cut_streams and request.transport is not None:
            request.transport.abort()
        else:
            await to_client.close()
        return to_client


async def _login_page(request: web.Request) -> web.Response:
    return web.Response(text="<html>please log in</html>", content_type="text/html")


def _credentials(folder: Path, api_port: int) -> tuple[Path, Path]:
    """(kubeconfig with an exec plugin, the certificate authority's file), made in `folder`."""
    ca_key = ec.generate_private_key(ec.SECP256R1())
    ca = _certificate("stub CA", ca_key, None, ca_key, authority=True)
    key = ec.generate_private_key(ec.SECP256R1())
    server = _certificate("localhost", key, ca, ca_key, authority=False)
    pem = serialization.Encoding.PEM
    (folder / "ca.pem").write_bytes(ca.public_bytes(pem))
    (folder / "server.pem").write_bytes(server.public_bytes(pem))
    private = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    (folder / "server.key").write_bytes(private)
    credential = {
        "apiVersion": "client.authentication.k8s.io/v1beta1",
        "kind": "ExecCredential",
        "status": {"token": BEARER},
    }
    (folder / "get_token.py").write_text(f"print({json.dumps(json.dumps(credential))})\n")
    plugin = {
        "apiVersion": "client.authentication.k8s.io/v1beta1",
        "command": sys.executable,
        "args": [str(folder / "get_token.py")],
        "interactiveMode": "Never",
    }
    cluster = {
        "server": f"https://127.0.0.1:{api_port}",
        "certificate-authority-data": base64.b64encode(ca.public_bytes(pem)).decode(),
    }
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "stub",
        "clusters": [{"name": "stub", "cluster": cluster}],
        "users": [{"name": "stub", "user": {"exec": plugin}}],
        "contexts": [{"name": "stub", "context": {"cluster": "stub", "user": "stub"}}],
    }
    (folder / "kubeconfig").write_text(yaml.safe_dump(config))
    return folder / "kubeconfig", folder / "ca.pem"


def _certificate(
    name: str,
    key: ec.EllipticCurvePrivateKey,
    issuer: x509.Certificate | None,
    issuer_key: ec.EllipticCurvePrivateKey,
    *,
    authority: bool,
) -> x509.Certificate:
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    now = datetime.datetime.now(datetime.UTC)
    usage = x509.KeyUsage(
        digital_signature=True,
        key_cert_sign=authority,
        crl_sign=authority,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )
    names = [x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer.subject if issuer else subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(minutes=5))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.BasicConstraints(ca=authority, path_length=None), critical=True)
        .add_extension(usage, critical=True)
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer_key.public_key()), critical=False)
        .sign(issuer_key, hashes.SHA256())
    )


def wait_for(true: Callable[[], Any], seconds: float = 60) -> Any:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if found := true():
            return found
        time.sleep(0.1)
    raise TimeoutError
