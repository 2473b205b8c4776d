"""GRPO in this process, on one CPU or GPU (DeepSeekMath, arXiv 2402.03300, algorithm 1, outcome supervision)."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from grpo import pair
from grpo.advantage import comparable_totals, group_advantages, trainable_mask
from grpo.alarms import alarm_metrics, alarms, first_step_note
from grpo.batch import Batch, collate
from grpo.checkpoint import save_checkpoint
from grpo.config import RunConfig
from grpo.console import Console
from grpo.conversation import Sampling
from grpo.evaluate import evaluate, held_out
from grpo.evaluation import Evaluation
from grpo.gpu import Gauge
from grpo.heartbeat import beat
from grpo.interfaces import Env
from grpo.loss import LossParts, loss_metrics, policy_loss, token_weights
from grpo.metrics import rollout_metrics, variance_shares
from grpo.plan import reach
from grpo.policy import Policy
from grpo.randomness import seed as seed_of
from grpo.reward import Mixture
from grpo.rollout import play
from grpo.tracking import RunLog, rollout_row
from grpo.types import Rollout, Task, TokenTrace

log = logging.getLogger(__name__)

Metrics = dict[str, float]

OBJECTIVE = "eval/all/pass_at_1"
"""What train.py returns and a sweep optimises: solved, greedy, validation tasks."""

LOGGED_EPISODES = 4
"""Held-out episodes written to rollouts.jsonl at each evaluation, besides one training group a step."""


@dataclass(frozen=True, kw_only=True)
class Parts:
    """What a run is made of."""

    run: RunConfig
    env: Env
    mixture: Mixture
    policy: Policy
    optimizer: torch.optim.Optimizer
    folder: Path
    made_from: Mapping[str, Any]
    """The run's run.json; goes with every adapter that is saved."""
    log: RunLog
    console: Console


def train(parts: Parts, history: Sequence[Metrics]) -> Metrics:
    """The steps that follow those of `history` (empty at the start); returns the metrics of the last evaluation.

    Raises RewardError for a broken reward term and RuntimeError for a gradient that is not finite.
    """
    run, env = parts.run, parts.env
    weights = {name: term.weight for name, term in run.reward.terms.items()}
    history = list(history)
    if not history:
        history.append(validate(parts, step=0))
        parts.log.step(0, history[0])
    for step in range(len(history), run.runtime.steps + 1):
        start, gauge = time.perf_counter(), Gauge(parts.policy.device)
        beat(parts.folder, "rollouts", step)
        tasks = env.tasks("train", run.algorithm.prompts_per_step, seed_of(run.runtime.seed, "tasks", step))
        rollouts = play_groups(parts, tasks, step)
        scores = parts.mixture.judge([(r.transcript, f"step {step}, {_name(r)}") for r in rollouts])
        totals = comparable_totals([r.transcript for r in rollouts], scores)
        advantages = group_advantages([r.transcript.task.id for r in rollouts], totals, run.algorithm.advantage_scale)
        gauge.read()
        played = time.perf_counter()

        beat(parts.folder, "update", step)
        metrics = rollout_metrics(rollouts, scores, advantages)
        metrics |= variance_shares([r.transcript for r in rollouts], scores, parts.mixture)
        metrics |= update(parts, rollouts, advantages, step)
        gauge.read()
        metrics |= _speed(rollouts, start, played, time.perf_counter()) | gauge.metrics()

        if _evaluates(run, step):
            metrics |= validate(parts, step)
        history.append(metrics)
        raised = alarms(history[1:], weights, group_size=run.algorithm.group_size, max_turns=env.max_turns)
        parts.log.step(step, metrics | alarm_metrics(raised))
        one_group = zip(rollouts, scores, advantages, strict=True)
        parts.log.rollouts(step, [rollout_row(step, *r) for r in one_group if r[0].transcript.task.id == tasks[0].id])
        parts.console.step(step, metrics, raised)
        if step == 1:
            log.info(first_step_note(metrics["policy/loss"], metrics["policy/grad_norm"]))
        if step % run.runtime.checkpoint_interval == 0 or step == run.runtime.steps:
            beat(parts.folder, "saving", step)
            parts.log.sync()
            record = pair.record(parts.made_from, run, step, metrics)
            keep = run.runtime.keep_checkpoints
            save_checkpoint(parts.folder, step, parts.policy, parts.optimizer, keep=keep, record=record)
    return next(metrics for metrics in reversed(history) if OBJECTIVE in metrics)


