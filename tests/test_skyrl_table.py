"""The table from our keys to SkyRL's: complete, of SkyRL's types, and nothing overridden behind it. Needs no SkyRL."""

from __future__ import annotations

from typing import Any, get_args, get_type_hints

import configs
import pytest
from pydantic import BaseModel

from grpo import config
from grpo.engines import skyrl
from grpo.layout import layout
from grpo.schema import RunConfig, SkyrlEngine

OPEN = {"reward", "env", "cluster", "tracker"}
"""Sections whose keys depend on what is chosen."""


THREE_BY_TWO = ["cluster=ray", "cluster.nodes=3", "cluster.gpus_per_node=2"]


def keys_of(model: type[BaseModel], prefix: str) -> set[str]:
    return {f"{prefix}.{name}" for name in model.model_fields}


def all_keys() -> set[str]:
    """Every key that a run with engine=skyrl can have; open sections by name."""
    found: set[str] = set()
    for name, hint in get_type_hints(RunConfig, include_extras=False).items():
        if name.startswith("model_"):
            continue
        models = [choice for choice in (hint, *get_args(hint)) if isinstance(choice, type)]
        models = [SkyrlEngine] if name == "engine" else [m for m in models if issubclass(m, BaseModel)]
        if name in OPEN or not models:
            found.add(name)
        for model in models if name not in OPEN else []:
            found |= keys_of(model, name)
    return found


def test_every_key_is_translated_read_by_our_own_code_or_refused_by_name() -> None:
    told = {key for row in skyrl.TABLE for key in row.ours} | set(skyrl.OURS) | {each.key for each in skyrl.REFUSALS}
    assert all_keys() - told == set()
    assert {key for key in told if key.split(".")[0] not in OPEN} - all_keys() == set()


@pytest.mark.parametrize("words", [["engine=skyrl"], ["experiment=maze_hyperpod", "cluster.image=x"]])
def test_what_the_table_sets_is_what_skyrl_takes(words: list[str]) -> None:
    (run,) = configs.typed(words)
    assert skyrl.faults(run) == []
    # Their type says text; the list is handed to peft, which takes both.
    untyped = {f"{skyrl.LORA}.target_modules"}
    wrong = {
        key: value
        for key, value in skyrl.overrides(run).items()
        if key not in untyped and not skyrl.fits(value, skyrl.kinds(key) or [])
    }
    assert wrong == {}


def test_no_two_rows_set_the_same_key() -> None:
    theirs = [row.theirs for row in skyrl.TABLE]
    assert len(theirs) == len(set(theirs))


@pytest.mark.parametrize(
    ("word", "told"),
    [
        ("+engine.overrides.trainer.policy.sequence_parallel_sise=2", "did you mean trainer.policy.sequence_parallel"),
        ("+engine.overrides.trainer.critic_mini_batch_size=many", "SkyRL wants int, got 'many'"),
        ("+engine.overrides.trainer.policy_mini_batch_size=4", "follows from algorithm.updates_per_step; set that"),
        ("+engine.overrides.trainer.strategy=megatron", "is needed as this engine sets it"),
        ("+engine.overrides.trainer.seed.deep=1", "has no such key"),
        ("adapter=none", "training every weight"),
        ("model.revision=695e0514", "download that revision"),
        ('adapter.target_modules=".*q_proj"', "a list of names"),
        ("algorithm.updates_per_step=32", "cuts a step between tasks"),
        ("runtime.mixed_precision=fp32", "use bf16"),
        ("runtime.steps=0", "at least one step"),
    ],
)
def test_what_skyrl_cannot_honour_is_refused_by_name(word: str, told: str) -> None:
    (run,) = configs.typed(["engine=skyrl", "runtime.per_device_batch_size=4", word])
    (fault,) = skyrl.faults(run)
    assert fault.key == word.lstrip("+").split("=")[0].replace(
        "adapter", "adapter.type" if "none" in word else "adapter"
    )
    assert told in fault.problem


