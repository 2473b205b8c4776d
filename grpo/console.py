"""What the person at the terminal sees: bars for long work, a line a step, a table at the end.

Lines are log records: whatever the project logs reaches the terminal and train.log alike. Bars are left out where the
output is no terminal.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import rich.console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from grpo.alarms import Alarm
from grpo.redact import hide

log = logging.getLogger(__name__)


class Console:
    def __init__(self, steps: int) -> None:
        self._steps = steps
        self._rich = rich.console.Console()
        self._raised: set[str] = set()

    @contextmanager
    def progress(self, what: str) -> Iterator[Callable[[int, int], None]]:
        """A bar that is gone when the work is done; the block calls it with (done, total)."""
        columns = (TextColumn("{task.description:>12}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        with Progress(*columns, console=self._rich, transient=True, disable=not self._rich.is_terminal) as bar:
            task = bar.add_task(what, total=None)
            yield lambda done, total: bar.update(task, completed=done, total=total)

    def step(self, step: int, metrics: Mapping[str, float], raised: Sequence[Alarm]) -> None:
        parts = [
            f"step {step:>{len(str(self._steps))}}/{self._steps}",
            f"reward {metrics['reward/total/mean']:.3f}",
            f"solved {metrics['rollout/solved']:.3f}",
            f"no signal {metrics['group/zero_gradient']:.0%}",
            f"loss {metrics['policy/loss']:+.4f}",
            f"grad {metrics['policy/grad_norm']:.3f}",
            f"turns {metrics['rollout/turns']:.1f}",
            f"{metrics['perf/step_seconds']:.1f} s",
            f"{metrics['perf/tokens_per_second']:,.0f} tokens/s",
        ]
        if "eval/all/pass_at_1" in metrics:
            greedy, sampled = metrics["eval/all/pass_at_1"], metrics["eval/all/solved_sampled"]
            parts.append(f"validation solved {greedy:.3f} greedy, {sampled:.3f} sampled")
        log.info("  ".join(parts))
        for alarm in raised:
            # Said when it comes up, not after every step that it stays up; metrics.jsonl has them all.
            if alarm.name not in self._raised:
                log.warning("ALARM %s: %s", alarm.name, alarm.message)
        self._raised = {alarm.name for alarm in raised}

    @contextmanager
    def logging_to(self, file: Path) -> Iterator[None]:
        """Within this context the project's log records are printed and appended to `file`."""
        written = _Written(file)
        written.setFormatter(_Safe("%(asctime)s %(levelname)s %(name)s: %(message)s"))
        logger = logging.getLogger("grpo")
        logger.setLevel(logging.INFO)
        handlers = (written, _Printed(self._rich))
        for handler in handlers:
            logger.addHandler(handler)
        try:
            yield
        finally:
            for handler in handlers:
                logger.removeHandler(handler)
            written.close()

    def closing_table(self, summary: Mapping[str, Any]) -> None:
        """Start policy and trained policy side by side, from what goes into summary.json."""
        rows = summary["rows"]
        table = Table(
            box=None,  # with rules between the columns it would not fit 80 characters
            padding=(0, 1),
            pad_edge=False,
            title="Test split: tasks that neither training nor validation has seen",
            caption=f"{rows[0]['episodes']} episodes a row; {summary['tokens_per_second']:,.0f} tokens/s sampled in "
            f"training; {summary['seconds']:.0f} s in all",
        )
        table.add_column("policy", no_wrap=True)
        for heading in ("solved (95 %)", "reward", *rows[0]["terms"], "turns"):
            table.add_column(heading.replace("_", " "), justify="right", no_wrap=True)
        for row in rows:
            table.add_row(
                f"{row['policy']} {row['decoding']}",
                f"{row['solved']:.3f} ({row['low']:.2f}-{row['high']:.2f})",
                f"{row['reward']:.3f}",
                *("-" if value is None else f"{value:.3f}" for value in row["terms"].values()),
                f"{row['turns']:.1f}",
            )
        self._rich.print(table)


class _Safe(logging.Formatter):
    """Writes records, tracebacks included, without the environment's secrets."""

    def format(self, record: logging.LogRecord) -> str:
        return hide(super().format(record))


class _Written(logging.FileHandler):
    """Appends records to a file, and stays silent where the disk takes nothing: the run's next record will say it."""

    def handleError(self, record: logging.LogRecord) -> None:
        if not isinstance(sys.exception(), OSError):
            super().handleError(record)

    def close(self) -> None:
        # It tries once more to write what is left over.
        with suppress(OSError):
            super().close()


class _Printed(logging.Handler):
    """Prints records above a bar that may be running."""

    def __init__(self, to: rich.console.Console) -> None:
        super().__init__()
        self._to = to

    def emit(self, record: logging.LogRecord) -> None:
        # An exception is told once, by whoever ends the program; its trace is in the file.
        if record.exc_info is None:
            self._to.print(hide(record.getMessage()), highlight=False, markup=False, soft_wrap=True)
