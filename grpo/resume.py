"""Whether a run may go on, with what, and what is written down if it goes on changed.

Everything here is decided from files, before torch is loaded. Only an explicit `resume_accepts_changes=true` lets a run
go on with another config or made from something else: a curve that changed its meaning half way is worse than none.
"""

from __future__ import annotations

import json
import logging
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from grpo import config, provenance
from grpo.faults import ConfigError, Fault, show
from grpo.files import write_json, write_text
from grpo.reproduce import Difference, differences
from grpo.schema import RunConfig
from grpo.words import pasted

log = logging.getLogger(__name__)

FIXED = {
    "model.name_or_path": "the adapter was trained on that base",
    "model.revision": "the adapter was trained on that base",
    "model.dtype": "the adapter was trained on that base",
    "adapter.type": "the saved adapter has that shape",
    "adapter.rank": "the saved adapter has that shape",
    "adapter.alpha": "the saved adapter would count for more or less than it was trained to",
    "adapter.target_modules": "the saved adapter has that shape",
    "adapter.exclude_modules": "the saved adapter has that shape",
    "adapter.start_from": "the run and its KL term started from there",
    "engine.name": "the saved optimiser state is that engine's",
}
"""Keys that can never change on resume, and why."""
CONFIG_HASH = "config_hash"
ONLY_LOGGED = ("commit", "dirty_diff", "untracked", "python", "machine", "packages", "image_digest")
"""Of run.json: most changes there leave a run what it was, and nobody can say which do not."""


@dataclass(frozen=True, kw_only=True)
class Changes:
    """What is not as it was when the run started."""

    config: tuple[Difference, ...]
    made_from: tuple[Difference, ...]
    """What decides the numbers: base, reward and env code, data."""
    logged: tuple[Difference, ...]
    """The rest of run.json."""


def steps_done(folder: Path) -> int:
    """Of the newest checkpoint that is marked complete; 0 without one."""
    names = (done.parent.name.removeprefix("step_") for done in folder.glob("checkpoints/step_*/DONE"))
    return max((int(name) for name in names if name.isdigit()), default=0)


def faults(folder: Path, now: RunConfig) -> list[Fault]:
    """Every reason why the run in `folder` may not go on as `now`. Raises ConfigError if its config is not readable."""
    before = _before(folder)
    found = _changes(folder, before, now)
    finished = _finished(folder, before, now)
    if finished is not None:
        return [finished]
    return [*_key_faults(found, now, folder), *_made_from_faults(found, now), *_steps_fault(now, folder)]


def _before(folder: Path) -> Mapping[str, Any]:
    """The config that the run has had, whatever version wrote it."""
    settings = config.saved(folder)
    try:
        return config.parse(settings).model_dump(by_alias=True)
    except ConfigError:
        return settings


def _finished(folder: Path, before: Mapping[str, Any], now: RunConfig) -> Fault | None:
    """A fault for a run that has its result, unless it is explicitly given more steps."""
    result = folder / "result.json"
    steps = before["runtime"]["steps"]
    goes_on = steps_done(folder) > 0
    if not result.is_file() or (goes_on and now.resume_accepts_changes and now.runtime.steps > steps):
        return None
    reached = _objective(result)
    told = f"{folder} is finished: {steps} steps done, {reached}; there is nothing left to resume"
    words = f"{pasted('resume', folder)} runtime.steps={steps + max(20, steps // 3)} resume_accepts_changes=true"
    more = f"For more steps: {words}" if goes_on else "It has no checkpoint left to go on from"
    phase = pasted("adapter.start_from", folder / "adapter")
    return Fault(key="resume", problem=f"{told}. {more}. For a new phase from its adapter: {phase}")


def _objective(result: Path) -> str:
    try:
        return f"eval/all/pass_at_1 {json.loads(result.read_text())['objective']:.3f}"
    except (ValueError, KeyError, TypeError):
        return "its result.json is not readable"


def _changes(folder: Path, before: Mapping[str, Any], now: RunConfig) -> Changes:
    then, today = dict(config.leaves(dict(before))), dict(config.leaves(now.model_dump(by_alias=True)))
    keys = [
        key
        for key in sorted(then.keys() | today.keys())
        if key not in config.NOT_THE_RUNS and then.get(key) != today.get(key)
    ]
    made = _made_from(_recorded(folder), now) if (folder / "run.json").is_file() else []
    if keys:  # told key by key; the hash is for a config.yaml that was edited by hand
        made = [each for each in made if each.key != CONFIG_HASH]
    return Changes(
        config=tuple(Difference(key=key, old=then.get(key), new=today.get(key)) for key in keys),
        made_from=tuple(each for each in made if each.key.split(".")[0] not in ONLY_LOGGED),
        logged=tuple(each for each in made if each.key.split(".")[0] in ONLY_LOGGED),
    )


