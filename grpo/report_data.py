"""Reads what a run left, as the report wants it: columns of metrics, alarms in words, episodes up to a size."""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from grpo.alarms import MOSTLY_SOLVED, RECENT_STEPS, alarms, no_signal_share
from grpo.tracking import read_lines

Episode = Mapping[str, Any]
"""A line of rollouts.jsonl."""
Lines = Sequence[Mapping[str, Any]]
"""Those of metrics.jsonl."""
_DIGITS = 7
"""Significant digits of a number in the page: what float32 holds."""


def lines_if_there(path: Path) -> list[dict[str, Any]]:
    return list(read_lines(path)) if path.exists() else []


def json_if_there(path: Path) -> dict[str, Any]:
    if not path.exists():
        return {}
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except json.JSONDecodeError as error:
        raise ValueError(f"{path} is not JSON ({error}); remove it to build the report without it") from error


def flatten(tree: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Dotted key and scalar of every leaf; a list counts as one."""
    for key, value in tree.items():
        if isinstance(value, Mapping):
            yield from flatten(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def columns(lines: Lines) -> tuple[list[int], dict[str, list[float | None]]]:
    """One list a metric, over the steps of all lines; None where a line does not have it."""
    names = dict.fromkeys(name for line in lines for name in line if name != "step")
    series = {name: [_rounded(line[name]) if name in line else None for line in lines] for name in names}
    return [line["step"] for line in lines], series


def _rounded(value: float) -> float:
    if not math.isfinite(value):
        raise ValueError(f"metrics.jsonl holds {value}, which is no finite number; remove that metric from its line")
    return float(f"{value:.{_DIGITS}g}")


def raised_alarms(lines: Lines, settings: Mapping[str, str]) -> list[dict[str, Any]]:
    """Every alarm that was raised: its stretches of steps [first, last], and what was told when it first came up."""
    found: dict[str, list[list[int]]] = {}
    before: set[str] = set()
    for line in lines:
        raised = {name.removeprefix("alarm/") for name, value in line.items() if name.startswith("alarm/") and value}
        for name in sorted(raised):
            if name in before:
                found[name][-1][1] = line["step"]
            else:
                found.setdefault(name, []).append([line["step"], line["step"]])
        before = raised
    return [
        {"name": name, "spans": spans, "message": _message(name, spans[0][0], lines, settings)}
        for name, spans in found.items()
    ]


def _message(name: str, step: int, lines: Lines, settings: Mapping[str, str]) -> str | None:
    """The alarm's sentence at that step, told again from the metrics; None where today's alarms would not raise it."""
    history = [line for line in lines if 0 < line["step"] <= step]
    weights = {
        key.removeprefix("reward.terms.").removesuffix(".weight"): float(weight)
        for key, weight in settings.items()
        if key.startswith("reward.terms.") and key.endswith(".weight")
    }
    group_size, max_turns = int(settings["algorithm.group_size"]), int(settings["env.max_turns"])
    told = alarms(history, weights, group_size=group_size, max_turns=max_turns)
    return next((alarm.message for alarm in told if alarm.name == name), None)


def group_advice(lines: Lines, settings: Mapping[str, str]) -> str | None:
    """What the share of groups that carried a signal says about algorithm.group_size; None before there are steps."""
    last = [line for line in lines if "group/zero_gradient" in line and "rollout/solved" in line][-RECENT_STEPS:]
    if not last:
        return None
    size = int(settings["algorithm.group_size"])
    dead, solved = (sum(line[name] for line in last) / len(last) for name in ("group/zero_gradient", "rollout/solved"))
    told = (
        f"In the last {len(last)} steps {1 - dead:.0%} of the groups carried a signal, at a solve rate of {solved:.2f}."
    )
    if dead < 0.5:
        return f"{told} algorithm.group_size={size} is large enough."
    if solved >= MOSTLY_SOLVED:
        return f"{told} Most tasks are solved by every sibling: harder tasks would teach more than larger groups."
    if solved == 0:
        return f"{told} Nothing is ever solved: larger groups will not help, easier tasks or a better start would."
    expected = ", ".join(f"{1 - no_signal_share(solved, n):.0%} at {n}" for n in (size, 2 * size, 4 * size))
    return f"{told} Were all tasks alike, {expected} would be expected: raise algorithm.group_size."


def sample(folder: Path, episodes: Sequence[Episode], limit: int) -> tuple[list[Episode], dict[str, str]]:
    """Whole groups, evenly over the run, as many as fit `limit` bytes; and their images as data URIs by path."""
    by_group: dict[tuple[int, str, str], list[Episode]] = {}
    for episode in episodes:
        by_group.setdefault((episode["step"], episode["split"], episode["task"]), []).append(episode)
    groups = [by_group[key] for key in sorted(by_group)]
    uris: dict[str, str] = {}
    count = len(groups)
    while count > 0:
        shown = [episode for index in evenly(len(groups), count) for episode in groups[index]]
        paths = sorted({path for episode in shown for turn in episode["turns"] for path in turn["images"]})
        images = {path: uri for path in paths if (uri := _data_uri(folder, path, uris))}
        size = sum(len(json.dumps(episode)) for episode in shown) + sum(map(len, images.values()))
        if size <= limit:
            return shown, images
        count = min(count - 1, count * limit // size)
    return [], {}


def evenly(length: int, count: int) -> list[int]:
    """`count` of the indices 0..length-1 at even distances, first and last included where count allows."""
    if count == 1:
        return [length - 1]
    return [round(index * (length - 1) / (count - 1)) for index in range(count)]


def _data_uri(folder: Path, path: str, known: dict[str, str]) -> str | None:
    """None where the file is missing: a run folder may have been copied without its images."""
    if path not in known and (folder / path).is_file():
        known[path] = "data:image/png;base64," + base64.b64encode((folder / path).read_bytes()).decode()
    return known.get(path)
