"""``evaluate.py compare``: runs on the same queries, tested pair by pair."""

from __future__ import annotations

import sys
from pathlib import Path

from rich.console import Console
from rich.table import Table

from simzoo.retrieval.results.significance import compare_runs


def compare(runs: list[Path], metrics: list[str] | None = None) -> None:
    """Compares runs on the same queries: paired randomisation test, 95 % intervals, Holm-corrected.

    Args:
        runs: output folders of ``evaluate.py run``.
        metrics: which metrics, also calls and milliseconds; None: all metrics of quality that the runs have in common.
    """
    table = Table("metric", "queries", "A", "B", "mean A", "mean B", "B - A", "95 % interval", "p", "p (Holm)")
    for row in compare_runs(runs, metrics):
        means = [f"{mean:.4f}" for mean in row.means]
        span = f"{row.low:+.4f} to {row.high:+.4f}"
        names = row.metric, f"{row.queries:,}", row.first, row.second
        table.add_row(*names, *means, f"{row.difference:+.4f}", span, f"{row.p:.4g}", f"{row.holm:.4g}")
    Console(width=None if sys.stdout.isatty() else 140).print(table)
