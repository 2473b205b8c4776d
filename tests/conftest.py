from __future__ import annotations

import gc
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import ray_head as ray_head_module
import slurm_node as slurm_node_module
import torch
from ray_head import Head
from slurm_node import SlurmNode

from envs.maze_2d import Maze2D
from grpo.policy import Policy, load_policy
from grpo.schema import LoraAdapter, ModelConfig

TINY = Path(__file__).resolve().parent.parent / "models" / "tiny_qwen3_vl"


@pytest.fixture(autouse=True, scope="session")
def one_thread() -> None:
    """Sums in one order, and no two test processes that fight for the cores."""
    torch.set_num_threads(1)


@pytest.fixture(autouse=True, scope="session")
def interrupts_arrive() -> None:
    """In the processes that tests start, too: a shell that runs the tests in the background has them ignored."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True, scope="module")
def nothing_is_left_to_collect() -> Iterator[None]:
    """What a module's servers and clients leave may log a traceback when it is collected, and CPython 3.11 parses code
    for that; in the middle of another test's `ast.parse` that is a SystemError."""
    yield
    gc.collect()


def lora(**changes: Any) -> LoraAdapter:
    fields = {
        "type": "lora",
        "rank": 4,
        "alpha": 8,
        "dropout": 0.0,
        "target_modules": ["q_proj", "v_proj"],
        "exclude_modules": ".*visual.*",
        "start_from": None,
    }
    return LoraAdapter(**(fields | changes))


def model(path: Path = TINY) -> ModelConfig:
    return ModelConfig(
        name_or_path=str(path),
        revision=None,
        trust_remote_code=False,
        gradient_checkpointing=False,
        dtype="float32",
    )


def shake(policy: Policy) -> None:
    """Give the adapter an effect: a fresh one is the identity."""
    torch.manual_seed(0)
    with torch.no_grad():
        for parameter in policy.trainable:
            parameter.add_(torch.randn_like(parameter) * 0.1)


@pytest.fixture
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a test finds out about its data is kept in its own folder."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture(scope="session")
def policy() -> Policy:
    """The shipped model with a fresh adapter. Tests must leave its weights as they are."""
    return load_policy(model(), lora(), device=torch.device("cpu"), seed=0)


@pytest.fixture(scope="session")
def maze() -> Maze2D:
    return Maze2D(size=7, max_turns=6, cell_pixels=16, aligned=True, random_rooms=0.0, instructions="brief")


@pytest.fixture(scope="session")
def ray_head() -> Iterator[Head]:
    with ray_head_module.running() as head:
        yield head


@pytest.fixture(scope="session")
def slurm_node() -> Iterator[SlurmNode]:
    with slurm_node_module.running() as node:
        yield node
