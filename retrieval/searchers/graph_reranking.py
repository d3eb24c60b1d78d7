"""Graph-based re-ranking: the neighbours of what scored well join what the first stage found (GAR, LADR)."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, Self

import numpy as np

from simzoo.core.records import Query
from simzoo.retrieval.first_stages.dense import Dense
from simzoo.retrieval.first_stages.first_stage import FirstStage
from simzoo.retrieval.first_stages.lexical import BM25
from simzoo.retrieval.scorer import Scorer
from simzoo.retrieval.searcher import Ranking, Searcher, Stopwatch, check_batch
from simzoo.retrieval.searchers.vectors import neighbors_of
from simzoo.retrieval.storage.graph import GraphConfig
from simzoo.retrieval.topk import NOTHING, Rows, Scores, top_columns, top_order

__all__ = ["GAR", "LADR"]


class _Adaptive(Searcher):
    """What both share: a first stage, a neighbour graph, and rounds until the budget is spent.

    The graph is held, 4 bytes an item for each neighbour (memory-mapped where it has a folder); a search holds the
    neighbours of what it scored. A new item may be anybody's neighbour: growing builds the graph anew.

    Args:
        vectors: the dual encoder whose item vectors make the graph; None: the corpus's embedder.
        first_stage: where the search begins.
        graph: how the graph is built.
        budget: items scored a query.
        query_batch: queries searched together.
    """

    needs_pairs = True
    budget: int

    def __init__(
        self,
        vectors: Dense | None = None,
        first_stage: FirstStage | None = None,
        graph: GraphConfig | None = None,
        budget: int = 100,
        query_batch: int = 32,
    ) -> None:
        super().__init__()
        if budget < 1:
            raise ValueError(f"budget is the number of items scored a query, at least 1; got {budget}")
        self.vectors = vectors or Dense()
        self.first_stage: FirstStage = first_stage or BM25()
        self.graph = graph or GraphConfig(degree=16, metric="inner_product")
        self.budget = budget
        self.query_batch = check_batch(query_batch)

    def prepare(self, watch: Stopwatch) -> None:
        """Indexes the first stage, and builds or opens the graph."""
        with watch.step("first stage"):
            self.first_stage.index(self.corpus)
        with watch.step("item vectors"):
            self.vectors.index(self.corpus)
        with watch.step("neighbour graph"):
            self._neighbors = neighbors_of(self.vectors.embedder.vectors, self.graph)

    def find(self, scorer: Scorer, queries: Sequence[Query], k: int, watch: Stopwatch) -> Ranking:
        """See `Searcher.find`."""
        budget = self.affordable()
        with watch.step("first stage"):
            found, _ = self.first_stage.search(queries, budget)
        items = np.empty((len(queries), 0), dtype=np.int64)
        scores = np.empty((len(queries), 0), dtype=np.float32)
        near = items
        number = 0
        while items.shape[1] < budget:
            with watch.step("neighbours"):
                count = min(self.batch(number), budget - items.shape[1])
                fresh = self._fresh(self.wanted(number, found, near), items, count)
            if (fresh == NOTHING).all():
                break
            with watch.step("scoring"):
                new = scorer.lists(fresh)
            with watch.step("neighbours"):
                items, scores = np.hstack([items, fresh]), np.hstack([scores, new])
                near = self._nearest(*self.followed(items, scores))
            number += 1
        return self.ranked(scorer, items, scores, k)

    def _fresh(self, wanted: Rows, items: Rows, count: int) -> Rows:
        """(B, count) the first of the wanted rows (B, any), each once, without those that are scored (B, n) or gone."""
        base = np.arange(len(wanted))[:, None] * len(self.corpus)
        taken = (items + base)[items != NOTHING]
        out = (wanted == NOTHING) | np.isin(wanted + base, taken)
        if self.corpus.gone is not None:
            out |= self.corpus.gone[wanted]
        order = np.argsort(wanted, axis=1, kind="stable")
        ordered = np.take_along_axis(wanted, order, axis=1)
        again = np.zeros_like(out)
        again[:, 1:] = ordered[:, 1:] == ordered[:, :-1]
        np.put_along_axis(out, order, np.take_along_axis(out, order, axis=1) | again, axis=1)
        first = np.argsort(out, axis=1, kind="stable")[:, :count]
        fresh = np.where(np.take_along_axis(out, first, axis=1), NOTHING, np.take_along_axis(wanted, first, axis=1))
        return np.pad(fresh, ((0, 0), (0, count - fresh.shape[1])), constant_values=NOTHING)

    def _nearest(self, items: Rows, scores: Scores) -> Rows:
        """(B, n degree) the neighbours of scored items (B, n), those of the best ones first, then by row."""
        near: Rows = self._neighbors[items.clip(min=0)].astype(np.int64)
        near[items == NOTHING] = NOTHING
        near = near.reshape(len(items), -1)
        priority = np.repeat(scores, self._neighbors.shape[1], axis=1)
        return np.take_along_axis(near, top_order(priority, near, near.shape[1]), axis=1)

    @abstractmethod
    def batch(self, number: int) -> int:
        """Items scored in a round, at least 1."""

    @abstractmethod
    def wanted(self, number: int, found: Rows, near: Rows) -> Rows:
        """(B, any) what a round takes from, in order: the first stage's items, the neighbours, or both."""

    @abstractmethod
    def followed(self, items: Rows, scores: Scores) -> tuple[Rows, Scores]:
        """Those of the scored items (B, n) whose neighbours come next, and their scores."""


