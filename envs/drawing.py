"""Distinct tasks out of seeds, for environments that make their tasks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from grpo.types import Task


def distinct(draws: Iterator[Task], count: int) -> Sequence[Task]:
    """`count` tasks of an endless stream, each id once for as long as new ones come.

    A small split may hold fewer than `count` different tasks; after many misses, some are repeated.
    """
    tasks: dict[str, Task] = {}
    repeats: list[Task] = []
    misses_left = 200 + 20 * count
    while len(tasks) + len(repeats) < count:
        task = next(draws)
        if task.id not in tasks:
            tasks[task.id] = task
        elif misses_left > 0:
            misses_left -= 1
        else:
            repeats.append(task)
    return (*tasks.values(), *repeats)
