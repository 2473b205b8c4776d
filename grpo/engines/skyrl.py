"""From our keys to SkyRL's: everything that depends on SkyRL's version is in this module and in skyrl_keys.json.

A key of ours is either in `TABLE`, or read by our own code that runs inside SkyRL (`OURS`), or refused by name
(`REFUSALS`) for the values that this engine cannot honour; a test holds the three against grpo/schema.py. Imports
nothing of SkyRL, so that a wrong key is refused at once and on machines without it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

from grpo.config import RunConfig
from grpo.faults import Fault, guess, join, show
from grpo.layout import Layout, layout
from grpo.paths import model_path
from grpo.schema import LoraAdapter, SkyrlEngine

PINS: Mapping[str, str] = {
    "skyrl": "0.3.0",
    "skyrl-gym": "0.4.0",
    "ray": "2.56.0",
    "vllm": "0.23.0",
    "vllm-router": "0.1.14",
}
"""Tested together on GPUs. vllm-router 0.1.15 drops an argument that this SkyRL passes."""

ENV_CLASS = "hydra_grpo"
"""Under which our environment is registered with SkyRL-Gym."""

LOSSES = {"token": "regular", "sequence": "gspo"}
REDUCTIONS = {
    "token_mean": "token_mean",
    "sequence_mean": "sequence_mean",
    "fixed_length": "seq_mean_token_sum_norm",
}
SCHEDULES = {"constant": "constant_with_warmup", "linear": "linear", "cosine": "cosine"}

Value = Callable[[RunConfig, Layout], Any]


@dataclass(frozen=True, kw_only=True)
class Row:
    """One of SkyRL's keys and what it is set to."""

    theirs: str
    value: Value
    ours: tuple[str, ...] = ()
    """The keys of ours that it honours; none where SkyRL's default is not what we want."""


def _same(ours: str, *theirs: str) -> Iterator[Row]:
    def value(run: RunConfig, _: Layout) -> Any:
        found: Any = run
        for name in ours.split("."):
            found = getattr(found, name)
        return found

    return (Row(theirs=key, value=value, ours=(ours,)) for key in theirs)


def _from(ours: str | tuple[str, ...], theirs: str, value: Value) -> Iterator[Row]:
    yield Row(theirs=theirs, value=value, ours=(ours,) if isinstance(ours, str) else ours)


def _always(theirs: str, value: Any) -> Iterator[Row]:
    yield Row(theirs=theirs, value=lambda run, gpus: value)


VLLM = "generator.inference_engine"
LORA = "trainer.policy.model.lora"
OPTIMIZER = "trainer.policy.optimizer_config"
PLACEMENT = "trainer.placement"

