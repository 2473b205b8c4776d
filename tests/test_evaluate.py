"""The script as a user types it, on real models and adapters; small numbers of tasks keep it quick."""

from __future__ import annotations

import json
import shutil
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import torch
from chat_server import answering, serving
from configs import ROOT
from configs import run as configured
from s3_server import BUCKET, s3_server

from grpo import base, config, contenders, provenance
from grpo.checkpoint import save_adapter
from grpo.policy import Policy, load_policy
from launchers import record
from scripts import evaluate as script

FEW = ("--tasks", "8", "--samples", "2")


def policy(noise: float, seed: int = 0) -> Policy:
    """The tiny model with an adapter that adds `noise` to what it does; at 0 it is the base itself."""
    run = configured()
    made = load_policy(run.model, run.adapter, device=torch.device("cpu"), seed=seed)
    torch.manual_seed(seed)
    with torch.no_grad():
        for name, parameter in made.model.named_parameters():
            if "lora_B" in name:
                parameter.normal_(std=noise) if noise else parameter.zero_()
    return made


def run_folder(folder: Path, *, noise: float = 0.0, changes: dict[str, Any] | None = None) -> Path:
    """What evaluation reads of a finished run: its config and its adapter."""
    folder.mkdir(parents=True)
    (folder / "config.yaml").write_text(config.to_yaml(configured({"tracker": {"name": "none"}} | (changes or {}))))
    save_adapter(policy(noise), folder / "adapter", {"base": asdict(base.describe(configured().model))})
    return folder


def figures(folder: Path) -> dict[str, Any]:
    (file,) = folder.glob("eval/*/result.json")
    return json.loads(file.read_text())


def test_an_adapter_that_changes_nothing_is_unchanged_and_passes_the_gate(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = run_folder(tmp_path / "run")
    assert script.main([str(folder), *FEW]) == 0
    found = figures(folder)
    first, trained = found["policies"]
    assert (first["name"], trained["name"], found["reference"]) == ("base", "trained", "base")
    # The same draws: not one sampled episode differs, let alone a greedy one.
    assert trained["sampled"] == first["sampled"] and trained["greedy"] == first["greedy"]
    assert trained["comparison"]["judgement"] == "unchanged"
    assert [kind["changed"] for kind in trained["drift"].values()] == [0, 0, 0]
    assert [kind["kl"] for kind in trained["drift"].values()] == pytest.approx([0, 0, 0], abs=1e-6)
    assert set(trained["drift"]) == {"text only", "one image", "many images"}
    assert len(set(found["tasks"])) == 8
    printed = capsys.readouterr().out
    assert "trained: unchanged against base" in printed
    assert (next(folder.glob("eval/*/table.txt"))).read_text().splitlines()[0] in printed


def test_a_broken_adapter_is_worse_and_fails_the_gate(tmp_path: Path) -> None:
    folder = run_folder(tmp_path / "run", noise=1.0)
    assert script.main([str(folder), *FEW]) == 1
    trained = figures(folder)["policies"][1]
    assert trained["comparison"]["judgement"] in ("worse", "reward hacking suspected")
    assert trained["comparison"]["solved_greedy"]["lost"] > 0
    assert all(kind["kl"] > 0.01 for kind in trained["drift"].values())


def test_unchanged_fails_where_an_improvement_is_asked_for(tmp_path: Path) -> None:
    assert script.main([str(run_folder(tmp_path / "run")), *FEW, "--improved"]) == 1


def test_an_unfinished_run_plays_its_newest_checkpoint_and_is_told_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = run_folder(tmp_path / "run")
    for step in (3, 6, 9):
        shutil.copytree(folder / "adapter", folder / f"checkpoints/step_{step:06d}/adapter")
    (folder / "checkpoints/step_000003/DONE").touch()
    (folder / "checkpoints/step_000006/DONE").touch()  # the third was being saved
    shutil.rmtree(folder / "adapter")
    assert script.main([str(folder), *FEW]) == 0
    assert "trained, step_000006: unchanged against base" in capsys.readouterr().out
    shutil.rmtree(folder / "checkpoints")
    assert script.main([str(folder), *FEW]) == 2
    assert "no whole checkpoint; give a run that has saved one" in capsys.readouterr().err


def test_code_that_is_no_longer_the_runs_and_too_few_tasks_are_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = run_folder(tmp_path / "run")
    same = provenance.source_hash(config.build_env(configured()))
    made = {"code_hashes": {"env": same, "task_success": "0123456789abcdef"}}
    (folder / provenance.RUN_FILE).write_text(json.dumps(made))
    assert script.main([str(folder), "--tasks", "3", "--samples", "1"]) == 0
    printed = capsys.readouterr().out
    assert "task_success: its code is not that of the run (0123456789ab then, " in printed
    assert "env: its code" not in printed
    assert "3 tasks are too few to tell any change from chance; use --tasks 7 or more" in printed


def test_a_run_on_s3_is_fetched_and_evaluated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = run_folder(tmp_path / "run")
    monkeypatch.chdir(tmp_path)
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "of-the-test")
    with s3_server() as server:
        monkeypatch.setenv("AWS_ENDPOINT_URL", server.address)
        for file in folder.rglob("*"):
            if file.is_file():
                key = f"team/maze/here/{file.relative_to(folder)}"
                server.direct.put_object(Bucket=BUCKET, Key=key, Body=file.read_bytes())
        command = [f"s3://{BUCKET}/team/maze/here", "--tasks", "2", "--samples", "1", "--output", str(tmp_path / "out")]
        assert script.main(command) == 0
        assert script.main([f"s3://{BUCKET}/team/maze/nowhere"]) == 2
    assert (tmp_path / "out/result.json").is_file()


