"""One HTML file that shows a run: settings, curves, alarms, and its sampled episodes turn by turn.

The page gets its data as JSON and inserts every text as text, since replies are whatever a model wrote; a policy in
its head forbids it to load anything. Episodes are kept in whole groups, evenly over the run, up to a size limit.
"""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import yaml

from grpo.redact import redact
from grpo.report_panels import sections
from grpo.tracking import METRICS_FILE, ROLLOUTS_FILE, read_lines

REPORT_FILE = "report.html"
EPISODE_BYTES = 3_000_000
"""Limit for the sampled episodes of a page, images as base64 included."""
_DIGITS = 7
"""Significant digits of a number in the page: what float32 holds."""
_LONGEST_PROVENANCE = 300
"""Characters; a diff of changed files belongs to run.json, not to the page."""

_ASSETS = Path(__file__).parent / "report_assets"
_KEY_SETTINGS = {
    "env._target_": "env",
    "env.max_turns": "turn limit",
    "algorithm.group_size": "group size",
    "algorithm.prompts_per_step": "tasks a step",
    "algorithm.learning_rate": "learning rate",
    "algorithm.kl_coefficient": "KL coefficient",
    "algorithm.temperature": "temperature",
    "adapter.rank": "LoRA rank",
    "engine.name": "engine",
    "cluster.name": "cluster",
    "runtime.seed": "seed",
}

Episode = Mapping[str, Any]
"""A line of rollouts.jsonl."""


def build(folder: Path) -> Path:
    """Write `report.html` into a run folder, finished or not, and return its path.

    Raises FileNotFoundError where `folder` is no run folder, ValueError where a file in it is damaged.
    """
    if not (folder / "config.yaml").is_file():
        raise FileNotFoundError(
            f"{folder} holds no config.yaml, so it is no run folder; give outputs/<name>/<date_time>"
        )
    page = _fill((_ASSETS / "page.html").read_text(encoding="utf-8"), payload(folder))
    path = folder / REPORT_FILE
    aside = path.with_suffix(".html.tmp")
    aside.write_text(page, encoding="utf-8")
    aside.replace(path)
    return path


def _fill(template: str, data: Mapping[str, Any]) -> str:
    """The template with the styles, scripts and data in place of its `{{name}}` marks."""
    # In a script element only `<` can end it or open a comment; JSON allows the escape.
    escaped = json.dumps(data, allow_nan=False).replace("<", "\\u003c")
    names = ("uplot.min.css", "page.css", "uplot.min.js", "dom.js", "charts.js", "viewer.js", "page.js")
    parts = {name: (_ASSETS / name).read_text(encoding="utf-8") for name in names}
    # The data comes last, or a reply that holds one of the marks would be filled in too.
    for name, part in (parts | {"data": escaped}).items():
        template = template.replace("{{" + name + "}}", part)
    return template


def payload(folder: Path) -> dict[str, Any]:
    """Everything that the page shows, as JSON values."""
    # Every scalar stays as it is written in the file: the report shows settings and computes nothing from them.
    config = redact(yaml.load((folder / "config.yaml").read_text(encoding="utf-8"), Loader=yaml.BaseLoader))
    settings = dict(_flatten(config))
    steps, series = _columns(_lines_if_there(folder / METRICS_FILE))
    episodes = _lines_if_there(folder / ROLLOUTS_FILE)
    shown, images = _sample(folder, episodes)
    summary = _json_if_there(folder / "summary.json")
    return {
        "title": settings["name"],
        "model": settings["model.name_or_path"],
        "algorithm": settings["algorithm.name"],
        "steps_done": steps[-1] if steps else 0,
        "steps_planned": settings["runtime.steps"],
        "key_settings": [[label, settings[key]] for key, label in _KEY_SETTINGS.items() if key in settings],
        "settings": list(settings.items()),
        "provenance": [
            [key, str(value)[:_LONGEST_PROVENANCE]] for key, value in _flatten(_json_if_there(folder / "run.json"))
        ],
        "closing": _closing_table(summary.get("rows", [])),
        "seconds": summary.get("seconds"),
        "tokens_per_second": summary.get("tokens_per_second"),
        "steps": steps,
        "series": {name: values for name, values in series.items() if not name.startswith("alarm/")},
        "sections": [asdict(section) for section in sections(series)],
        "alarms": _alarms(steps, series),
        "episodes": shown,
        "episodes_total": len(episodes),
        "images": images,
    }


