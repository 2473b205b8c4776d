"""Play held-out tasks with several policies and say whether training made the model better.

    python scripts/evaluate.py RUN_FOLDER                     # what the run started from, and its adapter
    python scripts/evaluate.py RUN_FOLDER --adapter OTHER     # and others beside it
    python scripts/evaluate.py SWEEP_FOLDER                   # the adapter of every finished trial
    python scripts/evaluate.py MODEL_FOLDER env=maze_2d_easy  # a model alone: nothing to compare, so no verdict
    python scripts/evaluate.py RUN_FOLDER --endpoint http://127.0.0.1:8000/v1 --model base --model base:adapter

Every policy meets the same tasks with the same random draws: once greedily, and --samples times at the config's
temperature. A run folder brings its config, single keys of which may be changed (`env.max_turns=30`); elsewhere the
words of train.py choose it. Adapters are measured by what the run started from, models by the first one named. A run
may be its s3:// address; of one that is unfinished, the newest checkpoint plays.

Verdicts: improved, unchanged or worse by *solved* (McNemar's exact test greedily; sampled, bootstrap over the tasks and
sign flips; stricter the more policies are compared), or reward hacking suspected. All figures go to
FOLDER/eval/<time>/, for programs as result.json.
Exit codes: 0 every policy is improved or unchanged (with --improved: improved); 1 one is not, or the evaluation failed;
2 the command is wrong and nothing was played.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from grpo import base, compose, config, pair, provenance
from grpo.faults import ConfigError, Fault
from grpo.interfaces import Env, Reward
from grpo.s3 import StorageError
from grpo.schema import RunConfig
from grpo.storage import local_copy
from grpo.types import Task
from launchers import record

if TYPE_CHECKING:
    from grpo.contenders import Contender

ROOT = Path(__file__).resolve().parent.parent


@dataclass(frozen=True, kw_only=True)
class Asked:
    """A command line, checked as far as it goes without loading a model."""

    run: RunConfig
    adapters: tuple[tuple[str, Path], ...]
    """By the names under which they are shown; `start` is what the run began from, where that is not the base."""
    folder: Path
    """Where the figures go."""
    made_by: Path | None
    """The run whose record says by which code its adapter was trained."""


def main(arguments: Sequence[str]) -> int:
    options = _parser().parse_intermixed_args(arguments)
    try:
        asked = _read(options)
        env, tasks = _tasks(asked.run, options.tasks)
        contenders = _contenders(asked, options)
    except (ConfigError, StorageError, OSError, ValueError) as error:
        sys.stderr.write(f"{error}\n")
        return 2
    from grpo.endpoint import EndpointError

    try:
        return _evaluate(asked, contenders, env, tasks, options)
    except EndpointError as error:
        sys.stderr.write(f"{error}\n")
        return 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("words", nargs="*", metavar="FOLDER | key=value", help="what to evaluate, and changed keys")
    parser.add_argument(
        "--adapter", action="append", default=[], metavar="FOLDER", help="a further adapter, run or checkpoint"
    )
    parser.add_argument("--endpoint", metavar="URL", help="OpenAI-compatible address, /v1 included; see OPENAI_API_KEY")
    parser.add_argument("--model", action="append", default=[], help="a name that the endpoint serves; may be repeated")
    parser.add_argument("--tasks", type=int, help="test tasks (default: runtime.test_episodes of the config)")
    parser.add_argument("--samples", type=int, default=8, help="sampled episodes of each task (default: 8)")
    parser.add_argument("--improved", action="store_true", help="exit with 0 only if every policy is improved")
    parser.add_argument("--output", type=Path, help="folder for the figures (default: eval/<time> in FOLDER)")
    return parser


def _read(options: argparse.Namespace) -> Asked:
    folders = [word for word in options.words if "=" not in word]
    words = [word for word in options.words if "=" in word]
    if len(folders) > 1:
        raise ValueError(f"wants one folder, got {', '.join(folders)}; give further adapters by --adapter")
    if bool(options.endpoint) != bool(options.model) or (options.endpoint and options.adapter):
        raise ValueError("--endpoint wants --model for each name to evaluate, and no --adapter: the server has them")
    if not folders and not options.endpoint:
        raise ValueError("wants a run, sweep or model folder, or --endpoint with --model; see --help")
    if options.endpoint and not options.endpoint.startswith(("http://", "https://")):
        raise ValueError(f"--endpoint {options.endpoint}: wants an address such as http://127.0.0.1:8000/v1")
    if options.samples < 1:
        raise ValueError(f"--samples {options.samples}: wants 1 or more")
    if options.tasks is not None and options.tasks < 2:
        raise ValueError(f"--tasks {options.tasks}: wants 2 or more, since one task gives no interval")
    folder = local_copy(folders[0]).expanduser().resolve() if folders else None
    run, adapters, made_by = _of_folder(folder, words)
    adapters += [(given, adapter_folder(local_copy(given).expanduser())) for given in options.adapter]
    _refuse_other_bases(run, adapters)
    names = [name for name, _ in adapters]
    if len(set(names)) < len(names):
        raise ValueError(f"the same adapter is given twice: {', '.join(names)}; leave one out")
    stamp = datetime.now().strftime("%Y-%m-%d_%H-%M-%S-%f")
    place = folder if folder is not None else ROOT / run.runtime.output_dir
    output = options.output or place / "eval" / stamp
    return Asked(run=run, adapters=tuple(adapters), folder=output, made_by=made_by)


def _of_folder(folder: Path | None, words: Sequence[str]) -> tuple[RunConfig, list[tuple[str, Path]], Path | None]:
    """The config that all play by, the adapters that the folder holds, and the run whose config it is."""
    if folder is None:
        return _composed(ROOT / "conf", words), [], None
    if (folder / record.RECORD).is_file():
        return _of_sweep(folder, words)
    if (folder / "config.yaml").is_file():
        run = _composed(folder, words)
        trained = adapter_folder(folder)
        name = "trained" if trained.parent == folder else f"trained, {trained.parent.name}"
        return run, [*_started_from(run), (name, trained)], folder
    config_file = folder / "config.json"
    if config_file.is_file() and "architectures" in json.loads(config_file.read_text(encoding="utf-8")):
        return _composed(ROOT / "conf", [*words, f"model.name_or_path={folder}"]), [], None
    kinds = ("config.yaml", record.RECORD, "config.json")
    inside = sorted(file.parent for name in kinds for file in folder.glob(f"*/{name}"))
    told = f"; did you mean {inside[-1]}?" if inside else ""
    raise FileNotFoundError(f"{folder} is no run (config.yaml), no sweep (sweep.json) and no model (config.json){told}")


def _of_sweep(folder: Path, words: Sequence[str]) -> tuple[RunConfig, list[tuple[str, Path]], Path]:
    """The first trial's config for all: their figures could not be compared otherwise."""
    trials = [trial for trial in record.read(folder) if trial.state == "finished"]
    if not trials:
        raise FileNotFoundError(f"no trial of {folder} has finished; there is nothing to evaluate")
    runs = [_composed(folder / trial.folder, words) for trial in trials]
    faults = [
        Fault(key=key, problem=f"differs between the trials {trials[0].folder} and {trial.folder}; evaluate them apart")
        for trial, run in zip(trials, runs, strict=True)
        for key in ("model", "env", "reward")
        if getattr(run, key) != getattr(runs[0], key)
    ]
    faults += [
        Fault(key="adapter.start_from", problem=f"differs between the trials {trials[0].folder} and {trial.folder}")
        for trial, run in zip(trials, runs, strict=True)
        if _started_from(run) != _started_from(runs[0])
    ]
    if faults:
        raise ConfigError(faults)
    # Full keys would break the table; they are in sweep.json.
    parts = [[word.partition("=") for word in trial.overrides] for trial in trials]
    short = [" ".join(f"{key.rsplit('.', 1)[-1]}={value}" for key, _, value in words) for words in parts]
    names = [f"{trial.folder}: {words}" for trial, words in zip(trials, short, strict=True)]
    found = [adapter_folder(folder / trial.folder) for trial in trials]
    return runs[0], [*_started_from(runs[0]), *zip(names, found, strict=True)], folder / trials[0].folder


