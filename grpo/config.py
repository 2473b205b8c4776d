"""The typed config of a run: read strictly, built, written and read back.

Plain data in, one frozen `RunConfig` out, for every way in alike: the command line, a YAML file, a saved run, a trial
of a sweep. Components are built here too, so that a broken reward is found before anything starts.
"""

from __future__ import annotations

import dataclasses
import hashlib
import importlib
import json
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any, TypeVar, get_type_hints

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from pydantic import BaseModel, TypeAdapter, ValidationError, create_model

from grpo import config_text, schema
from grpo.cluster_schema import AnyCluster, SlurmCluster
from grpo.faults import ConfigError, Fault, explain, guess, join
from grpo.interfaces import Env, Reward
from grpo.layout import layout
from grpo.schema import AdapterConfig, AlgorithmConfig, Component, ModelConfig, RunConfig, RuntimeConfig
from grpo.strict import Strict

__all__ = [
    "AdapterConfig",
    "AlgorithmConfig",
    "ConfigError",
    "Fault",
    "ModelConfig",
    "RunConfig",
    "RuntimeConfig",
    "build",
    "build_env",
    "build_rewards",
    "leaves",
    "load",
    "parse",
    "plain",
    "read",
    "recall",
    "saved",
    "to_yaml",
]

T = TypeVar("T")
S = TypeVar("S", bound=Strict)

NOT_THE_RUNS = ("resume", "resume_accepts_changes", "dry_run", "runtime.scratch_dir", "runtime.mirror_wait_seconds")
"""Keys of the command and of the machine, not of the run."""

config_text.install(RunConfig)


def plain(composed: DictConfig) -> dict[str, Any]:
    """The resolved data of a composed config, without Hydra's own section.

    Raises ConfigError for a `???` that was not given and for an interpolation that leads nowhere.
    """
    names: list[Any] = [key for key in composed if key != "hydra"]
    job = OmegaConf.masked_copy(composed, names)
    faults = list(_unsettled(job))
    if faults:
        raise ConfigError(faults)
    container = OmegaConf.to_container(job, resolve=True)
    assert isinstance(container, dict)
    return {str(key): value for key, value in container.items()}


def _unsettled(job: DictConfig) -> Iterator[Fault]:
    """A fault for each value that is still to be given, or that leads nowhere."""
    raw = dict(leaves(OmegaConf.to_container(job, resolve=False)))
    for key, text in raw.items():
        if text == "???":
            yield Fault(key=key, problem="must be given (it is ??? in conf/)")
        if not (isinstance(text, str) and "${" in text):
            continue
        try:
            OmegaConf.select(job, key)
        except OmegaConfBaseException as error:
            reason = str(error).splitlines()[0]
            wanted = reason.split("'")[1] if reason.startswith("Interpolation key") else ""
            yield Fault(key=key, problem=f"{text} cannot be resolved: {reason}{guess(wanted, raw)}")


