"""Exact search, the oracle; retrieve-and-rerank, the baseline; and a first stage alone."""

from __future__ import annotations

from typing import Any, Self

import numpy as np

from simzoo.retrieval.first_stages.first_stage import BM25, FirstStage
from simzoo.retrieval.scorer import Rows
from simzoo.retrieval.searcher import Ranking, Searcher, Stopwatch, check_budget


class Exact(Searcher):
    """Scores every item: every approximate searcher is measured against it."""

    @classmethod
    def tiny(cls, stage: Any, budget: int) -> Self:
        """See `Searcher.tiny`; the budget is all items."""
        return cls()

    def prepare(self, watch: Stopwatch) -> None:
        """Nothing to prepare."""

    def search(self, query_rows: Rows, k: int) -> Ranking:
        """See `Searcher.search`."""
        num_items = len(self.task.collection.items)
        check_budget(num_items, k, num_items)
        watch = Stopwatch()
        items = np.tile(np.arange(num_items), (len(query_rows), 1))
        with watch.step("scoring"):
            scores = self.task.scorer.score_lists(query_rows, items)
        return self.ranked(query_rows, items, scores, k, watch)


class Rerank(Searcher):
    """Retrieve and rerank (RNR): the exact scores of the top items of a first stage.

    Args:
        first_stage: what retrieves.
        budget: items scored a query.
    """

    budget: int

    def __init__(self, first_stage: FirstStage | None = None, budget: int = 100) -> None:
        super().__init__()
        self.first_stage = first_stage or BM25()
        self.budget = budget

    @classmethod
    def tiny(cls, stage: Any, budget: int) -> Self:
        """See `Searcher.tiny`."""
        return cls(stage, budget)

    def prepare(self, watch: Stopwatch) -> None:
        """Indexes the first stage."""
        with watch.step("first stage"):
            self.first_stage.index(self.task.collection)

    def search(self, query_rows: Rows, k: int) -> Ranking:
        """See `Searcher.search`."""
        check_budget(self.budget, k, len(self.task.collection.items))
        watch = Stopwatch()
        with watch.step("first stage"):
            items, _ = self.first_stage.search(query_rows, self.budget)
        with watch.step("scoring"):
            scores = self.task.scorer.score_lists(query_rows, items)
        return self.ranked(query_rows, items, scores, k, watch)


class Retrieve(Searcher):
    """The first stage's own ranking and scores; the similarity is never called.

    Args:
        first_stage: what retrieves.
    """

    calls_similarity = False

    def __init__(self, first_stage: FirstStage | None = None) -> None:
        super().__init__()
        self.first_stage = first_stage or BM25()

    @classmethod
    def tiny(cls, stage: Any, budget: int) -> Self:
        """See `Searcher.tiny`; the budget is 0."""
        return cls(stage)

    def prepare(self, watch: Stopwatch) -> None:
        """Indexes the first stage."""
        with watch.step("first stage"):
            self.first_stage.index(self.task.collection)

    def search(self, query_rows: Rows, k: int) -> Ranking:
        """See `Searcher.search`; 0 calls."""
        watch = Stopwatch()
        with watch.step("first stage"):
            items, scores = self.first_stage.search(query_rows, k)
        return Ranking(items, scores, np.zeros(len(query_rows), dtype=np.int64), dict(watch.seconds))
