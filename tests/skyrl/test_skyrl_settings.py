"""What we hand to SkyRL, held against SkyRL's and vLLM's own code."""
# pyright: reportMissingImports=false

from __future__ import annotations

import json

import configs
import pytest
from skyrl_keys import FILE, read

from grpo.engines import skyrl, skyrl_settings
from grpo.faults import ConfigError

CLUSTER = ["cluster=ray", "cluster.nodes=3", "cluster.gpus_per_node=2", "algorithm.prompts_per_step=24"]


def test_the_keys_on_file_are_skyrls_keys() -> None:
    assert json.loads(FILE.read_text()) == read()


def test_the_installed_versions_are_the_pinned_ones() -> None:
    assert skyrl.not_installed() == []


@pytest.mark.parametrize(
    "words",
    [
        ["engine=skyrl"],
        ["engine=skyrl", "algorithm=dapo"],
        ["engine=skyrl", "algorithm=dr_grpo"],
        ["engine=skyrl", "algorithm=gspo"],
        ["engine=skyrl", "env.max_turns=9"],
        ["engine=skyrl", "algorithm.kl_coefficient=0.02", "cluster.gpus_per_node=2"],
        [
            "engine=skyrl",
            *CLUSTER,
            "engine.placement=separate",
            "engine.num_engines=2",
            "runtime.per_device_batch_size=4",
        ],
        ["engine=skyrl", *CLUSTER, "engine.tensor_parallel_size=2"],
        ["experiment=maze_hyperpod", "cluster.image=x", "model=qwen3_vl_8b"],
        ["experiment=maze_hyperpod", "cluster.image=x", "model=qwen3_vl_8b", "adapter.target_modules=all-linear"],
    ],
)
def test_every_preset_passes_skyrls_and_vllms_own_checks(words: list[str]) -> None:
    (run,) = configs.typed(words)
    assert skyrl.faults(run) == []
    chosen = skyrl_settings.vllm_arguments(skyrl_settings.settings(skyrl.overrides(run)))
    assert chosen["max_model_len"] == run.algorithm.max_prompt_tokens + run.algorithm.max_completion_tokens
    assert "trust_remote_code" not in chosen  # that is: as vLLM's default, false


def test_what_skyrl_refuses_comes_back_as_a_config_error() -> None:
    (run,) = configs.typed(["engine=skyrl"])
    with pytest.raises(ConfigError, match="SkyRL refuses these settings"):
        skyrl_settings.settings(skyrl.overrides(run) | {"trainer.policy_mini_batch_size": 5})