TABLE: tuple[Row, ...] = (
    # Model and adapter
    *_from("model.name_or_path", "trainer.policy.model.path", lambda run, gpus: model_path(run.model.name_or_path)),
    *_same("model.gradient_checkpointing", "trainer.gradient_checkpointing"),
    *_same("model.dtype", f"{VLLM}.model_dtype"),
    *_same("model.trust_remote_code", f"{VLLM}.engine_init_kwargs.trust_remote_code"),
    *_same("adapter.rank", f"{LORA}.rank"),
    *_same("adapter.alpha", f"{LORA}.alpha"),
    *_same("adapter.dropout", f"{LORA}.dropout"),
    *_same("adapter.target_modules", f"{LORA}.target_modules"),
    *_same("adapter.exclude_modules", f"{LORA}.exclude_modules"),
    # Algorithm
    *_same("algorithm.group_size", "generator.n_samples_per_prompt"),
    *_same("algorithm.prompts_per_step", "trainer.train_batch_size"),
    *_from(
        "algorithm.updates_per_step",
        "trainer.policy_mini_batch_size",
        lambda run, gpus: run.algorithm.prompts_per_step // run.algorithm.updates_per_step,
    ),
    *_same("algorithm.learning_rate", f"{OPTIMIZER}.lr"),
    *_from("algorithm.lr_schedule", f"{OPTIMIZER}.scheduler", lambda run, gpus: SCHEDULES[run.algorithm.lr_schedule]),
    *_from(
        "algorithm.warmup_steps",
        f"{OPTIMIZER}.num_warmup_steps",  # theirs counts updates
        lambda run, gpus: run.algorithm.warmup_steps * run.algorithm.updates_per_step,
    ),
    *_same("algorithm.weight_decay", f"{OPTIMIZER}.weight_decay"),
    *_same("algorithm.max_grad_norm", f"{OPTIMIZER}.max_grad_norm"),
    # Without a coefficient there is no reference model in memory and no pass through it.
    *_from(
        "algorithm.kl_coefficient",
        "trainer.algorithm.use_kl_loss",
        lambda run, gpus: run.algorithm.kl_coefficient > 0,
    ),
    *_same("algorithm.kl_coefficient", "trainer.algorithm.kl_loss_coef"),
    *_same("algorithm.kl_estimator", "trainer.algorithm.kl_estimator_type"),
    *_same("algorithm.clip_low", "trainer.algorithm.eps_clip_low"),
    *_same("algorithm.clip_high", "trainer.algorithm.eps_clip_high"),
    *_from(
        "algorithm.advantage_scale",
        "trainer.algorithm.grpo_norm_by_std",
        lambda run, gpus: run.algorithm.advantage_scale == "std",
    ),
    *_from(
        "algorithm.loss_aggregation",
        "trainer.algorithm.loss_reduction",
        lambda run, gpus: REDUCTIONS[run.algorithm.loss_aggregation],
    ),
    *_from(
        ("env.max_turns", "algorithm.max_completion_tokens"),
        "trainer.algorithm.max_seq_len",  # what fixed_length divides by
        lambda run, gpus: run.env.max_turns * run.algorithm.max_completion_tokens,
    ),
    *_from(
        "algorithm.ratio_level",
        "trainer.algorithm.policy_loss_type",
        lambda run, gpus: LOSSES[run.algorithm.ratio_level],
    ),
    *_same("algorithm.drop_zero_signal_groups", "trainer.algorithm.zero_variance_filter"),
    *_from(
        "algorithm.truncated_rollouts",
        "generator.apply_overlong_filtering",
        lambda run, gpus: run.algorithm.truncated_rollouts == "mask",
    ),
    *_same("algorithm.temperature", "generator.sampling_params.temperature"),
    *_same("algorithm.max_completion_tokens", "generator.sampling_params.max_generate_length"),
    *_same("algorithm.max_prompt_tokens", "generator.max_input_length", "trainer.max_prompt_length"),
    *_from(
        ("algorithm.max_prompt_tokens", "algorithm.max_completion_tokens"),
        f"{VLLM}.engine_init_kwargs.max_model_len",
        lambda run, gpus: run.algorithm.max_prompt_tokens + run.algorithm.max_completion_tokens,
    ),
    *_same("env.max_turns", "generator.max_turns"),
    # Engine and GPUs
    *_from("engine.placement", f"{PLACEMENT}.colocate_all", lambda run, gpus: _skyrl(run).placement == "colocated"),
    *(
        Row(theirs=f"{PLACEMENT}.{role}_{theirs}", value=value, ours=("cluster.nodes", "cluster.gpus_per_node"))
        for role in ("policy", "ref", "critic")
        for theirs, value in (
            ("num_nodes", lambda run, gpus: gpus.nodes),
            ("num_gpus_per_node", lambda run, gpus: gpus.gpus_per_node),
        )
    ),
    *_from("engine.num_engines", f"{VLLM}.num_engines", lambda run, gpus: gpus.engines),
    *_same("engine.tensor_parallel_size", f"{VLLM}.tensor_parallel_size"),
    *_same("engine.gpu_memory_utilization", f"{VLLM}.gpu_memory_utilization"),
    *_same("engine.max_num_seqs", f"{VLLM}.max_num_seqs"),
    *_from(
        "engine.cuda_graphs",
        f"{VLLM}.engine_init_kwargs.enforce_eager",  # their own enforce_eager is turned back under LoRA
        lambda run, gpus: not _skyrl(run).cuda_graphs,
    ),
    *_from(
        ("engine.images_per_turn", "env.max_turns"),
        f"{VLLM}.engine_init_kwargs.limit_mm_per_prompt.image",
        lambda run, gpus: _skyrl(run).images_per_turn * run.env.max_turns,
    ),
    *_same("engine.forward_batch_size", "trainer.micro_forward_batch_size_per_gpu"),
    *_same("engine.flash_attention", "trainer.flash_attn"),
    # Runtime
    *_same("runtime.seed", "trainer.seed"),
    *_same("runtime.steps", "trainer.max_training_steps"),
    *_same("runtime.per_device_batch_size", "trainer.micro_train_batch_size_per_gpu"),
    *_same("runtime.eval_interval", "trainer.eval_interval"),
    *_same("runtime.checkpoint_interval", "trainer.ckpt_interval"),
    *_same("runtime.keep_checkpoints", "trainer.max_ckpts_to_keep"),
    # What SkyRL's defaults would do otherwise
    *_always("trainer.strategy", "fsdp"),
    *_always("trainer.remove_microbatch_padding", False),  # packing knows no 3D positions
    *_always("trainer.epochs", 1),  # our data are steps, not epochs
    *_always("trainer.eval_before_train", True),
    *_always("trainer.logger", "console"),  # our own tracker takes its place
    *_always("trainer.print_example_interval", 0),
    *_always("trainer.dump_eval_results", False),
    *_always("trainer.enable_ray_gpu_monitor", False),
    *_always("trainer.resume_mode", None),  # we choose the checkpoint, whole and hashed
    *_always("generator.vision_language_generator", True),
    *_always("generator.use_cache_salt", False),  # the cache is emptied at each sync
    *_always("environment.env_class", ENV_CLASS),
    *_always("data.train_data", []),
    *_always("data.val_data", []),
    *_always("data.dataloader.num_workers", 0),
    *_always(f"{VLLM}.distributed_executor_backend", "mp"),
    *_always(f"{VLLM}.enable_ray_prometheus_stats", False),
    *_always(f"{VLLM}.engine_init_kwargs.limit_mm_per_prompt.video", 0),
    *_always(f"{VLLM}.engine_init_kwargs.mm_processor_cache_gb", 4),  # an image is sent once an episode
)

