"""What our trainer changes in SkyRL's, without GPUs: data, comparison, loss weights, records, checkpoints."""
# pyright: reportMissingImports=false

from __future__ import annotations

import json
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import configs
import pytest
import torch
from builders import rollout, task, transcript, turn
from skyrl.backends.skyrl_train.utils.ppo_utils import apply_loss_reduction_to_advantages_minibatch
from skyrl.train.trainer import RayPPOTrainer

from grpo.adapter import tensors_of
from grpo.checkpoint import damage, latest_checkpoint, reached
from grpo.config import build_env, build_rewards
from grpo.console import Console
from grpo.engines.given import Given
from grpo.engines.skyrl_records import Records, Step
from grpo.engines.skyrl_run import last_words, refuse_code, refuse_missing_gpus
from grpo.engines.skyrl_trainer import ADAPTER, StepTasks, Trainer
from grpo.layout import layout
from grpo.policy import load_policy
from grpo.randomness import seed as seed_of
from grpo.reward import make_mixture
from grpo.tracking import NullTracker, RunLog
from grpo.types import Score

WORDS = ["engine=skyrl", "runtime.steps=6"]


def given(folder: Path, *words: str) -> Given:
    (run,) = configs.typed([*WORDS, *words])
    return Given(
        run=run,
        env=build_env(run),
        mixture=make_mixture(run.reward, build_rewards(run)),
        folder=folder,
        made_from={"base": {"id": "tiny"}},
        log=RunLog(folder, NullTracker()),
        console=Console(run.runtime.steps),
    )


def trainer(parts: Given, records: Records | None = None) -> Trainer:
    """Without SkyRL's part of the making, which wants Ray."""
    made = Trainer.__new__(Trainer)
    made.given = parts
    made.records = records or Records(parts, history=[], gpu_use=dict)
    return made


def test_a_step_plays_the_tasks_of_the_local_engine_and_a_resumed_run_those_that_are_left(tmp_path: Path) -> None:
    parts = given(tmp_path)
    run, env = parts.run, parts.env
    steps = {first: list(StepTasks(env, run, tmp_path, lambda first=first: first)) for first in (1, 5)}
    assert (len(steps[1]), len(steps[5])) == (6, 2)
    assert steps[5] == steps[1][4:]
    local = env.tasks("train", run.algorithm.prompts_per_step, seed_of(run.runtime.seed, "tasks", 5))
    assert [row["env_extras"]["task"]["id"] for row in steps[5][0]] == [each.id for each in local]
    assert json.loads((tmp_path / "heartbeat.json").read_text())["phase"] == "rollouts"


@pytest.mark.parametrize("aggregation", ["token_mean", "sequence_mean", "fixed_length"])
def test_without_masked_rows_the_loss_weights_are_skyrls(aggregation: str, tmp_path: Path) -> None:
    parts = given(tmp_path, f"algorithm.loss_aggregation={aggregation}")
    mask = torch.tensor([[1.0, 1.0, 1.0], [1.0, 0.0, 0.0], [1.0, 1.0, 0.0], [0.0, 1.0, 0.0]])
    data = {"advantages": torch.arange(12.0).reshape(4, 3), "loss_mask": mask}
    theirs = [
        apply_loss_reduction_to_advantages_minibatch(
            data["advantages"][a:b], mask[a:b], SKYRLS[aggregation], micro_batch_size=1, max_seq_len=640
        )
        for a, b in ((0, 2), (2, 4))
    ]
    ours = trainer(parts)._normalize_advantages(dict(data), [(0, 2), (2, 4)])["advantages"]
    assert torch.allclose(ours, torch.cat(theirs) * mask)


SKYRLS = {"token_mean": "token_mean", "sequence_mean": "sequence_mean", "fixed_length": "seq_mean_token_sum_norm"}


def test_a_masked_row_does_not_dilute_the_loss_of_the_others(tmp_path: Path) -> None:
    data = {"advantages": torch.ones(2, 2), "loss_mask": torch.tensor([[1.0, 1.0], [0.0, 0.0]])}
    ours = trainer(given(tmp_path))._normalize_advantages(data, [(0, 2)])["advantages"]
    assert ours.tolist() == [[0.5, 0.5], [0.0, 0.0]]  # sequence_mean of one row; SkyRL's would be 0.25


