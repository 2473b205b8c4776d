"""What a resolved config looks like: one pydantic model a group, with the rules that concern one group alone.

No field has a default: every value is spelled in conf/, so that reading the YAML tells the whole run. Rules that span
groups are in `grpo.config`, because pydantic would run them only once everything else is right.
"""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, ConfigDict, Field, PlainValidator, ValidationInfo, model_validator

from grpo.cluster_schema import AnyCluster
from grpo.strict import NotNegative, OptionalText, Positive, Strict


class Component(Strict):
    """A section that names a class by `_target_`; its further keys are that class's fields, read by `grpo.config`."""

    model_config = ConfigDict(extra="allow")

    target: str = Field(alias="_target_")


def _comparable(size: int) -> int:
    if size < 2:
        raise ValueError(f"GRPO needs >= 2 replies to a task to compare, got {size}; use 2 or more (8 is usual)")
    return size


def _no_remote_code(value: bool) -> bool:
    if value:
        raise ValueError("must be false: true would run code from the model's repository; Qwen3-VL needs none")
    return value


def _folder_name(name: str) -> str:
    if not re.fullmatch(r"[\w][\w.+=@-]*", name):
        raise ValueError(
            f"becomes a folder's name: letters, digits and . _ + = @ - after a letter or digit, got {name!r}"
        )
    return name


def _regex(pattern: str | None) -> str | None:
    try:
        re.compile(pattern or "")
    except re.error as error:
        raise ValueError(f"wants a regular expression, got {pattern!r} ({error})") from error
    return pattern


def _module_names(targets: object) -> list[str] | str:
    if isinstance(targets, list) and targets and all(isinstance(name, str) and name for name in targets):
        return targets
    if not isinstance(targets, str) or not targets:
        raise ValueError(f"wants a list of module names, 'all-linear' or a regular expression, got {targets!r}")
    if re.fullmatch(r"\w+(,\w+)+", targets):
        raise ValueError(f"{targets!r} is one text; a list is written [{targets}]")
    _regex(targets)
    return targets


def _place(place: str) -> str:
    """A folder, or s3://BUCKET/PREFIX."""
    if "://" not in place and not place.lower().startswith("s3:"):
        return place
    parts = place.removeprefix("s3://").rstrip("/").split("/")
    sound = place.startswith("s3://") and re.fullmatch(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]", parts[0])
    if not sound or any(part in ("", ".", "..") or not part.isprintable() for part in parts):
        raise ValueError(f"wants a folder, or s3://BUCKET/PREFIX (credentials never go in it), got {place!r}")
    return place


def _folder(place: str) -> str:
    if "://" in place or place.lower().startswith("s3:"):
        raise ValueError(f"wants a local folder, got {place!r}; an s3:// address goes into runtime.output_dir")
    return place


class ModelConfig(Strict):
    name_or_path: Annotated[str, Field(min_length=1)]
    """A hub id, or a folder; a relative one is looked up from the repository's root."""
    revision: OptionalText
    trust_remote_code: Annotated[bool, AfterValidator(_no_remote_code)]
    gradient_checkpointing: bool
    dtype: Literal["float32", "bfloat16"]


RECALLED = {"recalled": True}
"""Validation context of a config that is only looked at: no file that it names is asked for."""


def _adapter_folder(path: str | None, info: ValidationInfo) -> str | None:
    if path is None or info.context == RECALLED:
        return path
    for folder in (Path(path), Path(path) / "adapter"):
        if (folder / "adapter_config.json").is_file():
            # Whole: the saved config must say the same from wherever it is read.
            return os.path.abspath(folder)
    raise ValueError(f"wants an adapter's folder (with its adapter_config.json) or a finished run's, got {path!r}")


def _saved_shape(file: Path) -> tuple[object, object]:
    """(rank, alpha) of a saved adapter; None for what its file does not say."""
    try:
        saved = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{file} is not JSON ({error}); take the adapter from its checkpoint again") from error
    if not isinstance(saved, dict) or saved.get("peft_type") != "LORA":
        raise ValueError(f"{file} is of no LoRA adapter; only such a one can be gone on from")
    return saved.get("r"), saved.get("lora_alpha")


class LoraAdapter(Strict):
    type: Literal["lora"]
    rank: Annotated[int, Field(ge=1, le=512)]
    """512 is the largest that vLLM serves."""
    alpha: Positive
    dropout: Annotated[float, Field(ge=0, lt=1)]
    target_modules: Annotated[list[str] | str, PlainValidator(_module_names)]
    """Module names; or, as one text, `all-linear` or a regular expression over full module names."""
    exclude_modules: Annotated[OptionalText, AfterValidator(_regex)]
    start_from: Annotated[str | None, AfterValidator(_adapter_folder)]
    """A trained adapter, or its run folder, to go on from; it is then also what the KL is measured against."""

    @model_validator(mode="after")
    def _same_shape_as_its_start(self, info: ValidationInfo) -> Self:
        if self.start_from is not None and info.context != RECALLED:
            rank, alpha = _saved_shape(Path(self.start_from) / "adapter_config.json")
            if (rank, alpha) != (self.rank, self.alpha):
                raise ValueError(
                    f"start_from has rank {rank!r} and alpha {alpha!r}, but adapter.rank={self.rank} and "
                    f"adapter.alpha={self.alpha}; give the same, an adapter cannot change its shape"
                )
        return self


