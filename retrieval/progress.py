"""Plans and progress of long work, on standard error."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import TypeVar

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    Task,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Table
from rich.text import Text

T = TypeVar("T")


class _Rate(ProgressColumn):
    """Steps a second."""

    def render(self, task: Task) -> Text:
        return Text("" if task.speed is None else f"{task.speed:.2f}/s")


QUIET_SECONDS = 30.0  # between two lines where standard error is no terminal


def plan(title: str, rows: Mapping[str, str]) -> None:
    """Prints what is about to be done and what it will cost."""
    table = Table(title=title, show_header=False, title_justify="left")
    for name, value in rows.items():
        table.add_row(name, value)
    Console(stderr=True).print(table)


def progress(steps: Sequence[T], description: str) -> Iterator[T]:
    """Goes through ``steps`` under a bar with rate and time left; in a log file, a line now and then."""
    if not sys.stderr.isatty():
        yield from _lines(steps, description)
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        _Rate(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as bars:
        yield from bars.track(steps, description=description)


def _lines(steps: Sequence[T], description: str) -> Iterator[T]:
    start = last = time.monotonic()
    for number, step in enumerate(steps):
        now = time.monotonic()
        if now - last >= QUIET_SECONDS and number:
            last = now
            rate = number / (now - start)
            left = (len(steps) - number) / rate
            print(f"{description}: {number}/{len(steps)}, {rate:.2f}/s, {left:.0f} s left", file=sys.stderr, flush=True)
        yield step
