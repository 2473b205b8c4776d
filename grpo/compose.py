"""From the words of a command line to composed configs, with every fault told by us and not by Hydra.

Hydra would refuse an unknown key only without a `+`, and would stop at the first. So a plain `key=value` is handed to
it as `++key=value`: all words get into the config, and the strict reading (`grpo.config`) reports them together.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import yaml
from hydra._internal.hydra import Hydra
from hydra._internal.utils import create_config_search_path
from hydra.core.config_loader import ConfigLoader
from hydra.core.config_search_path import SearchPathQuery
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from hydra.core.object_type import ObjectType
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import IntervalSweep, Override, ValueType
from hydra.core.utils import setup_globals
from hydra.errors import HydraException
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import InterpolationToMissingValueError, OmegaConfBaseException

from grpo import config
from grpo.config_text import text_keys
from grpo.faults import ConfigError, Fault, guess
from grpo.schema import RunConfig
from grpo.words import quoted

GROUPS = ("model", "adapter", "algorithm", "reward", "env", "engine", "cluster", "tracker", "experiment")


FOLDERS = ("hydra.run.dir", "hydra.sweep.dir")


@dataclass(frozen=True, kw_only=True)
class Source:
    """Where the primary config is: the project's conf/, or the folder of a saved run."""

    folder: Path
    name: str
    extra: Path | None
    """`--config-dir`: more options for the groups."""


@dataclass(frozen=True, kw_only=True)
class Trial:
    """One job of a sweep; a single run is a sweep of one with no swept words."""

    swept: tuple[str, ...]
    """What tells it from its siblings, as typed: `algorithm.group_size=4`."""
    run: RunConfig


def loader(source: Source) -> ConfigLoader:
    """Hydra's loader over the source. Raises ConfigError if the primary config is not there."""
    if not (source.folder / f"{source.name}.yaml").is_file():
        wanted = f"--config-path wants a folder with {source.name}.yaml, got {source.folder}"
        raise ConfigError([Fault(key="", problem=f"{wanted}; give a run folder's path")])
    search_path = create_config_search_path(str(source.folder))
    if source.extra is not None:
        if not source.extra.is_dir():
            raise ConfigError([Fault(key="", problem=f"--config-dir wants a folder, got {source.extra}")])
        anchor = SearchPathQuery(provider="schema", path=None)
        search_path.prepend(provider="command-line", path=f"file://{source.extra}", anchor=anchor)
    setup_globals()
    GlobalHydra.instance().clear()
    hydra = Hydra.create_main_hydra2(task_name="train", config_search_path=search_path)
    # hydra.main sets up its own afterwards, and refuses while there is another.
    GlobalHydra.instance().clear()
    return hydra.config_loader


def parse_words(words: Sequence[str], hydra_loader: ConfigLoader | None) -> tuple[list[Override], list[Fault]]:
    """The overrides that `words` spell, and a fault with a hint for each word that Hydra cannot read."""
    parser = OverridesParser.create(config_loader=hydra_loader)
    parsed, faults = [], []
    for word in words:
        read: list[Override] = []
        for spelled in filter(None, (word, _as_one_text(word))):
            try:
                read = parser.parse_overrides([spelled])
                break
            except HydraException:
                continue
        # Hydra takes `=3` for a value of nothing.
        if read and read[0].key_or_group:
            parsed.extend(read)
        else:
            faults.append(_unreadable(word))
    return parsed, faults


def _as_one_text(word: str) -> str | None:
    """The word with its value quoted, where that can only be meant as text: blanks, or letters beyond ASCII."""
    key, _, value = word.partition("=")
    wants_text = key in FOLDERS or key.rpartition(".")[2] in text_keys(RunConfig)
    return f"{key}={quoted(value)}" if wants_text and not re.search(r"""[,'"\\()\[\]{}$]""", value) else None


