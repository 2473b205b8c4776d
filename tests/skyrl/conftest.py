"""Tests that need SkyRL and vLLM (Python 3.12, constraints-skyrl.txt) and no GPU: `make test-skyrl`."""
# pyright: reportMissingImports=false

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).resolve().parents[1]))

from grpo.engines import skyrl_environment

skyrl_environment.prepare()  # before anything imports SkyRL


@pytest.fixture(scope="session")
def renderer(tmp_path_factory: pytest.TempPathFactory) -> Iterator[object]:
    """A client of vLLM's own render server, run on the CPU for the tiny model."""
    from scripted_vllm import TINY
    from skyrl.backends.skyrl_train.inference_servers.render_server import CPURenderServer, RenderServerClient

    server = CPURenderServer(TINY, log_path=str(tmp_path_factory.mktemp("render")))
    url = server.start()
    yield RenderServerClient(url)
    server.shutdown()
