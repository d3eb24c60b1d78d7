"""Comparing runs: paired randomisation test, intervals of differences, Holm's correction."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations, product
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from datamodules.records import DataError
from retrieval.metrics import interval
from retrieval.run_files import read_metrics, read_per_query

EXACT_QUERIES = 16  # up to 65,536 sign patterns, all of them are tried


@dataclass(frozen=True)
class Comparison:
    """One metric of two runs over the same queries.

    Attributes:
        metric: its name.
        first: folder name of run A.
        second: folder name of run B.
        means: of A and of B.
        difference: mean of B - A.
        low: of its 95 % interval.
        high: of its 95 % interval.
        p: two-sided, paired randomisation.
        holm: p corrected for all comparisons of the table.
    """

    metric: str
    first: str
    second: str
    means: tuple[float, float]
    difference: float
    low: float
    high: float
    p: float
    holm: float


def paired_randomization(
    first: NDArray[np.float64], second: NDArray[np.float64], samples: int = 100_000, seed: int = 0
) -> float:
    """Two-sided p value of the mean difference under random exchange of the two values of each query.

    Args:
        first: (B,) per-query values.
        second: (B,) values of the same queries.
        samples: random sign patterns; with few queries all patterns are tried instead.
        seed: of the patterns.
    """
    differences = second - first
    observed = abs(differences.sum()) - 1e-12  # rounding must not decide between equal sums
    if len(differences) <= EXACT_QUERIES:
        signs = np.array(list(product((-1, 1), repeat=len(differences))))
        return float((np.abs(signs @ differences) >= observed).mean())
    rng = np.random.default_rng(seed)
    beyond = 0
    for start in range(0, samples, 1000):
        signs = rng.integers(0, 2, size=(min(1000, samples - start), len(differences)), dtype=np.int8) * 2.0 - 1.0
        beyond += int((np.abs(signs @ differences) >= observed).sum())
    return (beyond + 1) / (samples + 1)


def holm(p_values: Sequence[float]) -> list[float]:
    """Holm's step-down correction, in the order given."""
    order = np.argsort(p_values, kind="stable")
    corrected = np.empty(len(p_values))
    highest = 0.0
    for rank, where in enumerate(order):
        highest = max(highest, min(1.0, (len(p_values) - rank) * p_values[where]))
        corrected[where] = highest
    return corrected.tolist()


def compare_runs(folders: Sequence[Path], metrics: Sequence[str] | None = None) -> list[Comparison]:
    """Every pair of runs in every metric.

    Args:
        folders: output folders of ``evaluate.py run``.
        metrics: names; None: all that the runs have in common.

    Raises:
        DataError: fewer than two runs, other data or other queries in one of them, or an unknown metric.
    """
    if len(folders) < 2:
        raise DataError(f"comparing needs at least two runs, got {len(folders)}")
    described = [read_metrics(folder) for folder in folders]
    values = [read_per_query(folder) for folder in folders]
    for folder, about, rows in zip(folders[1:], described[1:], values[1:], strict=True):
        if about["data"]["fingerprint"] != described[0]["data"]["fingerprint"]:
            raise DataError(f"{folder} was run on other data than {folders[0]}; compare runs on the same collection")
        if rows["id"] != values[0]["id"]:
            raise DataError(f"{folder} and {folders[0]} evaluated different queries; use the same --queries and --seed")
    common = [name for name in values[0] if name != "id" and all(name in rows for rows in values)]
    unknown = sorted(set(metrics or ()) - set(common))
    if unknown:
        raise DataError(f"{unknown[0]!r} is not in every run; they have {', '.join(common)} in common")
    tests = []
    for name in metrics or common:
        for a, b in combinations(range(len(folders)), 2):
            first, second = np.array(values[a][name], dtype=float), np.array(values[b][name], dtype=float)
            known = np.isfinite(first) & np.isfinite(second)
            first, second = first[known], second[known]
            difference, low, high = interval(second - first)
            p = paired_randomization(first, second)
            tests.append((name, a, b, (first.mean(), second.mean()), difference, low, high, p))
    corrected = holm([test[-1] for test in tests])
    return [
        Comparison(name, folders[a].name, folders[b].name, (float(x), float(y)), difference, low, high, p, adjusted)
        for (name, a, b, (x, y), difference, low, high, p), adjusted in zip(tests, corrected, strict=True)
    ]