def _unreadable(word: str) -> Fault:
    key, equals, value = word.partition("=")
    if not equals:
        return Fault(key="", problem=f"{word!r} is no key=value{guess(word, GROUPS)}")
    if not re.fullmatch(r"(\+{0,2}|~)[\w$][\w$-]*([./@:][\w$-]+)*", key):
        return Fault(key="", problem=f"{word!r}: {key!r} is no key; keys look like algorithm.group_size")
    quote = "'" if '"' in value or "\\\\" in value else '"'
    inner = value.strip("'\"")
    hint = f"signs such as ( ) , : {{ }} need quotes inside quotes: {shlex.quote(f'{key}={quote}{inner}{quote}')}"
    return Fault(key=key.lstrip("+~"), problem=f"cannot read {value!r}; {hint}")


def normalised(
    overrides: Sequence[Override], hydra_loader: ConfigLoader, *, sweep: bool
) -> tuple[list[str], list[Fault]]:
    """The words for Hydra: `key=` and `+key=` as `++key=`, text keys quoted; and the faults of those that cannot be.

    A word with a fault is left out, and so are single keys of a group whose option is wrong: they would only raise
    more faults against the option that stands in its place.
    """
    checked = [
        (override, _option_fault(override, hydra_loader) or _sweep_fault(override, sweep)) for override in overrides
    ]
    faults = [fault for _, fault in checked if fault]
    broken = {fault.key for fault in faults}
    words = [
        _normalised(override, hydra_loader)
        for override, fault in checked
        if not fault and override.key_or_group.split(".")[0] not in broken and not _chooses_nothing(override)
    ]
    return words, faults


def _chooses_nothing(override: Override) -> bool:
    """`experiment=null`, which is what no word means too, and which Hydra cannot read."""
    return override.key_or_group == "experiment" and not override.is_delete() and override.value() is None


def without_effect(overrides: Sequence[Override], found: Sequence[Trial]) -> Iterator[Fault]:
    """A fault for each `key={}` that is meant to empty a section: sections are merged, so it changes nothing."""
    for override in overrides:
        if override.is_delete() or not any(choice == {} for choice in _choices(override)):
            continue
        key, section = override.key_or_group, found[0].run.model_dump(by_alias=True)
        for part in key.split("."):
            section = section.get(part, {}) if isinstance(section, dict) else {}
        if section:
            instead = " ".join(f"'~{key}.{name}'" for name in section)
            problem = f"{{}} is merged into the section and takes nothing away; to empty it: {instead}"
            yield Fault(key=key, problem=problem)


def options(hydra_loader: ConfigLoader, group: str) -> list[str]:
    return hydra_loader.get_group_options(group, results_filter=ObjectType.CONFIG)


def _normalised(override: Override, hydra_loader: ConfigLoader) -> str:
    assert override.input_line is not None
    word = override.input_line
    if override.is_delete() or override.is_hydra_override() or override.package is not None:
        return word
    if options(hydra_loader, override.key_or_group):
        return word.lstrip("+")
    return f"++{override.key_or_group}={_as_text(override)}"


def _as_text(override: Override) -> str:
    """The value as typed; under a key that wants text, in quotes, so that `695e0514` is not read as a number."""
    typed = override.get_value_string()
    if override.key_or_group.rsplit(".", 1)[-1] not in text_keys(RunConfig):
        return typed
    value = override.value()
    if isinstance(value, bool | int | float):
        return f"'{typed.strip()}'"
    if override.value_type == ValueType.SIMPLE_CHOICE_SWEEP and re.fullmatch(r"[\w.+,-]+", typed):
        return ",".join(part if part == "null" else f"'{part}'" for part in typed.split(","))
    return typed


def _option_fault(override: Override, hydra_loader: ConfigLoader) -> Fault | None:
    group = override.key_or_group
    known = options(hydra_loader, group)
    if not known or _chooses_nothing(override):
        return None
    told = f"{group} takes one of {', '.join(known)}"
    if override.is_delete():
        is_name = override.value() is None or isinstance(override.value(), str)
        return None if is_name else Fault(key=group, problem=f"{override.input_line} names no option ({told})")
    for choice in _choices(override):
        if choice is None:
            instead = f"; nothing is chosen by name: {group}=none" if "none" in known else ""
            return Fault(key=group, problem=f"null is no option{instead} ({told})")
        names = choice if isinstance(choice, list) else [choice]
        for name in names:
            if not isinstance(name, str):
                problem = f"{name!r} is no option; {told}; single keys are changed as {group}.KEY="
                return Fault(key=group, problem=problem)
            if name not in known:
                return Fault(key=group, problem=f"no option {name!r}{guess(name, known)} ({told})")
    return None


