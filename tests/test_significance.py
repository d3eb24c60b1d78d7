"""Tests between runs against scipy, enumeration and hand-made examples; which runs may be compared."""

from __future__ import annotations

from itertools import product
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import permutation_test

from simzoo.core.records import DataError
from simzoo.retrieval.commands.compare import compare
from simzoo.retrieval.results.significance import compare_runs, holm, paired_randomization
from tests.test_run_files import write_run


def test_randomization_against_scipy() -> None:
    """Exact for few queries, sampled for many: both against scipy's own permutation test."""
    rng = np.random.default_rng(3)
    for size, tolerance in ((9, 1e-9), (16, 1e-9), (40, 0.01)):
        a = rng.normal(size=size)
        b = a + rng.normal(0.3, 1, size=size)
        expected = permutation_test(
            (b - a,),
            lambda x, axis: x.mean(axis=axis),
            permutation_type="samples",
            n_resamples=1_000_000 if size <= 16 else 50_000,
            vectorized=True,
            batch=10_000,
            rng=np.random.default_rng(0),
        ).pvalue
        assert paired_randomization(a, b) == pytest.approx(expected, abs=tolerance)
    assert paired_randomization(a, a) == 1.0


@settings(max_examples=40)
@given(st.lists(st.sampled_from([-1.0, -0.1, 0.0, 0.1, 0.2, 0.3, 1.0]), min_size=1, max_size=9), st.integers(-8, 8))
def test_randomization_is_exact_in_spite_of_rounding(steps: list[float], power: int) -> None:
    """0.1 + 0.2 and 0.3 are equal sums, at every scale: whole numbers tell. Seconds and shares get the same p."""
    tenths = [round(10 * step) for step in steps]
    sums = [
        abs(sum(s * t for s, t in zip(signs, tenths, strict=True))) for signs in product((-1, 1), repeat=len(steps))
    ]
    expected = sum(value >= abs(sum(tenths)) for value in sums) / len(sums)
    assert paired_randomization(np.zeros(len(steps)), np.array(steps) * (10.0**power / 3)) == pytest.approx(expected)


@settings(max_examples=30)
@given(st.integers(1, 60), st.integers(0, 1000))
def test_randomization_is_symmetric(size: int, seed: int) -> None:
    """Which run is named first, and queries on which both agree, must not change p."""
    rng = np.random.default_rng(seed)
    a, b = rng.normal(size=(2, size))
    p = paired_randomization(a, b, samples=500)
    assert 0 < p <= 1
    assert paired_randomization(b, a, samples=500) == p
    assert paired_randomization(np.append(a, 7.0), np.append(b, 7.0), samples=500) == p


def test_randomization_keeps_its_level() -> None:
    """Without a difference, p < 0.05 must come up about once in twenty."""
    rng = np.random.default_rng(0)
    pairs = rng.normal(size=(600, 2, 30))
    found = [paired_randomization(a, b, samples=400, seed=n) for n, (a, b) in enumerate(pairs)]
    assert 0.025 < np.mean(np.array(found) < 0.05) < 0.08


def test_randomization_refuses() -> None:
    """NaN compares as false: p would be the smallest there is."""
    with pytest.raises(ValueError, match="finite"):
        paired_randomization(np.array([0.0, np.nan]), np.array([1.0, 1.0]))
    with pytest.raises(ValueError, match="shape"):
        paired_randomization(np.zeros(1), np.zeros(3))


def test_holm_by_hand() -> None:
    """Holm 1979: the smallest times 4, the next times 3, ..., never less than the one before."""
    assert holm([0.04, 0.01, 0.03, 0.02]) == pytest.approx([0.06, 0.04, 0.06, 0.06])
    assert holm([0.01, 0.005, 0.04, 0.03]) == pytest.approx([0.03, 0.02, 0.06, 0.06])
    assert holm([0.5, 0.9]) == pytest.approx([1.0, 1.0])
    assert holm([]) == []
    with pytest.raises(ValueError, match="between 0 and 1"):
        holm([0.5, float("nan")])


@given(st.lists(st.floats(0, 1), min_size=1, max_size=10))
def test_holm_is_monotone_and_never_smaller(values: list[float]) -> None:
    """A correction that lowers a p value, or changes their order, invents findings."""
    corrected = holm(values)
    bonferroni = [min(1.0, len(values) * p) for p in values]
    assert all(p <= c <= b for p, c, b in zip(values, corrected, bonferroni, strict=True))
    ordered = [c for _, c in sorted(zip(values, corrected, strict=True))]
    assert ordered == sorted(ordered)


def test_compare_runs(tmp_path: Path) -> None:
    """Differences, their sign and their pairing."""
    a = write_run(tmp_path / "a", {"accuracy": [0.0] * 10 + [1.0] * 10})
    b = write_run(tmp_path / "b", {"accuracy": [1.0] * 20})
    [row] = compare_runs([a, b]).rows
    assert (row.first, row.second, row.metric, row.queries, row.means) == ("a", "b", "accuracy", 20, (0.5, 1.0))
    assert row.difference == pytest.approx(0.5)
    assert 0 < row.low < 0.5 < row.high <= 1
    assert row.holm == row.p == pytest.approx(2 / 2**10)


