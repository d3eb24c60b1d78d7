"""Graph-based re-ranking: the neighbours of what scored well join what the first stage found (GAR, LADR)."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from simzoo.retrieval.first_stages.dense import Dense
from simzoo.retrieval.first_stages.first_stage import BM25, FirstStage
from simzoo.retrieval.scorer import Rows
from simzoo.retrieval.searcher import Ranking, Searcher, Stopwatch, check_budget
from simzoo.retrieval.storage.graph import GraphConfig, build_graph
from simzoo.retrieval.topk import top_columns


class _Adaptive(Searcher):
    """What both share: a first stage, a neighbour graph, and rounds until the budget is spent.

    Args:
        vectors: the dual encoder whose item vectors make the graph.
        first_stage: where the search begins.
        graph: how the graph is built.
        budget: items scored a query.
        query_batch: queries searched together.
    """

    needs_pairs = True
    budget: int

    def __init__(
        self,
        vectors: Dense,
        first_stage: FirstStage | None = None,
        graph: GraphConfig | None = None,
        budget: int = 100,
        query_batch: int = 32,
    ) -> None:
        super().__init__()
        if query_batch < 1:
            raise ValueError(f"query_batch must be at least 1, got {query_batch}")
        self.vectors = vectors
        self.first_stage: FirstStage = first_stage or BM25()
        self.graph = graph or GraphConfig(degree=16, metric="inner_product")
        self.budget = budget
        self.query_batch = query_batch

    def prepare(self, watch: Stopwatch) -> None:
        """Indexes the first stage, and builds or opens the graph."""
        check_budget(self.budget, 1, len(self.task.collection.items))
        with watch.step("first stage"):
            self.first_stage.index(self.task.collection)
        with watch.step("item vectors"):
            self.vectors.index(self.task.collection)
        with watch.step("neighbour graph"):
            self._neighbors = build_graph(self.vectors.items, self.graph)

    def search(self, query_rows: Rows, k: int) -> Ranking:
        """See `Searcher.search`."""
        check_budget(self.budget, k, len(self.task.collection.items))
        watch = Stopwatch()
        starts = range(0, max(len(query_rows), 1), self.query_batch)
        parts = [self._search(query_rows[start : start + self.query_batch], watch) for start in starts]
        items, scores = (np.concatenate(column) for column in zip(*parts, strict=True))
        return self.ranked(query_rows, items, scores, k, watch)

    def _search(self, query_rows: Rows, watch: Stopwatch) -> tuple[Rows, NDArray[np.float32]]:
        """(B, budget) items and scores."""
        with watch.step("first stage"):
            found, _ = self.first_stage.search(query_rows, self.budget)
        size, num_items = len(query_rows), len(self.task.collection.items)
        # What comes next: the first stage's items in their order, below all neighbours of scored items.
        priority = np.full((size, num_items), -np.inf, dtype=np.float64)
        ranked = np.full((size, num_items), -np.inf, dtype=np.float64)
        np.put_along_axis(ranked, found, -np.arange(self.budget, dtype=np.float64)[None], axis=1)
        items = np.empty((size, 0), dtype=np.int64)
        scores = np.empty((size, 0), dtype=np.float32)
        number = 0
        while items.shape[1] < self.budget:
            with watch.step("neighbours"):
                count = min(self.batch(number), self.budget - items.shape[1])
                wanted = self.wanted(number, ranked, priority)
                np.put_along_axis(wanted, items, -np.inf, axis=1)
                # Where too few neighbours wait, the first stage goes on.
                short = np.isfinite(wanted).sum(axis=1) < count
                if short.any():
                    wanted[short] = np.where(np.isfinite(wanted[short]), 1e6 + wanted[short], ranked[short])
                    np.put_along_axis(wanted, items, -np.inf, axis=1)
                fresh = top_columns(wanted, count)
            with watch.step("scoring"):
                new = self.task.scorer.score_lists(query_rows, fresh)
            with watch.step("neighbours"):
                items, scores = np.hstack([items, fresh]), np.hstack([scores, new])
                self.follow(priority, items, scores, count)
            number += 1
        return items, scores

    @abstractmethod
    def batch(self, number: int) -> int:
        """Items scored in a round."""

    @abstractmethod
    def wanted(self, number: int, ranked: NDArray[np.float64], priority: NDArray[np.float64]) -> NDArray[np.float64]:
        """(B, N), a new array: what a round takes from, by what; -inf where nothing is."""

    @abstractmethod
    def follow(self, priority: NDArray[np.float64], items: Rows, scores: NDArray[np.float32], fresh: int) -> None:
        """Gives neighbours of scored items (B, m), of which the last ``fresh`` are new, their priority."""


class GAR(_Adaptive):
    """Graph-based adaptive re-ranking (MacAvaney et al., 2022).

    Batches come from the first stage and from the graph in turn. A neighbour's priority is the best score of an item
    that it is near to.

    Args:
        vectors: the dual encoder whose item vectors make the graph.
        first_stage: where the search begins.
        graph: how the graph is built; the paper has 8 to 16 neighbours.
        budget: items scored a query.
        batch_size: items scored a round.
        query_batch: queries searched together.
    """

    def __init__(
        self,
        vectors: Dense,
        first_stage: FirstStage | None = None,
        graph: GraphConfig | None = None,
        budget: int = 100,
        batch_size: int = 16,
        query_batch: int = 32,
    ) -> None:
        super().__init__(vectors, first_stage, graph, budget, query_batch)
        if batch_size < 1:
            raise ValueError(f"batch_size must be at least 1, got {batch_size}")
        self.batch_size = batch_size

    @classmethod
    def tiny(cls, stage: Any, budget: int) -> Self:
        """See `Searcher.tiny`."""
        return cls(stage, stage, GraphConfig(4), budget, 3)

    def batch(self, number: int) -> int:
        """See `_Adaptive.batch`."""
        return self.batch_size

    def wanted(self, number: int, ranked: NDArray[np.float64], priority: NDArray[np.float64]) -> NDArray[np.float64]:
        """The first stage's in even rounds, neighbours in odd ones."""
        return (priority if number % 2 else ranked).copy()

    def follow(self, priority: NDArray[np.float64], items: Rows, scores: NDArray[np.float32], fresh: int) -> None:
        """All new items hand their score to their neighbours."""
        _raise(priority, self._neighbors, items[:, -fresh:], scores[:, -fresh:])