def _sweep_fault(override: Override, sweep: bool) -> Fault | None:
    if not override.is_sweep_override():
        return None
    key, typed = override.key_or_group, override.get_value_string()
    if not sweep:
        problem = f"{typed} means several values: add -m to sweep over them, or write a list as [{typed}]"
        return Fault(key=key, problem=problem)
    once = override.is_hydra_override() or key.split(".")[0] in (
        "cluster",
        "resume",
        "resume_accepts_changes",
        "dry_run",
    )
    if once or override.is_delete():
        reason = "is chosen once for a whole sweep, before its trials are composed"
        return Fault(key=key, problem=f"cannot be swept ({typed}): it {reason}; give one value")
    return None


def _choices(override: Override) -> Iterator[Any]:
    """The values of an override, plain; of an interval, its ends."""
    value = override.value()
    if isinstance(value, IntervalSweep):
        yield from (value.start, value.end)
    elif override.is_discrete_sweep():
        yield from (Override._convert_value(item) for item in override.sweep_iterator())
    else:
        yield value


def composed(hydra_loader: ConfigLoader, name: str, words: Sequence[str], *, sweep: bool = False) -> DictConfig:
    """Hydra's config with its own `hydra` section. Raises ConfigError for whatever Hydra cannot compose."""
    mode = RunMode.MULTIRUN if sweep else RunMode.RUN
    try:
        found = hydra_loader.load_configuration(name, list(words), run_mode=mode, from_shell=False)
    except UnicodeDecodeError as error:
        wrong = ", ".join(str(path) for path in _files(hydra_loader) if not _is_text(path))
        raise ConfigError([Fault(key="", problem=f"{wrong} is not UTF-8 ({error}); save it as UTF-8")]) from error
    # ValueError and RecursionError: YAML of numbers too long and of sections too deep to be read.
    except (HydraException, OmegaConfBaseException, yaml.YAMLError, ValueError, RecursionError) as error:
        raise ConfigError([Fault(key="", problem=_one_paragraph(error))]) from error
    # Values may name ${hydra:…}; at run time Hydra sets the same.
    HydraConfig.instance().set_config(found)
    return found


def hydra_section(hydra_loader: ConfigLoader, name: str, words: Sequence[str], *, sweep: bool) -> DictConfig:
    """Hydra's own settings. Raises ConfigError for each of them that leads nowhere."""
    whole = composed(hydra_loader, name, words, sweep=sweep)
    faults = []
    for key, text in config.leaves(OmegaConf.to_container(whole.hydra, resolve=False), "hydra"):
        used = key.split(".")[1] not in ("overrides", "help", "hydra_help")
        try:
            if used and isinstance(text, str) and "${" in text:
                OmegaConf.select(whole, key)
        except InterpolationToMissingValueError:
            continue  # such as a trial's number, which is known when it runs
        except OmegaConfBaseException as error:
            faults.append(Fault(key=key, problem=f"{text} cannot be resolved: {str(error).splitlines()[0]}"))
    if faults:
        raise ConfigError([_with_file(fault, hydra_loader) for fault in faults])
    return whole.hydra


def script_config(source: Source, words: Sequence[str]) -> dict[str, Any]:
    """The plain data of a script's own config, words applied. Raises ConfigError for words that cannot be read."""
    hydra_loader = loader(source)
    overrides, unreadable = parse_words(words, hydra_loader)
    normal, faults = normalised(overrides, hydra_loader, sweep=False)
    if unreadable or faults:
        raise ConfigError([*unreadable, *faults])
    return config.plain(composed(hydra_loader, source.name, normal))


def _one_paragraph(error: BaseException) -> str:
    cause = f" ({error.__cause__})" if error.__cause__ else ""
    return re.sub(r"\s*\n\s*", " ", f"{error}{cause}")


