"""scripts/check_adapter.py on sound and unsound adapters of the tiny model."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import TINY, lora, model, shake
from safetensors.torch import load_file, save_file
from test_pair import other_weights, renamed, saved
from transformers import AutoModelForImageTextToText

from grpo import base, pair
from grpo.adapter_files import SERVED_MODULES, file_checks, served_rank
from grpo.adapter_probe import merge
from grpo.policy import load_policy
from scripts import check_adapter


@pytest.fixture(autouse=True)
def wide(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "300")


def trained(folder: Path, **changes: Any) -> Path:
    """An adapter that has an effect, with its pair record."""
    policy = load_policy(model(), lora(**changes), device=torch.device("cpu"), seed=0)
    shake(policy)
    return saved(policy, folder)


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return trained(tmp_path_factory.mktemp("run") / "adapter")


@pytest.fixture
def adapter(sound: Path, tmp_path: Path) -> Path:
    shutil.copytree(sound, tmp_path / "adapter")
    return tmp_path / "adapter"


Checked = Callable[..., tuple[int, dict[str, str], str]]


@pytest.fixture
def checked(capsys: pytest.CaptureFixture[str]) -> Checked:
    """Exit code, {check: verdict} and everything printed."""

    def run(*words: Any) -> tuple[int, dict[str, str], str]:
        code = check_adapter.main([str(word) for word in words])
        out, err = capsys.readouterr()
        rows = [[cell.strip() for cell in line.split("│")[1:3]] for line in out.splitlines() if line.startswith("│")]
        return code, {name: verdict for name, verdict in rows if name}, out + err

    return run


def test_a_sound_adapter_passes_every_check_by_its_run_folder_or_its_own(sound: Path, checked: Checked) -> None:
    for given in (sound, sound.parent):
        code, verdicts, told = checked(given)
        assert (code, set(verdicts.values())) == (0, {"ok"}), told
        assert list(verdicts) == ["file", "pair", "tensors", "rank", "kind", "modules", "lands", "answers"]
        assert "--max-lora-rank 8" in told
        assert "verdict: fits its base\n" in told


def test_another_base_of_the_same_shape_does_not_pass(sound: Path, tmp_path: Path, checked: Checked) -> None:
    code, verdicts, told = checked(sound, "--base", other_weights(tmp_path / "other"))
    assert (code, verdicts["pair"]) == (1, "fails")
    assert "the weights was" in told
    assert "lands" not in verdicts


def test_without_a_record_what_can_be_checked_is_checked(adapter: Path, checked: Checked) -> None:
    (adapter / pair.PAIR_FILE).unlink()
    code, verdicts, told = checked(adapter, "--base", TINY)
    assert (code, verdicts["pair"], verdicts["lands"], verdicts["answers"]) == (0, "unknown", "ok", "ok")
    assert "as far as can be told without pair.json" in told


def test_a_file_changed_since_it_was_saved_is_told(adapter: Path, checked: Checked) -> None:
    tensors = load_file(adapter / pair.WEIGHTS_FILE)
    save_file({name: tensor * 2 for name, tensor in tensors.items()}, adapter / pair.WEIGHTS_FILE)
    code, verdicts, _ = checked(adapter)
    assert (code, verdicts["file"]) == (1, "fails")


def test_tensors_without_a_place_in_the_base_are_named(adapter: Path, checked: Checked) -> None:
    (adapter / pair.PAIR_FILE).unlink()
    renamed(adapter, "language_model.layers.1", "language_model.layers.7")
    code, verdicts, told = checked(adapter, "--base", TINY)
    assert (code, verdicts["lands"]) == (1, "fails")
    assert "layers.7.self_attn.q_proj.lora_A.weight has no place in the model" in told


def test_an_adapter_that_was_never_trained_is_told(tmp_path: Path, checked: Checked) -> None:
    fresh = load_policy(model(), lora(), device=torch.device("cpu"), seed=0)
    code, verdicts, told = checked(saved(fresh, tmp_path / "adapter"))
    assert (code, verdicts["tensors"]) == (1, "fails")
    assert "every lora_B is zero" in told


def test_no_adapter_and_a_file_in_the_way_are_refused(sound: Path, tmp_path: Path, checked: Checked) -> None:
    assert checked(tmp_path)[0] == 2
    code, _, told = checked(sound, "--merge", tmp_path)
    assert (code, f"{tmp_path} exists already" in told) == (2, True)


MODULE = "model.language_model.layers.0.self_attn.q_proj"


def tensors(module: str = MODULE, **changes: torch.Tensor) -> dict[str, torch.Tensor]:
    sides = {"A": torch.ones(4, 8), "B": torch.ones(8, 4)} | changes
    return {f"base_model.model.{module}.lora_{side}.weight": tensor for side, tensor in sides.items()}


def failing(settings: dict[str, Any], found: dict[str, torch.Tensor], *, tower_lora: bool = False) -> dict[str, str]:
    plain = {"peft_type": "LORA", "r": 4, "lora_alpha": 8}
    checks = file_checks(plain | settings, found, tower_lora=tower_lora)
    return {each.name: each.detail for each in checks if each.verdict == "fails"}


def test_files_of_plain_lora_on_the_language_model_are_sound() -> None:
    assert failing({}, tensors()) == {}


@pytest.mark.parametrize(
    ("found", "told"),
    [
        ({}, "holds no tensors"),
        (tensors(A=torch.empty(0, 8)), "lora_A.weight is empty"),
        (tensors(A=torch.full((4, 8), float("nan"))), "not finite"),
        (tensors(B=torch.full((8, 4), float("inf"))), "not finite"),
        ({key: value for key, value in tensors().items() if "lora_A" in key}, "lora_A but no lora_B"),
        (tensors() | {"base_model.model.lm_head.weight": torch.ones(2, 2)}, "is no LoRA matrix"),
        (tensors(B=torch.zeros(8, 4)), "every lora_B is zero"),
        (tensors(A=torch.zeros(4, 8)), "lora_A.weight is all zero"),
        (
            tensors() | tensors(MODULE.replace("q_proj", "k_proj"), B=torch.zeros(8, 4)),
            "k_proj.lora_B.weight is all zero",
        ),
    ],
)
def test_unsound_tensors_are_named(found: dict[str, torch.Tensor], told: str) -> None:
    assert told in failing({}, found)["tensors"]


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"use_dora": True}, "DoRA"),
        ({"bias": "lora_only"}, "biases"),
        ({"modules_to_save": ["lm_head"]}, "modules_to_save"),
        ({"rank_pattern": {"q_proj": 8}}, "rank_pattern"),
        ({"peft_type": "IA3"}, "'IA3' is not LORA"),
    ],
)
def test_what_vllm_does_not_serve_is_named(settings: dict[str, Any], told: str) -> None:
    assert told in failing(settings, tensors())["kind"]


@pytest.mark.parametrize("module", ["lm_head", "model.language_model.embed_tokens", "model.visual.blocks.0.attn.qkv"])
def test_modules_that_vllm_does_not_adapt_are_named(module: str) -> None:
    assert module in failing({}, tensors(module))["modules"]


def test_the_vision_tower_is_served_where_the_server_says_so() -> None:
    assert failing({}, tensors("model.visual.blocks.0.attn.qkv"), tower_lora=True) == {}


def test_a_rank_is_served_by_the_next_allowed_one() -> None:
    assert [served_rank(rank) for rank in (1, 4, 8, 48, 300, 512)] == [1, 8, 8, 64, 320, 512]
    assert [served_rank(rank) for rank in (0, 600)] == [None, None]
    assert "600" in failing({"r": 600}, tensors())["rank"]


def test_a_merged_model_answers_as_base_and_adapter_did(sound: Path, tmp_path: Path, checked: Checked) -> None:
    out = tmp_path / "merged"
    code, _, told = checked(sound, "--merge", out)
    assert (code, "merged and unmerged logits differ by up to" in told) == (0, True), told
    record = json.loads((out / "merged.json").read_text())
    assert record["max_logit_difference"] <= record["tolerance"]
    assert record["pair"]["step"] == 3
    network = AutoModelForImageTextToText.from_pretrained(out)
    bare = AutoModelForImageTextToText.from_pretrained(TINY)
    name = f"{MODULE}.weight"
    delta = network.state_dict()[name] - bare.state_dict()[name]
    weights = load_file(sound / pair.WEIGHTS_FILE)
    a, b = (weights[f"base_model.model.{MODULE}.lora_{side}.weight"] for side in "AB")
    assert torch.allclose(delta, 2 * b @ a, atol=1e-5)  # alpha 8 over rank 4
    merged, shipped = base.describe(model(out)), base.describe(model())
    for part in ("tokenizer", "processor", "chat_template"):
        assert getattr(merged, part) == getattr(shipped, part)


def test_a_base_in_bfloat16_stays_in_bfloat16_when_merged(sound: Path, tmp_path: Path) -> None:
    half = tmp_path / "half"
    shutil.copytree(TINY, half)
    AutoModelForImageTextToText.from_pretrained(TINY, dtype=torch.bfloat16).save_pretrained(half)
    record = merge(model(half), sound, tmp_path / "merged")
    assert record["dtype"] == "bfloat16"
    assert {tensor.dtype for tensor in load_file(tmp_path / "merged" / "model.safetensors").values()} == {
        torch.bfloat16
    }


def test_a_merge_that_does_not_agree_fails_and_leaves_nothing(
    sound: Path, tmp_path: Path, checked: Checked, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("grpo.adapter_probe.TOLERANCE", {"float32": -1.0})
    code, _, told = checked(sound, "--merge", tmp_path / "merged")
    assert (code, "more than the tolerance" in told) == (1, True)
    assert list(tmp_path.iterdir()) == []


def test_a_tower_adapter_can_be_merged_though_vllm_would_pass_it_over(tmp_path: Path, checked: Checked) -> None:
    adapter = trained(tmp_path / "adapter", target_modules="all-linear", exclude_modules=None)
    code, verdicts, told = checked(adapter)
    assert (code, verdicts["modules"], verdicts["lands"]) == (1, "fails", "ok"), told
    assert checked(adapter, "--merge", tmp_path / "merged")[0] == 0


def test_every_module_of_the_shipped_adapter_is_served() -> None:
    text = (Path(__file__).parents[1] / "conf" / "adapter" / "lora.yaml").read_text()
    assert all(name in text for name in SERVED_MODULES)


@pytest.mark.parametrize("change", [{"peft_type": None}, {"r": "16"}, {"peft_type": "IA3"}])
def test_odd_settings_are_a_verdict_and_no_crash(change: dict[str, Any], adapter: Path, checked: Checked) -> None:
    file = adapter / "adapter_config.json"
    settings = json.loads(file.read_text()) | change
    file.write_text(json.dumps({key: value for key, value in settings.items() if value is not None}))
    code, verdicts, _ = checked(adapter)
    assert (code, verdicts["lands"]) == (1, "fails")


def test_settings_that_are_none_are_refused(adapter: Path, checked: Checked) -> None:
    (adapter / "adapter_config.json").write_text("[]")
    code, _, told = checked(adapter)
    assert code == 2
    assert "adapter_config.json holds no settings" in told
