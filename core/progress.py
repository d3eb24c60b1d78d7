"""What commands say: plans and progress of long work on standard error, tables on standard output."""

from __future__ import annotations

import sys
import threading
import time
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
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

_silenced = False
QUIET_SECONDS = 60.0  # between two lines where standard error is no terminal
WIDTH = 140  # of a table in a file


class _Rate(ProgressColumn):
    """Steps a second, or seconds a step."""

    def render(self, task: Task) -> Text:
        return Text("" if not task.speed else rate(task.speed))


def plan(title: str, rows: Mapping[str, str]) -> None:
    """Prints what is about to be done and what it will cost.

    Args:
        title: above the rows.
        rows: by name, such as calls, bytes and estimated time with their units.
    """
    table = Table(title=plain(title), show_header=False, title_justify="left")
    for name, value in rows.items():
        table.add_row(plain(name), plain(value))
    Console(stderr=True).print(table)


def show_table(columns: Sequence[str], rows: Iterable[Sequence[str]], title: str = "") -> None:
    """Prints a table on standard output; cells are shown as they are, whatever they hold.

    Args:
        columns: the headings.
        rows: cells, as many as there are headings.
        title: above the headings.
    """
    table = Table(title=plain(title) if title else None, title_justify="left")
    for name in columns:
        table.add_column(plain(name))
    for row in rows:
        table.add_row(*map(plain, row))
    Console(width=None if sys.stdout.isatty() else WIDTH).print(table)


def plain(text: str) -> Text:
    """A text that means nothing to rich or the terminal: brackets stay, what cannot be shown becomes a mark."""
    return Text("".join(letter if letter.isprintable() or letter in "\n\t" else "\ufffd" for letter in text))


def progress(steps: Sequence[T], description: str) -> Iterator[T]:
    """Goes through ``steps`` under a bar with rate and time left; in a log file, a line a minute.

    Work of less than a minute leaves none; work that left one also says when it is done. Within `silent`, nothing.
    """
    if _silenced:
        yield from steps
        return
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


@contextmanager
def silent() -> Iterator[None]:
    """No bars and lines meanwhile, in any thread: for a server, whose work has no end that could be told."""
    global _silenced
    before, _silenced = _silenced, True
    try:
        yield
    finally:
        _silenced = before


def _lines(steps: Sequence[T], description: str) -> Iterator[T]:
    done, start = 0, time.monotonic()
    ended, said = threading.Event(), threading.Event()

    def tell() -> None:  # beside the work, because a single step can take longer than the time between two lines
        while not ended.wait(QUIET_SECONDS):
            said.set()
            say(line(f"{description}:", done, len(steps), time.monotonic() - start))

    teller = threading.Thread(target=tell, name=f"progress of {description}", daemon=True)
    teller.start()
    try:
        for step in steps:
            yield step
            done += 1
    finally:
        ended.set()
        teller.join()
    if said.is_set():
        say(f"{description}: done in {timedelta(seconds=round(time.monotonic() - start))}")


def line(description: str, done: int, total: int | None, seconds: float, lately: int | None = None) -> str:
    """How far work is, in one line.

    Args:
        description: of the work.
        done: steps that are done.
        total: all steps; None: not known.
        seconds: spent on those that were done lately.
        lately: how many of them were done in this time; None: all.
    """
    place = f"{description} {done:,}" if total is None else f"{description} {done:,}/{total:,}"
    speed = (done if lately is None else lately) / seconds if seconds else 0.0
    if not speed:
        return f"{place} after {timedelta(seconds=round(seconds))}"
    left = "" if total is None else f", {timedelta(seconds=round((total - done) / speed))} left"
    return f"{place}, {rate(speed)}{left}"


def rate(steps_per_second: float) -> str:
    """Steps a second, or seconds a step."""
    return f"{steps_per_second:.1f}/s" if steps_per_second >= 1 else f"{1 / steps_per_second:.1f} s each"


def quiet() -> None:
    """Silences what transformers says at each loading: a bar, and warnings that are meant for its own callers.

    For programs that we start; whoever imports simzoo keeps what transformers says. Bars of downloads stay.
    """
    from huggingface_hub.utils.tqdm import enable_progress_bars
    from transformers.utils import logging

    logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    enable_progress_bars()
    warnings.filterwarnings("ignore", category=FutureWarning, module=r"transformers\.")
    # Lightning passes jsonargparse an option under its old name.
    warnings.filterwarnings("ignore", r"\s*skip_none parameter was deprecated", DeprecationWarning)


def say(text: str) -> None:
    """Prints a line on standard error at once."""
    print(text, file=sys.stderr, flush=True)
