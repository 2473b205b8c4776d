"""A run with SkyRL: Ray, the engines, SkyRL's experiment with our parts in it, and the way home.

All of it happens in this process, as far as SkyRL lets it: an error has its own traceback, and metrics, rollouts and
checkpoints are written by the code that the local engine uses.
"""
# pyright: reportMissingImports=false

from __future__ import annotations

import logging
import os
import shutil
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import torch

from grpo import hang_rules
from grpo.engines import orphans, skyrl
from grpo.engines.given import Given
from grpo.engines.gpu_use import GpuUse
from grpo.engines.local import OBJECTIVE
from grpo.engines.skyrl_settings import settings
from grpo.evaluation import Evaluation
from grpo.faults import ConfigError
from grpo.layout import Layout, layout
from grpo.redact import hide

log = logging.getLogger(__name__)

TRACEBACK = "Traceback (most recent call last)"
TOLD_LINES = 40


def train(
    given: Given, history: Sequence[Mapping[str, float]], newest: Path | None
) -> tuple[float, Sequence[tuple[str, str, Evaluation]]]:
    """The steps that follow checkpoint `newest`, whose metrics are `history`.

    Returns the last objective, and (policy, decoding, result) on the test split. Raises RuntimeError if the GPUs are
    not there, and ConfigError if SkyRL refuses the settings.
    """
    run, folder = given.run, given.folder
    if lacking := skyrl.not_installed():
        raise ConfigError(lacking)  # on a cluster's node nobody has looked yet
    gpus = layout(run.engine, run.cluster)
    with _sync_folder(folder, gpus) as sync:
        config = settings(skyrl.overrides(run) | _paths(folder, sync, newest))
        refuse_code(config.trainer.policy.model.path)
        with _ray(config, gpus, folder), GpuUse() as gpu_use:
            hang_rules.send(run)
            from grpo.engines.skyrl_experiment import Experiment
            from grpo.engines.skyrl_records import Records

            records = Records(given, history=history, gpu_use=gpu_use.take)
            try:
                with closing(Experiment(config, given, records)) as experiment:
                    experiment.run()
            except Exception:
                log.error("%s", last_words(Path(config.trainer.log_path)))
                raise
    objective = next(metrics[OBJECTIVE] for metrics in reversed(records.history) if OBJECTIVE in metrics)
    return objective, experiment.trainer.closing


@contextmanager
def _sync_folder(folder: Path, gpus: Layout) -> Iterator[Path]:
    """Through which adapters reach vLLM: on several nodes, storage that all of them see."""
    path = folder / "lora_sync" if gpus.all_nodes > 1 else Path(tempfile.mkdtemp(prefix="lora_sync_"))
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


def last_words(folder: Path) -> str:
    """Where workers and vLLM wrote, and the first traceback there: vLLM's engines tell their reason nowhere else."""
    newest = max(folder.glob("infra-*.log"), key=lambda path: path.stat().st_mtime, default=None)
    if newest is None:
        return f"Ray's workers and vLLM wrote nothing to {folder}"
    lines = newest.read_text(encoding="utf-8", errors="replace").splitlines()
    first = next((index for index, line in enumerate(lines) if TRACEBACK in line), None)
    shown = lines[-TOLD_LINES:] if first is None else lines[first : first + TOLD_LINES]
    told = "its end" if first is None else "its first traceback"
    return "\n".join([f"what Ray's workers and vLLM wrote is in {newest}; {told}:", *shown])


def _paths(folder: Path, sync: Path, newest: Path | None) -> dict[str, Any]:
    """What follows from the run folder, the checkpoint to go on from included."""
    folder = folder.resolve()
    paths: dict[str, Any] = {
        "trainer.ckpt_path": str(folder / "checkpoints" / ".skyrl"),
        "trainer.export_path": str(folder / "skyrl"),
        "trainer.log_path": str(folder / "skyrl"),
        f"{skyrl.LORA}.lora_sync_path": str(sync.resolve()),
    }
    if newest is not None:
        (state,) = newest.glob("global_step_*")
        paths |= {"trainer.resume_mode": "from_path", "trainer.resume_path": str(state)}
    return paths