def _composed(folder: Path, words: Sequence[str]) -> RunConfig:
    source = compose.Source(folder=folder, name="config", extra=None)
    return config.parse(compose.script_config(source, words))


def _started_from(run: RunConfig) -> list[tuple[str, Path]]:
    start = run.adapter.start_from if run.adapter.type == "lora" else None
    return [] if start is None else [("start", adapter_folder(local_copy(start)))]


def adapter_folder(given: Path) -> Path:
    """The adapter in `given`: itself, a run's final one, its newest checkpoint's, or a checkpoint's.

    Raises FileNotFoundError where there is none.
    """
    newest = sorted(done.parent / "adapter" for done in given.glob("checkpoints/step_*/DONE"))
    for folder in (given, given / "adapter", *newest[-1:]):
        if (folder / "adapter_config.json").is_file():
            return folder
    raise FileNotFoundError(
        f"{given} holds no adapter (adapter_config.json) and no whole checkpoint; give a run that has saved one, its "
        "adapter/ or a checkpoint"
    )


def _refuse_other_bases(run: RunConfig, adapters: Sequence[tuple[str, Path]]) -> None:
    """Raises ConfigError for each adapter whose record names another base; one without a record is tried."""
    recorded = [(path, found["base"]) for _, path in adapters if (found := pair.read(path)) is not None]
    if not recorded:
        return
    now = base.describe(run.model)
    faults = [
        Fault(key="", problem=pair.told(path, then, now, mismatch))
        for path, then in recorded
        for mismatch in pair.mismatches(then, now)
    ]
    if faults:
        raise ConfigError(faults)


