"""The comparison with SkyRL's recipe, as far as it goes without a GPU."""
# pyright: reportMissingImports=false

from __future__ import annotations

import asyncio
import random
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import configs
import pytest
import ray
import torch
from scripted_vllm import CHAT, TINY, TOKENIZER, ScriptedClient, generator, play
from skyrl.train.generators.skyrl_vlm_generator import SkyRLVLMGymGenerator

from grpo.config import build_env, build_rewards
from grpo.console import Console
from grpo.engines import skyrl
from grpo.engines.given import Given
from grpo.engines.skyrl_settings import settings
from grpo.reward import make_mixture
from grpo.tracking import NullTracker, RunLog
from scripts.gpu_proof import random_model
from scripts.gpu_proof.comparison import RECIPE, Comparing, Comparison, Rows, Turns, ours

SHAPE = ["experiment=maze_hyperpod", "cluster=local", f"model.name_or_path={TINY}", "engine.num_engines=null"]
WORDS = [*SHAPE, "algorithm.prompts_per_step=4", "algorithm.max_completion_tokens=64", "env.max_turns=15"]


def letters(sample: int, turn: int) -> str:
    """What a model with random weights may say: no merge joins these, so the text has the same tokens again."""
    draw = random.Random(100 * sample + turn)
    ids = [draw.choice(random_model.sampled(TOKENIZER)[:-1]) for _ in range(draw.randint(1, 63))]
    return TOKENIZER.decode(ids) + draw.choice([TOKENIZER.eos_token, ""])


def test_skyrls_own_generator_keeps_images_and_placeholders_together_on_random_replies(renderer: Any) -> None:
    (run,) = configs.typed([*WORDS, "reward.workers=0"])
    config, env, client = settings(skyrl.overrides(run)), build_env(run), ScriptedClient(letters, renderer)
    generator(run, env, make_mixture(run.reward, build_rewards(run)), client)  # registers the env
    theirs: Any = SkyRLVLMGymGenerator(
        generator_cfg=config.generator,
        skyrl_gym_cfg=config.environment.skyrl_gym,
        inference_engine_client=client,
        tokenizer=TOKENIZER,
        policy_model_name="adapter",
    )
    theirs.played = []
    output, _ = asyncio.run(play(theirs, env.tasks("train", 1, seed=5), siblings=2))
    for prompt, response, pixels in zip(
        output["prompt_token_ids"], output["response_ids"], output["pixel_values"], strict=True
    ):
        placeholders = (prompt + response).count(CHAT.image_token)
        assert placeholders * 4 == pixels.shape[0] == 15 * 14 * 14


def test_both_sides_are_settings_that_skyrl_takes() -> None:
    (run,) = configs.typed(WORDS)
    for side in (RECIPE, ours(run)):
        chosen = {
            "trainer.policy_mini_batch_size": run.algorithm.prompts_per_step // side.updates,
            "trainer.micro_train_batch_size_per_gpu": side.update_rows,
            "trainer.micro_forward_batch_size_per_gpu": side.forward_rows,
        }
        assert settings(skyrl.overrides(run) | chosen).trainer.algorithm.use_kl_loss is False


def test_the_sides_take_turns_in_trainer_and_workers_until_the_time_is_up() -> None:
    (run,) = configs.typed(WORDS)
    config = settings(skyrl.overrides(run)).trainer

    class Worker:
        def __init__(self, cfg: Any) -> None:
            self.cfg = cfg

        def rows(self) -> tuple[int, int]:
            return self.cfg.micro_train_batch_size_per_gpu, self.cfg.micro_forward_batch_size_per_gpu

    ray.init(num_cpus=1, include_dashboard=False)
    try:
        worker: Any = ray.remote(num_cpus=0)(Worker).remote(config)
        made = Comparison.__new__(Comparison)
        made.global_step = 1
        made.given = SimpleNamespace(run=run)  # pyright: ignore[reportAttributeAccessIssue]
        made.cfg = SimpleNamespace(trainer=config)
        made.policy_model = SimpleNamespace(_actor_handlers=[worker])
        made.mine, made.theirs, made.slowest, made.begun, made.deadline = "mine", "theirs", 0.0, 0.0, float("inf")
        seen = []
        for step, _ in enumerate(Turns([[], [], [], []], made._begin), start=1):
            seen.append((made.generator, made.cfg.trainer.policy_mini_batch_size, *ray.get(worker.rows.remote())))
            made.global_step = step + 1
            made.deadline = float("inf") if step < 3 else 0.0
    finally:
        ray.shutdown()
    assert seen == [("mine", 4, 4, 8), ("theirs", 2, 4, 4), ("mine", 4, 4, 8)]


def test_both_sides_fit_into_skyrls_trainer_and_a_step_is_told_at_once(
    tmp_path: Path, renderer: Any, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("skyrl.train.trainer.configure_ray_worker_logging", lambda: None)  # it outlives the test
    (run,) = configs.typed([*WORDS, "reward.workers=0"])
    config, client = settings(skyrl.overrides(run)), ScriptedClient(letters, renderer)
    given = Given(
        run=run,
        env=build_env(run),
        mixture=make_mixture(run.reward, build_rewards(run)),
        folder=tmp_path,
        made_from={},
        log=RunLog(tmp_path, NullTracker()),
        console=Console(1),
    )
    records = Rows(given, history=[], gpu_use=lambda: {"perf/gpu_memory_gib": 60.0, "perf/gpu_utilization": 0.5})
    comparing = Comparing.__new__(Comparing)  # the rest of the making wants Ray and GPUs
    comparing._given, comparing._records, comparing.deadline = given, records, float("inf")
    mine = comparing.get_generator(config, TOKENIZER, client)
    made = comparing.get_trainer(
        cfg=config,
        tracker=records,
        tokenizer=TOKENIZER,
        train_dataset=None,
        eval_dataset=None,
        inference_engine_client=client,
        generator=mine,
        colocate_pg=None,
    )
    assert (made.mine, type(made.theirs), len(made.train_dataloader)) == (mine, SkyRLVLMGymGenerator, run.runtime.steps)
    made.side = RECIPE
    records.log({"timing/step": 32.0, "timing/generate": 20.0}, 1)
    told = (
        "recipe: step 32.0, generate 20.0, logprobs 0.0, update 0.0, sync 0.0 s; 1.00 GPU-seconds a rollout; 60.0 GiB"
    )
    assert told in capsys.readouterr().out
    assert len((tmp_path / "compare.jsonl").read_text().splitlines()) == 1


def test_a_small_model_of_the_shape_can_be_loaded(tmp_path: Path) -> None:
    before = torch.get_default_dtype()
    try:
        random_model.main(tmp_path, small=True)
    finally:
        torch.set_default_dtype(before)
    assert {"config.json", "ids.json", "model.safetensors", "tokenizer.json"} <= {
        each.name for each in tmp_path.iterdir()
    }
