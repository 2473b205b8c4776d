"""grpo.load_run: a run folder read back whole, whatever state it is in."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import configs
import pytest
from conftest import lora, model, shake
from fake_run import build_run
from PIL import Image

import grpo
from grpo import config
from grpo.faults import ConfigError


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = build_run(tmp_path_factory.mktemp("run"), steps=12)
    (folder / "config.yaml").write_text(config.to_yaml(configs.run({"runtime.steps": 12})))
    return folder


@pytest.fixture
def folder(whole: Path, tmp_path: Path) -> Path:
    shutil.copytree(whole, tmp_path / "run")
    return tmp_path / "run"


def test_a_run_comes_back_with_config_metrics_rollouts_and_results(whole: Path) -> None:
    run = grpo.load_run(whole)
    assert run.config == configs.run({"runtime.steps": 12})
    assert run.metrics.index.name == "step"
    assert list(run.metrics.index) == list(range(13))
    lines = [json.loads(line) for line in (whole / "metrics.jsonl").read_text().splitlines()]
    assert run.metrics["rollout/solved"].tolist()[7] == lines[7]["rollout/solved"]
    assert run.metrics["eval/all/pass_at_1"].dropna().index.tolist() == [0, 10]
    assert run.made_from["seed"] == 7
    assert run.summary is not None
    assert run.summary["rows"][0]["policy"] == "start"
    images = [image for rollout in run.rollouts for turn in rollout["turns"] for image in turn["images"]]
    assert images
    assert Image.open(images[0]).size == (98, 98)


def test_a_folder_may_be_given_as_text(whole: Path) -> None:
    assert grpo.load_run(str(whole)).folder == whole.resolve()


def test_a_run_that_was_killed_loads_without_the_line_that_it_was_writing(folder: Path) -> None:
    for name in ("summary.json", "run.json"):
        (folder / name).unlink()
    with (folder / "metrics.jsonl").open("a") as file:
        file.write('{"step": 13, "rollout/so')
    run = grpo.load_run(folder)
    assert list(run.metrics.index) == list(range(13))
    assert (run.summary, run.result, run.made_from, run.adapter) == (None, None, {}, None)


def test_a_run_that_has_only_begun_has_an_empty_table(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text(config.to_yaml(configs.run()))
    run = grpo.load_run(tmp_path)
    assert (len(run.metrics), run.metrics.index.name, run.rollouts) == (0, "step", [])


def test_a_config_that_this_version_reads_otherwise_hides_no_numbers(folder: Path) -> None:
    text = (folder / "config.yaml").read_text()
    (folder / "config.yaml").write_text(text.replace("group_size:", "replies_per_task:"))
    run = grpo.load_run(folder)
    assert len(run.metrics) == 13
    assert run.settings["algorithm"]["replies_per_task"] == configs.run().algorithm.group_size
    with pytest.raises(ConfigError, match=r"algorithm\.group_size: missing"):
        _ = run.config


def test_a_config_is_read_though_the_adapter_that_it_started_from_is_gone(folder: Path, tmp_path: Path) -> None:
    import torch
    from test_pair import saved

    from grpo.policy import load_policy

    policy = load_policy(model(), lora(), device=torch.device("cpu"), seed=0)
    shake(policy)
    start = saved(policy, tmp_path / "elsewhere")
    wanted = configs.run({"adapter.rank": 4, "adapter.alpha": 8, "adapter.start_from": str(start)})
    (folder / "config.yaml").write_text(config.to_yaml(wanted))
    shutil.rmtree(start)
    assert grpo.load_run(folder).config == wanted


def test_the_adapter_is_the_final_one_or_that_of_the_newest_whole_checkpoint(folder: Path) -> None:
    for step, files in ((10, ("DONE",)), (20, ())):
        adapter = folder / "checkpoints" / f"step_{step:06d}" / "adapter"
        adapter.mkdir(parents=True)
        (adapter / "adapter_config.json").write_text("{}")
        for name in files:
            (adapter.parent / name).write_text("{}")
    assert grpo.load_run(folder).adapter == folder.resolve() / "checkpoints" / "step_000010" / "adapter"
    (folder / "adapter").mkdir()
    (folder / "adapter" / "adapter_config.json").write_text("{}")
    assert grpo.load_run(folder).adapter == folder.resolve() / "adapter"


@pytest.mark.parametrize("name", [".", "nowhere"])
def test_a_folder_without_a_run_is_named(name: str, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="holds no run"):
        grpo.load_run(tmp_path / name)


def test_importing_grpo_loads_nothing_and_loading_a_run_needs_no_hydra_state(whole: Path) -> None:
    code = (
        "import sys, grpo\n"
        "assert not {'pandas', 'torch', 'hydra', 'omegaconf'} & set(sys.modules)\n"
        f"run = grpo.load_run({str(whole)!r})\n"
        "assert 'torch' not in sys.modules\n"
        "print(run.config.runtime.steps, len(run.metrics))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=configs.ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["12", "13"]


@pytest.mark.parametrize("name", ["config.yaml", "run.json", "summary.json", "result.json"])
@pytest.mark.parametrize("content", [b"", b"a: [", b"{", b"\xff\x00"])
def test_a_damaged_record_hides_no_numbers(
    name: str, content: bytes, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    before = grpo.load_run(folder)
    (folder / name).write_bytes(content)
    after = grpo.load_run(folder)
    assert after.metrics.equals(before.metrics)
    assert after.rollouts == before.rollouts
    assert f"{folder / name} is damaged" in caplog.text or (name, content) == ("config.yaml", b"")
