"""Plans and progress of long work, on standard error."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from datetime import timedelta
from typing import TypeVar

from rich.console import Console
from rich.markup import escape
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

QUIET_SECONDS = 30.0  # between two lines where standard error is no terminal


class _Rate(ProgressColumn):
    """Steps a second, or seconds a step."""

    def render(self, task: Task) -> Text:
        return Text("" if not task.speed else _rate(task.speed))


def plan(title: str, rows: Mapping[str, str]) -> None:
    """Prints what is about to be done and what it will cost.

    Args:
        title: above the rows.
        rows: by name, such as calls, bytes and estimated time with their units.
    """
    table = Table(title=Text(title), show_header=False, title_justify="left")
    for name, value in rows.items():
        table.add_row(Text(name), Text(value))  # plain text: brackets in a name are no markup
    Console(stderr=True).print(table)


def progress(steps: Sequence[T], description: str) -> Iterator[T]:
    """Goes through ``steps`` under a bar with rate and time left; in a log file, a line now and then.

    A line comes after at least half a minute, so short work leaves none; work that left one also says when it is done.
    """
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
        yield from bars.track(steps, description=escape(description))


def _lines(steps: Sequence[T], description: str) -> Iterator[T]:
    start = last = time.monotonic()
    for done, step in enumerate(steps):
        now = time.monotonic()
        if now - last >= QUIET_SECONDS and done:
            last = now
            rate = done / (now - start)
            left = timedelta(seconds=round((len(steps) - done) / rate))
            _say(f"{description}: {done:,}/{len(steps):,}, {_rate(rate)}, {left} left")
        yield step
    if last > start:
        _say(f"{description}: done in {timedelta(seconds=round(time.monotonic() - start))}")


def _rate(steps_per_second: float) -> str:
    return f"{steps_per_second:.1f}/s" if steps_per_second >= 1 else f"{1 / steps_per_second:.1f} s each"


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