def trials(hydra_loader: ConfigLoader, name: str, words: Sequence[str]) -> tuple[list[Trial], list[Fault]]:
    """Every trial that the (normalised) words spell, composed and parsed; and the faults of all, each told once.

    Intervals (of an optimising sweeper) cannot be listed; their two ends stand for them.
    """
    found: list[Trial] = []
    faults: dict[Fault, list[str]] = {}
    combinations = _combinations(parse_words(words, hydra_loader)[0])
    for swept, trial_words in combinations:
        try:
            job = composed(hydra_loader, name, trial_words)
            found.append(Trial(swept=swept, run=config.parse(config.plain(job))))
        except ConfigError as error:
            for fault in error.faults:
                faults.setdefault(fault, []).append(" ".join(swept))
    told = [_with_trials(fault, labels, len(combinations)) for fault, labels in faults.items()]
    return found, [_with_file(fault, hydra_loader) for fault in told]


def _with_file(fault: Fault, hydra_loader: ConfigLoader) -> Fault:
    """Says in which file a broken interpolation stands; a composed config no longer knows."""
    if not fault.problem.startswith("${"):
        return fault
    text = fault.problem.split(" cannot be resolved")[0]
    told = (str(path) for path in _files(hydra_loader) if text in path.read_text(encoding="utf-8", errors="replace"))
    return Fault(key=fault.key, problem=f"{fault.problem} (in {next(told, 'the command line')})")


def _files(hydra_loader: ConfigLoader) -> list[Path]:
    """Every config file that Hydra may read."""
    folders = [
        Path(entry.path.removeprefix("file://")) for entry in hydra_loader.get_search_path().get_path() if entry.path
    ]
    return [path for folder in folders if folder.is_dir() for path in sorted(folder.rglob("*.yaml"))]


def _is_text(file: Path) -> bool:
    try:
        file.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        return False
    return True


def _with_trials(fault: Fault, labels: Sequence[str], total: int) -> Fault:
    if len(labels) == total:
        return fault
    shown = "; ".join(labels[:3]) + (f"; and {len(labels) - 3} more" if len(labels) > 3 else "")
    return Fault(key=fault.key, problem=f"{fault.problem} [in {len(labels)} of {total} trials: {shown}]")


def _combinations(overrides: Iterable[Override]) -> list[tuple[tuple[str, ...], list[str]]]:
    """(swept words, all words) of each trial, in the order of Hydra's own sweeper. The last word for a key wins."""
    columns: dict[str, list[tuple[bool, str]]] = {}
    for override in overrides:
        key = override.get_key_element()
        assert override.input_line is not None
        swept = override.is_sweep_override()
        words = [f"{key}={text}" for text in _texts(override)] if swept else [override.input_line]
        columns[key] = [(swept, word) for word in words]
    return [
        (tuple(word.lstrip("+") for swept, word in row if swept), [word for _, word in row])
        for row in product(*columns.values())
    ]


def _texts(override: Override) -> list[str]:
    value = override.value()
    if isinstance(value, IntervalSweep):
        return [str(value.start), str(value.end)]
    return list(override.sweep_string_iterator())


def folder_words(conf: Path) -> list[str]:
    """The settings of conf/config.yaml's `hydra` section as words: a saved run's config does not hold them."""
    main = OmegaConf.load(conf / "config.yaml")
    assert isinstance(main, DictConfig)
    choices = {key: option for entry in main.defaults if isinstance(entry, DictConfig) for key, option in entry.items()}
    chosen = {str(key).removeprefix("override "): option for key, option in choices.items()}
    words = [f"{key}={option}" for key, option in chosen.items() if key.startswith("hydra/")]
    return words + list(_flat("hydra", OmegaConf.to_container(main.hydra)))


def _flat(prefix: str, value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        for key, item in value.items():
            yield from _flat(f"{prefix}.{key}", item)
    elif value is None or isinstance(value, bool):
        yield f"{prefix}={str(value).lower() if value is not None else 'null'}"
    else:
        yield f"{prefix}={quoted(str(value))}"
