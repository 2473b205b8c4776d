"""One HTML file that shows a run: settings, curves, alarms, and its sampled episodes turn by turn.

The page gets its data as JSON and inserts every text as text, since replies are whatever a model wrote; a policy in
its head forbids it to load anything. Episodes are kept in whole groups, evenly over the run, up to a size limit.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import yaml

from grpo import report_sweep
from grpo.redact import redact
from grpo.report_data import columns, flatten, group_advice, json_if_there, lines_if_there, raised_alarms, sample
from grpo.report_page import write
from grpo.report_panels import sections
from grpo.report_sweep import SWEEP_FILE
from grpo.tracking import METRICS_FILE, ROLLOUTS_FILE

EPISODE_BYTES = 3_000_000
"""Limit for the sampled episodes of a page, images as base64 included."""
_LONGEST_PROVENANCE = 300
"""Characters; a diff of changed files belongs to run.json, not to the page."""

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


def build(folder: Path) -> Path:
    """Write `report.html` into the folder of a run or a sweep, finished or not, and return its path.

    Raises FileNotFoundError where `folder` is neither, ValueError where a file in it is damaged.
    """
    if (folder / SWEEP_FILE).is_file():
        return write(folder, "sweep.js", report_sweep.payload(folder))
    if not (folder / "config.yaml").is_file():
        raise FileNotFoundError(
            f"{folder} holds no config.yaml and no {SWEEP_FILE}, so it is neither a run's folder nor a sweep's; "
            "give outputs/<name>/<date_time>"
        )
    return write(folder, "page.js", payload(folder))


def payload(folder: Path) -> dict[str, Any]:
    """Everything that the page shows, as JSON values."""
    # Every scalar stays as it is written in the file: the report shows settings and computes nothing from them.
    config = redact(yaml.load((folder / "config.yaml").read_text(encoding="utf-8"), Loader=yaml.BaseLoader))
    settings = dict(flatten(config))
    lines = lines_if_there(folder / METRICS_FILE)
    steps, series = columns(lines)
    episodes = lines_if_there(folder / ROLLOUTS_FILE)
    shown, images = sample(folder, episodes, EPISODE_BYTES)
    summary = json_if_there(folder / "summary.json")
    return {
        "title": settings["name"],
        "model": settings["model.name_or_path"],
        "algorithm": settings["algorithm.name"],
        "steps_done": steps[-1] if steps else 0,
        "steps_planned": settings["runtime.steps"],
        "key_settings": [[label, settings[key]] for key, label in _KEY_SETTINGS.items() if key in settings],
        "settings": list(settings.items()),
        "provenance": [
            [key, str(value)[:_LONGEST_PROVENANCE]] for key, value in flatten(json_if_there(folder / "run.json"))
        ],
        "group_advice": group_advice(lines, settings),
        "evaluation": _evaluation(folder),
        "closing": _closing_table(summary.get("rows", [])),
        "seconds": summary.get("seconds"),
        "tokens_per_second": summary.get("tokens_per_second"),
        "steps": steps,
        "series": {name: values for name, values in series.items() if not name.startswith("alarm/")},
        "sections": [asdict(section) for section in sections(series)],
        "alarms": raised_alarms(lines, settings),
        "episodes": shown,
        "episodes_total": len(episodes),
        "images": images,
    }


def _evaluation(folder: Path) -> dict[str, Any] | None:
    """The newest result of scripts/evaluate.py."""
    results = sorted(folder.glob("eval/*/result.json"))
    if not results:
        return None
    found = json_if_there(results[-1])
    samples, temperature = found["samples"], found["temperature"]
    head = ["policy", "solved, greedy", f"solved, T={temperature:g}", f"pass@{samples}", "reward", "turns", "tokens"]
    rows = []
    for policy in found["policies"]:
        greedy, sampled = policy["greedy"], policy["sampled"]
        names = ("reward/total/mean", "rollout/turns", "rollout/completion_tokens")
        shown = [greedy["rollout/solved"], sampled["rollout/solved"], policy["pass_at"][str(samples)]]
        rows.append([policy["name"], *map(_cell, (*shown, *(sampled.get(name) for name in names)))])
    verdicts = [
        {
            "name": policy["name"],
            "judgement": policy["comparison"]["judgement"],
            "reason": f"against {found['reference']}: {policy['comparison']['reason']}",
        }
        for policy in found["policies"]
        if policy["comparison"] is not None
    ]
    tasks = f"{len(found['tasks'])} test tasks, {samples} samples of each"
    return {"columns": head, "rows": rows, "verdicts": verdicts, "tasks": tasks}


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
