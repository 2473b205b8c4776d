"""Words and files that Hydra or YAML would stumble over, or quietly pass over: each is refused by name."""

from __future__ import annotations

from pathlib import Path

import pytest
from configs import CONF

from grpo import cli
from grpo.faults import ConfigError


def refused(*words: str) -> list[str]:
    with pytest.raises(ConfigError) as error:
        cli.read(cli.flags(words), words, CONF)
    return [str(fault) for fault in error.value.faults]


def refused_file(content: bytes, folder: Path) -> str:
    (folder / "experiment").mkdir(exist_ok=True)
    (folder / "experiment/odd.yaml").write_bytes(b"# @package _global_\n" + content)
    return "\n".join(refused("--config-dir", str(folder), "experiment=odd"))


@pytest.mark.parametrize("key", ["hydra.run.dir", "hydra.job.name", "hydra.mode"])
def test_a_setting_of_hydra_that_leads_nowhere_is_a_fault_of_its_key(key: str) -> None:
    told = refused(f"{key}=${{oc.env:NO_SUCH_VARIABLE}}")
    assert told[0].startswith(f"{key}: ${{oc.env:NO_SUCH_VARIABLE}} cannot be resolved")
    assert "not found" in told[0]


def test_a_trials_folder_that_leads_nowhere_is_refused_before_a_trial_starts() -> None:
    assert refused("-m", "runtime.seed=1,2", "hydra.sweep.subdir=${nope}")[0].startswith("hydra.sweep.subdir: ${nope}")


def test_an_empty_section_is_refused_where_it_would_be_merged_and_change_nothing() -> None:
    told = refused("reward.gate={}")
    assert told == [
        "reward.gate: {} is merged into the section and takes nothing away; to empty it: '~reward.gate.answer_format'"
    ]


@pytest.mark.parametrize("word", ["=3", "algorithm.=3", "algorithm..group_size=8", ".algorithm=3"])
def test_a_word_without_a_proper_key_is_told_so(word: str) -> None:
    key = word.partition("=")[0]
    assert refused(word) == [f"{word!r}: {key!r} is no key; keys look like algorithm.group_size"]


@pytest.mark.parametrize("value", ["None", "none", ""])
@pytest.mark.parametrize("key", ["model.revision", "tracker.entity", "adapter.exclude_modules"])
def test_python_none_and_an_empty_shell_variable_are_not_taken_for_text(key: str, value: str) -> None:
    assert refused(f"{key}={value}") == [f"{key}: wants text or null, got {value!r}; nothing is written null"]


def test_a_seed_that_a_generator_would_not_take_is_refused() -> None:
    assert refused(f"runtime.seed={2**32}") == [f"runtime.seed: wants a number < 4294967296, got {2**32}"]


def test_an_unknown_key_of_a_component_is_answered_with_those_of_its_section() -> None:
    assert refused("env.wings=2")[0].startswith("env.wings: no such key (env takes size, max_turns, ")


def test_a_key_that_is_no_text_is_not_passed_over(tmp_path: Path) -> None:
    assert refused_file(b"true: 4\n", tmp_path).startswith("True: no such key")


def test_a_file_in_another_encoding_is_named(tmp_path: Path) -> None:
    told = refused_file("name: müde\n".encode("latin-1"), tmp_path)
    assert f"{tmp_path / 'experiment/odd.yaml'} is not UTF-8" in told


@pytest.mark.parametrize(
    "content", [b"runtime: {seed: 1" + b"0" * 5000 + b"}\n", b"name: " + b"[" * 3000 + b"]" * 3000]
)
def test_yaml_that_python_cannot_hold_is_refused_without_a_traceback(content: bytes, tmp_path: Path) -> None:
    assert refused_file(content, tmp_path)


def test_a_module_that_the_base_lacks_is_refused_before_the_base_is_loaded() -> None:
    told = refused("adapter.target_modules=[q_prj,v_proj,model.language_model.layers.0.mlp.up]")
    assert told[0] == "adapter.target_modules: 'q_prj' matches nothing; did you mean q_proj?"
    assert told[1].startswith("adapter.target_modules: 'model.language_model.layers.0.mlp.up' matches nothing")
    assert len(told) == 2


def test_an_output_head_that_is_tied_to_the_embeddings_is_a_module_though_no_file_has_it() -> None:
    words = ("adapter.target_modules=[q_proj,lm_head]",)
    assert cli.read(cli.flags(words), words, CONF).trials
