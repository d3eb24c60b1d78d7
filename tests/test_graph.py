"""Neighbour graphs, and walks over them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from simzoo.core.records import DataError, Item, Query
from simzoo.core.reps import Reps, take
from simzoo.models.hypencoder import Hypencoder
from simzoo.retrieval.corpus import Corpus
from simzoo.retrieval.judge import SimilarityJudge
from simzoo.retrieval.searcher import Searcher
from simzoo.retrieval.searchers.exact import Exact
from simzoo.retrieval.searchers.graph_search import GraphSearch, RandomItems, Retrieved
from simzoo.retrieval.searchers.linear_search import LinearSearch
from simzoo.retrieval.storage import graph
from simzoo.retrieval.storage.graph import GraphConfig, build_graph, load_graph
from tests.test_searchers import problem, run, task_of
from tests.toy import toy_collection

Floats = NDArray[np.float32]
VECTORS = np.random.default_rng(0).normal(size=(50, 6)).astype(np.float32)
VECTORS[7] = VECTORS[3]


@pytest.mark.parametrize("metric", ["l2", "inner_product"])
def test_neighbours_are_the_nearest(metric: graph.Metric, monkeypatch: pytest.MonkeyPatch) -> None:
    """By brute force; an item with a copy is not its own neighbour."""
    monkeypatch.setattr(graph, "BLOCK", 16)
    found = build_graph(VECTORS, GraphConfig(5, metric))
    exact = VECTORS.astype(np.float64)
    near = exact @ exact.T if metric == "inner_product" else -((exact[:, None] - exact) ** 2).sum(axis=2)
    np.fill_diagonal(near, -np.inf)
    assert found.shape == (50, 5) and found.dtype == np.int32
    for row in range(50):
        np.testing.assert_allclose(near[row, found[row]], np.sort(near[row])[::-1][:5], atol=1e-5)
    assert (found[3] == 7).any() and not (found[3] == 3).any()


def test_a_killed_build_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Same bytes, and no block is computed twice."""
    monkeypatch.setattr(graph, "BLOCK", 16)
    whole = build_graph(VECTORS, GraphConfig(5, folder=tmp_path / "whole"))
    find, calls = graph._block, []

    def dying(index: object, vectors: Floats, start: int, degree: int) -> NDArray[np.int32]:
        calls.append(start)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return find(index, vectors, start, degree)  # type: ignore[arg-type]

    monkeypatch.setattr(graph, "_block", dying)
    with pytest.raises(KeyboardInterrupt):
        build_graph(VECTORS, GraphConfig(5, folder=tmp_path / "killed"))
    again = build_graph(VECTORS, GraphConfig(5, folder=tmp_path / "killed"))
    assert calls == [0, 16, 32, 32, 48]
    np.testing.assert_array_equal(again, whole)
    assert {p.name for p in (tmp_path / "killed").iterdir()} == {"manifest.json", "neighbors.npy", "checksums.json"}


def test_bad_graphs_are_refused(tmp_path: Path) -> None:
    """A walk over another collection's graph returns plausible nonsense."""
    config = GraphConfig(5, folder=tmp_path)
    build_graph(VECTORS, config)
    with pytest.raises(DataError, match="graph with other vectors; choose another folder"):
        build_graph(VECTORS[::-1].copy(), config)
    with pytest.raises(DataError, match="graph with other degree"):
        build_graph(VECTORS, GraphConfig(6, folder=tmp_path))
    with pytest.raises(DataError, match=r"expected int32 neighbours of 51 items"):
        load_graph(tmp_path, 51)
    path = tmp_path / "neighbors.npy"
    damaged = np.load(path)
    damaged[4, 2] = 50
    np.save(path, damaged)
    with pytest.raises(DataError, match="names the items 0 to 50, but they run from 0 to 49"):
        load_graph(tmp_path, 50)
    path.write_bytes(path.read_bytes()[:-40])
    with pytest.raises(DataError, match="missing or damaged"):
        load_graph(tmp_path, 50)
    broken = VECTORS.copy()
    broken[9, 0] = np.nan
    with pytest.raises(ValueError, match="1 items have vectors that are not finite; the first is row 9"):
        build_graph(broken, GraphConfig(5))


