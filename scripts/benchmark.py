"""Side-by-side figures of this machine: ours and others' on the same work, in one run.

    python scripts/benchmark.py rollouts
    python scripts/benchmark.py step --trl-python VENV/bin/python
    python scripts/benchmark.py checkpoint
    python scripts/benchmark.py maze --visgym CHECKOUT --visgym-python VENV/bin/python
    python scripts/benchmark.py rewards
    python scripts/benchmark.py launch
    python scripts/benchmark.py train --seeds 0,1,2
    python scripts/benchmark.py all --output benchmark.json

Others are left out where no interpreter for them is given; the output then says how to make one. Trailing words are
overrides as on train.py's command line. Ratios are of CPU seconds: other work on the machine stretches only the wall.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from importlib import import_module
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
# Where Hydra looks for the sweep launcher that conf/ names.
sys.path.append(f"{sys.path[0]}/launchers/plugin")

from rich.console import Console
from rich.table import Table

from grpo.faults import ConfigError
from scripts.benchmarks.measure import Figure, Result, machine

BENCHMARKS = {
    "rollouts": "rollouts over a kept cache against model.generate over the whole history",
    "step": "one GRPO step against TRL's GRPOTrainer",
    "maze": "the maze environment against VisGym's",
    "rewards": "evaluations of each reward term",
    "manifest": "a manifest of a million rows",
    "checkpoint": "what saving costs, as a share of the steps between two saves",
    "launch": "what a trial on a Ray cluster costs beside its own work",
    "startup": "how soon train.py answers",
    "train": "the whole main job: time, memory, solved",
}
"""Each is a module of scripts/benchmarks/, loaded when it is its turn: torch takes seconds."""


def main(arguments: Sequence[str]) -> int:
    """The exit code: 0 done, 1 a benchmark failed (the others are still shown), 2 the overrides are wrong."""
    options = parse(arguments)
    # In a file or a pipe, rich would squeeze the table into 80 columns.
    console = Console(width=None if sys.stdout.isatty() else 120)
    names = list(BENCHMARKS) if options.benchmark == "all" else [options.benchmark]
    about = machine()
    results, failed = [], []
    for name in names:
        console.print(f"{name}: {BENCHMARKS[name]} …", highlight=False)
        try:
            results.append(import_module(f"scripts.benchmarks.{name}").measure(options))
        except ConfigError as error:
            sys.stderr.write(f"{error}\n")
            return 2
        except RuntimeError as error:
            console.print(f"{name} failed: {error}", markup=False, highlight=False, style="red")
            failed.append(name)
        if options.output:
            content = {"machine": about, "results": [asdict(result) for result in results], "failed": failed}
            options.output.write_text(json.dumps(content, indent=2) + "\n")
    if results:
        show(about, results, console)
    if options.output:
        console.print(f"written: {options.output}", highlight=False, soft_wrap=True)
    return 1 if failed else 0


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    subparsers = parser.add_subparsers(dest="benchmark", required=True, metavar="BENCHMARK")
    for name in (*BENCHMARKS, "all"):
        text = BENCHMARKS.get(name, "everything that the given options allow")
        options = subparsers.add_parser(name, help=text, description=text)
        _add_options(options, name)
    parsed = parser.parse_args(arguments)
    if vars(parsed).get("visgym") and not parsed.visgym_python:
        parser.error("--visgym wants --visgym-python too: VisGym occupies the name gymnasium, so it needs its own")
    return parsed


def _add_options(parser: argparse.ArgumentParser, name: str) -> None:
    def option(flag: str, of: Sequence[str], **settings: Any) -> None:
        if name in of or name == "all":
            parser.add_argument(flag, **settings)

    parser.add_argument("--output", type=Path, metavar="FILE", help="write everything measured as JSON")
    learning = ("rollouts", "step", "checkpoint", "train")
    option("words", learning, nargs="*", metavar="key=value", help="overrides, as on train.py's command line")
    option(
        "--model", learning, default="models/tiny_qwen3_vl", metavar="FOLDER", help="default: the shipped tiny model"
    )
    option(
        "--repeats",
        ("rollouts", "maze", "rewards", "launch"),
        type=int,
        default=3,
        metavar="N",
        help="medians are of so many runs (3)",
    )
    option("--episodes", ("rollouts",), type=int, default=64, metavar="N", help="played on each side (64)")
    option("--steps", ("step", "checkpoint"), type=int, default=3, metavar="N", help="GRPO steps on each side (3)")
    option("--trl-python", ("step",), metavar="PYTHON", help="interpreter that has TRL")
    option("--mazes", ("maze",), type=int, default=1000, metavar="N", help="new mazes for each figure (1000)")
    option("--visgym", ("maze",), type=Path, metavar="CHECKOUT", help="checkout of github.com/visgym/VisGym")
    option("--visgym-python", ("maze",), metavar="PYTHON", help="interpreter that has what VisGym needs")
    option("--evaluations", ("rewards",), type=int, default=20_000, metavar="N", help="of each term (20000)")
    option("--rows", ("manifest",), type=int, default=1_000_000, metavar="N", help="of the manifest (1000000)")
    option("--trials", ("launch",), type=int, default=10, metavar="N", help="of each side and repeat (10)")
    option("--many", ("launch",), type=int, default=200, metavar="N", help="trials of the long sweep (200)")
    option("--seeds", ("train",), type=_seeds, default=[0], metavar="0,1,2", help="one main job each (0)")


def _seeds(text: str) -> list[int]:
    return [int(word) for word in text.split(",")]


def show(about: dict[str, Any], results: Sequence[Result], console: Console) -> None:
    where = f"{about['processor']}, {about['cores']} cores, {about['memory_gib']} GiB, Python {about['python']}"
    table = Table(title=f"{about['date']}  {where}", title_justify="left")
    for heading in ("", "unit", "ours", "other", "times better", "goal", ""):
        table.add_column(heading, justify="right" if heading in ("ours", "other", "times better", "goal") else "left")
    for result in results:
        table.add_section()
        peer = f" against {result.peer}" if result.peer else ""
        table.add_row(f"[bold]{result.name}{peer}[/bold]")
        for figure in result.figures:
            table.add_row(*_cells(figure))
    console.print(table)
    for result in results:
        for remark in result.remarks:
            console.print(f"{result.name}: {remark}", markup=False, highlight=False, soft_wrap=True)
    if about["busy"]:
        console.print(
            f"Busy machine (load {about['load_at_start']} on {about['cores']} cores): the wall seconds are too high.",
            highlight=False,
        )


def _cells(figure: Figure) -> list[str]:
    goal, met = "", ""
    if figure.goal:
        sign = "≥" if figure.goal.sense == "at least" else "≤"
        goal = f"{sign} {figure.goal.value:g}"
        met = {True: "reached", False: "missed", None: ""}[figure.goal.met(figure)]
    peer = "" if figure.peer is None else _number(figure.peer)
    ratio = "" if figure.ratio is None else f"{figure.ratio:.1f}"
    return [figure.name, figure.unit, _number(figure.ours), peer, ratio, goal, met]


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
