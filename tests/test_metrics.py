"""Metrics, intervals and tests against independent oracles; output folders; the report."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import permutation_test
from sklearn.metrics import ndcg_score

from datamodules.records import Collection, DataError, Item, Query
from retrieval import run_files
from retrieval.metrics import accuracy, interval, ir_metrics, retrieved, topk_recall
from retrieval.report import Example, RunReport, write_report
from retrieval.searcher import Ranking
from retrieval.significance import compare_runs, holm, paired_randomization


def collection_of(judgements: list[dict[int, int]], items: int = 6) -> Collection:
    return Collection(
        "c",
        [Item(f"i{n}", f"text {n}", "<script>alert(1)</script>" if n == 2 else "") for n in range(items)],
        [Query(f"q{n}", "a <b>boat</b> & more", (2, 6)) for n in range(len(judgements))],
        judgements,
    )


@given(st.integers(0, 1000), st.integers(1, 8))
def test_topk_recall_is_set_overlap(seed: int, k: int) -> None:
    """Without ties, the share of the exact top k that was found, in whatever order."""
    rng = np.random.default_rng(seed)
    scores = rng.permuted(np.tile(np.arange(12.0), (3, 1)), axis=1).astype(np.float32)
    found = np.stack([rng.permutation(12)[:7] for _ in range(3)])
    top = np.argsort(-scores, axis=1)[:, :k]
    expected = [len(set(a) & set(b)) / k for a, b in zip(found, top, strict=True)]
    np.testing.assert_allclose(topk_recall(found, scores, k), expected)
    np.testing.assert_allclose(topk_recall(found[:, ::-1], scores, k), expected)


def test_topk_recall_with_ties() -> None:
    """An item that ties with the k-th is as right as the k-th, but two of them count once."""
    scores = np.array([[5, 3, 3, 3, 1]], dtype=np.float32)
    assert topk_recall(np.array([[0, 2]]), scores, 2).tolist() == [1.0]
    assert topk_recall(np.array([[2, 3]]), scores, 2).tolist() == [1.0]
    assert topk_recall(np.array([[3, 4]]), scores, 2).tolist() == [0.5]
    with pytest.raises(ValueError, match="k must be between"):
        topk_recall(np.array([[0]]), scores, 6)


def test_ir_metrics_by_hand_and_by_scikit_learn() -> None:
    """ir-measures must see our order, our grades, and every query, also one with nothing relevant found."""
    collection = collection_of([{0: 3, 2: 1, 5: 2}, {4: 1}, {1: 1}])
    items = np.array([[2, 1, 0, 3], [4, 0, 1, 2], [0, 2, 3, 4]])
    values = ir_metrics(items, collection, np.arange(3), ["nDCG@10", "RR@10", "R@2", "Success@1"])
    assert values["RR@10"].tolist() == [1.0, 1.0, 0.0]
    assert values["R@2"].tolist() == pytest.approx([1 / 3, 1.0, 0.0])
    assert values["Success@1"].tolist() == [1, 1, 0]
    truth = np.array([[3, 0, 1, 0, 0, 2]])
    ours = np.array([[2, 3, 4, 1, -1, -1]])  # scores that give the order 2, 1, 0, 3
    assert values["nDCG@10"][0] == pytest.approx(ndcg_score(truth, ours, k=4), abs=1e-6)
    with pytest.raises(ValueError, match=r"nDGC@10.*for example nDCG@10"):
        ir_metrics(items, collection, np.arange(3), ["nDGC@10"])


def test_accuracy_counts_misses() -> None:
    """Unnormalised accuracy counts a gold item that was not retrieved as wrong; normalised leaves the query out."""
    collection = collection_of([{0: 1}, {4: 1}, {1: 0, 2: 1}])
    assert accuracy(np.array([0, 4, 1]), collection, np.arange(3)).tolist() == [1, 1, 0]
    assert retrieved(np.array([[0, 1], [0, 1], [1, 2]]), collection, np.arange(3)).tolist() == [True, False, True]


@settings(deadline=None, max_examples=20)
@given(st.lists(st.floats(0, 1), min_size=2, max_size=30))
def test_interval_holds_the_mean(values: list[float]) -> None:
    """Low <= mean <= high, inside the range of the values, the same each time."""
    mean, low, high = interval(np.array(values), samples=1000)
    assert mean == pytest.approx(np.mean(values))
    assert min(values) - 1e-9 <= low <= mean + 1e-9
    assert mean - 1e-9 <= high <= max(values) + 1e-9
    assert (mean, low, high) == interval(np.array(values), samples=1000)


def test_interval_has_the_normal_width() -> None:
    """On many values the bootstrap must agree with 1.96 standard errors."""
    values = np.random.default_rng(0).normal(size=2000)
    mean, low, high = interval(values)
    error = values.std() / np.sqrt(2000)
    assert high - low == pytest.approx(2 * 1.96 * error, rel=0.05)
    assert mean == pytest.approx((low + high) / 2, abs=0.1 * error)


def test_randomization_against_scipy() -> None:
    """Exact for few queries, sampled for many: both against scipy's own permutation test."""
    rng = np.random.default_rng(3)
    for size, tolerance in ((9, 1e-9), (40, 0.01)):
        a = rng.normal(size=size)
        b = a + rng.normal(0.3, 1, size=size)
        expected = permutation_test(
            (b - a,),
            lambda x: x.mean(),
            permutation_type="samples",
            n_resamples=1_000_000 if size < 16 else 50_000,
            rng=np.random.default_rng(0),
        ).pvalue
        assert paired_randomization(a, b) == pytest.approx(expected, abs=tolerance)
        assert paired_randomization(a, b) == paired_randomization(b, a)
    assert paired_randomization(a, a) == 1.0