def plain_walk(
    scores: Floats, neighbors: NDArray[np.int32], entry: list[int], k: int, breadth: int, rounds: int, offered: int
) -> tuple[list[int], set[int]]:
    """Algorithm 1, one query, with lists and sets."""
    visited, frontier, best = set(entry), list(entry), []
    for _ in range(rounds):
        if not frontier:
            break
        ranked = sorted(frontier, key=lambda item: (-scores[item], item))
        best = sorted(best + ranked[:offered], key=lambda item: (-scores[item], item))[:k]
        near = {int(n) for item in ranked[:breadth] for n in neighbors[item]} - visited
        visited |= near
        frontier = sorted(near)
    return best, visited - set(frontier) if frontier else visited


@pytest.mark.parametrize(("rounds", "offered"), [(1, 3), (2, 3), (4, 3), (50, 3), (4, None)])
def test_walks_are_algorithm_1(rounds: int, offered: int | None) -> None:
    """Step by step against the plain form: results, and the number of scored items."""
    matrix, vectors = problem(5, 12, 120, 6, 0.2)
    task = task_of(matrix, 12)
    searcher = GraphSearch(vectors, RandomItems(10, 1), GraphConfig(4), 3, rounds, offered=offered, query_batch=5)
    found = run(searcher, task, 3)
    neighbors = build_graph(vectors.items, GraphConfig(4))
    entry = searcher.entry_points.of(task.queries[:1])[0].tolist()
    for row in range(12):
        expected, scored = plain_walk(matrix[row], neighbors, entry, 3, 3, rounds, offered or 10**6)
        assert found.items[row].tolist() == expected
        assert found.calls[row] == len(scored)
        np.testing.assert_array_equal(found.scores[row], matrix[row, found.items[row]])


@pytest.mark.parametrize("best_first", [False, True])
def test_batching_changes_nothing(best_first: bool) -> None:
    """32 queries at once and one by one: a walk must not see the others."""
    matrix, vectors = problem(6, 20, 150, 6, 0.3)
    found = []
    for batch in (32, 1):
        settings = {"breadth": 4, "rounds": 6, "best_first": best_first, "stop_early": True, "budget": 70}
        searcher = GraphSearch(vectors, RandomItems(8), GraphConfig(6), query_batch=batch, **settings)  # type: ignore
        found.append(run(searcher, task_of(matrix, 20), 5))
    for name in ("items", "scores", "calls"):
        np.testing.assert_array_equal(getattr(found[0], name), getattr(found[1], name))
    assert found[0].calls.max() <= 70


class Encoded(SimilarityJudge):
    """Over representations of queries at hand, by their ids, which are rows."""

    def __init__(self, similarity: Hypencoder, queries: Reps, items: Reps) -> None:
        super().__init__(similarity, items)
        self.queries = queries

    def encode(self, queries: Sequence[Query]) -> Reps:
        return take(self.queries, torch.tensor([int(query.id) for query in queries]))


