"""The command line of train.py: check everything, then hand the words to Hydra.

The check composes and parses every job of the command before Hydra starts one, because Hydra alone would tell faults
one at a time, with its own exit codes, and in a sweep only when the faulty trial's turn comes.
"""

from __future__ import annotations

import errno
import json
import os
from argparse import Namespace
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hydra._internal.utils import get_args_parser
from hydra.core.config_loader import ConfigLoader
from hydra.types import RunMode
from omegaconf import OmegaConf

from grpo import compose, config, plan, redact, resume, storage, targets
from grpo.compose import Source, Trial
from grpo.faults import ConfigError, Fault
from grpo.files import write_text
from grpo.pair import faults as pair_faults
from grpo.plan import Ceiling
from grpo.provenance import RUN_FILE
from grpo.schema import RunConfig
from grpo.types import Split
from grpo.words import pasted, word

CLAIM = "overrides.txt"
"""Created exclusively, so that of two runs given one folder only the first gets it."""


@dataclass(frozen=True, kw_only=True)
class Command:
    """A checked command line, ready for Hydra."""

    arguments: tuple[str, ...]
    """For hydra.main; all paths absolute."""
    typed: tuple[str, ...]
    """The overrides as they were typed."""
    trials: tuple[Trial, ...]
    """Empty where Hydra only shows something."""
    sweep: bool
    dry: bool
    folder: Path | None
    """The run's, or the sweep's; None where nothing runs."""
    prepared: bool
    """The config comes from the run's own folder: a sweep put it there for this trial."""


def flags(arguments: Sequence[str]) -> Namespace:
    """Hydra's flags. Raises SystemExit(2) for flags that do not exist."""
    return get_args_parser().parse_intermixed_args(list(arguments))


def read(flags: Namespace, arguments: Sequence[str], conf: Path) -> Command:
    """Check the command line against the configs in `conf`, or of a saved run.

    Raises ConfigError with every fault of every job.
    """
    typed = tuple(flags.overrides)
    source = _source(flags, conf)
    at_source = ("--config-path", str(source.folder), "--config-name", source.name)
    if flags.hydra_help or flags.info or flags.shell_completion or flags.experimental_rerun:
        return _shown((*arguments, *at_source), typed)
    hydra_loader = compose.loader(source)
    settings = compose.folder_words(conf) if source.folder != conf else []
    words, trials = _check([*settings, *typed], hydra_loader, source, sweep=flags.multirun)
    extra = ("--config-dir", str(source.extra)) if source.extra else ()
    if flags.cfg:
        shown = ("--cfg", flags.cfg, *(("--resolve",) if flags.resolve else ()))
        package = ("--package", flags.package) if flags.package else ()
        return _shown((*shown, *package, *at_source, *extra, *words), typed)
    sweep = flags.multirun or _sent(hydra_loader, source, words, trials[0].run)
    faults = [*_cluster_faults(trials), *_adapter_faults(trials)]
    if faults:
        raise ConfigError(faults)
    folder = _folder(hydra_loader, source, words, trials, sweep=sweep)
    key = "hydra.sweep.dir" if sweep else "hydra.run.dir"
    mode = ("--multirun",) if sweep else ()
    return Command(
        arguments=(*mode, *at_source, *extra, *words, word(key, folder)),
        typed=typed,
        trials=tuple(trials),
        sweep=sweep,
        dry=trials[0].run.dry_run,
        folder=folder,
        prepared=folder == source.folder,
    )


def _shown(arguments: tuple[str, ...], typed: tuple[str, ...]) -> Command:
    return Command(arguments=arguments, typed=typed, trials=(), sweep=False, dry=False, folder=None, prepared=False)


def _source(flags: Namespace, conf: Path) -> Source:
    name = (flags.config_name or "config").removesuffix(".yaml")
    resumed = _resumed(flags.overrides)
    if flags.config_path is None:
        # A resumed run goes on with its own config, not with what conf/ says today.
        folder = resumed if resumed is not None and (resumed / f"{name}.yaml").is_file() else conf
    else:
        # A run folder's path is typed from where one stands; Hydra alone would start at train.py.
        given = Path(flags.config_path).expanduser()
        folder = (given if given.is_dir() else conf.parent / given).resolve()
    return Source(folder=folder, name=name, extra=Path(flags.config_dir).resolve() if flags.config_dir else None)


def _resumed(words: Sequence[str]) -> Path | None:
    """The folder of the last `resume=FOLDER` among the words."""
    given, _ = compose.parse_words([each for each in words if each.lstrip("+").startswith("resume=")], None)
    resumed = given[-1].value() if given else None
    return _saved_in(resumed) if isinstance(resumed, str) and resumed else None


