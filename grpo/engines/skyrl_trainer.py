"""SkyRL's trainer with our data, comparison, evaluation and checkpoints; its loop and its loss stay as they are.

Each override puts one thing right: the tasks of a step are a function of the step (a resumed run needs no loader
state), errored rollouts are left out of their group's comparison, masked rows do not dilute the loss, an update
without a trained token is not made, nothing is computed on the padding of other rows, *solved* is evaluated apart
from reward, a checkpoint is whole or not there.
"""
# pyright: reportMissingImports=false

from __future__ import annotations

import logging
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from skyrl.backends.skyrl_train.inference_servers.engine_utils import get_sampling_params_for_backend
from skyrl.train.generators.utils import prepare_generator_input
from skyrl.train.trainer import RayPPOTrainer

from grpo import pair
from grpo.advantage import comparable_totals, group_advantages
from grpo.checkpoint import DONE, is_complete, prune, write_folder, write_state
from grpo.config import RunConfig
from grpo.engines import skyrl_workers
from grpo.engines.given import Given
from grpo.engines.local import LOGGED_EPISODES, OBJECTIVE
from grpo.engines.skyrl import ENV_CLASS
from grpo.engines.skyrl_env import row
from grpo.engines.skyrl_generator import Generator
from grpo.engines.skyrl_records import Records, Step
from grpo.evaluate import held_out
from grpo.evaluation import Evaluation
from grpo.files import write_json, writing
from grpo.heartbeat import beat
from grpo.interfaces import Env
from grpo.loss import token_weights
from grpo.plan import reach
from grpo.randomness import seed as seed_of
from grpo.tracking import rollout_row
from grpo.types import Task

log = logging.getLogger(__name__)

ADAPTER = Path("policy/lora_adapter")
"""Where SkyRL puts the adapter within its checkpoint."""


class StepTasks:
    """SkyRL's data loader: the tasks of each step, those that the local engine would draw."""

    def __init__(self, env: Env, run: RunConfig, folder: Path, next_step: Callable[[], int]) -> None:
        self._env = env
        self._run = run
        self._folder = folder
        self._next_step = next_step

    def __len__(self) -> int:
        return self._run.runtime.steps

    def __iter__(self) -> Iterator[list[dict[str, Any]]]:
        count, seed = self._run.algorithm.prompts_per_step, self._run.runtime.seed
        for step in range(self._next_step(), len(self) + 1):
            beat(self._folder, "rollouts", step)
            tasks = self._env.tasks("train", count, seed_of(seed, "tasks", step))
            yield [entry(task, f"{step}.{index}", evaluation=False) for index, task in enumerate(tasks)]

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """The step says it all."""


def entry(task: Task, uid: str, *, evaluation: bool) -> dict[str, Any]:
    """A row as SkyRL's data set would give it; siblings share `uid`, and so their group."""
    return {"prompt": [], "env_class": ENV_CLASS, "env_extras": row(task, 0, evaluation=evaluation), "uid": uid}