def test_overrides_may_be_nested_or_dotted_and_reach_open_sections() -> None:
    overrides: dict[str, Any] = {
        "trainer.fully_async": {"enabled": False},
        "generator": {"inference_engine": {"engine_init_kwargs": {"long_prefill_token_threshold": 4}}},
    }
    run = configs.run({"engine": {**skyrl_section(), "overrides": overrides}, "runtime.mixed_precision": "bf16"})
    assert skyrl.faults(run) == []
    values = skyrl.overrides(run)
    assert values["trainer.fully_async.enabled"] is False
    assert values["generator.inference_engine.engine_init_kwargs.long_prefill_token_threshold"] == 4


def skyrl_section() -> dict[str, Any]:
    (run,) = configs.typed(["engine=skyrl"])
    return run.engine.model_dump()


@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        (["cluster.gpus_per_node=2"], (1, 2, 2)),
        (["cluster.gpus_per_node=4", "engine.tensor_parallel_size=2"], (1, 4, 2)),
        (["cluster.gpus_per_node=4", "engine.placement=separate", "engine.num_engines=1"], (1, 3, 1)),
        (THREE_BY_TWO, (3, 2, 6)),
        (
            [*THREE_BY_TWO, "engine.placement=separate", "engine.num_engines=2"],
            (2, 2, 2),
        ),
    ],
)
def test_gpus_are_shared_out_as_the_placement_says(words: list[str], wanted: tuple[int, int, int]) -> None:
    (run,) = configs.typed(["engine=skyrl", "algorithm.prompts_per_step=24", "runtime.per_device_batch_size=1", *words])
    found = layout(run.engine, run.cluster)
    assert (found.nodes, found.gpus_per_node, found.engines) == wanted


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["engine.num_engines=2"], "2 colocated engines x 1 GPU(s), but the cluster has 1 x 1 GPUs; use 1, or null"),
        (["engine.tensor_parallel_size=2"], "does not fit one node"),
        (["engine.placement=separate"], "must be a number"),
        (["engine.placement=separate", "engine.num_engines=1"], "leave none to train"),
        (
            [*THREE_BY_TWO, "engine.placement=separate", "engine.num_engines=1"],
            "must fill whole nodes",
        ),
    ],
)
def test_engines_that_do_not_fit_the_gpus_are_refused_with_the_number_that_does(words: list[str], told: str) -> None:
    (fault,) = configs.refusal("engine=skyrl", *words)
    assert told in fault


def test_steps_and_updates_reach_skyrl_in_its_own_units() -> None:
    (run,) = configs.typed(["engine=skyrl"])
    values = skyrl.overrides(run)
    # 16 tasks in 4 updates are 4 tasks each; 3 warm-up steps of 4 updates are 12; 20 turns of 32 tokens are 640.
    assert values["trainer.policy_mini_batch_size"] == 4
    assert values["trainer.policy.optimizer_config.num_warmup_steps"] == 12
    assert values["trainer.algorithm.max_seq_len"] == 640
    assert values["generator.inference_engine.engine_init_kwargs.max_model_len"] == 1056


def test_no_reference_model_is_loaded_unless_the_kl_costs_something() -> None:
    for coefficient in (0.0, 0.02):
        (run,) = configs.typed(["engine=skyrl", f"algorithm.kl_coefficient={coefficient}"])
        assert skyrl.overrides(run)["trainer.algorithm.use_kl_loss"] is (coefficient > 0)


def test_overrides_travel_as_json_which_skyrl_reads_back() -> None:
    assert skyrl.words({"a.b": None, "c": [1, "x"], "d": True, "e": 1e-6}) == [
        "a.b=null",
        'c=[1, "x"]',
        "d=true",
        "e=1e-06",
    ]


def test_a_machine_without_skyrl_is_told_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(skyrl, "_version", lambda name: None)
    (fault,) = skyrl.not_installed()
    assert "pip install -e '.[skyrl]'" in fault.problem


def test_another_version_is_refused_with_the_pin(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(skyrl, "_version", lambda name: {**skyrl.PINS, "vllm-router": "0.1.15"}[name])
    (fault,) = skyrl.not_installed()
    assert "vllm-router 0.1.15, wanted 0.1.14" in fault.problem


def test_the_local_engine_needs_no_gpu() -> None:
    run = configs.run()
    assert layout(run.engine, run.cluster).devices == 1
    assert isinstance(run, config.RunConfig)
