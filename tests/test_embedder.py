"""Vectors of items, exact search over them, and searches that go on without growing."""

from __future__ import annotations

import gc
import tracemalloc
from collections.abc import Sequence

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from simzoo.core.records import Item, Query
from simzoo.core.reps import Reps
from simzoo.models.cross_encoder import CrossEncoder
from simzoo.models.dual_encoder import DualEncoder
from simzoo.retrieval.corpus import Corpus
from simzoo.retrieval.embedder import Embedder
from simzoo.retrieval.first_stages.first_stage import FirstStage
from simzoo.retrieval.first_stages.vector_index import HNSW, Flat
from simzoo.retrieval.judge import CallableJudge, MatrixJudge, SimilarityJudge
from simzoo.retrieval.scorer import EXTRA, Scorer, SimilarityScorer
from simzoo.retrieval.searchers import rounds
from simzoo.retrieval.searchers.axn import AXN
from simzoo.retrieval.searchers.exact import Exact, Rerank
from simzoo.retrieval.searchers.graph_reranking import LADR
from simzoo.retrieval.searchers.graph_search import GraphSearch
from simzoo.retrieval.searchers.linear_search import LinearSearch
from tests.test_searchers import GivenVectors, Vectors, problem, run, task_of
from tests.toy import toy_collection

Floats = NDArray[np.float32]


class Products:
    """An inner product of representations at hand, which refuses to be asked pair by pair."""

    pointwise, is_inner_product = True, True

    def score(self, queries: Reps, items: Reps, candidates: object) -> torch.Tensor:
        assert candidates is None
        return queries["vector"] @ items["vector"].T  # type: ignore[union-attr,operator,return-value]


def vectors_of(seed: int, *shape: int) -> Floats:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


@pytest.mark.parametrize("copies", [0, 30, 900])
def test_exact_search_of_inner_products_is_one_product(copies: int) -> None:
    """Gathered pair by pair it took fifty times as long; by a plain product, equal items come in the order of rounding.

    Against numpy in double precision, all queries at once and one by one. More items tie than are looked at again.
    """
    queries, items = vectors_of(0, 9, 48), vectors_of(1, 1000, 48)
    items[np.random.default_rng(2).permutation(1000)[:copies]] = 3 * queries[0]
    assert EXTRA < 900
    exact = (queries.astype(np.float64) @ items.T.astype(np.float64)).astype(np.float32)
    reps: list[Reps] = [{"vector": torch.from_numpy(part)} for part in (queries, items)]
    scorer = SimilarityScorer(Products(), *reps)
    some = np.delete(np.arange(1000), [3, 500])
    for k, rows in ((1, None), (40, None), (990, None), (7, some)):
        columns = np.arange(1000) if rows is None else rows
        expected = columns[np.argsort(-exact[:, columns], axis=1, kind="stable")[:, :k]]
        found, scores = scorer.top(k, rows)
        np.testing.assert_array_equal(found, expected)
        np.testing.assert_allclose(scores, np.take_along_axis(exact, found, axis=1), rtol=1e-6)
        for row in range(9):
            alone = SimilarityScorer(Products(), {"vector": torch.from_numpy(queries[row : row + 1])}, reps[1])
            one, its = alone.top(k, rows)
            np.testing.assert_array_equal(one[0], found[row])
            np.testing.assert_array_equal(its[0], scores[row])
    assert scorer.calls.tolist() == [3 * 1000 + 998] * 9


@pytest.mark.parametrize("kind", [CrossEncoder, DualEncoder])
def test_exact_search_finds_what_pairs_find(kind: type[CrossEncoder] | type[DualEncoder]) -> None:
    """Whole lists in blocks must rank as the scores of single pairs do, also for queries that indexing never saw."""
    model, collection = kind.tiny().eval(), toy_collection()
    judge, searcher = SimilarityJudge.of(model, collection.items), Exact()
    searcher.index(Corpus(collection.items, judge))
    queries = [*collection.queries, Query("new", "a boat nobody asked for")]
    found = searcher.search(queries, 10)
    pairs = judge.scorer(queries).lists(np.tile(np.arange(40), (25, 1)))
    np.testing.assert_allclose(found.scores, -np.sort(-pairs, axis=1)[:, :10], atol=2e-5)
    np.testing.assert_allclose(np.take_along_axis(pairs, found.items, axis=1), found.scores, atol=2e-5)
    assert (found.calls == 40).all()


@pytest.mark.parametrize("ann", [Flat(), HNSW(8, 80, 80)])
def test_vectors_are_searched_without_what_is_excluded(ann: Flat | HNSW) -> None:
    """A fitted vector's nearest items are those that were scored already: returned again they would be paid twice."""
    items = vectors_of(3, 200, 6)
    embedder = Embedder(None, items, ann.build(items), isinstance(ann, Flat))
    asked, removed = vectors_of(4, 5, 6), np.arange(200) % 5 == 0
    products = asked @ items.T
    products[:, removed] = -np.inf
    exclude = np.argsort(-products, axis=1)[:, :12]
    exclude[:, 9:] = -1
    np.put_along_axis(products, exclude[:, :9], -np.inf, axis=1)
    rows, scores = embedder.search(asked, 10, exclude, removed)
    np.testing.assert_array_equal(rows, np.argsort(-products, axis=1)[:, :10])
    np.testing.assert_allclose(scores, -np.sort(-products, axis=1)[:, :10], rtol=1e-5)
    rows, scores = embedder.search(asked, 300, exclude, removed)
    assert ((rows >= 0).sum(axis=1) == 200 - 40 - 9).all() and np.array_equal(rows < 0, np.isneginf(scores))


