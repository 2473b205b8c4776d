"""Every option of every group, and every preset, composes, parses and builds its components."""

from __future__ import annotations

import re
from pathlib import Path

import configs
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from grpo import cluster_schema, config, schema
from grpo.compose import GROUPS
from grpo.strict import Strict

GIVEN = {
    "cluster=hyperpod": ["cluster.image=registry/image@sha256:0"],
    "cluster=hyperpod_rayjob": ["cluster.image=registry/image@sha256:0"],
    "experiment=maze_hyperpod": ["cluster.image=x"],
}
"""What an option leaves open on purpose (`???`)."""
OPTIONS = [f"{group}={path.stem}" for group in GROUPS for path in sorted((configs.CONF / group).glob("*.yaml"))]


@pytest.mark.parametrize("option", OPTIONS)
def test_an_option_composes_with_the_defaults_and_no_second_word(option: str) -> None:
    (run,) = configs.typed([option, *GIVEN.get(option, [])])
    assert run.name


@pytest.mark.parametrize("option", OPTIONS)
def test_a_saved_config_is_complete_and_reads_back_the_same(option: str, tmp_path: Path) -> None:
    (run,) = configs.typed([option, *GIVEN.get(option, [])])
    text = config.to_yaml(run)
    assert "${" not in text
    assert "???" not in text
    (tmp_path / "config.yaml").write_text(text)
    assert config.load(tmp_path) == run


@pytest.mark.parametrize("path", sorted(configs.CONF.rglob("*.yaml")), ids=lambda path: path.stem)
def test_a_file_opens_with_a_comment_that_says_what_it_is_for(path) -> None:
    assert path.read_text().startswith("# ")


def test_the_groups_have_the_promised_options() -> None:
    assert set(OPTIONS) >= {
        *(f"model={name}" for name in ("tiny", "qwen3_vl_8b", "qwen3_vl_8b_sft", "qwen3_vl_2b")),
        *(f"adapter={name}" for name in ("lora", "none")),
        *(f"algorithm={name}" for name in ("grpo", "dr_grpo", "dapo", "gspo")),
        *(f"reward={name}" for name in ("maze_strict", "maze_shaped", "maze_task_only", "vqa_strict")),
        *(f"env={name}" for name in ("maze_2d_mini", "maze_2d_easy", "maze_2d_hard", "visgym", "manifest")),
        *(f"engine={name}" for name in ("local", "skyrl")),
        *(f"cluster={name}" for name in ("local", "ray", "hyperpod", "hyperpod_rayjob", "slurm")),
        *(f"tracker={name}" for name in ("wandb", "none")),
        *(f"experiment={name}" for name in ("maze_laptop", "maze_hyperpod")),
    }


def test_the_cluster_preset_has_the_documented_topology() -> None:
    data = configs.typed(["experiment=maze_hyperpod", "cluster.image=x"])[0].model_dump()
    wanted = {
        "cluster": {"nodes": 3, "gpus_per_node": 2},
        "engine": {"num_engines": 6, "placement": "colocated", "gpu_memory_utilization": 0.45},
        "runtime": {"eval_episodes": 64, "eval_interval": 10, "checkpoint_interval": 20},
        "adapter": {"rank": 32},
    }
    assert {section: {key: data[section][key] for key in keys} for section, keys in wanted.items()} == wanted


def test_options_of_an_algorithm_differ_from_grpo_only_where_the_papers_do() -> None:
    grpo, dapo = (configs.typed([f"algorithm={name}"])[0].algorithm.model_dump() for name in ("grpo", "dapo"))
    assert {key for key in grpo if grpo[key] != dapo[key]} == {"name", "clip_high", "loss_aggregation"}


def test_learning_rates_in_files_are_numbers() -> None:
    (run,) = configs.typed(["experiment=maze_hyperpod", "cluster.image=x"])
    assert run.algorithm.learning_rate == 1e-6
    # Plain PyYAML takes 1e-6 for text; whoever reads conf/ with it must see that in the file, not guess.
    raw = yaml.safe_load((configs.CONF / "experiment/maze_hyperpod.yaml").read_text())
    assert float(raw["algorithm"]["learning_rate"]) == 1e-6


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["adapter=null"], "adapter: null is no option; nothing is chosen by name: adapter=none"),
        (["reward=maze_strickt"], "reward: no option 'maze_strickt'; did you mean maze_strict?"),
        (["+algorithm.grop_size=8"], "algorithm.grop_size: no such key; did you mean group_size?"),
        (["++algorithm.grop_size=8"], "algorithm.grop_size: no such key; did you mean group_size?"),
        (["algorithm.grop_size=8"], "algorithm.grop_size: no such key; did you mean group_size?"),
        (["algorithm.group_size=4,8"], "algorithm.group_size: 4,8 means several values: add -m to sweep over them"),
        (["adapter.target_modules=q_proj,v_proj"], "or write a list as [q_proj,v_proj]"),
        (["name=${algorithm.grp}"], "Interpolation key 'algorithm.grp' not found; did you mean algorithm.group_size?"),
        ([r"adapter.target_modules=.*\.(q_proj|v_proj)"], r"""'adapter.target_modules=".*\.(q_proj|v_proj)"'"""),
        (["~algorithm.clip_low"], "algorithm.clip_low: missing"),
        (["~adapter"], "adapter: missing"),
        (["cluster=hyperpod"], "cluster.image: must be given"),
        (["hydra.foo=1"], "Could not override 'hydra.foo'"),
        (["modle=tiny"], "modle: no such key; did you mean model?"),
        (["train"], "'train' is no key=value"),
    ],
)  # fmt: skip
def test_a_word_that_cannot_be_meant_is_refused_by_us(words: list[str], told: str) -> None:
    (found,) = configs.refusal(*words)
    assert told in found


