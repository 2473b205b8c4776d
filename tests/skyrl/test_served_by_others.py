"""Evaluation against a server that is not ours: `transformers serve`, which wants torchvision as SkyRL does."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import configs
import numpy as np
import pytest
import torch
from openai import OpenAI
from scripted_vllm import TINY

from grpo import contenders
from grpo.config import build_env
from grpo.contenders import Contender
from grpo.conversation import Sampling
from grpo.openai_content import messages
from grpo.policy import load_policy
from grpo.types import Message, Observation

START_SECONDS = 300
SMALL, WIDE = (np.random.default_rng(0).integers(0, 256, (64, width, 3), dtype=np.uint8) for width in (64, 128))


@dataclass(frozen=True, kw_only=True)
class Server:
    url: str
    model: str


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("served")
    shutil.copytree(TINY, folder / "tiny")
    defaults = json.loads((folder / "tiny/generation_config.json").read_text())
    # Without it this server decodes greedily at any temperature.
    (folder / "tiny/generation_config.json").write_text(json.dumps(defaults | {"do_sample": True, "top_k": 0}))
    command = [str(Path(sys.executable).with_name("transformers")), "serve", str(folder / "tiny")]
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "HF_HOME": str(folder / "cache"), "NO_COLOR": "1"}
    log = folder / "log.txt"
    with log.open("w") as output:
        process = subprocess.Popen(
            [*command, "--device", "cpu", "--host", "127.0.0.1", "--port", "0"],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
        )
    try:
        yield Server(url=f"{_address(process, log)}/v1", model=str(folder / "tiny"))
    finally:
        process.kill()
        process.wait()


def _address(process: subprocess.Popen[bytes], log: Path) -> str:
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline and process.poll() is None:
        if found := re.search(r"running on (http://127\.0\.0\.1:\d+)", log.read_text()):
            return found[1]
        time.sleep(0.2)
    pytest.fail(f"transformers serve did not start: {log.read_text()[-2000:]}")


@pytest.mark.parametrize(
    "shown",
    [
        Observation(text="Which way?", images=(SMALL,)),
        Observation(text="Which way?", images=(SMALL,), places=(0,)),
        Observation(text="One , two : same?", images=(WIDE, SMALL), places=(4, 10)),
        Observation(text="What now?", images=(), before=(Message(role="system", text="Be short."),)),
    ],
    ids=["after", "before", "within", "no image"],
)
def test_the_server_makes_as_many_tokens_of_a_prompt_as_the_local_engine(server: Server, shown: Observation) -> None:
    run = configs.run()
    policy = load_policy(run.model, run.adapter, device=torch.device("cpu"), seed=0)
    grids = tuple(policy.vision.grid(image) for image in shown.images)
    said: Any = messages(shown)
    with OpenAI(base_url=server.url, api_key="none") as client:
        answer = client.chat.completions.create(model=server.model, messages=said, temperature=0.0, max_tokens=1)
    assert answer.usage is not None
    assert answer.usage.prompt_tokens == len(policy.chat.first_turn(shown.text, grids, shown.before, shown.places))


def test_episodes_behind_the_server_are_the_local_ones_when_greedy(server: Server) -> None:
    run = configs.run({"model.name_or_path": server.model})
    env = build_env(run)
    tasks = env.tasks("test", 4, seed=0)

    def replies(contender: Contender, *, greedy: bool) -> list[Any]:
        sampling = Sampling(temperature=1.0, greedy=greedy, max_completion_tokens=run.algorithm.max_completion_tokens)
        with contender.ready() as ready:
            played = ready.play(env, tasks, 2, sampling, "test", lambda done, total: None)
        return [
            [(turn.reply, turn.completion_tokens, turn.truncated) for turn in rollout.transcript.turns]
            for rollout in played
        ]

    (here,), (there,) = contenders.local(run, []), contenders.served(run, server.url, [server.model])
    greedy = replies(there, greedy=True)
    assert greedy == replies(here, greedy=True)
    assert max(map(len, greedy)) > 3
    assert replies(there, greedy=False) != greedy


def test_a_model_that_the_server_does_not_have_is_refused_with_its_own_words(server: Server) -> None:
    with pytest.raises(ValueError, match=r"does not serve nope \(400: .*requested 'nope'"):
        contenders.served(configs.run(), server.url, ["nope"])