def _saved_in(resumed: str) -> Path:
    """Where the config of a run to be resumed can be read: its folder, or what was fetched from its address."""
    if not storage.is_remote(resumed):
        try:
            return Path(resumed).expanduser().resolve()
        except (OSError, RuntimeError) as error:  # no permission, a loop of links, an unknown ~user
            raise ConfigError([Fault(key="resume", problem=f"{resumed!r} cannot be read: {error}")]) from error
    with storage.refusal("resume"):
        return storage.saved_config(resumed)


def _check(
    typed: Sequence[str], hydra_loader: ConfigLoader, source: Source, *, sweep: bool
) -> tuple[list[str], list[Trial]]:
    """The words for Hydra and the trials they make. Raises ConfigError with the faults of words and trials together."""
    # Before anything that might tell a value.
    _refuse_secrets((word.partition("=")[0].lstrip("+~"), word.partition("=")[2].strip("'\"")) for word in typed)
    overrides, faults = compose.parse_words(typed, hydra_loader)
    words, more = compose.normalised(overrides, hydra_loader, sweep=sweep)
    faults += more
    in_config = _swept_by_config(hydra_loader, source, words) if sweep else []
    trials, more = compose.trials(hydra_loader, source.name, [*in_config, *words])
    faults += [_of_another_version(fault, source) for fault in more] or compose.without_effect(overrides, trials)
    if faults:
        raise ConfigError(faults)
    _refuse_secrets(pair for trial in trials for pair in config.leaves(trial.run.model_dump(by_alias=True)))
    return words, trials


def _of_another_version(fault: Fault, source: Source) -> Fault:
    """Says how a run's saved config gets the keys that it was written without, and rid of those that are gone."""
    if not (source.folder / RUN_FILE).is_file():
        return fault
    ways = {"missing": f"give it: {fault.key}=VALUE", "no such key": f"take it away: '~{fault.key}'"}
    way = next((way for start, way in ways.items() if fault.problem.startswith(start)), None)
    told = f"{fault.problem}; {source.folder} was written by another version, {way}"
    return Fault(key=fault.key, problem=told) if way else fault


def _adapter_faults(trials: Sequence[Trial]) -> Iterator[Fault]:
    """A fault for each adapter that a trial starts from and that belongs to another base, and each lacking module."""
    for trial in trials:
        yield from pair_faults(trial.run)
        yield from targets.faults(trial.run)


def _refuse_secrets(values: Iterable[tuple[str, Any]]) -> None:
    faults = redact.secret_faults(values)
    if faults:
        raise ConfigError(faults)


def _sent(hydra_loader: ConfigLoader, source: Source, words: Sequence[str], run: RunConfig) -> bool:
    """Whether the command goes through the launcher without -m: conf/cluster/ says so with hydra.mode.

    A saved config has no hydra section; its cluster decides, unless hydra.mode=RUN asks for a run in this process.
    """
    mode = compose.hydra_section(hydra_loader, source.name, words, sweep=False).mode
    return run.cluster.name != "local" if mode is None else mode == RunMode.MULTIRUN


def _cluster_faults(trials: Sequence[Trial]) -> Iterator[Fault]:
    """A launcher serves one cluster; presets could otherwise smuggle in a second one."""
    first = trials[0].run.cluster
    for trial in trials:
        if trial.run.cluster != first:
            told = f"is chosen once for a whole sweep, but {' '.join(trial.swept)} changes it"
            yield Fault(key="cluster", problem=f"{told}; start a sweep of its own for that")
            return


def _swept_by_config(hydra_loader: ConfigLoader, source: Source, words: Sequence[str]) -> list[str]:
    """Sweeps that the config itself asks for (hydra.sweeper.params)."""
    fixed = [word for word in words if word.startswith("hydra")]
    params = compose.hydra_section(hydra_loader, source.name, fixed, sweep=True).sweeper.params or {}
    overrides, faults = compose.parse_words([f"{key}={value}" for key, value in params.items()], hydra_loader)
    words, more = compose.normalised(overrides, hydra_loader, sweep=True)
    if faults or more:
        raise ConfigError([*faults, *more])
    return words


