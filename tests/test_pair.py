"""An adapter knows its base: what is recorded with it, and what is refused when it is loaded on another."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from dataclasses import asdict
from pathlib import Path
from typing import Any

import configs
import pytest
import torch
from conftest import TINY, lora, model, shake
from safetensors.torch import load_file, save_file

from grpo import base, hashing, pair, provenance
from grpo.checkpoint import save_adapter
from grpo.faults import ConfigError
from grpo.policy import Policy, load_policy

CPU = torch.device("cpu")


def tiny_copy(folder: Path) -> Path:
    shutil.copytree(TINY, folder)
    return folder


def other_weights(folder: Path) -> Path:
    """A base of the same shapes with one number changed."""
    tensors = load_file(tiny_copy(folder) / "model.safetensors")
    next(iter(tensors.values())).flatten()[0] += 1
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def made_from() -> dict[str, Any]:
    run = configs.run()
    return provenance.of_run(run)


def saved(policy: Policy, folder: Path) -> Path:
    """An adapter with its pair record, as a run of the shipped config leaves it at step 3."""
    save_adapter(policy, folder, pair.record(made_from(), configs.run(), 3, {"rollout/solved": 0.5}))
    return folder


def starting(adapter: Path, base_folder: Path = TINY) -> list[str]:
    run = configs.run(
        {
            "model.name_or_path": str(base_folder),
            "adapter.rank": 4,
            "adapter.alpha": 8,
            "adapter.start_from": str(adapter),
        }
    )
    return [str(fault) for fault in pair.faults(run)]


@pytest.mark.parametrize(
    ("file", "part"),
    [
        ("config.json", "content"),
        ("tokenizer.json", "tokenizer"),
        ("tokenizer_config.json", "tokenizer"),
        ("preprocessor_config.json", "processor"),
        ("chat_template.jinja", "chat_template"),
    ],
)
def test_a_changed_file_of_the_base_changes_the_hash_of_its_part_alone(file: str, part: str, tmp_path: Path) -> None:
    folder = tiny_copy(tmp_path / "base")
    before = asdict(base.describe(model(folder)))
    text = (folder / file).read_text()
    (folder / file).write_text(text.replace("}", ', "x": 1}', 1) if file.endswith(".json") else text + " ")
    after = asdict(base.describe(model(folder)))
    assert [key for key in before if before[key] != after[key]] == [part]


def test_a_chat_template_is_the_same_in_its_own_file_and_in_the_tokenizers_config(tmp_path: Path) -> None:
    folder = tiny_copy(tmp_path / "base")
    before = base.describe(model(folder))
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    settings["chat_template"] = (folder / "chat_template.jinja").read_text()
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    (folder / "chat_template.jinja").unlink()
    assert base.describe(model(folder)) == before


def test_a_base_whose_shards_are_not_all_there_has_no_content(tmp_path: Path) -> None:
    folder = tiny_copy(tmp_path / "base")
    index = {"weight_map": {"a": "model.safetensors", "b": "model-00002-of-00002.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    assert base.describe(model(folder)).content is None


def test_a_hub_model_is_found_in_the_download_cache_with_its_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    hub = model().model_copy(update={"name_or_path": "org/tiny"})
    assert base.base_folder(hub.name_or_path, hub.revision) is None
    downloads = tmp_path / "models--org--tiny"
    shutil.copytree(TINY, downloads / "snapshots" / ("a" * 40))
    (downloads / "refs").mkdir()
    (downloads / "refs" / "main").write_text("a" * 40)
    found = base.describe(hub)
    assert (found.id, found.revision) == ("org/tiny", "a" * 40)
    assert found.content == base.describe(model()).content


def test_the_hash_of_a_large_file_is_remembered_until_the_file_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hashing, "REMEMBERED_FROM", 1)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    file = tmp_path / "weights"
    file.write_bytes(b"one")
    os.utime(file, ns=(1, 1))
    first = hashing.hash_file(file)
    assert first == hashlib.sha256(b"one").hexdigest()
    file.write_bytes(b"two")
    os.utime(file, ns=(1, 1))
    assert hashing.hash_file(file) == first, "same size and time: not read again"
    os.utime(file, ns=(2, 2))
    assert hashing.hash_file(file) == hashlib.sha256(b"two").hexdigest()
    (tmp_path / "cache" / "hydra-grpo" / "hashes.json").write_text("{half")
    assert hashing.hash_file(file) == hashlib.sha256(b"two").hexdigest()


def test_the_record_names_everything_that_the_adapter_belongs_to(policy: Policy, tmp_path: Path) -> None:
    found = pair.read(saved(policy, tmp_path))
    assert found is not None
    assert found["base"] == asdict(base.describe(configs.run().model))
    assert all(found["base"][part] for part in ("content", "tokenizer", "processor", "chat_template"))
    assert found["config"]["env"]["_target_"] == "envs.maze_2d.Maze2D"
    assert set(found["code_hashes"]) == {"env", "task_success", "answer_format"}
    assert (found["step"], found["metrics"]) == (3, {"rollout/solved": 0.5})
    assert found["adapter_hash"] == hashlib.sha256((tmp_path / "adapter_model.safetensors").read_bytes()).hexdigest()
    assert {"commit", "packages", "image_digest", "data_version", "parent"} <= found.keys()


def test_no_secret_of_the_environment_is_written_with_an_adapter(
    policy: Policy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WANDB_API_KEY", "sk-very-secret-0123")
    run = configs.run({"tracker.entity": "sk-very-secret-0123"})
    save_adapter(policy, tmp_path, pair.record(made_from(), run, 1, {}))
    assert "very-secret" not in (tmp_path / pair.PAIR_FILE).read_text()


def test_an_adapter_is_refused_on_another_base_of_the_same_shape_with_both_values(
    policy: Policy, tmp_path: Path
) -> None:
    adapter, other = saved(policy, tmp_path / "adapter"), other_weights(tmp_path / "other")
    was, now = base.describe(model()).content, base.describe(model(other)).content
    assert starting(adapter) == []
    assert starting(adapter, other) == [
        f"adapter.start_from: {adapter} was trained on models/tiny_qwen3_vl with the weights {was}, but "
        f"model.name_or_path={other} has {now}; give the base that the adapter belongs to"
    ]


def test_a_copy_of_the_base_elsewhere_is_the_same_base(policy: Policy, tmp_path: Path) -> None:
    assert starting(saved(policy, tmp_path / "adapter"), tiny_copy(tmp_path / "copy")) == []


@pytest.mark.parametrize("part", ["tokenizer.json", "chat_template.jinja", "preprocessor_config.json"])
def test_another_tokenizer_template_or_processor_is_refused(part: str, policy: Policy, tmp_path: Path) -> None:
    adapter, other = saved(policy, tmp_path / "adapter"), tiny_copy(tmp_path / "other")
    (other / part).write_text((other / part).read_text() + "\n \n")
    assert len(starting(adapter, other)) == 1


def test_a_run_folder_may_be_given_instead_of_its_adapter(policy: Policy, tmp_path: Path) -> None:
    adapter = saved(policy, tmp_path / "adapter")
    assert lora(start_from=str(tmp_path)).start_from == str(adapter)
    parent = pair.parent(str(adapter))
    assert parent is not None
    assert (parent["folder"], parent["step"]) == (str(adapter), 3)


def test_a_damaged_record_is_named(policy: Policy, tmp_path: Path) -> None:
    adapter = saved(policy, tmp_path / "adapter")
    (adapter / pair.PAIR_FILE).write_text('{"base": ')
    assert "pair.json is not JSON" in starting(adapter)[0]


def renamed(adapter: Path, old: str, new: str) -> None:
    tensors = load_file(adapter / pair.WEIGHTS_FILE)
    save_file({name.replace(old, new): tensor for name, tensor in tensors.items()}, adapter / pair.WEIGHTS_FILE)


def test_tensors_that_do_not_land_are_listed(policy: Policy, tmp_path: Path) -> None:
    adapter = saved(policy, tmp_path / "adapter")
    renamed(adapter, "language_model.layers.0", "text.layers.0")
    with pytest.raises(ConfigError) as refusal:
        load_policy(model(), lora(start_from=str(adapter)), device=CPU, seed=0)
    told = str(refusal.value)
    assert "base_model.model.model.text.layers.0.self_attn.q_proj.lora_A.weight has no place in the model" in told
    assert "and 3 more" in told


def test_a_tensor_of_another_shape_is_listed_with_both_shapes(policy: Policy, tmp_path: Path) -> None:
    adapter = saved(policy, tmp_path / "adapter")
    tensors = load_file(adapter / pair.WEIGHTS_FILE)
    name = next(name for name in sorted(tensors) if "lora_A" in name)
    save_file(tensors | {name: torch.zeros(4, 32)}, adapter / pair.WEIGHTS_FILE)
    with pytest.raises(ConfigError, match=r"is \[4, 32\], the model has \[4, 64\]"):
        load_policy(model(), lora(start_from=str(adapter)), device=CPU, seed=0)


def test_an_adapter_for_modules_that_the_model_lacks_is_refused(policy: Policy, tmp_path: Path) -> None:
    adapter = saved(policy, tmp_path / "adapter")
    settings = json.loads((adapter / "adapter_config.json").read_text())
    settings["target_modules"] = ["query_key_value"]
    (adapter / "adapter_config.json").write_text(json.dumps(settings))
    with pytest.raises(ConfigError, match="does not fit the model: Target modules"):
        load_policy(model(), lora(start_from=str(adapter)), device=CPU, seed=0)


def test_an_adapter_saved_without_some_of_its_tensors_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    adapted = load_policy(model(), lora(), device=CPU, seed=0)
    shake(adapted)
    whole = adapted.model.save_pretrained

    def lossy(folder: str, **options: Any) -> None:
        whole(folder, **options)
        tensors = load_file(Path(folder) / pair.WEIGHTS_FILE)
        del tensors[sorted(tensors)[0]]
        save_file(tensors, Path(folder) / pair.WEIGHTS_FILE)

    monkeypatch.setattr(adapted.model, "save_pretrained", lossy)
    with pytest.raises(RuntimeError, match=r"lora_A.weight \(1 lacking\)"):
        save_adapter(adapted, tmp_path, {})
    assert not (tmp_path / pair.PAIR_FILE).exists()


@pytest.mark.parametrize("cut", [0, 64, 5000])
def test_half_a_copy_of_an_adapter_is_refused_before_a_model_is_loaded(
    cut: int, policy: Policy, tmp_path: Path
) -> None:
    adapter = saved(policy, tmp_path / "adapter")
    weights = adapter / pair.WEIGHTS_FILE
    weights.write_bytes(weights.read_bytes()[:cut])
    assert f"{weights} cannot be read" in starting(adapter)[0]
    weights.unlink()
    assert "No such file" in starting(adapter)[0]


def test_numbers_that_are_not_finite_are_not_trained_on(policy: Policy, tmp_path: Path) -> None:
    adapter = saved(policy, tmp_path / "adapter")
    tensors = load_file(adapter / pair.WEIGHTS_FILE)
    name = min(tensors)
    save_file(tensors | {name: tensors[name] * float("nan")}, adapter / pair.WEIGHTS_FILE)
    with pytest.raises(ConfigError, match=f"{name} holds numbers that are not finite"):
        load_policy(model(), lora(start_from=str(adapter)), device=CPU, seed=0)


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ("[]", "is of no LoRA adapter"),
        ("{", "is not JSON"),
        ('{"peft_type": "IA3"}', "is of no LoRA adapter"),
        ('{"peft_type": "LORA", "lora_alpha": 32}', "start_from has rank None and alpha 32"),
        ('{"peft_type": "LORA", "r": "16", "lora_alpha": 32}', "start_from has rank '16' and alpha 32"),
    ],
)
def test_settings_of_an_adapter_that_nobody_can_read_are_refused_by_name(
    settings: str, told: str, policy: Policy, tmp_path: Path
) -> None:
    adapter = saved(policy, tmp_path / "adapter")
    (adapter / "adapter_config.json").write_text(settings)
    assert told in "\n".join(configs.faults({"adapter.start_from": str(adapter)}))


def test_a_start_is_saved_with_its_whole_path_so_that_the_config_runs_from_anywhere(
    policy: Policy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved(policy, tmp_path / "runs/adapter")
    monkeypatch.chdir(tmp_path)
    assert lora(start_from="runs").start_from == str(tmp_path / "runs/adapter")