class Batch(dict[str, Any]):
    metadata: dict[str, Any]


def test_updates_without_a_trained_token_are_not_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Any] = []

    def execute(self: Any, model: str, data: Any) -> dict[str, float]:
        made.append(data.metadata["policy_mini_batch_boundaries"])
        return {"policy_loss": 1.0}

    monkeypatch.setattr(RayPPOTrainer, "_execute_training_step", execute)
    for mask, updates in (([[1], [0], [0], [1]], [(0, 1), (3, 4)]), ([[0], [0], [0], [0]], None)):
        data = Batch(loss_mask=torch.tensor(mask))
        data.metadata = {"policy_mini_batch_boundaries": [(0, 1), (1, 2), (2, 3), (3, 4)]}
        status = trainer(given(tmp_path))._execute_training_step("policy", data)
        assert (made.pop() if made else None, bool(status)) == (updates, updates is not None)


def played(*, solved: bool = True) -> Step:
    each = [
        rollout(transcript=transcript(turn(done=True, solved=solved and index < 2), task=task(id="a")), sample=index)
        for index in range(4)
    ]
    scores = [Score(total=1.2 if r.transcript.solved else 0.0, terms={"task_success": 1.0}, failed=()) for r in each]
    return Step(rollouts=each, scores=scores, advantages=[1.0, 1.0, -1.0, -1.0])


SKYRL_SAYS = {
    "policy/policy_loss": 0.25,
    "policy/grad_norm": 0.5,
    "policy/policy_lr": 1e-3,
    "policy/rollout_train_logprobs_abs_diff_mean": 0.003,
    "timing/step": 10.0,
    "timing/generate": 4.0,
    "reward/avg_pass_at_8": 1.0,
    "environment/turns": 3.0,
}


def test_a_step_is_recorded_under_our_names_and_only_then_may_its_checkpoint_count(tmp_path: Path) -> None:
    records = Records(given(tmp_path), history=[], gpu_use=lambda: {"perf/gpu_utilization": 0.9})
    order: list[str] = []
    records.written = lambda metrics: order.append((tmp_path / "metrics.jsonl").read_text().splitlines()[-1])
    records.log({"eval/all/pass_at_1": 0.5, "timing/eval": 3.0}, 0)
    records.step = played()
    records.log(SKYRL_SAYS, 1)
    start, line = map(json.loads, (tmp_path / "metrics.jsonl").read_text().splitlines())
    assert start == {"step": 0, "eval/all/pass_at_1": 0.5}
    wanted = {
        "rollout/solved": 0.5,
        "reward/total/mean": 0.6,
        "policy/loss": 0.25,
        "policy/logprob_gap": 0.003,
        "perf/train_seconds": 6.0,
        "perf/tokens_per_second": 5.0,  # 4 rollouts of 5 tokens in 4 s
        "perf/gpu_utilization": 0.9,
    }
    assert {name: line[name] for name in wanted} == wanted
    assert not [name for name in line if name.startswith(("environment/", "timing/")) or "avg_pass" in name]
    assert json.loads(order[0])["step"] == 1
    assert len((tmp_path / "rollouts.jsonl").read_text().splitlines()) == 4


def test_a_step_without_an_update_says_so_and_one_without_a_finite_gradient_ends_the_run(tmp_path: Path) -> None:
    records = Records(given(tmp_path), history=[{}], gpu_use=dict)
    records.step = played(solved=False)
    records.log({"timing/step": 2.0, "timing/generate": 1.0}, 1)
    assert records.history[-1]["policy/grad_norm"] == 0.0
    records.step = played()
    with pytest.raises(RuntimeError, match=r"step 2: loss 0.25, gradient norm nan; lower algorithm.learning_rate"):
        records.log(SKYRL_SAYS | {"policy/grad_norm": float("nan")}, 2)


def test_a_resumed_run_does_not_record_what_it_has(tmp_path: Path) -> None:
    records = Records(given(tmp_path), history=[{"eval/all/pass_at_1": 0.5}], gpu_use=dict)
    records.log({"eval/all/pass_at_1": 0.7}, 0)
    assert not (tmp_path / "metrics.jsonl").exists()