def test_holm_is_over_the_primary_metric(tmp_path: Path) -> None:
    """Fifteen tests where one question was asked hide its answer; p of the rest must not read like findings."""
    rng = np.random.default_rng(0)
    names = ("accuracy", "nDCG@10", "RR@10")
    folders = [
        write_run(tmp_path / name, {m: (rng.random(30) < share).astype(float).tolist() for m in names})
        for name, share in (("a", 0.2), ("b", 0.5), ("c", 0.9))
    ]
    found = compare_runs(folders)
    assert found.primary == "nDCG@10" and found.lacking == {}
    assert [(row.metric, row.first, row.second) for row in found.rows] == [
        (metric, *pair) for metric in ("nDCG@10", "accuracy", "RR@10") for pair in ("ab", "ac", "bc")
    ]
    assert [row.holm for row in found.rows[:3]] == pytest.approx(holm([row.p for row in found.rows[:3]]))
    smallest = min(found.rows[:3], key=lambda row: row.p)
    assert smallest.holm == pytest.approx(3 * smallest.p)
    assert [row.holm for row in found.rows[3:]] == [None] * 6
    chosen = compare_runs(folders[:2], ["RR@10", "calls", "RR@10"])
    assert chosen.primary == "RR@10" and [row.metric for row in chosen.rows] == ["RR@10", "calls"]
    assert chosen.rows[0].holm == chosen.rows[0].p and chosen.rows[1].holm is None


def test_metrics_that_a_run_lacks_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A metric that is left out without a word is taken for one that showed no difference."""
    a = write_run(tmp_path / "a", {"accuracy": [1.0, 0.0], "R@64": [1.0, 1.0]})
    b = write_run(tmp_path / "b", {"accuracy": [1.0, 1.0]})
    c = write_run(tmp_path / "c", {"accuracy": [0.0, 1.0], "RR@10": [0.0, 0.0]})
    assert compare_runs([a, b, c]).lacking == {"R@64": ["b", "c"], "RR@10": ["a", "b"]}
    compare([a, b])
    out = capsys.readouterr().out
    assert "primary metric: accuracy; Holm's correction is over its 1 comparison\n" in out
    assert "left out: R@64, which b lacks\n" in out and "exploratory" not in out
    compare([a, b], ["accuracy", "calls"])
    assert "exploratory" in capsys.readouterr().out
    with pytest.raises(DataError, match="'R@64' is not in every run: b lacks it; they have accuracy, calls in common"):
        compare_runs([a, b], ["R@64"])
    with pytest.raises(DataError, match="no metric is named; the runs have accuracy, calls in common"):
        compare_runs([a, b], [])


def test_names_of_runs_are_shown_as_they_are(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Brackets of a folder's name vanished, or ended the comparison in a traceback."""
    compare([write_run(tmp_path / name, {"accuracy": [1.0, 0.0]}) for name in ("[red]a", "b[ [x]")])
    out = capsys.readouterr().out
    assert "[red]a" in out and "b[ [x]" in out


def test_queries_that_do_not_count_are_left_out_in_both(tmp_path: Path) -> None:
    """Normalised accuracy: a query counts where both first stages found the gold item; a null is not a 0."""
    nan = float("nan")
    a = write_run(tmp_path / "a", {"normalised": [1.0, 0.0, nan, 1.0]})
    b = write_run(tmp_path / "b", {"normalised": [nan, 1.0, 1.0, 1.0]})
    [row] = compare_runs([a, b]).rows
    assert (row.queries, row.means, row.difference) == (2, (0.5, 1.0), 0.5)
    c = write_run(tmp_path / "c", {"normalised": [nan, nan, 1.0, nan]})
    with pytest.raises(DataError, match="counts no query in both"):
        compare_runs([a, c])


def test_folders_of_one_name_are_told_apart(tmp_path: Path) -> None:
    """Two rows that both say `axn` say nothing."""
    folders = [write_run(tmp_path / seed / "axn", {"accuracy": [1.0, 0.0]}) for seed in ("s0", "s1")]
    [row] = compare_runs(folders).rows
    assert (row.first, row.second) == (str(folders[0]), str(folders[1]))


def test_runs_that_cannot_be_compared(tmp_path: Path) -> None:
    """Values of other data or other queries, paired by position, give a p value that means nothing."""
    a = write_run(tmp_path / "a", {"accuracy": [1.0] * 20})
    c = write_run(tmp_path / "c", {"accuracy": [1.0] * 20}, fingerprint="other")
    with pytest.raises(DataError, match="run on other data"):
        compare_runs([a, c])
    d = write_run(tmp_path / "d", {"accuracy": [1.0] * 20}, ids=[f"q{i + 1}" for i in range(20)])
    with pytest.raises(DataError, match=r"different queries \(20 and 20, 19 in common\)"):
        compare_runs([a, d])
    with pytest.raises(DataError, match="at least two"):
        compare_runs([a])
    with pytest.raises(DataError, match="a: is named twice"):
        compare_runs([a, d, tmp_path / "d" / ".." / "a"])
    twin = write_run(tmp_path / "twin", {"accuracy": [1.0] * 20})
    with pytest.raises(DataError, match="'nDCG' is not in every run; they have accuracy, calls in common"):
        compare_runs([a, twin], ["nDCG"])
    other = write_run(tmp_path / "e", {"RR@10": [1.0] * 20})
    with pytest.raises(DataError, match=r"nothing to compare: .* \(e without accuracy; a without RR@10\)"):
        compare_runs([a, other])
