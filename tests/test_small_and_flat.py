"""Collections at the edge, one item, vectors that are zero or equal, and searches without end over one index."""

from __future__ import annotations

import gc
import tracemalloc
import weakref
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from simzoo.core.records import Item, Query
from simzoo.retrieval.corpus import Corpus
from simzoo.retrieval.first_stages.lexical import BM25
from simzoo.retrieval.scorer import Scorer
from simzoo.retrieval.searcher import Searcher
from simzoo.retrieval.searchers.exact import Exact, Rerank
from simzoo.retrieval.searchers.graph_reranking import GAR, LADR
from simzoo.retrieval.searchers.graph_search import GraphSearch
from simzoo.retrieval.searchers.linear_search import LinearSearch
from tests.test_searchers import Floats, Known, Vectors, names, problem, run, searchers, task_of

ITEMS, QUERIES = 40, 12
MATRIX, VECTORS = problem(5, 2 * QUERIES, ITEMS, 6, 0.4)


@pytest.mark.parametrize("kind", [GAR, LADR, GraphSearch, LinearSearch])
@pytest.mark.parametrize("removed", [False, True])
def test_one_item_is_found_by_the_settings_that_are_given(kind: type[Any], removed: bool) -> None:
    """An index of one item, or of one that is left, was refused: it had fewer than a graph's degree."""
    size = 3 if removed else 1
    gone = np.array([True, False, True]) if removed else None
    items = [Item(str(row), "boat") for row in range(size)]
    searcher: Searcher = kind(vectors=Vectors(VECTORS._queries, VECTORS.items[:size]))
    searcher.index(Corpus(items, Known(MATRIX[:, :size]), removed=gone))
    found = searcher.search([Query("0", "boat"), Query("1", "sea")], 1)
    row = size // 2
    assert found.items.tolist() == [[row], [row]] and found.calls.tolist() == [1, 1]
    np.testing.assert_array_equal(found.scores, MATRIX[:2, row : row + 1])


def flat(kind: str) -> Floats:
    """Item vectors that tell no two items apart, or only some."""
    vectors = VECTORS.items.copy()
    if kind == "zero":
        vectors[:] = 0
    elif kind == "equal":
        vectors[:] = vectors[0]
    elif kind == "some zero":
        vectors[::2] = 0
    else:
        vectors[1:] = 1e-30
    return vectors


FULL = [searcher for searcher in searchers(VECTORS, ITEMS) if not getattr(searcher, "normalize", False)]


@pytest.mark.parametrize("place", range(len(FULL)), ids=names(FULL))
@pytest.mark.parametrize("kind", ["zero", "equal", "some zero", "tiny"])
def test_vectors_that_say_nothing_leave_the_exact_ranking(kind: str, place: int) -> None:
    """A search ended with `Singular matrix`; with the budget of all items nothing depends on the vectors."""
    searcher = searchers(Vectors(VECTORS._queries, flat(kind)), ITEMS)[place]
    found, exact = run(searcher, task_of(MATRIX, QUERIES), 7), run(Exact(), task_of(MATRIX, QUERIES), 7)
    if not searcher.calls_similarity:
        assert all(len(set(rows)) == 7 and min(rows) >= 0 for rows in found.items.tolist())
        return
    np.testing.assert_array_equal(found.items, exact.items)
    np.testing.assert_array_equal(found.scores, exact.scores)


def test_linear_search_of_all_items_is_exact_by_its_own_settings() -> None:
    """The penalty is a share of a variance that is zero here: the system of every query was singular."""
    for kind in ("zero", "equal"):
        searcher = LinearSearch(Vectors(VECTORS._queries, flat(kind)), anchors=10, budget=ITEMS, rounds=3)
        found = run(searcher, task_of(MATRIX, QUERIES), 5)
        np.testing.assert_array_equal(found.items, np.argsort(-MATRIX[:QUERIES], axis=1, kind="stable")[:, :5])


MANY = 1 << 20


def of_rows(query_rows: NDArray[Any], item_rows: NDArray[Any]) -> NDArray[Any]:
    return (query_rows * 31 + item_rows) % 97


def test_a_scorer_keeps_what_it_scored_and_no_more() -> None:
    """A row of a million places for each query: 2,000 queries over a few hundred thousand items were 1.6 GB."""
    scorer = Scorer(of_rows, 500, MANY)
    tracemalloc.start()
    for query in range(500):
        scorer(np.full(10, query), np.arange(10) * 1000)
    kept, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert kept < 50 * 5000  # of the 12 bytes that a pair needs; a row of one query would be a million


class Judge(Known):
    """Remembers which scorers are still alive."""

    def __init__(self, matrix: Floats) -> None:
        super().__init__(matrix)
        self.alive: weakref.WeakSet[Scorer] = weakref.WeakSet()

    def scorer(self, queries: Any) -> Scorer:
        made = super().scorer(queries)
        self.alive.add(made)
        return made


def test_a_soak_of_searches_keeps_nothing() -> None:
    """0.8 MB a query stayed behind in a soak of 2,000 searches over 200,000 items."""
    size = 20_000
    rng = np.random.default_rng(0)
    judge = Judge(np.zeros((2, 1), dtype=np.float32))
    judge.matrix, judge.num_items = rng.normal(size=(2, size)).astype(np.float32), size
    searcher = Rerank(BM25(), budget=500)
    words = ["boat", "river", "bank", "sea"]
    searcher.index(Corpus([Item(str(row), words[row % 4]) for row in range(size)], judge))
    searcher.search([Query("0", "boat sea")], 10)
    gc.collect()
    tracemalloc.start()
    for _ in range(100):
        searcher.search([Query("0", "boat sea")], 10)
    gc.collect()
    kept, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert kept < 100_000 and not judge.alive