@contextmanager
def _ray(config: Any, gpus: Layout, folder: Path) -> Iterator[None]:
    """Ray for the run: this machine's, or that of the cluster that this process was started on."""
    import ray

    os.environ.setdefault("VLLM_HOST_IP", ray.util.get_node_ip_address())
    if "RAY_ADDRESS" not in os.environ:
        # Before Ray starts: with GPUs missing, SkyRL would look for them for minutes while it does.
        here = {"GPU": float(torch.cuda.device_count()), "CPU": float(os.cpu_count() or 1)}
        refuse_missing_gpus(gpus, [("this machine", here)])
    with orphans.ended_with_this_process() as environment:
        try:
            start_ray(config, environment)
            nodes = [(each["NodeManagerHostname"], each["Resources"]) for each in ray.nodes() if each["Alive"]]
            refuse_missing_gpus(gpus, nodes, ray.available_resources())
            if gpus.all_nodes > 1:
                refuse_unshared(folder)
            yield
        finally:
            ray.shutdown()


def start_ray(config: Any, environment: Mapping[str, str]) -> None:
    """SkyRL's `initialize_ray`, with `environment` for every worker and no secret.

    SkyRL hands W&B's key and others to all workers through Ray, which shows them to whoever sees its dashboard; the
    tracker is in this process, and no worker asks for one.
    """
    import ray
    from skyrl.backends.skyrl_train.utils.ppo_utils import sync_registries
    from skyrl.train.utils.utils import prepare_runtime_environment

    log_path = Path(config.trainer.log_path)
    log_path.mkdir(parents=True, exist_ok=True)
    theirs = {name: value for name, value in prepare_runtime_environment(config).items() if hide(value) == value}
    ours = {**environment, "SKYRL_LOG_FILE": str(log_path / f"infra-{time.strftime('%y%m%d_%H%M%S')}.log")}
    ray.init(runtime_env={"env_vars": theirs | ours}, log_to_driver=True)
    sync_registries()


def refuse_missing_gpus(
    gpus: Layout, nodes: Sequence[tuple[str, Mapping[str, float]]], free: Mapping[str, float] | None = None
) -> None:
    """Raises RuntimeError if Ray could not place the run: it would wait for minutes, and then say only that.

    `nodes` is what each host has, `free` what all of them together have left.
    """
    have = sum(int(each.get("GPU", 0)) for _, each in nodes)
    wanted = f"the run wants {gpus.all_gpus} GPUs (cluster.gpus_per_node, cluster.nodes)"
    if have < gpus.all_gpus:
        short = gpus.all_gpus - have
        raise RuntimeError(f"{wanted} and Ray has {have}: {short} short; ask for fewer, or give Ray more")
    width = gpus.all_gpus // gpus.all_nodes
    if sum(int(each.get("GPU", 0)) // width for _, each in nodes) < gpus.all_nodes:
        listed = ", ".join(f"{host} {int(each.get('GPU', 0))}" for host, each in nodes)
        raise RuntimeError(f"{wanted}, {width} on a node, and Ray's nodes have: {listed}; ask for what there is")
    cpus = sum(int(each.get("CPU", 0)) for _, each in nodes if each.get("GPU", 0))
    if cpus < gpus.all_gpus:
        raise RuntimeError(
            f"SkyRL takes a CPU for each of {gpus.all_gpus} GPUs, and Ray's nodes with GPUs have {cpus}; start Ray on "
            "them with more (--num-cpus)"
        )
    if free is not None and (idle := int(free.get("GPU", 0))) < gpus.all_gpus:
        raise RuntimeError(f"{wanted}, and of Ray's {have} only {idle} are free: another job has the rest")


def refuse_unshared(folder: Path) -> None:
    """Raises RuntimeError unless every node sees the run folder, through which adapters reach vLLM."""
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    probe = folder.resolve() / ".seen_by_all_nodes"
    probe.touch()
    see = ray.remote(num_cpus=0)(os.path.exists)
    nodes = {node["NodeID"]: node["NodeManagerHostname"] for node in ray.nodes() if node["Alive"]}
    seen = {
        host: see.options(scheduling_strategy=NodeAffinitySchedulingStrategy(node, soft=False)).remote(str(probe))
        for node, host in nodes.items()
    }
    try:
        blind = [host for host, there in seen.items() if not ray.get(there, timeout=180)]
    finally:
        probe.unlink(missing_ok=True)
    if blind:
        raise RuntimeError(
            f"{', '.join(blind)} cannot see {folder}; set runtime.output_dir to storage that every node mounts"
        )


def refuse_code(model: str) -> None:
    """Raises ValueError for a model that brings Python code: SkyRL would run it, whatever it is told."""
    from transformers import PretrainedConfig
    from transformers.models.auto.tokenization_auto import get_tokenizer_config

    described = (PretrainedConfig.get_config_dict(model)[0], get_tokenizer_config(model))
    if any("auto_map" in each for each in described):
        raise ValueError(f"model.name_or_path: {model} brings its own code (auto_map), which is never run here")