OURS: tuple[str, ...] = (
    "name",
    "resume",
    "resume_accepts_changes",
    "dry_run",
    "adapter.type",
    "algorithm.name",
    "reward",
    "env",
    "engine.name",
    "engine.overrides",
    "cluster",
    "tracker",
    "runtime.eval_episodes",
    "runtime.test_episodes",
    "runtime.output_dir",
    "runtime.scratch_dir",
    "runtime.mirror_wait_seconds",
)
"""Keys, or whole sections, that our code reads itself."""


@dataclass(frozen=True, kw_only=True)
class Refusal:
    key: str
    unless: Callable[[RunConfig], bool]
    problem: str


REFUSALS: tuple[Refusal, ...] = (
    Refusal(
        key="model.revision",
        unless=lambda run: run.model.revision is None,
        problem="SkyRL cannot be told one; download that revision to a folder that all nodes see, and name the folder",
    ),
    Refusal(
        key="adapter.type",
        unless=lambda run: run.adapter.type == "lora",
        problem="training every weight has not been run with engine=skyrl; use adapter=lora",
    ),
    Refusal(
        key="adapter.start_from",
        unless=lambda run: not isinstance(run.adapter, LoraAdapter) or run.adapter.start_from is None,
        problem="SkyRL always starts a fresh adapter; merge the old one into its base and start from that folder",
    ),
    Refusal(
        key="adapter.target_modules",
        unless=lambda run: (
            not isinstance(run.adapter, LoraAdapter)
            or not isinstance(run.adapter.target_modules, str)
            or run.adapter.target_modules == "all-linear"
        ),
        problem="SkyRL writes a regular expression letter by letter; give a list of names, or all-linear",
    ),
    Refusal(
        key="algorithm.updates_per_step",
        unless=lambda run: run.algorithm.prompts_per_step % run.algorithm.updates_per_step == 0,
        problem="SkyRL cuts a step between tasks; use a divisor of algorithm.prompts_per_step",
    ),
    Refusal(
        key="runtime.mixed_precision",
        unless=lambda run: run.runtime.mixed_precision == "bf16",
        problem="SkyRL computes in bfloat16 with float32 weights; use bf16",
    ),
    Refusal(
        key="runtime.steps",
        unless=lambda run: run.runtime.steps > 0,
        problem="SkyRL wants at least one step",
    ),
)


