"""Exact search, the oracle; retrieve-and-rerank, the baseline; and a first stage alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self

from simzoo.core.records import Query
from simzoo.retrieval.first_stages.first_stage import FirstStage
from simzoo.retrieval.first_stages.lexical import BM25
from simzoo.retrieval.scorer import Scorer
from simzoo.retrieval.searcher import Ranking, Searcher, Stopwatch
from simzoo.retrieval.topk import Scores

__all__ = ["Exact", "Rerank", "Retrieve"]


class Exact(Searcher):
    """Scores every item: every approximate searcher is measured against it.

    A search reads all representations once a batch, in blocks, and holds the best k. Growing costs nothing; the results
    are those of indexing everything at once.

    Examples:
        >>> from simzoo import Engine, Exact
        >>> engine = Engine(lambda pairs: [len(b) - len(a) for a, b in pairs], search=Exact())
        >>> engine.add(["i0", "i1", "i2"], ["a boat", "the river bank", "a house"])
        >>> [(hits[0].id, hits.calls) for hits in engine.search(["a boat", "ship"], k=1)]
        [('i1', 3), ('i1', 3)]
    """

    @classmethod
    def tiny(cls, stage: Any, budget: int) -> Self:
        """See `Searcher.tiny`; the budget is all items."""
        return cls()

    def prepare(self, watch: Stopwatch) -> None:
        """Nothing to prepare."""

    def find(self, scorer: Scorer, queries: Sequence[Query], k: int, watch: Stopwatch) -> Ranking:
        """See `Searcher.find`."""
        with watch.step("scoring"):
            rows, scores = scorer.top(k, None if self.corpus.gone is None else self.corpus.live)
        return self.ranked(scorer, rows, scores, k)


class Rerank(Searcher):
    """Retrieve and rerank (RNR): the exact scores of the top items of a first stage.

    A search holds what the first stage holds, and ``budget`` scores a query. Growing costs what it costs the first
    stage; the results are those of indexing everything at once where the first stage's are.

    Args:
        first_stage: what retrieves.
        budget: items scored a query.

    Examples:
        >>> from simzoo import BM25, Engine, Rerank
        >>> engine = Engine(lambda pairs: [len(b) - len(a) for a, b in pairs], search=Rerank(BM25(), budget=2))
        >>> engine.add(["i0", "i1", "i2"], ["a boat", "the river bank", "one more boat"])
        >>> hits = engine.search("boat", k=2)
        >>> [hit.id for hit in hits], hits.calls
        (['i2', 'i0'], 2)
    """

    budget: int

    def __init__(self, first_stage: FirstStage | None = None, budget: int = 100) -> None:
        super().__init__()
        if budget < 1:
            raise ValueError(f"budget is the number of items scored a query, at least 1; got {budget}")
        self.first_stage = first_stage or BM25()
        self.budget = budget

    @classmethod
    def tiny(cls, stage: Any, budget: int) -> Self:
        """See `Searcher.tiny`."""
        return cls(stage, budget)

    def prepare(self, watch: Stopwatch) -> None:
        """Indexes the first stage."""
        with watch.step("first stage"):
            self.first_stage.index(self.corpus)

    def grow(self, start: int, watch: Stopwatch) -> None:
        """See `Searcher.grow`: as the first stage does."""
        with watch.step("first stage"):
            self.first_stage.extend(self.corpus, start)

    def find(self, scorer: Scorer, queries: Sequence[Query], k: int, watch: Stopwatch) -> Ranking:
        """See `Searcher.find`."""
        with watch.step("first stage"):
            items, _ = self.first_stage.search(queries, self.affordable())
        with watch.step("scoring"):
            scores = self.rescored(scorer.lists(items))
        return self.ranked(scorer, items, scores, k)

    def rescored(self, scores: Scores) -> Scores:
        """Scores (B, K) of the first stage's items, in its order, by which they are ranked: the similarity's own."""
        return scores


class Retrieve(Searcher):
    """The first stage's own ranking and scores; the similarity is never called. Growing is the first stage's.

    Args:
        first_stage: what retrieves.

    Examples:
        >>> from simzoo import BM25, Engine, Retrieve
        >>> engine = Engine(search=Retrieve(BM25()))
        >>> engine.add(["i0", "i1", "i2"], ["a boat", "the river bank", "a house"])
        >>> hits = engine.search("bank", k=1)
        >>> hits[0].text, hits.calls
        ('the river bank', 0)
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
            self.first_stage.index(self.corpus)

    def grow(self, start: int, watch: Stopwatch) -> None:
        """See `Searcher.grow`: as the first stage does."""
        with watch.step("first stage"):
            self.first_stage.extend(self.corpus, start)

    def find(self, scorer: Scorer, queries: Sequence[Query], k: int, watch: Stopwatch) -> Ranking:
        """See `Searcher.find`; 0 calls."""
        with watch.step("first stage"):
            items, scores = self.first_stage.search(queries, k)
        return Ranking(items, scores, scorer.calls.copy())