def test_holm_by_hand() -> None:
    """Holm 1979: 0.01 * 4, then never less than the one before."""
    assert holm([0.04, 0.01, 0.03, 0.02]) == pytest.approx([0.06, 0.04, 0.06, 0.06])
    assert holm([0.5, 0.9]) == pytest.approx([1.0, 1.0])


@given(st.lists(st.floats(0, 1), min_size=1, max_size=10))
def test_holm_is_monotone_and_never_smaller(values: list[float]) -> None:
    """A correction that lowers a p value, or changes their order, invents findings."""
    corrected = holm(values)
    assert all(c >= p and c <= 1 for c, p in zip(corrected, values, strict=True))
    ordered = [c for _, c in sorted(zip(values, corrected, strict=True))]
    assert ordered == sorted(ordered)


def write_run(folder: Path, values: list[float], fingerprint: str = "f", ids: list[str] | None = None) -> Path:
    described = {
        "data": {"name": "c", "fingerprint": fingerprint},
        "checkpoint": {"name": "m", "sha256": "0"},
        "searcher": {"name": "Exact"},
        "queries": len(values),
        "metrics": {"accuracy": {"mean": 0.5, "low": 0.4, "high": 0.6}},
        "cost": {"calls": {"mean": 10.0, "low": 9.0, "high": 11.0}},
        "index_seconds": {"first stage": 0.5},
        "index_calls": 0,
        "command": "python evaluate.py run --x '<y>'",
        "commit": None,
        "versions": {"python": "3.11"},
    }
    run_files.write_metrics(folder, described)
    run_files.write_per_query(folder, ids or [f"q{i}" for i in range(len(values))], {"accuracy": values})
    return folder