def test_the_quoted_form_that_the_hint_shows_works() -> None:
    (run,) = configs.typed([r'adapter.target_modules=".*\.(q_proj|v_proj)"'])
    assert run.adapter.model_dump()["target_modules"] == r".*\.(q_proj|v_proj)"


@pytest.mark.parametrize(
    ("word", "value"),
    [("[q_proj,v_proj]", ["q_proj", "v_proj"]), (r"['a\\','b']", ["a\\", "b"]), ("all-linear", "all-linear")],
)
def test_lists_and_text_for_target_modules_are_told_apart(word: str, value: object) -> None:
    (run,) = configs.typed([f"adapter.target_modules={word}"])
    assert run.adapter.model_dump()["target_modules"] == value


@pytest.mark.parametrize("text", ["695e0514", "1E234", "0123", "12345", "true", "1e5", "nan"])
def test_text_keys_keep_on_the_command_line_what_was_typed(text: str) -> None:
    (run,) = configs.typed([f"model.revision={text}", f"name={text}"])
    assert (run.model.revision, run.name) == (text, text)


def test_text_keys_keep_what_was_typed_in_a_sweep_and_null_stays_null() -> None:
    runs = configs.typed(["model.revision=695e0514,null,abc"], sweep=True)
    assert [run.model.revision for run in runs] == ["695e0514", None, "abc"]


def test_a_plus_before_a_known_key_or_group_changes_nothing() -> None:
    (run,) = configs.typed(["experiment=null", "name=maze_laptop"])
    assert run.name == "maze_laptop"
    (run,) = configs.typed(["+algorithm.group_size=4", "+experiment=maze_laptop", "++reward=maze_shaped"])
    assert (run.algorithm.group_size, run.name) == (4, "maze_laptop")


def test_every_trial_of_a_sweep_is_checked_and_a_fault_names_its_trials() -> None:
    found = configs.refusal("algorithm.group_size=4,1", "adapter.rank=0,8", sweep=True)
    assert [told.split(":")[0] for told in found] == ["adapter.rank", "algorithm.group_size"]
    assert "[in 2 of 4 trials: algorithm.group_size=4 adapter.rank=0; " in found[0]


def test_a_fault_of_all_trials_is_told_once() -> None:
    assert configs.refusal("algorithm.group_size=4,8", "adapter.rank=600", sweep=True) == [
        "adapter.rank: wants a number <= 512, got 600"
    ]


@pytest.mark.parametrize("word", ["cluster=local,ray", "hydra/launcher=basic,grpo", "resume=a,b"])
def test_what_a_sweep_chooses_once_cannot_be_swept(word: str) -> None:
    (told,) = configs.refusal(word, sweep=True)
    assert "cannot be swept" in told


KEYS = (
    "name",
    "algorithm.group_size",
    "adapter",
    "experiment",
    "+x",
    "~env",
    "~env.size",
    "hydra.foo",
    "reward.gate",
    "",
)
VALUES = (
    "",
    "null",
    "1",
    "a,b",
    "[1,2]",
    "{a:1}",
    "${x}",
    "${",
    "'",
    "(",
    "range(1,3)",
    "glob(*)",
    "\\",
    "1e999",
    "???",
    "é",
)


@settings(max_examples=80, deadline=None)
@given(
    words=st.lists(st.builds("{}={}".format, st.sampled_from(KEYS), st.sampled_from(VALUES)), min_size=1, max_size=2),
    sweep=st.booleans(),
)
def test_wild_words_are_read_or_refused_but_never_crash(words: list[str], sweep: bool) -> None:
    for told in configs.refusal(*words, sweep=sweep):
        assert told


def test_every_key_is_read_by_some_code() -> None:
    classes = {**vars(schema), **vars(cluster_schema)}.values()
    sections = [cls for cls in classes if isinstance(cls, type) and issubclass(cls, Strict)]
    code = "".join(
        path.read_text()
        for folder in ("grpo", "launchers")
        for path in (configs.ROOT / folder).rglob("*.py")
        if path.name not in ("schema.py", "cluster_schema.py")
    )
    code += (configs.CONF / "config.yaml").read_text()  # Hydra reads ${runtime.output_dir}
    dead = [
        f"{cls.__name__}.{name}" for cls in sections for name in cls.model_fields if not re.search(rf"\.{name}\b", code)
    ]
    assert dead == []