def test_skyrls_state_and_adapter_become_a_checkpoint_that_the_local_code_reads(tmp_path: Path) -> None:
    from skyrl.backends.skyrl_train.distributed.fsdp_utils import layered_summon_lora_params

    parts = given(tmp_path, "runtime.keep_checkpoints=1")
    policy = load_policy(configs.run().model, parts.run.adapter, device=torch.device("cpu"), seed=0)
    for step in (4, 6):
        state = tmp_path / f"checkpoints/.skyrl/global_step_{step}"
        (state / ADAPTER).mkdir(parents=True)
        (state / "trainer_state.pt").write_bytes(b"state")
        tensors = layered_summon_lora_params(policy.model)
        from safetensors.torch import save_file

        save_file(tensors, state / ADAPTER / "adapter_model.safetensors")
        (state / ADAPTER / "adapter_config.json").write_text("{}")
        target = tmp_path / f"checkpoints/step_{step:06d}"
        (tmp_path / "metrics.jsonl").touch()
        (tmp_path / "rollouts.jsonl").touch()
        trainer(parts)._seal(state, target, step, {"rollout/solved": 1.0})
    newest = latest_checkpoint(tmp_path)
    assert newest is not None and newest.name == "step_000006"
    assert (damage(newest), reached(newest)) == (None, 6)
    assert [path.name for path in (tmp_path / "checkpoints").glob("step_*")] == ["step_000006"]
    assert (newest / "global_step_6/trainer_state.pt").is_file()
    assert json.loads((tmp_path / "adapter/pair.json").read_text())["step"] == 6
    assert set(tensors) == set(tensors_of(policy.model))


@pytest.mark.parametrize(
    ("nodes", "free", "told"),
    [
        ([(2, 8), (2, 8)], 4, None),
        ([(0, 64), (4, 8)], 4, None),  # a node too many, without GPUs
        ([(1, 8)], 1, "wants 4 GPUs .* and Ray has 1: 3 short"),
        ([(2, 8), (2, 8)], 1, "of Ray's 4 only 1 are free: another job has the rest"),
        ([(3, 8), (1, 8)], 4, "2 on a node, and Ray's nodes have: host0 3, host1 1; ask for what there is"),
        ([(0, 64), (2, 1), (2, 1)], 4, "a CPU for each of 4 GPUs, and Ray's nodes with GPUs have 2; start Ray"),
    ],
)
def test_what_ray_could_not_place_is_refused_before_anything_waits_for_it(
    nodes: list[tuple[int, int]], free: int, told: str | None
) -> None:
    (run,) = configs.typed(["engine=skyrl", "cluster=ray", "cluster.nodes=2", "cluster.gpus_per_node=2"])
    gpus = layout(run.engine, run.cluster)
    there = [(f"host{index}", {"GPU": float(gpu), "CPU": float(cpu)}) for index, (gpu, cpu) in enumerate(nodes)]
    with nullcontext() if told is None else pytest.raises(RuntimeError, match=told):
        refuse_missing_gpus(gpus, there, {"GPU": float(free)})


def test_a_failure_is_told_with_the_first_traceback_of_workers_and_vllm(tmp_path: Path) -> None:
    assert "wrote nothing" in last_words(tmp_path)
    before, after = ["INFO all is well"] * 50, ["ERROR and so on"] * 50
    cause = ["(EngineCore) Traceback (most recent call last):", "torch.OutOfMemoryError: CUDA out of memory"]
    (tmp_path / "infra-1.log").write_text("\n".join([*before, *cause, *after]))
    told = last_words(tmp_path).splitlines()
    assert told[0] == f"what Ray's workers and vLLM wrote is in {tmp_path}/infra-1.log; its first traceback:"
    assert told[1:3] == cause and len(told) == 41
    (tmp_path / "infra-1.log").write_text("\n".join([*before, "killed"]))
    assert last_words(tmp_path).splitlines()[-1] == "killed"


def test_a_model_that_brings_code_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "x", "auto_map": {"AutoModel": "m.M"}}))
    (tmp_path / "tokenizer_config.json").write_text("{}")
    with pytest.raises(ValueError, match="brings its own code"):
        refuse_code(str(tmp_path))