def faults(run: RunConfig) -> list[Fault]:
    """What this engine cannot honour, and overrides that SkyRL would not take."""
    refused = [Fault(key=each.key, problem=each.problem) for each in REFUSALS if not each.unless(run)]
    return refused + list(_override_faults(_skyrl(run).overrides))


def not_installed() -> list[Fault]:
    """What is missing here, or is not the version that was tested."""
    found = {name: _version(name) for name in PINS}
    if found["skyrl"] is None:
        problem = "engine=skyrl needs SkyRL and vLLM on this machine: Python 3.12, pip install -e '.[skyrl]'"
        return [Fault(key="engine.name", problem=problem)]
    wrong = [f"{name} {found[name] or 'is missing'}, wanted {pin}" for name, pin in PINS.items() if found[name] != pin]
    problem = f"engine=skyrl runs with the versions it was tested with, and here {'; '.join(wrong)}"
    return [Fault(key="engine.name", problem=problem)] if wrong else []


def overrides(run: RunConfig) -> dict[str, Any]:
    """SkyRL's keys and values, dotted; those that follow from the run folder are not among them."""
    gpus = layout(run.engine, run.cluster)
    return {row.theirs: row.value(run, gpus) for row in TABLE} | flat(_skyrl(run).overrides)


def words(values: Mapping[str, Any]) -> list[str]:
    """The overrides as SkyRL's command line takes them."""
    return [f"{key}={json.dumps(value)}" for key, value in values.items()]


@cache
def keys() -> Mapping[str, Sequence[str]]:
    """SkyRL's keys and the types that each takes: int, float, bool, str, list, dict (open below), null."""
    return json.loads(Path(__file__).with_name("skyrl_keys.json").read_text())


def flat(overrides: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested and dotted keys alike as dotted ones; lists stay whole."""
    found: dict[str, Any] = {}
    for name, value in overrides.items():
        key = join(prefix, str(name))
        found |= flat(value, key) if isinstance(value, dict) and value else {key: value}
    return found


def _override_faults(overrides: Mapping[str, Any]) -> Iterator[Fault]:
    taken = {row.theirs: row.ours for row in TABLE}
    for key, value in flat(overrides).items():
        where = f"engine.overrides.{key}"
        wanted = kinds(key)
        if taken.get(key):
            yield Fault(key=where, problem=f"follows from {', '.join(taken[key])}; set that")
        elif key in taken:
            yield Fault(key=where, problem="is needed as this engine sets it")
        elif wanted is None:
            yield Fault(key=where, problem=f"SkyRL {PINS['skyrl']} has no such key{guess(key, keys())}")
        elif not fits(value, wanted):
            yield Fault(key=where, problem=f"SkyRL wants {' or '.join(wanted)}, got {show(value)}")


def kinds(key: str) -> Sequence[str] | None:
    """What a key takes; below an open section anything goes."""
    while key:
        if key in keys():
            return keys()[key]
        key = key.rpartition(".")[0]
        if key in keys() and "dict" not in keys()[key]:
            return None
    return None


def fits(value: Any, kinds: Sequence[str]) -> bool:
    """Whether SkyRL takes a value where it takes these types; it checks none itself."""
    kind = "null" if value is None else type(value).__name__
    return "dict" in kinds or kind in kinds or (kind == "int" and "float" in kinds)


def _skyrl(run: RunConfig) -> SkyrlEngine:
    assert isinstance(run.engine, SkyrlEngine)
    return run.engine


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None