def _recorded(folder: Path) -> dict[str, Any]:
    """run.json. Raises ConfigError if it cannot be read."""
    file = folder / "run.json"
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        found = error
    if isinstance(found, dict):
        return found
    told = f"{file} is damaged ({found}); put it back, or delete it: the run then goes on as made from what is here now"
    raise ConfigError([Fault(key="resume", problem=told)])


def _made_from(record: Mapping[str, Any], now: RunConfig) -> list[Difference]:
    """What differs from run.json, in what both of them tell: an older run recorded less."""
    today = provenance.of_run(now)
    both = (record.keys() & today.keys()) - {"seed"}
    found = differences({key: record[key] for key in both}, {key: today[key] for key in both})
    return [each for each in found if not _told_elsewhere(each)]


def _told_elsewhere(change: Difference) -> bool:
    """The base's name by the keys of `model`; a base that is not on this machine yet, once it is loaded."""
    return change.key in ("base.id", "base.revision") or (change.key.startswith("base.") and change.new is None)


def _key_faults(found: Changes, now: RunConfig, folder: Path) -> Iterator[Fault]:
    anew = f"or start anew: --config-path {shlex.quote(str(folder))} --config-name config"
    for each in found.config:
        told = f"was {show(each.old)} when the run started, now {show(each.new)}; a resumed run goes on as it was"
        fixed = next((reason for key, reason in FIXED.items() if each.key.split("[")[0] == key), None)
        if fixed is not None:
            yield Fault(key=each.key, problem=f"{told}: this can never change on resume, {fixed}; leave it out, {anew}")
        elif not now.resume_accepts_changes:
            yield Fault(
                key=each.key,
                problem=f"{told}: leave it out, add resume_accepts_changes=true to go on with the change, {anew}",
            )


def _made_from_faults(found: Changes, now: RunConfig) -> Iterator[Fault]:
    for each in found.made_from:
        is_base = each.key.startswith("base.")
        if now.resume_accepts_changes and not is_base:
            continue
        told = (
            f"was {show(each.old)} when the run started, now {show(each.new)}: the run is no longer made from the same"
        )
        if each.key == CONFIG_HASH:
            told += ", config.yaml in its folder was edited"
        word = " (the adapter belongs to it)" if is_base else ", or add resume_accepts_changes=true to go on with it"
        yield Fault(key=each.key, problem=f"{told}; restore it{word}")


def _steps_fault(now: RunConfig, folder: Path) -> Iterator[Fault]:
    done = steps_done(folder)
    if now.runtime.steps < done:
        told = f"{now.runtime.steps} is below the {done} steps that the run has done"
        yield Fault(key="runtime.steps", problem=f"{told}; give {done} or more")


def enter(folder: Path, now: RunConfig) -> None:
    """Write down with what the run in `folder` goes on, where that differs from what it was started with.

    In this order, a kill at any place leaves a folder that the same command enters again.
    """
    before = _before(folder)
    found = _changes(folder, before, now)
    for each in found.logged:
        log.warning(
            "resumed with another %s: %s when the run started, now %s", each.key, show(each.old), show(each.new)
        )
    if not (folder / "run.json").is_file():
        write_json(folder / "run.json", provenance.of_run(now))
    if not found.config and not found.made_from:
        return
    step = steps_done(folder)
    kept = folder / f"config.before_step_{step + 1}.yaml"
    # One that is there already is of a change whose steps were lost: the steps before it were not made with it.
    if found.config and not kept.exists():
        write_text(kept, (folder / "config.yaml").read_text(encoding="utf-8"))
    for name in ("result.json", "summary.json"):
        (folder / name).unlink(missing_ok=True)
    _record(folder, step, found, now)
    words = {"resume": None, "resume_accepts_changes": False, "dry_run": False}
    write_text(folder / "config.yaml", config.to_yaml(now.model_copy(update=words)))
    for each in (*found.config, *found.made_from):
        log.warning("from step %d on, %s is %s (was %s)", step + 1, each.key, show(each.new), show(each.old))


def _record(folder: Path, step: int, found: Changes, now: RunConfig) -> None:
    """run.json tells what the run is made from now; its `changes`, what that was before, when and at which step."""
    record = _recorded(folder)
    entry = {
        "after_step": step,
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
        "config": {each.key: [each.old, each.new] for each in found.config},
        "made_from": {each.key: [each.old, each.new] for each in found.made_from},
    }
    today = provenance.of_run(now)
    decisive = {CONFIG_HASH, *(each.key.split(".")[0] for each in found.made_from)}
    changes = [*record.get("changes", []), entry]
    write_json(folder / "run.json", record | {key: today[key] for key in decisive} | {"changes": changes})
