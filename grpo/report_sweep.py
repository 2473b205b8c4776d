"""What the page of a sweep shows: every trial in a table and as a line, and each one's curves and a few episodes.

Sizes are shared out among the trials, so that a page of hundreds of them still opens at once; the full curves and all
sampled episodes are in each trial's own report.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import yaml

from grpo.redact import redact
from grpo.report_data import columns, evenly, flatten, json_if_there, lines_if_there, raised_alarms, sample
from grpo.report_panels import sections
from grpo.tracking import METRICS_FILE, ROLLOUTS_FILE

SWEEP_FILE = "sweep.json"
EPISODE_BYTES = 8_000_000
"""Of all trials together, images as base64 included."""
POINTS = 1_000_000
"""Numbers in the curves of all trials together, some 9 bytes each."""
MOST_STEPS = 120
"""Of one trial's curves."""
_LAST = 5
"""Steps that a figure of training is the mean of."""
_FIGURES = {
    "rollout/solved": "solved, training",
    "reward/total/mean": "reward",
    "policy/kl": "KL",
    "rollout/completion_tokens": "tokens",
    "group/zero_gradient": "no signal",
}


def payload(folder: Path) -> dict[str, Any]:
    """Everything that the page shows, as JSON values."""
    records = json_if_there(folder / SWEEP_FILE)["trials"]
    swept = list(dict.fromkeys(word.partition("=")[0] for record in records for word in record["overrides"]))
    limit = EPISODE_BYTES // max(1, len(records))
    trials = [_trial(folder / record["folder"], record, limit) for record in records]
    points = sum(len(trial["series"]) for trial in trials) or 1
    for trial in trials:
        _thin(trial, min(MOST_STEPS, max(2, POINTS // points)))
    metrics = dict.fromkeys(name for trial in trials for name in trial["series"])
    return {
        "title": folder.name,
        "swept": swept,
        "figures": list(dict.fromkeys(name for trial in trials for name in trial["figures"])),
        "sections": [asdict(section) for section in sections(metrics)],
        "trials": trials,
    }


def _trial(folder: Path, record: Mapping[str, Any], limit: int) -> dict[str, Any]:
    lines = lines_if_there(folder / METRICS_FILE)
    steps, series = columns(lines)
    episodes = lines_if_there(folder / ROLLOUTS_FILE)
    shown, images = sample(folder, episodes, limit)
    settings = _settings(folder)
    return {
        "name": record["folder"],
        "words": {key: value for key, _, value in (word.partition("=") for word in record["overrides"])},
        "state": record["state"],
        "reason": record["reason"],
        "report": f"{record['folder']}/report.html" if (folder / "report.html").is_file() else None,
        "figures": _figures(folder, record, lines),
        "steps": steps,
        "series": {name: values for name, values in series.items() if not name.startswith("alarm/")},
        "alarms": raised_alarms(lines, settings) if settings else [],
        "episodes": shown,
        "episodes_total": len(episodes),
        "images": images,
    }


def _settings(folder: Path) -> dict[str, Any]:
    file = folder / "config.yaml"
    if not file.is_file():
        return {}
    return dict(flatten(redact(yaml.load(file.read_text(encoding="utf-8"), Loader=yaml.BaseLoader))))


def _figures(folder: Path, record: Mapping[str, Any], lines: Sequence[Mapping[str, Any]]) -> dict[str, float | None]:
    """Numbers by which trials are compared: the objective, the test split, and the end of training."""
    tested = json_if_there(folder / "summary.json").get("rows", [])
    found: dict[str, float | None] = {"objective": record["objective"]}
    for row in tested:
        if row["policy"] == "trained":
            found[f"test, {row['decoding']}"] = row["solved"]
    for metric, name in _FIGURES.items():
        last = [line[metric] for line in lines if metric in line and line["step"] > 0][-_LAST:]
        if last:
            found[name] = sum(last) / len(last)
    raised = {name for line in lines for name, value in line.items() if name.startswith("alarm/") and value}
    return found | {"alarms": len(raised), "seconds": record["seconds"]}


def _thin(trial: dict[str, Any], steps: int) -> None:
    """Keep so many steps of the curves, evenly, and all at which something was evaluated."""
    if len(trial["steps"]) <= steps:
        return
    evaluated = {
        index
        for name, values in trial["series"].items()
        if name.startswith("eval/")
        for index, value in enumerate(values)
        if value is not None
    }
    kept = sorted({*evenly(len(trial["steps"]), steps), *(evaluated if len(evaluated) <= steps else ())})
    trial["steps"] = [trial["steps"][index] for index in kept]
    trial["series"] = {name: [values[index] for index in kept] for name, values in trial["series"].items()}