class NoAdapter(Strict):
    type: Literal["none"]


AdapterConfig = Annotated[LoraAdapter | NoAdapter, Field(discriminator="type")]


class AlgorithmConfig(Strict):
    name: Literal["grpo", "dr_grpo", "dapo", "gspo"]
    group_size: Annotated[int, AfterValidator(_comparable)]
    prompts_per_step: Positive
    updates_per_step: Positive
    """Optimiser steps that a step's rollouts are cut into; a step has prompts_per_step x group_size rows."""
    learning_rate: Annotated[float, Field(gt=0)]
    lr_schedule: Literal["constant", "linear", "cosine"]
    warmup_steps: NotNegative
    weight_decay: Annotated[float, Field(ge=0)]
    max_grad_norm: Annotated[float, Field(gt=0)]
    kl_coefficient: Annotated[float, Field(ge=0)]
    kl_estimator: Literal["k1", "k2", "k3"]
    clip_low: Annotated[float, Field(gt=0, lt=1)]
    clip_high: Annotated[float, Field(gt=0)]
    advantage_scale: Literal["std", "none"]
    loss_aggregation: Literal["token_mean", "sequence_mean", "fixed_length"]
    ratio_level: Literal["token", "sequence"]
    drop_zero_signal_groups: bool
    truncated_rollouts: Literal["keep", "mask"]
    temperature: Annotated[float, Field(gt=0)]
    max_prompt_tokens: Positive
    """The context a turn may be prompted with, earlier turns included."""
    max_completion_tokens: Positive
    """Of one reply."""


class RewardTerm(Component):
    weight: float


class RewardConfig(Strict):
    terms: Annotated[dict[str, RewardTerm], Field(min_length=1)]
    gate: dict[str, str]
    """{term: other}: `term` counts only in a rollout in which `other` is met."""
    workers: NotNegative
    """Processes in which terms are measured; 0: in the run's own, where nothing can stop a term that hangs."""
    timeout_seconds: Annotated[float, Field(gt=0)]
    """Of one term on one rollout."""
    on_error: Literal["stop", "abstain"]
    """What a term that raises, hangs or crashes does: stop the run, or abstain in that rollout and be counted."""


class EnvConfig(Component):
    max_turns: Positive


class LocalEngine(Strict):
    name: Literal["local"]
    device: Literal["auto", "cpu", "cuda"]
    threads: Positive | None
    rollout_batch_size: Positive


class SkyrlEngine(Strict):
    name: Literal["skyrl"]
    placement: Literal["colocated", "separate"]
    num_engines: Positive | None
    """None: as many as fill the cluster's GPUs (colocated only)."""
    tensor_parallel_size: Positive
    gpu_memory_utilization: Annotated[float, Field(gt=0, lt=1)]
    max_num_seqs: Positive
    """Replies that one engine generates at once."""
    cuda_graphs: bool
    images_per_turn: Positive
    """The most that one observation shows; vLLM sets memory aside for max_turns times as many."""
    forward_batch_size: Positive
    """Rows of one pass without gradients, on each GPU."""
    flash_attention: bool
    overrides: dict[str, Any]


class WandbTracker(Strict):
    name: Literal["wandb"]
    project: Annotated[str, Field(min_length=1)]
    entity: OptionalText
    mode: Literal["auto", "online", "offline"]


class NoTracker(Strict):
    name: Literal["none"]


class RuntimeConfig(Strict):
    seed: Annotated[int, Field(ge=0, lt=2**32)]
    """What every library's generator takes."""
    steps: NotNegative
    mixed_precision: Literal["fp32", "bf16"]
    per_device_batch_size: Positive
    eval_interval: Positive
    eval_episodes: Positive
    """Of the validation split, each time."""
    test_episodes: Positive
    """Of the test split, for the closing table."""
    checkpoint_interval: Positive
    keep_checkpoints: Positive
    output_dir: Annotated[str, Field(min_length=1), AfterValidator(_place)]
    """A folder, a shared mount, or s3://BUCKET/PREFIX."""
    scratch_dir: Annotated[str, Field(min_length=1), AfterValidator(_folder)]
    """Where runs are made whose output_dir is an s3:// address; they are copied there while they go on."""
    mirror_wait_seconds: NotNegative
    """How long the end of a run waits for what is not on S3 yet."""


class RunConfig(Strict):
    name: Annotated[str, AfterValidator(_folder_name)]
    resume: str | None
    resume_accepts_changes: bool
    dry_run: bool
    model: ModelConfig
    adapter: AdapterConfig
    algorithm: AlgorithmConfig
    reward: RewardConfig
    env: EnvConfig
    engine: Annotated[LocalEngine | SkyrlEngine, Field(discriminator="name")]
    cluster: Annotated[AnyCluster, Field(discriminator="name")]
    tracker: Annotated[WandbTracker | NoTracker, Field(discriminator="name")]
    runtime: RuntimeConfig