def _folder(
    hydra_loader: ConfigLoader, source: Source, words: Sequence[str], trials: Sequence[Trial], *, sweep: bool
) -> Path:
    resumed = trials[0].run.resume
    if resumed is None:
        section = compose.hydra_section(hydra_loader, source.name, words, sweep=sweep)
        on_error = OmegaConf.select(section, "launcher.on_error")
        ours = "grpo_launcher" in str(OmegaConf.select(section, "launcher._target_"))
        if sweep and not ours and trials[0].run.cluster.name != "local":
            told = (
                f"cluster={trials[0].run.cluster.name} is served by hydra/launcher=grpo alone; leave the launcher out"
            )
            raise ConfigError([Fault(key="hydra/launcher", problem=told)])
        if on_error not in (None, "continue", "stop"):
            problem = f"wants 'continue' or 'stop', got {on_error!r}"
            raise ConfigError([Fault(key="hydra.launcher.on_error", problem=problem)])
        return storage.local_folder(section.sweep.dir if sweep else section.run.dir, trials[0].run)
    if sweep:
        problem = "continues one run; a sweep is continued by giving its folder: hydra.sweep.dir=FOLDER"
        raise ConfigError([Fault(key="resume", problem=problem)])
    folder = _saved_in(resumed)
    if not (folder / "config.yaml").is_file():
        told = f"wants a run folder (with its config.yaml), got {resumed!r}"
        if (folder / "sweep.json").is_file():
            told += f", a sweep: the sweep's own command with {pasted('hydra.sweep.dir', folder)} runs what is missing"
        raise ConfigError([Fault(key="resume", problem=told)])
    _refuse_changed(folder, trials[0].run)
    return storage.local_folder(resumed, trials[0].run)


def _refuse_changed(folder: Path, run: RunConfig) -> None:
    """Raises ConfigError if the run in `folder` may not go on as `run`."""
    faults = resume.faults(folder, run)
    if run.resume is not None and storage.is_remote(run.resume):
        # What was fetched to decide this is of no use to the reader.
        told = [fault.problem.replace(str(folder), run.resume.rstrip("/")) for fault in faults]
        faults = [Fault(key=fault.key, problem=problem) for fault, problem in zip(faults, told, strict=True)]
    if faults:
        raise ConfigError(faults)


def reach(command: Command) -> Mapping[str, Mapping[Split, Ceiling | None]]:
    """Ceilings of every distinct env and seed of the command. Raises ConfigError where one cannot be reached."""
    found: dict[str, Mapping[Split, Ceiling | None]] = {}
    for trial in command.trials:
        if env_key(trial.run) not in found:
            found[env_key(trial.run)] = plan.ceilings(trial.run)
    return found


def env_key(run: RunConfig) -> str:
    return json.dumps([run.env.model_dump(), run.runtime.seed], sort_keys=True)


def refuse_unavailable(command: Command) -> None:
    """Raises ConfigError for an engine or a cluster that this version cannot run, or an S3 that cannot be used."""
    faults = [fault for trial in command.trials for fault in plan.blockers(trial.run)]
    if faults:
        raise ConfigError(faults)
    run = command.trials[0].run
    assert command.folder is not None
    storage.refuse_unusable(run, command.folder, known=run.resume is not None or command.prepared or command.sweep)


def missing(command: Command) -> list[Path]:
    """The command's folder and those above it that are not there yet, from the inside out."""
    assert command.folder is not None
    return [path for path in (command.folder, *command.folder.parents) if not path.exists()]


def claim(command: Command) -> Path:
    """Take the run's folder, or the sweep's, for this command alone, and return it.

    Raises ConfigError if it holds another run, or if nothing can be written there.
    """
    folder = command.folder
    assert folder is not None
    key = "hydra.sweep.dir" if command.sweep else "hydra.run.dir"
    told = f"{folder} holds a run already; give another {key}, or {pasted('resume', folder)} to continue it"
    taken = ConfigError([Fault(key=key, problem=told)])
    run = command.trials[0].run
    if run.resume is not None:
        storage.bring_up_to_date(run, folder)
        _refuse_changed(folder, run)
        return folder
    if (folder / "config.yaml").exists() and not command.prepared:
        raise taken
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if not os.access(folder, os.W_OK):
            raise OSError(errno.EACCES, "no permission, or a read-only file system")
        if not command.sweep:
            with (folder / CLAIM).open("x", encoding="utf-8") as file:
                file.writelines(f"{word}\n" for word in command.typed)
            # Here already, so that a run killed while torch is loading can be resumed.
            write_text(folder / "config.yaml", config.to_yaml(command.trials[0].run))
    except FileExistsError:
        raise taken from None
    except OSError as error:
        problem = (
            f"{folder} cannot be written ({error.strerror}); give a folder on a disk with room that may be written"
        )
        raise ConfigError([Fault(key="runtime.output_dir", problem=problem)]) from error
    return folder