class LADR(_Adaptive):
    """Lexically accelerated dense retrieval, the adaptive form (Kulkarni et al., 2023).

    Seeds come from the first stage; then the unscored neighbours of the best ``depth`` scored items, round by round.
    Where no such neighbour is left, the first stage goes on until the budget is spent.

    Args:
        vectors: the dual encoder whose item vectors make the graph.
        first_stage: where the search begins.
        graph: how the graph is built.
        budget: items scored a query.
        seeds: items of the first stage.
        depth: c, the best items whose neighbours are scored.
        query_batch: queries searched together.
    """

    def __init__(
        self,
        vectors: Dense,
        first_stage: FirstStage | None = None,
        graph: GraphConfig | None = None,
        budget: int = 100,
        seeds: int = 50,
        depth: int = 10,
        query_batch: int = 32,
    ) -> None:
        super().__init__(vectors, first_stage, graph, budget, query_batch)
        if not 1 <= seeds <= budget or depth < 1:
            raise ValueError(f"seeds are between 1 and the budget, depth at least 1; got {seeds}, {budget}, {depth}")
        self.seeds = seeds
        self.depth = depth

    @classmethod
    def tiny(cls, stage: Any, budget: int) -> Self:
        """See `Searcher.tiny`."""
        return cls(stage, stage, GraphConfig(4), budget, max(1, budget // 2), 2)

    def batch(self, number: int) -> int:
        """The seeds, then as many as the best items have neighbours."""
        return self.depth * self._neighbors.shape[1] if number else self.seeds

    def wanted(self, number: int, ranked: NDArray[np.float64], priority: NDArray[np.float64]) -> NDArray[np.float64]:
        """Seeds first, then neighbours only."""
        return (priority if number else ranked).copy()

    def follow(self, priority: NDArray[np.float64], items: Rows, scores: NDArray[np.float32], fresh: int) -> None:
        """The best items of all rounds hand their score to their neighbours; what others did before is forgotten."""
        best = top_columns(scores, min(self.depth, scores.shape[1]))
        priority[:] = -np.inf
        chosen = np.take_along_axis(items, best, axis=1)
        _raise(priority, self._neighbors, chosen, np.take_along_axis(scores, best, axis=1))


def _raise(
    priority: NDArray[np.float64], neighbors: NDArray[np.int32], items: Rows, scores: NDArray[np.float32]
) -> None:
    """priority[q, n] becomes at least the score of every item of q that n is a neighbour of."""
    near = neighbors[items]
    rows = np.broadcast_to(np.arange(len(items))[:, None, None], near.shape)
    np.maximum.at(priority, (rows, near), np.broadcast_to(scores[..., None], near.shape))