def play_groups(parts: Parts, tasks: Sequence[Task], step: int) -> list[Rollout]:
    """`group_size` sampled rollouts of each task."""
    run, algorithm = parts.run, parts.run.algorithm
    assert run.engine.name == "local"
    with parts.console.progress("rollouts") as progress:
        return play(
            parts.policy,
            parts.env,
            tasks,
            siblings=algorithm.group_size,
            sampling=Sampling(
                temperature=algorithm.temperature,
                greedy=False,
                max_completion_tokens=algorithm.max_completion_tokens,
            ),
            purpose=(run.runtime.seed, "train", step),
            max_prompt_tokens=algorithm.max_prompt_tokens,
            rows_at_once=run.engine.rollout_batch_size,
            progress=progress,
        )


def update(parts: Parts, rollouts: Sequence[Rollout], advantages: Sequence[float], step: int) -> Metrics:
    """Train on one step's rollouts, once each, in up to `updates_per_step` optimiser steps.

    Rows without a trainable token take no part, nor (with `drop_zero_signal_groups`) those of groups in which all
    rollouts did equally well: the KL term does not pull on them either. The fewer remain, the fewer updates are made,
    so that each stays as large as configured.
    """
    run, algorithm = parts.run, parts.run.algorithm
    alive = {r.transcript.task.id for r, advantage in zip(rollouts, advantages, strict=True) if advantage != 0}
    rows: list[tuple[TokenTrace, float]] = []
    for rollout, advantage in zip(rollouts, advantages, strict=True):
        mask = trainable_mask(rollout, algorithm.truncated_rollouts)
        dropped = algorithm.drop_zero_signal_groups and rollout.transcript.task.id not in alive
        if mask.any() and not dropped:
            rows.append((replace(rollout.trace, action_mask=mask), advantage))
    learning_rate = algorithm.learning_rate * _schedule(step, run)
    metrics = {"policy/learning_rate": learning_rate, "rollout/token_drift": float(sum(r.drift for r in rollouts))}
    if not rows:
        return metrics | {"policy/loss": 0.0, "policy/grad_norm": 0.0}
    for group in parts.optimizer.param_groups:
        group["lr"] = learning_rate
    order = np.random.default_rng(seed_of(run.runtime.seed, "order", step)).permutation(len(rows))
    per_update = algorithm.prompts_per_step * algorithm.group_size // algorithm.updates_per_step
    updates = np.array_split(order, math.ceil(len(rows) / per_update))
    losses: list[LossParts] = []
    norms: list[float] = []
    dropout_seed = seed_of(run.runtime.seed, "dropout", step)
    with parts.policy.training_mode(dropout_seed), parts.console.progress("update") as progress:
        for done, chosen in enumerate(updates):
            losses += accumulate(parts, [rows[index] for index in chosen], step)
            norm = float(nn.utils.clip_grad_norm_(parts.policy.trainable, algorithm.max_grad_norm))
            # Both: clipping can turn the gradient of a loss that is not finite into 0.
            loss = sum(float(part.total) for part in losses)
            if not math.isfinite(norm + loss):
                raise RuntimeError(
                    f"step {step}: loss {loss}, gradient norm {norm}, so the update was not made; lower "
                    f"algorithm.learning_rate ({algorithm.learning_rate}) or use runtime.mixed_precision=fp32"
                )
            parts.optimizer.step()
            parts.optimizer.zero_grad(set_to_none=True)
            norms.append(norm)
            progress(done + 1, len(updates))
    metrics |= loss_metrics(losses, updates=len(updates))
    return metrics | {"policy/grad_norm": sum(norms) / len(norms)}


