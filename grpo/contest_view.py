"""The tables and files of an evaluation."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.table import Column, Table

from grpo.checkpoint import write_json
from grpo.config import RunConfig, to_yaml
from grpo.contest import Contest, Result, record
from grpo.verdict import tasks_needed

RESULT_FILE, TABLE_FILE = "result.json", "table.txt"
_WIDTH = 118
"""Columns of the saved table, and of one whose output is no terminal."""


def show(
    results: Sequence[Result], contest: Contest, reachable: float | None, reference: str, notes: Sequence[str]
) -> str:
    """Print tables, notes and verdicts, and return them as text; `reachable` is the share that the turns allow."""
    console = Console(record=True)
    if not console.is_terminal:
        console = Console(record=True, width=_WIDTH)
    ceiling = "" if reachable is None else f"; {reachable:.1%} of them can be solved in the turns allowed"
    console.print(f"{len(contest.tasks)} test tasks, {contest.samples} samples of each{ceiling}")
    console.print(_figures(results, contest))
    if any(result.drift for result in results):
        console.print(_drifts(results))
    for line in (*notes, *_notes(results), *_verdicts(results, reference)):
        console.print(line, markup=False, highlight=False, soft_wrap=True)
    return console.export_text()


def _notes(results: Sequence[Result]) -> Iterator[str]:
    """What makes figures doubtful."""
    for result in results:
        played = result.played
        if played.says_nothing:
            yield (
                f"{result.name}: every reply is empty; where the server keeps a model's reasoning apart, raise "
                "algorithm.max_completion_tokens or turn its reasoning parser off"
            )
        elif played.never_varies and not played.errors:
            yield (
                f"{result.name}: every sampled reply is the greedy one; either it is sure of each, or its server does "
                "not apply the temperature (transformers serve does not, where generation_config.json lacks do_sample)"
            )
        if played.errors:
            yield (
                f"{result.name}: {len(played.errors)} of {played.episodes} episodes ended in an error and count as "
                f"unsolved; the first: {played.errors[0]}"
            )


def _verdicts(results: Sequence[Result], reference: str) -> Iterator[str]:
    compared = [(result, result.comparison) for result in results if result.comparison is not None]
    for result, comparison in compared:
        yield f"{result.name}: {comparison.judgement} against {reference}: {comparison.reason}"
    if not compared:
        yield f"{reference} by itself: nothing to compare it with, so there is no verdict"
        return
    tasks, needed = len(results[0].played.greedy.rollouts), tasks_needed(len(compared))
    if tasks < needed:
        yield f"{tasks} tasks are too few to tell any change from chance; use --tasks {needed} or more"


def _figures(results: Sequence[Result], contest: Contest) -> Table:
    terms, k = list(contest.mixture.terms), contest.samples
    table = Table(Column("policy", overflow="fold"), box=None, padding=(0, 1), pad_edge=False)
    for heading in ("decoding", "solved", "95 %", f"pass@{k}", "reward", *terms, "turns", "tokens", "invalid"):
        table.add_column(heading.replace("_", " "), justify="right")
    for result in results:
        greedy, sampled = result.played.greedy, result.played.sampled
        low, high = greedy.interval
        rows = (
            (greedy, result.name, "greedy", f"{low:.2f}-{high:.2f}", ""),
            (sampled, "", f"T={contest.temperature:g}", "", f"{sampled.pass_at(k):.3f}"),
        )
        for evaluation, name, decoding, interval, pass_at in rows:
            metrics = evaluation.metrics
            table.add_row(
                escape(name),
                decoding,
                f"{evaluation.solved:.3f}",
                interval,
                pass_at,
                _number(metrics.get("reward/total/mean")),
                *(_number(metrics.get(f"reward/{term}/mean")) for term in terms),
                f"{metrics['rollout/turns']:.1f}",
                f"{metrics['rollout/completion_tokens']:.1f}",
                f"{metrics['rollout/invalid_actions']:.2f}",
            )
    return table


def _drifts(results: Sequence[Result]) -> Table:
    table = Table(
        Column("regression prompts, against the first", overflow="fold"),
        box=None,
        padding=(0, 1),
        pad_edge=False,
    )
    kinds = list(dict.fromkeys(kind for result in results for kind in result.drift or ()))
    for kind in kinds:
        table.add_column(f"{kind}: KL", justify="right")
        table.add_column("changed", justify="right")
    for result in results:
        if result.drift is not None:
            cells = [
                cell
                for drift in result.drift.values()
                for cell in (_number(drift.kl), f"{drift.changed} of {drift.prompts}")
            ]
            table.add_row(escape(result.name), *cells)
    return table


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"


def write(
    folder: Path, results: Sequence[Result], contest: Contest, run: RunConfig, reference: str, table: str
) -> None:
    """`result.json` with every figure, `table.txt` as it was shown, and the config that all played by."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / TABLE_FILE).write_text(table, encoding="utf-8")
    (folder / "config.yaml").write_text(to_yaml(run), encoding="utf-8")
    content = {
        "reference": reference,
        "tasks": [task.id for task in contest.tasks],
        "samples": contest.samples,
        "temperature": contest.temperature,
        "policies": [record(result, contest.samples) for result in results],
    }
    write_json(folder / RESULT_FILE, content)