def test_further_adapters_are_played_beside_the_runs_own(tmp_path: Path) -> None:
    folder, other = run_folder(tmp_path / "run"), run_folder(tmp_path / "other", noise=1.0)
    assert script.main([str(folder), "--adapter", str(other), *FEW]) == 1
    first, trained, broken = figures(folder)["policies"]
    assert broken["name"] == str(other)
    # An adapter is taken off before the next one plays.
    assert trained["greedy"] == first["greedy"] != broken["greedy"]


def test_an_adapter_of_another_base_is_refused_before_a_model_is_loaded(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = run_folder(tmp_path / "run")
    record_file = folder / "adapter/pair.json"
    told = json.loads(record_file.read_text())
    told["base"]["tokenizer"] = "0" * 16
    record_file.write_text(json.dumps(told))
    assert script.main([str(folder), *FEW]) == 2
    assert "tokenizer" in capsys.readouterr().err
    assert not (folder / "eval").exists()


def test_what_a_run_started_from_is_what_it_is_measured_by(tmp_path: Path) -> None:
    start = run_folder(tmp_path / "start", noise=0.02)
    folder = run_folder(tmp_path / "run", changes={"adapter.start_from": str(start / "adapter")})
    assert script.main([str(folder), *FEW]) in (0, 1)
    found = figures(folder)
    assert found["reference"] == "start"
    assert [policy["name"] for policy in found["policies"]] == ["base", "start", "trained"]
    assert [policy["comparison"] is None for policy in found["policies"]] == [True, True, False]


def test_a_sweep_is_evaluated_in_one_go_by_the_words_that_tell_its_trials_apart(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folders = [run_folder(tmp_path / name, noise=noise) for name, noise in (("0", 0.0), ("1", 1.0))]
    trials: list[record.TrialRecord] = []
    for place, folder in enumerate(folders):
        job = record.Job(
            overrides=(f"adapter.target_modules=[{'qv'[place]}_proj]",),
            folder=folder.name,
            run=configured({"runtime.seed": place}),
        )
        record.place(job, trials)
    rows = [vars(trial) | {"state": "finished", "objective": 1.0} for trial in trials]
    record.write(tmp_path, [record.TrialRecord(**row) for row in rows])
    assert script.main([str(tmp_path), *FEW]) == 1
    found = figures(tmp_path)["policies"]
    assert [policy["name"] for policy in found] == ["base", "0: target_modules=[q_proj]", "1: target_modules=[v_proj]"]
    # Brackets are not taken for colours: they stand in the tables too, wherever a name is broken off.
    printed = capsys.readouterr().out
    assert min(printed.count("[q_"), printed.count("[v_")) == 3
    assert found[1]["comparison"]["judgement"] == "unchanged"


def test_a_model_folder_has_figures_and_no_verdict(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = str(ROOT / "models/tiny_qwen3_vl")
    assert script.main([model, "env.max_turns=12", *FEW, "--output", str(tmp_path / "out")]) == 0
    assert "no verdict" in capsys.readouterr().out
    (only,) = json.loads((tmp_path / "out/result.json").read_text())["policies"]
    assert only["pass_at"].keys() == {"1", "2"} and only["comparison"] is None


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["nowhere"], "no run (config.yaml), no sweep (sweep.json) and no model (config.json)"),
        ([], "wants a run, sweep or model folder"),
        (["--endpoint", "http://127.0.0.1:9/v1"], "wants --model"),
        (["--endpoint", "http://127.0.0.1:9/v1", "--model", "base"], "does not answer"),
        ([str(ROOT / "models/tiny_qwen3_vl"), "env.max_turn=3"], "did you mean max_turns"),
        ([str(ROOT / "models/tiny_qwen3_vl"), "--adapter", "nowhere"], "holds no adapter"),
        (["--endpoint", "127.0.0.1:9/v1", "--model", "base"], "wants an address such as http://"),
        ([str(ROOT / "models")], "tiny_qwen3_vl"),
        ([str(ROOT / "models/tiny_qwen3_vl"), "--tasks", "1"], "--tasks 1: wants 2 or more"),
        ([str(ROOT / "models/tiny_qwen3_vl"), "--samples", "0"], "--samples 0: wants 1 or more"),
    ],
)
def test_a_wrong_command_is_refused_with_2(
    words: list[str], told: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("grpo.endpoint.TRIES", 1)
    assert script.main(words) == 2
    assert told in capsys.readouterr().err


def test_a_server_that_lists_nothing_is_asked_whether_it_serves_a_name() -> None:
    with serving(policy(0.0), "tiny", lists=False) as url:
        (contender,) = contenders.served(configured(), url, ["tiny"])
        assert (contender.name, contender.source) == ("tiny", url)
        with pytest.raises(ValueError, match=r"does not serve nope \(.*nope does not exist.*\); it lists nothing"):
            contenders.served(configured(), url, ["tiny", "nope"])


@pytest.mark.parametrize(
    ("content", "told"),
    [
        ("<html>please log in</html>", "wanted a chat completion, got '<html>please log in</html>'"),
        ('{"choices": ', "its answer is not JSON"),
        ('{"choices": []}', "wanted a chat completion, got"),
        ('{"error": "overloaded"}', "overloaded"),
        ('{"choices": [{"message": {"content": ["up"]}}]}', "wanted a chat completion whose content is a text"),
    ],
)
def test_a_server_that_answers_in_another_form_ends_the_evaluation_with_what_it_said(
    content: str, told: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with answering(content) as url:
        command = ["--endpoint", url, "--model", "tiny", "--output", str(tmp_path / "out")]
        assert script.main([*command, *FEW]) == 1
    assert told in capsys.readouterr().err


def test_a_model_that_never_says_anything_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with answering('{"choices": [{"finish_reason": "length", "message": {"content": null}}]}') as url:
        command = ["--endpoint", url, "--model", "tiny", "--output", str(tmp_path / "out")]
        assert script.main([*command, "--tasks", "2", "--samples", "1"]) == 0
    assert "tiny: every reply is empty" in capsys.readouterr().out


@pytest.mark.slow
def test_an_endpoint_plays_as_the_same_model_does_here(tmp_path: Path) -> None:
    local = run_folder(tmp_path / "local")
    assert script.main([str(local), "--tasks", "3", "--samples", "1"]) == 0
    here = figures(local)["policies"][0]
    remote = run_folder(tmp_path / "remote")
    with serving(policy(0.0), "tiny", "tiny:maze", failures=1) as url:
        command = [str(remote), "--endpoint", url, "--model", "tiny", "--model", "tiny:maze"]
        assert script.main([*command, "--tasks", "3", "--samples", "1"]) == 0
        assert script.main([*command, "--model", "nope"]) == 2
    there, other = figures(remote)["policies"]
    for name in ("rollout/solved", "rollout/turns", "rollout/completion_tokens", "reward/total/mean"):
        assert there["greedy"][name] == here["greedy"][name]
    assert other["comparison"]["judgement"] == "unchanged"
    assert all(kind["kl"] is None and kind["changed"] == 0 for kind in other["drift"].values())
