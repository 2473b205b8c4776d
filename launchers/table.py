"""What a person sees of a sweep: its trials while they run, and the closing table."""

from __future__ import annotations

import csv
import dataclasses
import json
import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

from rich.console import Console
from rich.table import Column, Table

from launchers.record import TrialRecord, read


def plainly(console: Console) -> Callable[[str], None]:
    """Prints a line as it is: a server's words may hold brackets, and addresses are copied whole."""
    return partial(console.print, markup=False, highlight=False, soft_wrap=True)


def told(record: TrialRecord) -> str:
    """A trial's state in one line."""
    outcome = record.reason if record.objective is None else f"objective {record.objective:.4f}"
    time_taken = f" in {record.seconds:.0f} s" if record.seconds is not None else ""
    return f"{' '.join([*record.overrides, record.state])}{time_taken}: {outcome}"


def live(records: Sequence[TrialRecord], last_lines: Mapping[str, str]) -> Table:
    """The trials that are under way, by folder, with the last thing they said."""
    done = sum(record.state == "finished" for record in records)
    table = Table("trial", "overrides", "state", "says", title=f"{done} of {len(records)} finished")
    for record in records:
        if record.folder in last_lines:
            said = record.reason or last_lines[record.folder]
            table.add_row(record.folder, " ".join(record.overrides), record.state, said[:80])
    return table


def finish(sweep: Path, console: Console) -> int:
    """Print the table, best trial first; write it to sweep.csv and table.json. 0 if every trial finished, else 1."""
    records = sorted(read(sweep), key=_rank)
    if not records:
        return 0
    keys = list(dict.fromkeys(key for record in records for key in _settings(record)))
    # Full keys are in the file; in the table `algorithm.group_size` would be broken over three lines.
    short = [key.rsplit(".", 1)[-1] for key in keys]
    headings = short if len(set(short)) == len(short) else keys
    columns = [Column(heading, overflow="fold") for heading in headings]
    table = Table("trial", *columns, "objective", "state", "attempts", "seconds", title=f"sweep {sweep}")
    with (sweep / "sweep.csv").open("w", encoding="utf-8", newline="") as file:
        sheet = csv.writer(file)
        sheet.writerow(["trial", *keys, "objective", "state", "attempts", "seconds", "cause", "reason"])
        for record in records:
            settings = _settings(record)
            cells = [record.folder, *(settings.get(key, "") for key in keys)]
            numbers = ["" if record.objective is None else f"{record.objective:.4f}", record.state]
            seconds = "" if record.seconds is None else f"{record.seconds:.0f}"
            ended = [record.objective, record.state, record.attempts, seconds, record.cause, record.reason]
            sheet.writerow([*cells, *ended])
            table.add_row(*cells, *numbers, str(record.attempts), seconds)
    rows = [{**dataclasses.asdict(record), "settings": _settings(record)} for record in records]
    (sweep / "table.json").write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    console.print(table)
    return 0 if all(record.state == "finished" for record in records) else 1


def _rank(record: TrialRecord) -> float:
    return math.inf if record.objective is None else -record.objective


def _settings(record: TrialRecord) -> Mapping[str, str]:
    pairs = (word.partition("=") for word in record.overrides)
    return {key: value for key, _, value in pairs}