def accumulate(parts: Parts, rows: Sequence[tuple[TokenTrace, float]], step: int) -> list[LossParts]:
    """Gradients of one optimiser step, `per_device_batch_size` rows at a time; the micro-batches add up exactly."""
    run, algorithm, policy = parts.run, parts.run.algorithm, parts.policy
    # Rows of like length together: one long row would make its whole micro-batch pay for padding.
    rows = sorted(rows, key=lambda row: len(row[0].token_ids))
    weights = token_weights(
        _padded_masks([trace for trace, _ in rows]),
        algorithm.loss_aggregation,
        parts.env.max_turns * algorithm.max_completion_tokens,
    )
    # Where the KL costs nothing in the loss, it is still measured now and then.
    uses_reference = algorithm.kl_coefficient > 0 or _evaluates(run, step)
    size = run.runtime.per_device_batch_size
    losses = []
    for first in range(0, len(rows), size):
        micro = rows[first : first + size]
        batch = collate(
            [trace for trace, _ in micro],
            grid=policy.vision.grid,
            image_token=policy.chat.image_token,
            pad_token=policy.tokenizer.pad_token_id,
            device=policy.device,
        )
        with _precision(run, policy.device):
            new = policy.logprobs(batch, algorithm.temperature)
            reference_BT = _start_logprobs(policy, batch, algorithm.temperature) if uses_reference else None
        loss = policy_loss(
            new.logprobs_BT,
            batch.old_logprobs_BT,
            reference_BT,
            batch.action_mask_BT,
            torch.tensor([advantage for _, advantage in micro], dtype=torch.float32, device=policy.device),
            weights[first : first + size, : batch.token_ids_BT.shape[1]].to(policy.device),
            clip_low=algorithm.clip_low,
            clip_high=algorithm.clip_high,
            kl_coefficient=algorithm.kl_coefficient,
            kl_estimator=algorithm.kl_estimator,
            ratio_level=algorithm.ratio_level,
            entropy_BT=new.entropy_BT,
        )
        loss.total.backward()
        losses.append(replace(loss, total=loss.total.detach()))
    return losses


def validate(parts: Parts, step: int) -> Metrics:
    """Play on the validation tasks, greedy and sampled; the test tasks are left for the end of the run."""
    run = parts.run
    beat(parts.folder, "evaluation", step)
    tasks = held_out(parts.env, "validation", run.runtime.eval_episodes)

    def result(greedy: bool) -> Evaluation:
        with parts.console.progress("evaluation") as progress:
            return evaluate(
                parts.policy,
                parts.env,
                parts.mixture,
                run,
                tasks,
                greedy=greedy,
                purpose="validation",
                progress=progress,
            )

    greedy, sampled = result(greedy=True), result(greedy=False)
    logged = list(zip(greedy.rollouts, greedy.scores, strict=True))[:LOGGED_EPISODES]
    parts.log.rollouts(step, [rollout_row(step, rollout, score, None) for rollout, score in logged])
    metrics = {
        OBJECTIVE: greedy.solved,
        "eval/all/reward": greedy.metrics["reward/total/mean"],
        "eval/all/solved_sampled": sampled.solved,
    }
    reachable = reach(parts.env, tasks)
    return metrics if reachable is None else metrics | {"eval/ceiling": reachable.share}


def make_optimizer(policy: Policy, run: RunConfig) -> torch.optim.Optimizer:
    return torch.optim.AdamW(
        policy.trainable, lr=run.algorithm.learning_rate, weight_decay=run.algorithm.weight_decay, betas=(0.9, 0.999)
    )


def _schedule(step: int, run: RunConfig) -> float:
    """Share of the learning rate at a step, counted from 1."""
    algorithm, steps = run.algorithm, run.runtime.steps
    if step <= algorithm.warmup_steps:
        return step / (algorithm.warmup_steps + 1)
    if algorithm.lr_schedule == "constant":
        return 1.0
    progress = (step - algorithm.warmup_steps - 1) / max(1, steps - algorithm.warmup_steps)
    return 1.0 - progress if algorithm.lr_schedule == "linear" else 0.5 * (1 + math.cos(math.pi * progress))


def _evaluates(run: RunConfig, step: int) -> bool:
    return step % run.runtime.eval_interval == 0 or step == run.runtime.steps


def _start_logprobs(policy: Policy, batch: Batch, temperature: float) -> Tensor:
    with torch.no_grad(), policy.start_policy():
        return policy.logprobs(batch, temperature).logprobs_BT


def _precision(run: RunConfig, device: torch.device) -> torch.autocast | nullcontext[None]:
    if run.runtime.mixed_precision == "bf16":
        return torch.autocast(device.type, dtype=torch.bfloat16)
    return nullcontext()


def _padded_masks(traces: Sequence[TokenTrace]) -> Tensor:
    width = max(len(trace.token_ids) for trace in traces)
    masks = np.zeros((len(traces), width), dtype=bool)
    for row, trace in enumerate(traces):
        masks[row, : len(trace.action_mask)] = trace.action_mask
    return torch.from_numpy(masks)


def _speed(rollouts: Sequence[Rollout], start: float, played: float, end: float) -> Metrics:
    tokens = sum(rollout.transcript.completion_tokens for rollout in rollouts)
    return {
        "perf/rollout_seconds": played - start,
        "perf/train_seconds": end - played,
        "perf/step_seconds": end - start,
        "perf/tokens_per_second": tokens / (played - start),
    }


def _name(rollout: Rollout) -> str:
    return f"task {rollout.transcript.task.id}, sample {rollout.sample}"
