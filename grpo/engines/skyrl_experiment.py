"""SkyRL's experiment, with our generator, trainer and records in the places that it leaves open for them."""
# pyright: reportMissingImports=false

from __future__ import annotations

from typing import Any

from skyrl.backends.skyrl_train.inference_servers.utils import resolve_policy_model_name
from skyrl.train.entrypoints.main_base import BasePPOExp
from transformers import PretrainedConfig

from grpo.engines.given import Given
from grpo.engines.skyrl_generator import Generator
from grpo.engines.skyrl_records import Records
from grpo.engines.skyrl_trainer import Trainer


class Experiment(BasePPOExp):
    trainer: Trainer

    def __init__(self, config: Any, given: Given, records: Records) -> None:
        self._given = given
        self._records = records
        super().__init__(config)

    def close(self) -> None:
        """SkyRL leaves its router to the end of this process."""
        if self._inference_router is not None:
            self._inference_router.shutdown()

    def get_train_dataset(self) -> None:
        """The trainer draws each step's tasks itself."""

    def get_eval_dataset(self) -> None:
        """The trainer evaluates on held-out tasks itself."""

    def get_tracker(self) -> Records:
        return self._records

    def get_trajectory_logger(self) -> None:
        """Rollouts are in rollouts.jsonl."""

    def get_generator(self, cfg: Any, tokenizer: Any, inference_engine_client: Any) -> Generator:
        model = cfg.trainer.policy.model.path
        vision = PretrainedConfig.get_config_dict(model)[0]["vision_config"]
        return Generator(
            env=self._given.env,
            mixture=self._given.mixture,
            model=model,
            merged_patches=vision["spatial_merge_size"] ** 2,
            tokenizer=tokenizer,
            generator_cfg=cfg.generator,
            skyrl_gym_cfg=cfg.environment.skyrl_gym,
            inference_engine_client=inference_engine_client,
            policy_model_name=resolve_policy_model_name(cfg),
        )

    def get_trainer(self, **theirs: Any) -> Trainer:
        return Trainer(self._given, self._records, **theirs)