class Trainer(RayPPOTrainer):
    generator: Generator

    def __init__(self, given: Given, records: Records, **theirs: Any) -> None:
        self.given = given
        self.records = records
        self.closing: list[tuple[str, str, Evaluation]] = []
        """(policy, decoding, result) on the test split, once training is done."""
        super().__init__(**theirs)

    def _build_train_dataloader_and_compute_training_steps(self) -> None:
        self.train_dataloader = StepTasks(self.given.env, self.given.run, self.given.folder, lambda: self.global_step)
        self.total_training_steps = len(self.train_dataloader)

    def build_models(self, PolicyWorker: Any, CriticWorker: Any, RefWorker: Any) -> None:
        super().build_models(skyrl_workers.PolicyWorker, CriticWorker, RefWorker)

    def compute_advantages_and_returns(self, data: Any) -> Any:
        beat(self.given.folder, "update", self.global_step)
        data = super().compute_advantages_and_returns(data)
        rollouts, scores = zip(*self.generator.played, strict=True)
        totals = comparable_totals([rollout.transcript for rollout in rollouts], scores)
        scale = self.given.run.algorithm.advantage_scale
        advantages = group_advantages([rollout.transcript.task.id for rollout in rollouts], totals, scale)
        self.records.step = Step(rollouts=rollouts, scores=scores, advantages=advantages)
        data["advantages"] = torch.tensor(advantages, dtype=torch.float32)[:, None] * data["response_mask"]
        return data

    def _normalize_advantages(self, data: Any, mini_batch_boundaries: Any, prompt_boundaries: Any = None) -> Any:
        algorithm = self.given.run.algorithm
        most = self.given.env.max_turns * algorithm.max_completion_tokens
        weighted = torch.zeros_like(data["advantages"])
        for start, end in mini_batch_boundaries:
            weights = token_weights(data["loss_mask"][start:end], algorithm.loss_aggregation, most)
            weighted[start:end] = data["advantages"][start:end] * weights
        data["advantages"] = weighted
        return data

    def _execute_training_step(self, model: str, data: Any) -> dict[str, float]:
        key = f"{model}_mini_batch_boundaries"
        # An update of nothing would still move the weights, by Adam's momentum.
        data.metadata[key] = [(a, b) for a, b in data.metadata[key] if bool(data["loss_mask"][a:b].any())]
        return super()._execute_training_step(model, data) if data.metadata[key] else {}

    async def train(self) -> None:
        await super().train()
        await self.dispatch.save_weights_for_sampler()  # SkyRL leaves the engines asleep
        self.closing = await self._close()

    async def eval(self, vllm_metrics_scraper: Any = None) -> dict[str, float]:
        """Validation, greedy and sampled; nothing where a resumed run has it already."""
        if self.global_step < len(self.records.history):
            return {}
        env = self.given.env
        beat(self.given.folder, "evaluation", self.global_step)
        tasks = held_out(env, "validation", self.given.run.runtime.eval_episodes)
        greedy, sampled = await self._play(tasks, greedy=True), await self._play(tasks, greedy=False)
        logged = list(zip(greedy.rollouts, greedy.scores, strict=True))[:LOGGED_EPISODES]
        self.given.log.rollouts(self.global_step, [rollout_row(self.global_step, *each, None) for each in logged])
        metrics = {
            OBJECTIVE: greedy.solved,
            "eval/all/reward": greedy.metrics["reward/total/mean"],
            "eval/all/solved_sampled": sampled.solved,
        }
        reachable = reach(env, tasks)
        return metrics if reachable is None else metrics | {"eval/ceiling": reachable.share}

    async def _close(self) -> list[tuple[str, str, Evaluation]]:
        """Start policy and trained policy on the test split: vLLM serves the base beside the adapter."""
        run, adapter = self.given.run, self.generator.policy_model_name
        tasks = held_out(self.given.env, "test", run.runtime.test_episodes)
        results = []
        for policy, name in (("start", self.inference_engine_client.model_name), ("trained", adapter)):
            self.generator.policy_model_name = name
            for decoding, greedy in (("greedy", True), (f"T={run.algorithm.temperature:g}", False)):
                results.append((policy, decoding, await self._play(tasks, greedy=greedy)))
        return results

    async def _play(self, tasks: Sequence[Task], *, greedy: bool) -> Evaluation:
        """Each task once, all together."""
        ours = self.cfg.generator
        sampling = ours.eval_sampling_params if greedy else ours.sampling_params
        batch, _ = prepare_generator_input(
            [entry(task, task.id, evaluation=True) for task in tasks],
            1,
            get_sampling_params_for_backend(ours.inference_engine.backend, sampling),
            ENV_CLASS,
            "eval",
            self.global_step,
        )
        await self.generator.generate(batch, disable_tqdm=True)
        rollouts, scores = zip(*self.generator.played, strict=True)
        return Evaluation(rollouts=rollouts, scores=scores, siblings=1)

    def save_checkpoints(self) -> str:
        """SkyRL's state, which becomes a checkpoint of ours once the step's metrics are written."""
        target = self.given.folder / "checkpoints" / f"step_{self.global_step:06d}"
        if is_complete(target):  # a run resumed at its end
            return str(target)
        beat(self.given.folder, "saving", self.global_step)
        with writing("checkpoint", target, self.given.folder):
            state = Path(super().save_checkpoints())
        self.records.written = partial(self._seal, state, target, self.global_step)
        return str(state)

    def _seal(self, state: Path, target: Path, step: int, metrics: Mapping[str, float]) -> None:
        given = self.given
        given.log.sync()
        record = pair.record(given.made_from, given.run, step, metrics)

        def write(aside: Path) -> None:
            shutil.move(state, aside / state.name)
            _adapter(aside / state.name / ADAPTER, aside / "adapter", record)
            write_state(aside, step, given.folder)

        with writing("checkpoint", target, given.folder):
            write_folder(target, write)
            prune(target.parent, given.run.runtime.keep_checkpoints)
            if step == given.run.runtime.steps:
                write_folder(given.folder / "adapter", lambda aside: _adapter(target / "adapter", aside, record))
        self.records.written = lambda metrics: None

    def _cleanup_old_checkpoints(self) -> None:
        """`prune` does it, by what is complete."""


def _adapter(source: Path, target: Path, record: Mapping[str, Any]) -> None:
    """SkyRL's adapter with its record beside it. Raises RuntimeError if it has no tensors."""
    shutil.copytree(source, target, dirs_exist_ok=True, ignore=shutil.ignore_patterns(DONE))
    with safe_open(target / pair.WEIGHTS_FILE, "numpy") as written:
        if not written.keys():
            raise RuntimeError(f"the adapter that SkyRL wrote to {source} holds no tensors")
    write_json(target / pair.PAIR_FILE, pair.seal(record, target))
