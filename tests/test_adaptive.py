"""Graph-based re-ranking against its plain form."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from simzoo.retrieval.searchers.exact import Exact, Rerank
from simzoo.retrieval.searchers.graph_reranking import GAR, LADR
from simzoo.retrieval.storage.graph import GraphConfig, build_graph
from tests.test_searchers import Vectors, problem, run, task_of

Floats = NDArray[np.float32]
BUDGET = 20


def weak(vectors: Vectors, seed: int) -> Vectors:
    """The same items, queries that know little."""
    noise = np.random.default_rng(seed).normal(size=vectors._queries.shape).astype(np.float32)
    return Vectors(0.5 * vectors._queries + noise, vectors.items)


def plain_gar(scores: Floats, first: list[int], neighbors: NDArray[np.int32], batch: int) -> set[int]:
    """One query, with lists: a batch of the first stage, a batch of the frontier, and so on."""
    scored: list[int] = []
    frontier: dict[int, float] = {}
    number = 0
    while len(scored) < BUDGET:
        count = min(batch, BUDGET - len(scored))
        rest = [item for item in first if item not in scored]
        near = sorted((i for i in frontier if i not in scored), key=lambda i: (-frontier[i], i))
        taken = (near if number % 2 else rest)[:count]
        taken += [item for item in rest if item not in taken][: count - len(taken)]
        scored += taken
        for item in taken:
            for neighbor in neighbors[item].tolist():
                frontier[neighbor] = max(frontier.get(neighbor, -np.inf), float(scores[item]))
        number += 1
    return set(scored)


def plain_ladr(scores: Floats, first: list[int], neighbors: NDArray[np.int32], seeds: int, depth: int) -> set[int]:
    """One query, with lists: the seeds, then the neighbours of the best items."""
    scored = first[:seeds]
    while len(scored) < BUDGET:
        best = sorted(range(len(scored)), key=lambda place: (-scores[scored[place]], place))[:depth]
        frontier: dict[int, float] = {}
        for place in best:
            for neighbor in neighbors[scored[place]].tolist():
                frontier[neighbor] = max(frontier.get(neighbor, -np.inf), float(scores[scored[place]]))
        near = sorted((i for i in frontier if i not in scored), key=lambda i: (-frontier[i], i))
        rest = [item for item in first if item not in scored and item not in near]
        count = min(depth * neighbors.shape[1], BUDGET - len(scored))
        scored = scored + (near + rest)[:count]
    return set(scored)


@pytest.mark.parametrize("kind", ["gar", "ladr"])
def test_searches_are_their_plain_forms(kind: str) -> None:
    """Which items are scored, query by query."""
    matrix, vectors = problem(3, 10, 90, 6, 0.2)
    stage, config = weak(vectors, 1), GraphConfig(4)
    searcher = (
        GAR(vectors, stage, config, BUDGET, 3, 4) if kind == "gar" else LADR(vectors, stage, config, BUDGET, 8, 2, 4)
    )
    task = task_of(matrix, 10)
    found = run(searcher, task, BUDGET)
    neighbors = build_graph(vectors.items, config)
    for row in range(10):
        first = stage.search([task.queries[row]], 90)[0][0].tolist()
        if kind == "gar":
            expected = plain_gar(matrix[row], first[:BUDGET], neighbors, 3)
        else:
            expected = plain_ladr(matrix[row], first[:BUDGET], neighbors, 8, 2)
        assert set(found.items[row].tolist()) == expected
    assert (found.calls == BUDGET).all()


@pytest.mark.parametrize("kind", [GAR, LADR])
def test_neighbours_help_a_weak_first_stage(kind: type[GAR | LADR]) -> None:
    """The reason for them: items that the first stage did not find."""
    rng = np.random.default_rng(4)
    items = rng.normal(size=(1500, 8)).astype(np.float32)
    items /= np.linalg.norm(items, axis=1, keepdims=True)  # near items score alike only where lengths do not matter
    queries = rng.normal(size=(40, 8)).astype(np.float32)
    matrix, vectors = queries @ items.T, Vectors(queries, items)
    stage = weak(vectors, 2)
    exact = run(Exact(), task_of(matrix, 40), 10)
    recall = []
    for searcher in (Rerank(stage, 100), kind(vectors, stage, GraphConfig(8), 100)):
        found = run(searcher, task_of(matrix, 40), 10)
        recall.append(np.mean([len(set(a) & set(b)) for a, b in zip(found.items, exact.items, strict=True)]) / 10)
    assert recall[1] > recall[0] + 0.1


def test_settings_that_cannot_be_are_refused() -> None:
    """Seeds beyond the budget would be cut in silence."""
    _, vectors = problem(3, 4, 30, 4, 0.2)
    with pytest.raises(ValueError, match="seeds are between 1 and the budget"):
        LADR(vectors, budget=10, seeds=11)
    with pytest.raises(ValueError, match="batch_size must be at least 1"):
        GAR(vectors, batch_size=0)
