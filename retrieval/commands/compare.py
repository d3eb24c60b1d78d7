"""``evaluate.py compare``: runs on the same queries, tested pair by pair."""

from __future__ import annotations

from pathlib import Path

from simzoo.core.progress import show_table
from simzoo.retrieval.results.significance import compare_runs

COLUMNS = ("metric", "queries", "A", "B", "mean A", "mean B", "B - A", "95 % interval", "p", "p (Holm)")


def compare(runs: list[Path], metrics: list[str] | None = None) -> None:
    """Compares runs on the same queries: paired randomisation test, 95 % intervals, Holm-corrected.

    Args:
        runs: output folders of ``evaluate.py run``.
        metrics: which metrics, also calls and milliseconds. The first is the primary one, over whose pairs of runs p is
            corrected; the others are exploratory. None: all metrics of quality that the runs have in common, nDCG@10
            first.
    """
    found = compare_runs(runs, metrics)
    rows = []
    for row in found.rows:
        corrected = "exploratory" if row.holm is None else f"{row.holm:.4g}"
        means = [f"{mean:.4f}" for mean in row.means]
        span = f"{row.low:+.4f} to {row.high:+.4f}"
        names = row.metric, f"{row.queries:,}", row.first, row.second
        rows.append([*names, *means, f"{row.difference:+.4f}", span, f"{row.p:.4g}", corrected])
    show_table(COLUMNS, rows)
    tests = sum(row.holm is not None for row in found.rows)
    print(f"primary metric: {found.primary}; Holm's correction is over its {tests} comparison{'s' * (tests > 1)}")
    if len(rows) > tests:
        print("exploratory: p is of each test alone; name a metric first (--metrics) to have its p corrected")
    for name, labels in found.lacking.items():
        print(f"left out: {name}, which {' and '.join(labels)} lack{'s' * (len(labels) == 1)}")
