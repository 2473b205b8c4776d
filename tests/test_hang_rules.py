"""HyperPod is told what progress looks like: the toolkit's own client against a stand-in for the monitor."""

from __future__ import annotations

import json
import logging
import re
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import configs
import pytest
from toolkit_for_ray_on_sagemaker_ai.log_monitoring import _client

from grpo import hang_rules


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[dict[str, Any]]]:
    """What the monitor is asked for."""
    found: list[dict[str, Any]] = []

    class Monitor(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            found.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b"{}")

        def log_message(self, format: str, *args: object) -> None:
            return

    server = HTTPServer(("127.0.0.1", 0), Monitor)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    monkeypatch.setenv(hang_rules.HOST, "127.0.0.1")
    monkeypatch.setattr(_client, "_DEFAULT_PORT", server.server_port)
    monkeypatch.setattr(_client, "_get_job_id", lambda: "17000000")
    monkeypatch.setattr(_client, "_get_worker_id", lambda: "ab")
    yield found
    server.shutdown()
    server.server_close()


def run(*words: str) -> Any:
    return configs.typed(["cluster=hyperpod", "cluster.image=a", "runtime.steps=100", *words])[0]


def test_a_line_a_step_is_progress_and_the_last_one_ends_the_rule() -> None:
    (rule,) = hang_rules.rules(run())
    assert re.search(rule["log_pattern"], "step  1/100  reward 0.769  solved 0.641")
    assert re.search(rule["stop_pattern"], "step 100/100  reward 1.162")
    assert not re.search(rule["stop_pattern"], "step  99/100  reward 1.162")
    assert (rule["timeout_minutes"], len(rule["log_pattern"]) <= 256) == (60, True)


@pytest.mark.parametrize(("words", "action"), [((), "notify"), (("cluster.on_stall=retry",), "cancel")])
def test_the_nodes_monitor_is_asked_and_its_answer_is_logged(
    asked: list[dict[str, Any]], caplog: pytest.LogCaptureFixture, words: tuple[str, ...], action: str
) -> None:
    with caplog.at_level(logging.INFO):
        hang_rules.send(run(*words))
    (only,) = asked
    assert only["job_id"] == "17000000"
    assert action in json.dumps(only)
    assert "'status': 'configured'" in caplog.text


def test_nothing_is_asked_elsewhere(asked: list[dict[str, Any]]) -> None:
    hang_rules.send(configs.run())
    assert asked == []
