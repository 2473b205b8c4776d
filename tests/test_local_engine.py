"""The real loop on the real tiny model, a few steps at a time."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from importlib import metadata
from pathlib import Path
from typing import Any

import configs
import pytest
import torch
from safetensors.torch import load_file

from grpo.checkpoint import load_checkpoint, save_checkpoint
from grpo.config import build_env, build_rewards, load
from grpo.engines import local
from grpo.policy import Policy
from grpo.run import run
from grpo.tracking import read_lines

SMALL = {
    "algorithm.prompts_per_step": 4,
    "algorithm.group_size": 4,
    "algorithm.updates_per_step": 2,
    "algorithm.warmup_steps": 0,
    "adapter.rank": 4,
    "runtime.steps": 3,
    "runtime.eval_interval": 2,
    "runtime.eval_episodes": 6,
    "runtime.test_episodes": 6,
    "runtime.checkpoint_interval": 1,
    "engine.threads": 1,
    "tracker": {"name": "none"},
}


def trained(folder: Path, **changes: Any) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    run(configs.run(SMALL | changes), folder, ["adapter.rank=4"])
    return folder


def metrics(folder: Path) -> list[dict[str, float]]:
    """Without what a clock says."""
    return [
        {name: value for name, value in record.items() if not name.startswith("perf/")}
        for record in read_lines(folder / "metrics.jsonl")
    ]


def adapter(folder: Path) -> dict[str, torch.Tensor]:
    return load_file(folder / "adapter" / "adapter_model.safetensors")


def same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return trained(tmp_path_factory.mktemp("runs") / "first")


def test_a_run_leaves_everything_that_the_readme_promises(folder: Path) -> None:
    names = {path.name for path in folder.iterdir()}
    assert names >= {
        "config.yaml",
        "overrides.txt",
        "run.json",
        "metrics.jsonl",
        "rollouts.jsonl",
        "images",
        "checkpoints",
        "adapter",
        "summary.json",
        "result.json",
        "report.html",
        "train.log",
    }
    assert [path.name for path in sorted((folder / "checkpoints").iterdir())] == ["step_000002", "step_000003"]
    assert (folder / "checkpoints/step_000003/DONE").exists()
    assert load(folder) == configs.run(SMALL)


def test_every_step_has_the_documented_metrics(folder: Path) -> None:
    records = list(read_lines(folder / "metrics.jsonl"))
    assert [record["step"] for record in records] == [0, 1, 2, 3]
    wanted = {
        *(f"reward/{name}/{kind}" for name in ("total", "task_success", "answer_format") for kind in ("mean", "std")),
        *(f"rollout/{name}" for name in ("solved", "turns", "completion_tokens", "invalid_actions")),
        *(f"rollout/{name}" for name in ("truncated", "errors", "early_stop", "token_drift")),
        *(f"group/{name}" for name in ("zero_gradient", "distinct_tasks")),
        *(f"policy/{name}" for name in ("loss", "grad_norm", "learning_rate")),
        *(f"perf/{name}" for name in ("step_seconds", "rollout_seconds", "train_seconds", "tokens_per_second")),
    }
    assert all(wanted <= record.keys() for record in records[1:])
    assert {"policy/entropy", "policy/clip_fraction", "policy/ratio_mean"} <= records[1].keys()
    assert {"eval/all/pass_at_1", "eval/all/solved_sampled", "eval/all/reward", "eval/ceiling"} <= records[
        0
    ].keys() & records[2].keys()
    assert "policy/kl" in records[2], "measured at evaluations even where it costs nothing in the loss"


def test_tokens_never_drift_and_groups_never_share_a_task_with_another(folder: Path) -> None:
    for record in metrics(folder)[1:]:
        assert record["rollout/token_drift"] == 0
        assert record["group/distinct_tasks"] == 4


def test_training_moves_the_adapter_and_nothing_else(folder: Path) -> None:
    moved = adapter(folder)
    assert moved
    assert all("lora_" in name and "visual" not in name for name in moved)
    assert any(tensor.abs().max() > 0 for name, tensor in moved.items() if "lora_B" in name)


def test_the_same_config_gives_the_same_metrics_and_adapter_bit_for_bit(folder: Path, tmp_path: Path) -> None:
    again = trained(tmp_path / "again")
    assert metrics(again) == metrics(folder)
    assert same(adapter(again), adapter(folder))


def test_another_seed_gives_other_numbers(folder: Path, tmp_path: Path) -> None:
    assert metrics(trained(tmp_path / "other", **{"runtime.seed": 1}))[1:] != metrics(folder)[1:]


def test_a_run_resumed_from_a_checkpoint_equals_one_that_was_never_stopped(folder: Path, tmp_path: Path) -> None:
    stopped = tmp_path / "stopped"
    shutil.copytree(folder, stopped)
    shutil.rmtree(stopped / "checkpoints/step_000003")
    shutil.rmtree(stopped / "adapter")
    run(configs.run(SMALL | {"resume": str(stopped)}), stopped, [])
    assert metrics(stopped) == metrics(folder)
    assert same(adapter(stopped), adapter(folder))


def test_a_finished_run_that_is_given_more_steps_equals_one_that_had_them_from_the_start(tmp_path: Path) -> None:
    # Another schedule would look ahead to the last step.
    constant = {"algorithm.lr_schedule": "constant"}
    straight = trained(tmp_path / "straight", **constant, **{"runtime.steps": 4})
    longer = trained(tmp_path / "longer", **constant, **{"runtime.steps": 2})
    words = {"runtime.steps": 4, "resume": str(longer), "resume_accepts_changes": True}
    run(configs.run(SMALL | constant | words), longer, [])
    assert metrics(longer) == metrics(straight)
    assert same(adapter(longer), adapter(straight))
    assert load(longer) == configs.run(SMALL | constant | {"runtime.steps": 4})
    assert json.loads((longer / "run.json").read_text())["changes"][0]["config"] == {"runtime.steps": [2, 4]}


def test_a_log_that_does_not_reach_its_checkpoint_is_named_and_never_trained_on(folder: Path, tmp_path: Path) -> None:
    stopped = tmp_path / "stopped"
    shutil.copytree(folder, stopped)
    lines = (stopped / "metrics.jsonl").read_text().splitlines(keepends=True)
    (stopped / "metrics.jsonl").write_text(lines[0] + lines[1] + lines[3])
    with pytest.raises(RuntimeError, match=r"has lines of steps \[0, 1, 3\], wanted each of 0 to 3"):
        run(configs.run(SMALL | {"resume": str(stopped)}), stopped, [])


def test_a_checkpoint_takes_the_trackers_run_along(policy: Policy, tmp_path: Path) -> None:
    made = parts(policy, tmp_path)
    (tmp_path / "wandb").mkdir()
    (tmp_path / "wandb/run_id").write_text("abcd1234")
    save_checkpoint(tmp_path, 1, policy, made.optimizer, keep=1, record={})
    shutil.rmtree(tmp_path / "wandb")
    assert load_checkpoint(tmp_path / "checkpoints/step_000001", policy, made.optimizer) == 1
    assert (tmp_path / "wandb/run_id").read_text() == "abcd1234"


def test_run_json_records_what_the_run_was_made_from(folder: Path) -> None:
    made_from = json.loads((folder / "run.json").read_text())
    assert made_from["seed"] == 0
    assert set(made_from["code_hashes"]) == {"env", "task_success", "answer_format"}
    assert len(made_from["base"]["content"]) == 64
    assert made_from["packages"]["torch"] == metadata.version("torch")


def test_the_first_step_is_on_policy(folder: Path, tmp_path: Path) -> None:
    one_update = trained(tmp_path / "one", **{"algorithm.updates_per_step": 1, "runtime.steps": 1})
    first = metrics(one_update)[1]
    assert first["policy/ratio_mean"] == pytest.approx(1, abs=1e-4)
    assert first["policy/clip_fraction"] == 0
    assert first["policy/kl"] == pytest.approx(0, abs=1e-6)
    assert abs(first["policy/loss"]) < 1e-4
    assert first["policy/grad_norm"] > 1e-3


def parts(policy: Policy, folder: Path, **changes: Any) -> local.Parts:
    from grpo.console import Console
    from grpo.reward import Mixture
    from grpo.tracking import NullTracker, RunLog

    config = configs.run(SMALL | changes)
    weights = {name: term.weight for name, term in config.reward.terms.items()}
    return local.Parts(
        run=config,
        env=build_env(config),
        mixture=Mixture(terms=build_rewards(config), weights=weights, gate=config.reward.gate),
        policy=policy,
        optimizer=local.make_optimizer(policy, config),
        folder=folder,
        made_from={},
        log=RunLog(folder, NullTracker()),
        console=Console(1),
    )


def gradients(policy: Policy, folder: Path, size: int) -> list[torch.Tensor]:
    """Of one update on 8 fixed rows, `size` rows at a time."""
    made = parts(policy, folder, **{"runtime.per_device_batch_size": size})
    tasks = made.env.tasks("train", 2, seed=0)
    rollouts = local.play_groups(made, tasks, step=1)
    rows = [(rollout.trace, float(index % 3 - 1)) for index, rollout in enumerate(rollouts)]
    local.accumulate(made, rows, step=1)
    found = [parameter.grad.clone() for parameter in policy.trainable if parameter.grad is not None]
    made.optimizer.zero_grad()
    return found


def test_micro_batches_add_up_to_the_gradient_of_the_whole(policy: Policy, tmp_path: Path) -> None:
    whole, pieces = gradients(policy, tmp_path, 8), gradients(policy, tmp_path, 2)
    assert max(gradient.abs().max() for gradient in whole) > 0
    for one, other in zip(whole, pieces, strict=True):
        assert torch.allclose(one, other, atol=1e-5)


def test_a_group_in_which_all_did_alike_is_dropped_or_kept_as_configured(policy: Policy, tmp_path: Path) -> None:
    made = parts(policy, tmp_path)
    rollouts = local.play_groups(made, made.env.tasks("train", 1, seed=0), step=1)
    before = [parameter.detach().clone() for parameter in policy.trainable]
    result = local.update(made, rollouts, [0.0] * len(rollouts), step=1)
    assert result["policy/loss"] == result["policy/grad_norm"] == 0
    assert all(torch.equal(a, b) for a, b in zip(before, policy.trainable, strict=True))


def test_when_every_rollout_is_cut_and_masked_no_update_is_made(policy: Policy, tmp_path: Path) -> None:
    made = parts(policy, tmp_path, **{"algorithm.max_completion_tokens": 1, "algorithm.truncated_rollouts": "mask"})
    rollouts = local.play_groups(made, made.env.tasks("train", 1, seed=0), step=1)
    result = local.update(made, rollouts, [1.0, -1.0, 1.0, -1.0], step=1)
    assert result["policy/loss"] == result["policy/grad_norm"] == 0


def test_a_gradient_that_is_not_finite_stops_the_run_with_the_step_and_the_next_move(
    policy: Policy, tmp_path: Path
) -> None:
    made = parts(policy, tmp_path)
    rollouts = local.play_groups(made, made.env.tasks("train", 1, seed=0), step=7)
    broken = [replace(r, trace=replace(r.trace, logprobs=r.trace.logprobs * float("nan"))) for r in rollouts]
    with pytest.raises(RuntimeError, match=r"step 7: loss nan.*algorithm.learning_rate"):
        local.update(made, broken, [1.0, -1.0, 1.0, -1.0], step=7)
    made.optimizer.zero_grad()


@pytest.mark.parametrize("change", [{"adapter.dropout": 0.5}, {"model.gradient_checkpointing": True}])
def test_dropout_changes_the_training_and_checkpointing_does_not(change: dict[str, Any], tmp_path: Path) -> None:
    one = {"runtime.steps": 1, "algorithm.warmup_steps": 0}
    plain, changed = trained(tmp_path / "plain", **one), trained(tmp_path / "changed", **one, **change)
    alike = [
        torch.allclose(a, b, atol=1e-6) for a, b in zip(adapter(plain).values(), adapter(changed).values(), strict=True)
    ]
    assert all(alike) == ("model.gradient_checkpointing" in change)
    again = trained(tmp_path / "again", **one, **change)
    assert same(adapter(again), adapter(changed))


@pytest.mark.parametrize("option", ["dr_grpo", "dapo", "gspo"])
def test_every_algorithm_option_trains(option: str, tmp_path: Path) -> None:
    config = configs.typed([f"algorithm={option}", "tracker=none", *_words(SMALL), "algorithm.kl_coefficient=0.05"])[0]
    run(config, tmp_path, [])
    last = metrics(tmp_path)[-1]
    assert last["policy/kl"] >= 0
    assert {"policy/loss", "policy/clip_fraction"} <= last.keys()


def _words(changes: dict[str, Any]) -> list[str]:
    return [f"{key}={value}" for key, value in changes.items() if not isinstance(value, dict)]


@pytest.mark.slow
def test_the_reward_rises_in_a_short_training(tmp_path: Path) -> None:
    config = configs.run(
        {"tracker": {"name": "none"}, "runtime.steps": 6, "runtime.eval_interval": 6, "engine.threads": 1}
    )
    run(config, tmp_path, [])
    solved = [record["rollout/solved"] for record in metrics(tmp_path)[1:]]
    assert solved[-1] > solved[0] + 0.05


def test_every_saved_adapter_has_its_pair_record_covered_by_done(folder: Path) -> None:
    for saved, step in ((folder / "checkpoints" / "step_000002" / "adapter", 2), (folder / "adapter", 3)):
        record = json.loads((saved / "pair.json").read_text())
        assert (record["step"], record["config"]["adapter"]["rank"]) == (step, 4)
        assert record["metrics"]["rollout/solved"] == metrics(folder)[step]["rollout/solved"]
        assert record["base"] == json.loads((folder / "run.json").read_text())["base"]
    assert "adapter/pair.json" in json.loads((folder / "checkpoints" / "step_000003" / "DONE").read_text())
    assert "pair.json" in json.loads((folder / "adapter" / "DONE").read_text())
