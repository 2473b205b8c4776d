"""A folder that holds no whole model is refused before torch is loaded, with everything that it lacks."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import configs
import pytest
import torch

from grpo import cli
from grpo.faults import ConfigError
from grpo.model_folder import faults
from grpo.paths import ROOT, model_path
from grpo.policy import load_policy
from grpo.schema import ModelConfig, NoAdapter

SHIPPED = ROOT / "models/tiny_qwen3_vl"


def copied(tmp_path: Path) -> Path:
    return Path(shutil.copytree(SHIPPED, tmp_path / "model"))


def told(folder: Path) -> str:
    return "; ".join(f"{fault.key}: {fault.problem}" for fault in faults(str(folder)))


def test_the_shipped_model_is_whole() -> None:
    assert faults("models/tiny_qwen3_vl") == []


def test_a_name_of_the_hub_is_left_to_the_hub() -> None:
    assert faults("Qwen/Qwen3-VL-8B-Instruct") == []


def test_all_that_a_folder_lacks_is_told_at_once(tmp_path: Path) -> None:
    assert told(tmp_path) == "; ".join(
        f"model.name_or_path: {str(tmp_path)!r} is no whole model: {lacks}"
        for lacks in (
            "it has no config.json",
            "it has no *.safetensors",
            "it has no tokenizer.json, nor a vocab.json with merges.txt",
            "it has no preprocessor_config.json, which says how images become patches",
            "it has no chat template (chat_template.jinja, or one in tokenizer_config.json)",
        )
    )


def another_kind(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"model_type": "llama"}))


def pickled(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")


def pointer(folder: Path) -> None:
    (folder / "model.safetensors").write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n")


def cut(folder: Path) -> None:
    with (folder / "model.safetensors").open("r+b") as weights:
        weights.truncate((folder / "model.safetensors").stat().st_size - 4)


def first_bytes(folder: Path) -> None:
    (folder / "model.safetensors").write_bytes((SHIPPED / "model.safetensors").read_bytes()[:1000])


def half_downloaded(folder: Path) -> None:
    shards = {"a": "model-1-of-2.safetensors", "b": "model-2-of-2.safetensors"}
    (folder / "model.safetensors").rename(folder / shards["a"])
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": shards}))


@pytest.mark.parametrize(
    ("damage", "problem"),
    [
        (lambda folder: (folder / "tokenizer.json").unlink(), "it has no tokenizer.json"),
        (lambda folder: (folder / "config.json").write_text("{"), "config.json is not JSON"),
        (another_kind, "model_type 'llama', wanted qwen3_vl"),
        (pickled, "pickles (*.bin), which are not loaded"),
        (pointer, "model.safetensors is a pointer of Git LFS"),
        (cut, "bytes and should have"),
        (first_bytes, "is cut or no safetensors file (1,000 bytes)"),
        (half_downloaded, "model-2-of-2.safetensors of its weights are missing (1 of 2 files)"),
    ],
)
def test_each_damage_is_told_and_nothing_else(tmp_path: Path, damage: Callable[[Path], object], problem: str) -> None:
    folder = copied(tmp_path)
    damage(folder)
    assert len(faults(str(folder))) == 1
    assert problem in told(folder)


def test_a_model_without_its_tokenizer_is_not_loaded_either(tmp_path: Path) -> None:
    folder = copied(tmp_path)
    (folder / "tokenizer.json").unlink()
    model = configs.run({"model.name_or_path": str(folder)}).model
    assert isinstance(model, ModelConfig)
    with pytest.raises(ConfigError, match=r"no tokenizer\.json"):
        load_policy(model, NoAdapter(type="none"), device=torch.device("cpu"), seed=0)


def test_a_command_with_such_a_folder_is_refused_before_anything_starts(tmp_path: Path) -> None:
    words = [f"model.name_or_path={tmp_path}"]
    command = cli.read(cli.flags(words), words, configs.CONF)
    with pytest.raises(ConfigError, match=r"no config\.json"):
        cli.refuse_unavailable(command)


def test_the_home_folder_may_be_written_as_a_tilde(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    copied(tmp_path)
    assert model_path("~/model") == str(tmp_path / "model")