class GAR(_Adaptive):
    """Graph-based adaptive re-ranking (MacAvaney et al., 2022).

    Batches come from the first stage and from the graph in turn. A neighbour's priority is the best score of an item
    that it is near to.

    Args:
        vectors: the dual encoder whose item vectors make the graph; None: the corpus's embedder.
        first_stage: where the search begins.
        graph: how the graph is built; the paper has 8 to 16 neighbours.
        budget: items scored a query.
        batch_size: items scored a round.
        query_batch: queries searched together.
    """

    def __init__(
        self,
        vectors: Dense | None = None,
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

    def wanted(self, number: int, found: Rows, near: Rows) -> Rows:
        """The first stage's in even rounds, neighbours in odd ones; the others where these run out."""
        return np.hstack([near, found] if number % 2 else [found, near])

    def followed(self, items: Rows, scores: Scores) -> tuple[Rows, Scores]:
        """All: a neighbour's priority is the best score of an item that it is near to."""
        return items, scores


class LADR(_Adaptive):
    """Lexically accelerated dense retrieval, the adaptive form (Kulkarni et al., 2023).

    Seeds come from the first stage; then the unscored neighbours of the best ``depth`` scored items, round by round.
    Where no such neighbour is left, the first stage goes on until the budget is spent.

    Args:
        vectors: the dual encoder whose item vectors make the graph; None: the corpus's embedder.
        first_stage: where the search begins.
        graph: how the graph is built.
        budget: items scored a query.
        seeds: items of the first stage.
        depth: c, the best items whose neighbours are scored.
        query_batch: queries searched together.
    """

    def __init__(
        self,
        vectors: Dense | None = None,
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
        return max(1, self.depth * self._neighbors.shape[1]) if number else self.seeds

    def wanted(self, number: int, found: Rows, near: Rows) -> Rows:
        """Seeds first, then neighbours; the first stage's where these run out."""
        return np.hstack([near, found]) if number else found

    def followed(self, items: Rows, scores: Scores) -> tuple[Rows, Scores]:
        """The best items of all rounds."""
        best = top_columns(scores, min(self.depth, scores.shape[1]))
        return np.take_along_axis(items, best, axis=1), np.take_along_axis(scores, best, axis=1)
