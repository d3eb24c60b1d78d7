"""Metrics and intervals against independent oracles."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import bootstrap
from sklearn.metrics import ndcg_score

from simzoo.core.records import Collection, DataError, Item, Query
from simzoo.retrieval.results.metrics import (
    accuracy,
    chosen_metrics,
    interval,
    ir_metrics,
    parse_measures,
    retrieved,
    topk_recall,
)


def collection_of(judgements: list[dict[int, int]], items: int = 6) -> Collection:
    return Collection(
        "c",
        [Item(f"i{n}", f"text {n}") for n in range(items)],
        [Query(f"q{n}", "a boat") for n in range(len(judgements))],
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


@given(st.lists(st.integers(0, 3), min_size=7, max_size=7), st.permutations(range(7)), st.integers(1, 7), st.data())
def test_topk_recall_with_ties_is_that_of_the_best_exact_top_k(
    scores: list[int], order: list[int], k: int, data: st.DataObject
) -> None:
    """Ties broken in another way must cost nothing, and must not hide that a better item is missing."""
    found = order[: data.draw(st.integers(1, 7))]
    best = sorted(scores)[-k:]
    tops = [set(top) for top in combinations(range(7), k) if sorted(scores[i] for i in top) == best]
    expected = max(len(top & set(found)) for top in tops) / k
    assert topk_recall(np.array([found]), np.array([scores], dtype=np.float32), k).tolist() == [expected]


def test_topk_recall_with_ties_by_hand() -> None:
    """Of three items that tie for one place, one counts; two of them are not the missing best item."""
    scores = np.array([[5, 3, 3, 3, 1]], dtype=np.float32)
    for found, expected in (([0, 2], 1.0), ([0, 3], 1.0), ([2, 3], 0.5), ([3, 4], 0.5), ([4, 0], 0.5)):
        assert topk_recall(np.array([found]), scores, 2).tolist() == [expected]


@pytest.mark.parametrize(
    ("found", "scores", "k", "message"),
    [
        ([[0]], [[1, 2]], 3, "k must be between"),
        ([[0]], [[1, 2]], 0, "k must be between"),
        ([[0, 0]], [[1, 2]], 2, "found twice"),
        ([[0, -2]], [[1, 2]], 2, "rows from -2 to 0, expected 0 to 1"),
        ([[0, 2]], [[1, 2]], 2, "rows from 0 to 2"),
        ([[0]], [[1, 2], [3, 4]], 1, "shape"),
        ([[0]], [[1, float("nan")]], 1, "NaN"),
    ],
)
def test_topk_recall_refuses(found: list[list[int]], scores: list[list[float]], k: int, message: str) -> None:
    """A negative row counts from the last item, one row of found items serves all queries, NaN is never found."""
    with pytest.raises(ValueError, match=message):
        topk_recall(np.array(found), np.array(scores, dtype=np.float32), k)


def test_a_missing_item_is_no_item() -> None:
    """A padding of -1 would count the last item, or be refused as one that was found twice."""
    scores = np.array([[3.0, 1.0, 2.0], [3.0, 1.0, 2.0]])
    found = np.array([[0, -1, -1], [-1, -1, -1]])
    assert topk_recall(found, scores, 2).tolist() == [0.5, 0]


def test_ir_metrics_by_hand() -> None:
    """ir-measures must see our grades and every query, also one with nothing relevant found, or nothing judged."""
    collection = collection_of([{0: 3, 2: 1, 5: 2}, {4: 1}, {1: 1}, {}, {3: 0}])
    items = np.array([[2, 1, 0, 3], [4, 0, 1, 2], [0, 2, 3, 4], [0, 1, 2, 3], [3, 1, 2, 0]])
    values = ir_metrics(items, collection, np.arange(5), ["RR@10", "R@2", "R@64", "Success@1", "P@2", "AP"])
    assert values["RR@10"].tolist() == [1, 1, 0, 0, 0]
    assert values["R@2"].tolist() == pytest.approx([1 / 3, 1, 0, 0, 0])
    assert values["R@64"].tolist() == pytest.approx([2 / 3, 1, 0, 0, 0])
    assert values["Success@1"].tolist() == [1, 1, 0, 0, 0]
    assert values["P@2"].tolist() == [0.5, 0.5, 0, 0, 0]
    assert values["AP"].tolist() == pytest.approx([(1 + 2 / 3) / 3, 1, 0, 0, 0])


@given(st.integers(0, 10_000))
@settings(max_examples=30)
def test_ndcg_against_scikit_learn(seed: int) -> None:
    """The order must be ours: 25 items, so that ranks and rows as text (10 before 9) sort in another way."""
    rng = np.random.default_rng(seed)
    grades = rng.integers(0, 4, size=(3, 25))
    grades[:, 0] = 1
    collection = collection_of([dict(enumerate(row.tolist())) for row in grades], items=25)
    order = np.stack([rng.permutation(25) for _ in range(3)])
    ours = ir_metrics(order, collection, np.arange(3), ["nDCG@10"])["nDCG@10"]
    scores = np.argsort(order, axis=1)
    expected = [ndcg_score([grade], [-score], k=10) for grade, score in zip(grades, scores, strict=True)]
    assert ours.tolist() == pytest.approx(expected, abs=1e-9)


def test_ir_metrics_follow_the_query_rows() -> None:
    """Values of a sample of the queries must stand beside these, in their order."""
    collection = collection_of([{0: 1}, {1: 1}, {2: 1}])
    values = ir_metrics(np.array([[2, 0], [1, 0]]), collection, np.array([2, 0]), ["Success@1", "RR"])
    assert values["Success@1"].tolist() == [1, 0]
    assert values["RR"].tolist() == [1, 0.5]


def test_two_names_of_one_measure() -> None:
    """RR@10 and MRR@10 are one measure to ir-measures: the first asked for must not stay at 0."""
    collection = collection_of([{0: 1}, {1: 1}])
    values = ir_metrics(np.array([[0, 1], [0, 1]]), collection, np.arange(2), ["MRR@10", "RR@10", "Recall@1", "R@1"])
    assert values["MRR@10"].tolist() == values["RR@10"].tolist() == [1, 0.5]
    assert values["Recall@1"].tolist() == values["R@1"].tolist() == [1, 0]


@pytest.mark.parametrize(
    "name", ["nDGC@10", "", "R", "R@0", "nDCG@2.5", "nDCG@abc", "AP(x=3)", "AP(rel=0)", "R@1 R@2", "alpha_nDCG@10"]
)
def test_bad_names_are_refused(name: str) -> None:
    """`R@0` ends the process inside trec_eval, `R` is an assertion without a word: each must name itself."""
    with pytest.raises(ValueError, match="for example nDCG@10") as caught:
        parse_measures(["nDCG@10", name])
    assert repr(name) in str(caught.value)


def test_no_metrics_are_refused() -> None:
    """`--metrics []` searched for hours and then ended in a traceback of ir-measures."""
    with pytest.raises(DataError, match="--metrics is empty; name at least one, for example nDCG@10"):
        chosen_metrics([], 10, 100)
    assert chosen_metrics(["R@5"], 10, 100) == ["R@5"]


def test_accuracy_counts_misses() -> None:
    """Unnormalised accuracy counts a gold item that was not retrieved as wrong; normalised leaves the query out."""
    collection = collection_of([{0: 1}, {4: 1}, {1: 0, 2: 1}, {}])
    assert accuracy(np.array([0, 4, 1, 0]), collection, np.arange(4)).tolist() == [1, 1, 0, 0]
    candidates = np.array([[0, 1], [0, 1], [1, 2], [0, 1]])
    assert retrieved(candidates, collection, np.arange(4)).tolist() == [True, False, True, False]


@settings(max_examples=30)
@given(st.lists(st.floats(0, 1), min_size=1, max_size=30))
def test_interval_holds_the_mean(values: list[float]) -> None:
    """Low <= mean <= high, inside the range of the values, the same each time and in each order."""
    mean, low, high = interval(np.array(values), samples=1000)
    assert mean == pytest.approx(np.mean(values))
    assert low <= mean <= high
    assert min(values) - 1e-9 <= low and high <= max(values) + 1e-9
    assert (mean, low, high) == interval(np.array(values), samples=1000)
    assert interval(np.array(values[::-1]), samples=1000) == pytest.approx((mean, low, high))


def test_interval_of_equal_values_is_the_value() -> None:
    """Rounding must not put a mean of seven times 0.1 beside its interval."""
    mean, low, high = interval(np.full(7, 0.1))
    assert mean == low == high == pytest.approx(0.1)


def test_interval_has_the_normal_width() -> None:
    """On many values the bootstrap must agree with 1.96 standard errors."""
    values = np.random.default_rng(0).normal(size=2000)
    mean, low, high = interval(values)
    error = values.std() / np.sqrt(2000)
    assert high - low == pytest.approx(2 * 1.96 * error, rel=0.05)
    assert mean == pytest.approx((low + high) / 2, abs=0.1 * error)


@pytest.mark.parametrize("kind", ["few distinct values", "skewed"])
def test_interval_against_scipy(kind: str) -> None:
    """Drawing counts of the distinct values must be the same as drawing queries."""
    rng = np.random.default_rng(1)
    values = rng.integers(0, 3, size=60) / 2 if kind == "few distinct values" else rng.exponential(size=60)
    _, low, high = interval(values.astype(float), samples=50_000)
    drawn = bootstrap((values,), np.mean, n_resamples=50_000, method="percentile", rng=np.random.default_rng(2))
    assert (low, high) == pytest.approx(tuple(drawn.confidence_interval), abs=0.02 * values.std())


def test_interval_refuses_what_has_none() -> None:
    """A NaN among the values would make every figure of the metric NaN, and metrics.json no JSON."""
    with pytest.raises(ValueError, match="at least one query"):
        interval(np.array([]))
    with pytest.raises(ValueError, match="finite"):
        interval(np.array([1.0, float("nan")]))