def test_a_query_is_encoded_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """AXN asks for its queries' vectors twice; a server that kept them all would grow for ever."""
    model, collection = DualEncoder.tiny().eval(), toy_collection()
    embedder = Embedder.of(model, collection.items, Flat(), exact=True)
    seen: list[int] = []
    encode = model.encode_queries
    monkeypatch.setattr(model, "encode_queries", lambda tokens: seen.append(1) or encode(tokens))
    for _ in range(3):
        for query in collection.queries:
            embedder.encode([query])
    assert len(seen) == 24
    monkeypatch.setattr("simzoo.retrieval.embedder.KEPT", 5)
    for query in collection.queries:
        embedder.encode([query, query])
    assert sum(map(len, embedder._recent)) <= 5
    with pytest.raises(TypeError, match="CrossEncoder is no inner product"):
        Embedder.of(CrossEncoder.tiny().eval(), collection.items, Flat(), exact=True)


class Counted:
    """A vector index that says how many vectors it was asked for."""

    def __init__(self, vectors: Floats) -> None:
        self.index, self.asked = Flat().build(vectors), 0

    def search(self, queries: Floats, k: int) -> tuple[NDArray[np.int64], Floats]:
        self.asked += len(queries)
        return self.index.search(queries, k)


def test_axn_asks_an_approximate_index_and_scans_an_exact_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """A scan of all vectors in each round is what an approximate index is there to spare. Both find the same here."""
    matrix, vectors = problem(12, 20, 300, 8, 0.3)
    found, asked = [], []
    for exact in (True, False):
        task, index = task_of(matrix, 6), Counted(vectors.items)
        embedder = GivenVectors(vectors._queries, vectors.items, index)
        embedder.exact = exact
        searcher = AXN(budget=30, rounds=4)
        searcher.index(Corpus(task.corpus.items, task.judge, embedder))
        found.append(searcher.search(task.queries, 30))
        asked.append(index.asked)
    assert asked == [6, 4 * 6]  # the first round; and each of the others
    np.testing.assert_array_equal(found[0].items, found[1].items)
    monkeypatch.setattr(rounds, "SCANNED", 100)
    monkeypatch.setattr(rounds, "POOL", 50)
    task = task_of(matrix, 6)
    run(AXN(vectors, budget=4, rounds=2), task, 3)
    near, _ = vectors.search(task.queries, 50)
    assert all(set(task.judge.asked[row]) <= set(near[row]) for row in range(6))  # of many items, a pool by default
    run(AXN(vectors, budget=30, rounds=3, pool=0), task_of(matrix, 6), 3)


@pytest.mark.parametrize("vectors", [np.zeros((12, 4)), np.ones((12, 4)), np.eye(12, 4)], ids=["zero", "equal", "few"])
def test_vectors_that_say_nothing(vectors: Floats) -> None:
    """An encoder that gives every item the same vector ended linear search in "Singular matrix"."""
    matrix = vectors_of(5, 10, 12)
    stage = Vectors(vectors_of(6, 10, 4), vectors.astype(np.float32))
    exact = run(Exact(), task_of(matrix, 4), 12)
    for searcher in (
        LinearSearch(stage, 3, 12, 3),
        LinearSearch(stage, 3, 12, 3, ridge=1e-6, components=2),
        AXN(stage, budget=12, rounds=4),
        LADR(stage, stage, budget=12, seeds=4),
        GraphSearch(stage),
    ):
        found = run(searcher, task_of(matrix, 4), 12)
        np.testing.assert_array_equal(found.items, exact.items)


class Fixed(FirstStage):
    """The same items for every query."""

    def prepare(self) -> None:
        """Nothing to prepare."""

    def find(self, queries: Sequence[Query], k: int) -> tuple[NDArray[np.int64], Floats]:
        return np.tile(np.arange(k), (len(queries), 1)), np.zeros((len(queries), k), dtype=np.float32)


def test_two_thousand_searches_leave_nothing_behind() -> None:
    """A cache as long as the item set, a query: 0.8 MB of 200,000 items that nothing ever freed."""
    items = [Item("i", "text")] * 200_000
    judge = CallableJudge(lambda pairs: [float(len(query)) for query, _ in pairs], items)
    searcher = Rerank(Fixed(), 20)
    searcher.index(Corpus(items, judge))
    searcher.search([Query("warm", "up")], 3)
    tracemalloc.start()
    try:
        for number in range(2000):
            searcher.search([Query(str(number), "a query")], 3)
        gc.collect()
        left, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert left < 300_000 and peak < 4_000_000
    scorer = Scorer(lambda queries, rows: np.zeros(len(rows)), 32, 5_000_000)
    scorer.lists(np.tile(np.arange(100), (32, 1)))
    assert scorer._pairs.nbytes + scorer._found.nbytes == 12 * 3200  # what was scored, not what there is


def test_matrix_judges_are_searched_by_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """The best of all must not depend on where a block ends, ties included."""
    matrix = np.random.default_rng(7).integers(0, 6, size=(5, 101)).astype(np.float32)
    queries = [Query(str(row), "x") for row in range(5)]
    expected = np.argsort(-matrix, axis=1, kind="stable")
    for pairs in (5, 50, 10_000):
        monkeypatch.setattr("simzoo.retrieval.scorer.PAIRS", pairs)
        for k in (1, 9, 60, 101):
            rows, scores = MatrixJudge(matrix).scorer(queries).top(k)
            np.testing.assert_array_equal(rows, expected[:, :k])
            np.testing.assert_array_equal(scores, np.take_along_axis(matrix, rows, axis=1))
