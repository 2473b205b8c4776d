"""The parts of `compare.py` that take their places inside SkyRL: two sides that take turns, step by step."""
# pyright: reportMissingImports=false

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import ray
from skyrl.train.generators.skyrl_vlm_generator import SkyRLVLMGymGenerator
from skyrl.train.trainer import RayPPOTrainer

from grpo.config import RunConfig
from grpo.engines.skyrl_experiment import Experiment
from grpo.engines.skyrl_records import Records
from grpo.engines.skyrl_trainer import Trainer
from grpo.schema import SkyrlEngine
from scripts.gpu_proof.table import PHASES, line


@dataclass(frozen=True, kw_only=True)
class Side:
    """What a step is played and trained with."""

    name: str
    updates: int
    update_rows: int
    """Of one pass with gradients."""
    forward_rows: int
    """Of one pass without."""


RECIPE = Side(name="recipe", updates=2, update_rows=4, forward_rows=4)


def ours(run: RunConfig) -> Side:
    assert isinstance(run.engine, SkyrlEngine)
    return Side(
        name="ours",
        updates=run.algorithm.updates_per_step,
        update_rows=run.runtime.per_device_batch_size,
        forward_rows=run.engine.forward_batch_size,
    )


class Turns:
    """SkyRL's data loader: our steps, as long as `begin` permits another."""

    def __init__(self, steps: Any, begin: Callable[[], bool]) -> None:
        self._steps, self._begin = steps, begin

    def __len__(self) -> int:
        return len(self._steps)

    def __iter__(self) -> Iterator[list[dict[str, Any]]]:
        for rows in self._steps:
            if not self._begin():
                return
            yield rows


class Comparison(Trainer):
    side: Side
    theirs: Any
    """SkyRL's own generator."""
    deadline: float

    def _build_train_dataloader_and_compute_training_steps(self) -> None:
        super()._build_train_dataloader_and_compute_training_steps()
        self.mine, self.slowest, self.begun = self.generator, 0.0, time.monotonic()
        self.train_dataloader: Any = Turns(self.train_dataloader, self._begin)

    def _begin(self) -> bool:
        now = time.monotonic()
        if self.global_step > 1:
            self.slowest = max(self.slowest, now - self.begun)
        if now + self.slowest > self.deadline:
            return False
        self.begun = now
        self._take(ours(self.given.run) if self.global_step % 2 else RECIPE)
        return True

    def _take(self, side: Side) -> None:
        self.side = side
        self.generator = self.theirs if side is RECIPE else self.mine
        settings = self.cfg.trainer
        settings.policy_mini_batch_size = settings.train_batch_size // side.updates

        update_rows, forward_rows = side.update_rows, side.forward_rows

        def set_rows(worker: Any) -> None:
            worker.cfg.micro_train_batch_size_per_gpu = update_rows
            worker.cfg.micro_forward_batch_size_per_gpu = forward_rows

        ray.get([actor.__ray_call__.remote(set_rows) for actor in self.policy_model._actor_handlers])

    def compute_advantages_and_returns(self, data: Any) -> Any:
        if self.side is RECIPE:
            return RayPPOTrainer.compute_advantages_and_returns(self, data)
        return super().compute_advantages_and_returns(data)

    def save_checkpoints(self) -> str:
        return ""  # 35 GB that nobody needs

    async def _close(self) -> list[Any]:
        return []


class Rows(Records):
    """Prints a line a step and keeps it in compare.jsonl."""

    comparison: Comparison

    def log(self, data: Mapping[str, Any], step: int, commit: bool = False) -> None:
        if step == 0:
            super().log(data, step)
            return
        run = self._given.run
        rollouts = run.algorithm.prompts_per_step * run.algorithm.group_size
        row = {"step": step, "side": self.comparison.side.name}
        row |= {name: float(data.get(f"timing/{theirs}", 0.0)) for name, theirs in PHASES.items()}
        row |= dict(self._gpu_use())
        row["gpu_seconds"] = row["step"] * self.comparison._num_training_gpus / rollouts
        row["tokens"] = float(data.get("generate/batch_padded_seq_len", 0))
        with (self._given.folder / "compare.jsonl").open("a") as file:
            file.write(json.dumps(row) + "\n")
        print(line(row), flush=True)


class Comparing(Experiment):
    deadline: float

    def get_generator(self, cfg: Any, tokenizer: Any, inference_engine_client: Any) -> Any:
        mine = super().get_generator(cfg, tokenizer, inference_engine_client)
        self._theirs = SkyRLVLMGymGenerator(
            generator_cfg=cfg.generator,
            skyrl_gym_cfg=cfg.environment.skyrl_gym,
            inference_engine_client=inference_engine_client,
            tokenizer=tokenizer,
            policy_model_name=mine.policy_model_name,
        )
        return mine

    def get_trainer(self, **parts: Any) -> Comparison:
        made = Comparison(self._given, self._records, **parts)
        made.theirs, made.deadline = self._theirs, self.deadline
        assert isinstance(self._records, Rows)
        self._records.comparison = made
        return made