def _lines_if_there(path: Path) -> list[dict[str, Any]]:
    return list(read_lines(path)) if path.exists() else []


def _json_if_there(path: Path) -> dict[str, Any]:
    if not path.exists():
        return {}
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except json.JSONDecodeError as error:
        raise ValueError(f"{path} is not JSON ({error}); remove it to build the report without it") from error


def _flatten(tree: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Dotted key and scalar of every leaf; a list counts as one."""
    for key, value in tree.items():
        if isinstance(value, Mapping):
            yield from _flatten(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def _columns(lines: Sequence[Mapping[str, Any]]) -> tuple[list[int], dict[str, list[float | None]]]:
    """One list a metric, over the steps of all lines; None where a line does not have it."""
    names = dict.fromkeys(name for line in lines for name in line if name != "step")
    series = {name: [_rounded(line[name]) if name in line else None for line in lines] for name in names}
    return [line["step"] for line in lines], series


def _rounded(value: float) -> float:
    if not math.isfinite(value):
        raise ValueError(f"metrics.jsonl holds {value}, which is no finite number; remove that metric from its line")
    return float(f"{value:.{_DIGITS}g}")


def _alarms(steps: Sequence[int], series: Mapping[str, Sequence[float | None]]) -> list[dict[str, Any]]:
    """Every alarm that was raised, with the stretches of steps [first, last] in which it was."""
    found = []
    for name, values in series.items():
        if not name.startswith("alarm/"):
            continue
        spans: list[list[int]] = []
        raised_before = False
        for step, value in zip(steps, values, strict=True):
            raised = value is not None and value != 0
            if raised and raised_before:
                spans[-1][1] = step
            elif raised:
                spans.append([step, step])
            raised_before = raised
        if spans:
            found.append({"name": name.removeprefix("alarm/"), "spans": spans})
    return found


def _closing_table(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any] | None:
    if not rows:
        return None
    terms = list(dict.fromkeys(term for row in rows for term in row["terms"]))
    columns = [
        "policy",
        "decoding",
        "solved",
        "95 % interval",
        "episodes",
        "reward",
        *terms,
        "turns",
        "invalid actions",
    ]
    cells = [
        [
            row["policy"],
            row["decoding"],
            f"{row['solved']:.3f}",
            f"{row['low']:.3f} to {row['high']:.3f}",
            str(row["episodes"]),
            f"{row['reward']:.3f}",
            *(_cell(row["terms"].get(term)) for term in terms),
            f"{row['turns']:.2f}",
            f"{row['invalid_actions']:.2f}",
        ]
        for row in rows
    ]
    return {"columns": columns, "rows": cells}


def _cell(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"


def _sample(folder: Path, episodes: Sequence[Episode]) -> tuple[list[Episode], dict[str, str]]:
    """Whole groups, evenly over the run, as many as fit `EPISODE_BYTES`; and their images as data URIs by path."""
    by_group: dict[tuple[int, str, str], list[Episode]] = {}
    for episode in episodes:
        by_group.setdefault((episode["step"], episode["split"], episode["task"]), []).append(episode)
    groups = [by_group[key] for key in sorted(by_group)]
    uris: dict[str, str] = {}
    count = len(groups)
    while count > 0:
        shown = [episode for index in _evenly(len(groups), count) for episode in groups[index]]
        paths = sorted({path for episode in shown for turn in episode["turns"] for path in turn["images"]})
        images = {path: uri for path in paths if (uri := _data_uri(folder, path, uris))}
        size = sum(len(json.dumps(episode)) for episode in shown) + sum(map(len, images.values()))
        if size <= EPISODE_BYTES:
            return shown, images
        count = min(count - 1, count * EPISODE_BYTES // size)
    return [], {}


def _evenly(length: int, count: int) -> list[int]:
    """`count` of the indices 0..length-1 at even distances, first and last included where count allows."""
    if count == 1:
        return [length - 1]
    return [round(index * (length - 1) / (count - 1)) for index in range(count)]


def _data_uri(folder: Path, path: str, known: dict[str, str]) -> str | None:
    """None where the file is missing: a run folder may have been copied without its images."""
    if path not in known and (folder / path).is_file():
        known[path] = "data:image/png;base64," + base64.b64encode((folder / path).read_bytes()).decode()
    return known.get(path)