def test_compare_runs(tmp_path: Path) -> None:
    """Differences, their sign and their pairing; runs on other data or queries are refused."""
    a = write_run(tmp_path / "a", [0.0] * 10 + [1.0] * 10)
    b = write_run(tmp_path / "b", [1.0] * 20)
    [row] = compare_runs([a, b])
    assert (row.first, row.second, row.metric) == ("a", "b", "accuracy")
    assert row.difference == pytest.approx(0.5)
    assert 0 < row.low < 0.5 < row.high <= 1
    assert row.holm == row.p < 0.01
    c = write_run(tmp_path / "c", [1.0] * 20, fingerprint="other")
    with pytest.raises(DataError, match="run on other data"):
        compare_runs([a, c])
    d = write_run(tmp_path / "d", [1.0] * 20, ids=[f"x{i}" for i in range(20)])
    with pytest.raises(DataError, match="different queries"):
        compare_runs([a, d])
    with pytest.raises(DataError, match="at least two"):
        compare_runs([a])
    with pytest.raises(DataError, match="nDCG"):
        compare_runs([a, b], ["nDCG"])


def test_damaged_folders_say_where(tmp_path: Path) -> None:
    """The file and the line, not a traceback."""
    folder = write_run(tmp_path / "a", [0.5, 1.0])
    with pytest.raises(DataError, match=r"none/metrics\.json: is missing"):
        compare_runs([folder, tmp_path / "none"])
    lines = (folder / "per_query.jsonl").read_text().splitlines()
    (folder / "per_query.jsonl").write_text(lines[0] + "\n" + lines[1][:7] + "\n")
    with pytest.raises(DataError, match=r"per_query\.jsonl:2: broken JSON"):
        run_files.read_per_query(folder)
    (folder / "per_query.jsonl").write_text("")
    with pytest.raises(DataError, match="holds no queries"):
        run_files.read_per_query(folder)
    (folder / "metrics.json").write_text('{"data":\n oops}')
    with pytest.raises(DataError, match=r"metrics\.json:2: broken JSON"):
        run_files.read_metrics(folder)


def test_trec_run_layout(tmp_path: Path) -> None:
    """Six columns, ranks from 1, ids rather than rows."""
    collection = collection_of([{0: 1}, {1: 1}])
    ranking = Ranking(np.array([[3, 1]]), np.array([[2.5, 1.0]], dtype=np.float32), np.array([2]))
    run_files.write_trec(tmp_path, collection, np.array([1]), ranking, "AXN")
    assert (tmp_path / "run.trec").read_text() == "q1 Q0 i3 1 2.500000 AXN\nq1 Q0 i1 2 1.000000 AXN\n"


def test_report_is_self_contained_and_escaped(tmp_path: Path) -> None:
    """Texts of the data must not become markup; the page must not ask the network for anything."""
    collection = collection_of([{2: 1}])
    ranking = Ranking(np.array([[2, 1]]), np.array([[2.5, 1.0]], dtype=np.float32), np.array([2]))
    example = Example.of(collection, np.array([0]), ranking, 0)
    folder = write_run(tmp_path / "a", [1.0])
    runs = [RunReport("a <run>", json.loads((folder / "metrics.json").read_text()))]
    curves = {"AXN": {1: [(1.0, 0.2), (10.0, 0.9)], 10: [(10.0, 0.4)]}}
    write_report(tmp_path / "report.html", runs, curves, [example])
    page = (tmp_path / "report.html").read_text()
    assert "<script>" not in page and "&lt;script&gt;" in page
    assert "a <mark>&lt;b&gt;b</mark>oat&lt;/b&gt; &amp; more" in page
    assert "a &lt;run&gt;" in page and "&lt;y&gt;" in page
    outside = (
        page.replace("http://www.w3.org/", "").replace("http://purl.org/", "").replace("http://creativecommons.org", "")
    )
    assert "http://" not in outside.replace("https://matplotlib.org/", "") and "src=" not in page
    assert page.count("<svg") == 1 and "Top-k-Recall" in page
    first = (tmp_path / "report.html").read_bytes()
    write_report(tmp_path / "report.html", runs, curves, [example])
    assert (tmp_path / "report.html").read_bytes() == first