def leaves(value: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Every single value of nested plain data, with its full dotted key."""
    if isinstance(value, dict):
        for name, item in value.items():
            yield from leaves(item, join(prefix, str(name)))
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from leaves(item, f"{prefix}[{index}]")
    else:
        yield prefix, value


def parse(container: Mapping[str, Any]) -> RunConfig:
    """The config in `container` (plain, resolved data), checked in every way that needs no model and no cluster.

    Raises ConfigError with all faults: of single keys, of rules that span groups, and of components that do not build.
    """
    run, faults = None, []
    try:
        run = read(RunConfig, container)
    except ConfigError as error:
        faults = list(error.faults)
    broken = {fault.key.split(".")[0] for fault in faults}
    sections = dict(run) if run else _sound_sections(container, broken)
    faults += _faults_between(sections)
    if faults or run is None:
        raise ConfigError(faults)
    return run


def read(model: type[S], container: Mapping[str, Any], *, recalled: bool = False) -> S:
    """`container` as `model`, each section by itself. Raises ConfigError with one line a fault."""
    try:
        return model.model_validate(dict(container), context=schema.RECALLED if recalled else None)
    except ValidationError as error:
        raise ConfigError(explain(error, model, container)) from error


def _sound_sections(container: Mapping[str, Any], broken: set[str]) -> dict[str, Any]:
    types = get_type_hints(RunConfig, include_extras=True)
    names = [name for name in types if name in container and name not in broken]
    return {
        name: TypeAdapter(types[name]).validate_python(container[name])
        for name in names
        if name in RunConfig.model_fields
    }


def _faults_between(sections: Mapping[str, Any]) -> list[Fault]:
    """Faults of the rules that span groups and of components; sections that could not be read are left out."""
    faults: list[Fault] = []
    if {"algorithm", "runtime", "engine", "cluster"} <= sections.keys():
        faults += _share_faults(sections)
        faults += _node_faults(sections["engine"], sections["cluster"])
    if "env" in sections:
        faults += _build(sections["env"], Env, "env", weighted=False)[1]
    if "reward" in sections:
        faults += _gate_faults(sections["reward"])
        for name, term in sections["reward"].terms.items():
            faults += _build(term, Reward, f"reward.terms.{name}", weighted=True)[1]
    return faults


def _share_faults(sections: Mapping[str, Any]) -> list[Fault]:
    try:
        device_count = layout(sections["engine"], sections["cluster"]).devices
    except ConfigError as error:
        return list(error.faults)
    return _row_faults(sections["algorithm"], sections["runtime"], device_count)


def _node_faults(engine: schema.LocalEngine | schema.SkyrlEngine, cluster: AnyCluster) -> list[Fault]:
    """Nodes that a Slurm job would hold for nothing, or could not use."""
    if not isinstance(cluster, SlurmCluster) or cluster.nodes == 1:
        return []
    faults = []
    if isinstance(engine, schema.LocalEngine):
        problem = f"{cluster.nodes} nodes, and engine=local trains on one; use 1, or engine=skyrl"
        faults.append(Fault(key="cluster.nodes", problem=problem))
    if not cluster.use_srun:
        problem = f"false, and with cluster.nodes={cluster.nodes} it is srun that starts a task on each; use true"
        faults.append(Fault(key="cluster.use_srun", problem=problem))
    return faults


def _row_faults(algorithm: AlgorithmConfig, runtime: RuntimeConfig, device_count: int) -> list[Fault]:
    """Rows that a step's updates and passes would leave over are refused, never dropped."""
    rows, updates = algorithm.prompts_per_step * algorithm.group_size, algorithm.updates_per_step
    if rows % updates:
        fit = _divisors(rows)
        told = f"{updates} updates do not divide a step's {rows} rows (prompts_per_step x group_size)"
        return [Fault(key="algorithm.updates_per_step", problem=f"{told}; use one of {fit}")]
    per_update, size = rows // updates, runtime.per_device_batch_size
    if per_update % (device_count * size) == 0:
        return []
    told = f"an update's {per_update} rows do not divide by {device_count} device(s) x {size}"
    if per_update % device_count:
        wanted = f"prompts_per_step x group_size / updates_per_step must be a multiple of {device_count}"
        return [Fault(key="algorithm.prompts_per_step", problem=f"{told}; {wanted}")]
    fit = _divisors(per_update // device_count)
    return [Fault(key="runtime.per_device_batch_size", problem=f"{told}; use one of {fit}")]


def _divisors(number: int) -> str:
    return ", ".join(str(value) for value in range(1, min(number, 4096) + 1) if number % value == 0)


def _gate_faults(reward: schema.RewardConfig) -> list[Fault]:
    faults = []
    for term, other in reward.gate.items():
        for name in (term, other):
            if name not in reward.terms:
                problem = f"{name!r} is no reward term{guess(name, reward.terms)} (terms: {', '.join(reward.terms)})"
                faults.append(Fault(key=f"reward.gate.{term}", problem=problem))
    for start in reward.gate:
        chain = [start]
        while chain[-1] in reward.gate and reward.gate[chain[-1]] not in chain:
            chain.append(reward.gate[chain[-1]])
        if chain[-1] in reward.gate and reward.gate[chain[-1]] == start:
            problem = f"goes in a circle ({' -> '.join([*chain, start])}); no term of it could ever count"
            return [*faults, Fault(key=f"reward.gate.{start}", problem=problem)]
    return faults


def build_env(run: RunConfig) -> Env:
    """The env that the config names. Raises ConfigError as `parse` does."""
    return build(run.env, Env, "env")


def build_rewards(run: RunConfig) -> Mapping[str, Reward]:
    """{term name: its reward}, in the config's order. Raises ConfigError as `parse` does."""
    return {name: build(term, Reward, f"reward.terms.{name}", weighted=True) for name, term in run.reward.terms.items()}


def build(node: Component, interface: type[T], key: str, *, weighted: bool = False) -> T:
    """The component that `node` names, checked to be an `interface`. Raises ConfigError."""
    component, faults = _build(node, interface, key, weighted=weighted)
    if component is None:
        raise ConfigError(faults)
    return component


def _build(node: Component, interface: type[T], key: str, *, weighted: bool) -> tuple[T | None, list[Fault]]:
    """The component, or the faults that stand in its way. `weight` belongs to the mixture, not to the class."""
    try:
        cls = _find(node.target)
    except ConfigError as error:
        return None, [Fault(key=f"{key}._target_", problem=error.faults[0].problem)]
    if not (isinstance(cls, type) and issubclass(cls, interface) and dataclasses.is_dataclass(cls)):
        wanted = f"a frozen, keyword-only dataclass derived from grpo.interfaces.{interface.__name__}"
        return None, [Fault(key=f"{key}._target_", problem=f"wants {wanted}, got {node.target!r}")]
    given = node.model_dump(by_alias=True)
    fields = {
        name: value for name, value in given.items() if name != "_target_" and not (weighted and name == "weight")
    }
    model = _fields_model(cls)
    try:
        # As JSON, because pydantic's strict mode then reads a list where the class wants a tuple.
        values = dict(model.model_validate_json(json.dumps(fields)))
        inner, faults = _build_inner(values, key)
        return (None, faults) if faults else (cls(**(values | inner)), [])
    except ValidationError as error:
        return None, explain(error, model, fields, key)
    except (ValueError, TypeError) as error:
        return None, [Fault(key=key, problem=str(error))]


def _build_inner(values: Mapping[str, Any], key: str) -> tuple[dict[str, Any], list[Fault]]:
    """The components among a component's own values: reward terms by which an env judges answers."""
    built: dict[str, Any] = {}
    faults: list[Fault] = []
    for name, value in values.items():
        if isinstance(value, dict) and value and all(isinstance(part, Component) for part in value.values()):
            pairs = {part: _build(node, Reward, f"{key}.{name}.{part}", weighted=False) for part, node in value.items()}
            built[name] = {part: component for part, (component, _) in pairs.items()}
            faults += [fault for _, found in pairs.values() for fault in found]
    return built, faults


def _find(target: str) -> Any:
    module, _, name = target.rpartition(".")
    try:
        found = importlib.import_module(module) if module else None
    except Exception as error:  # importing a user's module may raise anything, and the key must be told with it
        reason = f"{type(error).__name__}: {error}"
        raise ConfigError([Fault(key="", problem=f"cannot load {target!r} ({reason})")]) from error
    if found is None or name not in vars(found):
        names = [] if found is None else [key for key, value in vars(found).items() if isinstance(value, type)]
        raise ConfigError([Fault(key="", problem=f"{module or target!r} has no class {name!r}{guess(name, names)}")])
    return vars(found)[name]


@cache
def _fields_model(cls: type) -> type[BaseModel]:
    """The class's fields as a strict model. Python's defaults do not count: every value is spelled in conf/."""
    types = get_type_hints(cls, include_extras=True)
    # Components are read as sections here, and built once everything else is right.
    read_as = {
        name: dict[str, Component] if wanted == Mapping[str, Reward] else wanted for name, wanted in types.items()
    }
    fields: dict[str, Any] = {field.name: (read_as[field.name], ...) for field in dataclasses.fields(cls) if field.init}
    return create_model(cls.__name__, __base__=Strict, **fields)


def to_yaml(run: RunConfig) -> str:
    """The whole config as YAML that `load`, Hydra and any other YAML reader read back to the same values."""
    return config_text.dump(run.model_dump(by_alias=True))


def digest(run: RunConfig) -> str:
    """Of every value that is the run's own."""
    values = {key: value for key, value in leaves(run.model_dump(by_alias=True)) if key not in NOT_THE_RUNS}
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()


def load(folder: Path) -> RunConfig:
    """The config that a run left in its folder, checked as for a run. Raises FileNotFoundError or ConfigError."""
    return parse(saved(folder))


def saved(folder: Path) -> dict[str, Any]:
    """The plain data of that config, whatever version wrote it. Raises FileNotFoundError or ConfigError."""
    found = OmegaConf.load(folder / "config.yaml")
    if not isinstance(found, DictConfig):
        raise ConfigError([Fault(key="", problem=f"{folder / 'config.yaml'} holds no mapping")])
    return plain(found)


def recall(container: Mapping[str, Any]) -> RunConfig:
    """A saved config for reading, not for running: what it names may be gone. Raises ConfigError."""
    return read(RunConfig, container, recalled=True)