@pytest.mark.parametrize("kind", [GraphSearch, LinearSearch])
def test_32_queries_at_once_are_32_queries(kind: type[GraphSearch] | type[LinearSearch]) -> None:
    """With q-nets instead of known scores: one query's items must not be scored with another's weights."""
    model, width, torch_rng = Hypencoder.tiny().eval(), 16, torch.Generator().manual_seed(0)
    queries: Reps = {
        name: torch.randn(32, *shape, generator=torch_rng) / width**0.5
        for name, shape in zip(model.q_net.names, model.q_net.shapes, strict=True)
    }
    items: Reps = {"vector": torch.randn(600, width, generator=torch_rng)}
    exact = model.score(queries, items).numpy()
    assert len(set(exact.argmax(axis=1))) > 16  # the queries want different items
    found = []
    for batch in (32, 1):
        searcher: Searcher = LinearSearch(None, 40, 120, 3, components=8, query_batch=batch)
        if kind is GraphSearch:
            searcher = GraphSearch(None, RandomItems(40), GraphConfig(8), 4, 6, best_first=True, query_batch=batch)
        searcher.index(Corpus([Item(str(row), "x") for row in range(600)], Encoded(model, queries, items)))
        found.append(searcher.search([Query(str(row), "x") for row in range(32)], 10))
    np.testing.assert_array_equal(found[0].items, found[1].items)
    np.testing.assert_array_equal(found[0].calls, found[1].calls)
    np.testing.assert_allclose(found[0].scores, found[1].scores, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(found[0].scores, np.take_along_axis(exact, found[0].items, axis=1), rtol=1e-4, atol=1e-5)
    assert found[0].calls.max() < 600


def test_stopping_early_scores_no_more() -> None:
    """The third stopping rule only cuts off rounds that found nothing."""
    matrix, vectors = problem(7, 20, 300, 6, 0.1)
    calls = []
    for stop in (False, True):
        found = run(
            GraphSearch(vectors, RandomItems(30), GraphConfig(6), 3, 30, stop_early=stop), task_of(matrix, 20), 3
        )
        calls.append(found.calls)
    assert (calls[1] <= calls[0]).all() and calls[1].sum() < 0.8 * calls[0].sum()


def test_walks_find_more_than_as_many_random_items() -> None:
    """The reason for a graph."""
    matrix, vectors = problem(8, 40, 2000, 8, 0.2)
    exact = run(Exact(), task_of(matrix, 40), 10)
    walked = run(GraphSearch(vectors, RandomItems(100), GraphConfig(16), 8, 8), task_of(matrix, 40), 10)
    recall = np.mean([len(set(a) & set(b)) for a, b in zip(walked.items, exact.items, strict=True)]) / 10
    assert recall > 1.5 * walked.calls.mean() / 2000


def test_entry_points_of_a_first_stage_and_own_vectors() -> None:
    """A similarity with item vectors of its own needs no dual encoder; without any, the error says what to name."""
    collection, model = toy_collection(), Hypencoder.tiny().eval()
    corpus = Corpus.of(collection, SimilarityJudge.of(model, collection.items))
    queries = [Query(str(row), query.text, query.mention) for row, query in enumerate(collection.queries)]
    _, vectors = problem(9, 24, 40, 6, 0.2)
    entry = Retrieved(vectors, 6)
    searcher = GraphSearch(None, entry, GraphConfig(5), 4, 3)
    searcher.index(corpus)
    found = searcher.search(queries, 5)
    first, _ = vectors.search(queries, 6)
    assert (found.calls > 6).all() and np.array_equal(entry.of(queries), first)
    with pytest.raises(TypeError, match="name a dual encoder"):
        GraphSearch().index(task_of(np.zeros((3, 40), dtype=np.float32), 3).corpus)


def test_walks_that_find_too_little_say_so() -> None:
    """An unfilled place would look like an item."""
    matrix, vectors = problem(1, 4, 30, 4, 0.1)
    found = run(GraphSearch(vectors, RandomItems(2), GraphConfig(2), 1, 2), task_of(matrix, 4), 9)
    assert (found.calls < 9).all()
    for row, calls in enumerate(found.calls):
        assert (found.items[row, :calls] >= 0).all() and (found.items[row, calls:] == -1).all()
        assert np.isneginf(found.scores[row, calls:]).all()
    with pytest.raises(ValueError, match="need a budget of at least 9"):
        run(GraphSearch(vectors, RandomItems(2), GraphConfig(2), budget=5), task_of(matrix, 4), 9)