def _tasks(run: RunConfig, count: int | None) -> tuple[Env, list[Task]]:
    """The env and its test tasks, each once: a small split repeats them, and repeats are no further evidence."""
    from grpo.evaluate import held_out

    env = config.build_env(run)
    tasks = list({task.id: task for task in held_out(env, "test", count or run.runtime.test_episodes)}.values())
    if len(tasks) < 2:
        raise ValueError(f"the test split of env holds {len(tasks)} task(s): one task gives no interval")
    return env, tasks


def _contenders(asked: Asked, options: argparse.Namespace) -> list[Contender]:
    """Whoever plays, the one that the others are measured by among them. Loads the base."""
    from grpo import contenders

    if not options.endpoint:
        return contenders.local(asked.run, asked.adapters)
    from openai import OpenAIError

    try:
        return contenders.served(asked.run, options.endpoint, options.model)
    except OpenAIError as error:
        raise ValueError(f"--endpoint: {options.endpoint} does not answer ({error})") from error


def _evaluate(
    asked: Asked, contenders: Sequence[Contender], env: Env, tasks: Sequence[Task], options: argparse.Namespace
) -> int:
    from envs.regression import RegressionPrompts
    from grpo.console import Console
    from grpo.contest import Contest, hold
    from grpo.contest_view import show, write
    from grpo.plan import reach
    from grpo.reward import make_mixture

    run = asked.run
    terms = config.build_rewards(run)
    contest = Contest(
        env=env,
        mixture=make_mixture(run.reward, terms),
        tasks=tasks,
        samples=options.samples,
        temperature=run.algorithm.temperature,
        max_completion_tokens=run.algorithm.max_completion_tokens,
        regression=RegressionPrompts(),
        progress=Console(steps=0).progress,
    )
    names = [contender.name for contender in contenders]
    reference = "start" if "start" in names else names[0]
    with closing(contest.mixture):
        results = hold(contest, contenders, reference)
    reachable = reach(env, contest.tasks)
    notes = list(_changed_since(asked.made_by, {"env": env, **terms}))
    table = show(results, contest, None if reachable is None else reachable.share, reference, notes)
    write(asked.folder, results, contest, run, reference, table)
    print(f"figures: {asked.folder}")
    passed = {"improved"} if options.improved else {"improved", "unchanged"}
    failed = any(r.comparison is not None and r.comparison.judgement not in passed for r in results)
    return int(failed or any(len(r.played.errors) == r.played.episodes for r in results))


def _changed_since(folder: Path | None, components: Mapping[str, Env | Reward]) -> Iterator[str]:
    """Of the code that judges here, what is not that which the run in `folder` was trained with."""
    file = None if folder is None else folder / provenance.RUN_FILE
    then = {} if file is None or not file.is_file() else json.loads(file.read_text(encoding="utf-8"))
    for key, old in then.get("code_hashes", {}).items():
        if key in components and (now := provenance.source_hash(components[key])) != old:
            yield f"{key}: its code is not that of the run ({old[:12]} then, {now[:12]} now); figures are by today's"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
