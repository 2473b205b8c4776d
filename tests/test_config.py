"""The strict reading: each kind of fault, all of them at once, components, and the way to a file and back."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import configs
import pytest
import yaml
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from omegaconf import OmegaConf

from grpo import config
from grpo.config import ConfigError


def only(faults: list[str]) -> str:
    assert len(faults) == 1, faults
    return faults[0]


@pytest.mark.parametrize(
    ("key", "value", "told"),
    [
        ("algorithm.group_size", "eight", "algorithm.group_size: wants a whole number, got 'eight'"),
        ("algorithm.group_size", "8", "algorithm.group_size: wants a whole number, got '8'"),
        ("algorithm.group_size", 8.0, "algorithm.group_size: wants a whole number, got 8.0"),
        ("algorithm.group_size", [8], "algorithm.group_size: wants a whole number, got [8]"),
        ("algorithm.group_size", True, "algorithm.group_size: wants a whole number, got true"),
        ("algorithm.group_size", None, "algorithm.group_size: wants a whole number, got null"),
        ("algorithm.learning_rate", "nan", "algorithm.learning_rate: wants a number, got 'nan'"),
        ("algorithm.learning_rate", float("nan"), "algorithm.learning_rate: wants a finite number, got nan"),
        ("algorithm.learning_rate", 0, "algorithm.learning_rate: wants a number > 0, got 0"),
        ("runtime.seed", "None", "runtime.seed: wants a whole number, got 'None'; nothing is written null"),
        ("model.gradient_checkpointing", 1, "model.gradient_checkpointing: wants true or false, got 1"),
        ("model.gradient_checkpointing", "on", "model.gradient_checkpointing: wants true or false, got 'on'"),
        ("name", 1e300, "name: wants text, got 1e+300; text that looks like a number is written in quotes"),
        ("adapter.rank", 600, "adapter.rank: wants a number <= 512, got 600"),
        ("adapter.rank", 0, "adapter.rank: wants a number >= 1, got 0"),
        ("adapter.type", "lorra", "adapter.type: wants one of 'lora', 'none', got 'lorra'; did you mean lora?"),
        ("algorithm.name", "ppo", "algorithm.name: wants one of 'grpo', 'dr_grpo', 'dapo', 'gspo', got 'ppo'"),
        ("algorithm", None, "algorithm: wants a section (key: value), got null"),
        ("runtime.output_dir", "", "runtime.output_dir: wants at least one character, got ''"),
        ("adapter.target_modules", "q,v", "adapter.target_modules: 'q,v' is one text; a list is written [q,v]"),
        ("algorithm.grop_size", 8, "algorithm.grop_size: no such key; did you mean group_size?"),
        ("sede", 3, "sede: no such key; did you mean runtime.seed?"),
        ("group_size", 3, "group_size: no such key; did you mean algorithm.group_size?"),
    ],
)  # fmt: skip
def test_a_fault_names_key_value_and_what_is_wanted(key: str, value: Any, told: str) -> None:
    assert only(configs.faults({key: value})) == told


@pytest.mark.parametrize("size", [1, 0, -2])
def test_a_group_of_one_is_refused_because_grpo_compares(size: int) -> None:
    assert only(configs.faults({"algorithm.group_size": size})).startswith("algorithm.group_size: GRPO needs >= 2")


def test_remote_code_is_refused_with_the_reason() -> None:
    told = only(configs.faults({"model.trust_remote_code": True}))
    assert told.startswith("model.trust_remote_code: must be false: true would run code from the model's repository")


@pytest.mark.parametrize("name", ["top_p", "top_k", "repetition_penalty"])
def test_a_sampling_filter_is_refused_because_it_biases_the_ratio(name: str) -> None:
    assert "would bias the importance ratio" in only(configs.faults({f"algorithm.{name}": 0.9}))


def test_a_missing_key_is_told_with_what_the_section_takes() -> None:
    data = configs.container()
    del data["cluster"]["name"], data["tracker"]["mode"]
    with pytest.raises(ConfigError) as caught:
        config.parse(data)
    assert str(caught.value).splitlines() == [
        "config error: cluster.name: missing; wants one of 'local', 'ray', 'hyperpod', 'hyperpod_rayjob', 'slurm'",
        "tracker.mode: missing (tracker takes name, project, entity, mode)",
    ]


def test_all_faults_come_at_once_from_keys_spans_gates_and_components() -> None:
    changes = {
        "name": "../up",
        "model.lyers": 3,
        "algorithm.updates_per_step": 3,
        "reward.gate": {"answer_formatt": "task_success"},
        "reward.terms.answer_format.tag": ["action"],
        "env.size": 8,
    }
    keys = [told.split(":")[0] for told in configs.faults(changes)]
    assert sorted(keys) == [
        "algorithm.updates_per_step",
        "env",
        "model.lyers",
        "name",
        "reward.gate.answer_formatt",
        "reward.terms.answer_format.tag",
    ]


def test_rows_that_do_not_divide_are_refused_with_the_numbers_that_do() -> None:
    # 16 x 8 = 128 rows; 128 / 3 leaves a rest.
    told = only(configs.faults({"algorithm.updates_per_step": 3}))
    assert told.endswith("use one of 1, 2, 4, 8, 16, 32, 64, 128")
    # 128 / 4 = 32 rows an update; 32 / 5 leaves a rest.
    told = only(configs.faults({"runtime.per_device_batch_size": 5}))
    assert told.endswith("an update's 32 rows do not divide by 1 device(s) x 5; use one of 1, 2, 4, 8, 16, 32")


def test_a_gate_in_a_circle_or_to_no_term_is_refused() -> None:
    circle = {"answer_format": "task_success", "task_success": "answer_format"}
    assert "goes in a circle" in only(configs.faults({"reward.gate": circle}))
    told = only(configs.faults({"reward.gate": {"answer_format": "task_succes"}}))
    assert told == (
        "reward.gate.answer_format: 'task_succes' is no reward term; did you mean task_success? "
        "(terms: task_success, answer_format)"
    )


@pytest.mark.parametrize(
    ("target", "told"),
    [
        ("rewards.task_sucess.TaskSuccess", "cannot load 'rewards.task_sucess.TaskSuccess' (ModuleNotFoundError"),
        ("rewards.task_success.TaskSucces", "no class 'TaskSucces'; did you mean TaskSuccess?"),
        ("envs.maze_2d.Maze2D", "wants a frozen, keyword-only dataclass derived from grpo.interfaces.Reward, got"),
        ("os.system", "wants a frozen, keyword-only dataclass derived from grpo.interfaces.Reward, got"),
        ("print", "'print' has no class"),
    ],
)  # fmt: skip
def test_a_target_that_is_no_reward_is_refused_under_its_key(target: str, told: str) -> None:
    found = only(configs.faults({"reward.terms.task_success._target_": target}))
    assert found.startswith("reward.terms.task_success._target_: ")
    assert told in found


def test_a_component_is_read_as_strictly_as_the_rest() -> None:
    assert configs.faults({"env.size": "7", "env.sise": 7}) == [
        "env.size: wants a whole number, got '7'",
        "env.sise: no such key; did you mean size?",
    ]


def test_components_are_built_with_their_fields_and_without_the_weight() -> None:
    run = configs.run()
    assert list(config.build_rewards(run)) == list(run.reward.terms)
    assert config.build_env(run).max_turns == 20


def test_a_saved_config_loads_back_equal_and_reads_alike_everywhere(tmp_path: Path) -> None:
    changes = {
        "name": "0123",
        "model.revision": "695e0514",
        "model.name_or_path": "1E234",
        "algorithm.learning_rate": 1e-6,
        "adapter.target_modules": r".*\.(q|v)_proj$",
        "adapter.exclude_modules": None,
    }
    run = configs.run(changes)
    (tmp_path / "config.yaml").write_text(config.to_yaml(run))
    assert config.load(tmp_path) == run
    text = config.to_yaml(run)
    assert yaml.safe_load(text) == run.model_dump(by_alias=True)
    assert OmegaConf.to_container(OmegaConf.create(text)) == run.model_dump(by_alias=True)
    assert "learning_rate: 1.0e-06" in text


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(text=st.one_of(st.text(min_size=1), st.from_regex(r"[-+.0-9eE_xo:~${}\\'\"#&*! a]{1,12}", fullmatch=True)))
def test_any_text_stays_text_on_its_way_through_a_file(text: str, tmp_path: Path) -> None:
    assume(text.strip().lower() not in ("", "none"))  # refused for a revision
    run = configs.run({"model.name_or_path": text, "model.revision": text})
    (tmp_path / "config.yaml").write_text(config.to_yaml(run), encoding="utf-8")
    assert config.load(tmp_path).model == run.model


@settings(max_examples=100, deadline=None)
@given(
    key=st.sampled_from(["name", "runtime.seed", "model", "algorithm.clip_low", "adapter.target_modules", "reward"]),
    value=st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
        lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
        max_leaves=4,
    ),
)
def test_a_wild_value_is_read_or_refused_but_never_crashes(key: str, value: Any) -> None:
    for told in configs.faults({key: value}):
        assert told.startswith(key.split(".")[0])


@pytest.mark.parametrize(
    ("written", "read"),
    [
        ("012", "012"), ("on", "on"), ("yes", "yes"), ("None", "None"), ("1:30", "1:30"), ("0x1F", "0x1F"),
        ("12", 12), ("1_000", 1000), ("1e-6", 1e-6), ("1.", 1.0), ("TRUE", True), ("null", None), ("~", None),
    ],
)  # fmt: skip
def test_a_file_is_read_by_the_rules_of_the_command_line(written: str, read: Any) -> None:
    value = OmegaConf.create(f"key: {written}").key
    assert value == read
    assert type(value) is type(read)


def test_a_file_keeps_a_number_as_text_where_text_is_wanted() -> None:
    assert OmegaConf.create("revision: 695e0514\nname: 0123\nsteps: 12") == {
        "revision": "695e0514",
        "name": "0123",
        "steps": 12,
    }
