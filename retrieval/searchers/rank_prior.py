"""Reranking by the similarity and by the place that an item has in a given order, such as that of a word's senses."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self

import numpy as np

from simzoo.core.records import Query
from simzoo.retrieval.first_stages.first_stage import FirstStage
from simzoo.retrieval.first_stages.offered import Given
from simzoo.retrieval.scorer import Scorer
from simzoo.retrieval.searcher import Ranking, Searcher, Stopwatch
from simzoo.retrieval.topk import Scores

__all__ = ["RankPrior"]


class RankPrior(Searcher):
    """The similarity's score less ``weight`` times the log of the item's place, 1 for the first, in an order.

    The order is the first stage's; that of `Given` is the data's own. Where a share proportional to place^-a of the
    queries has its relevant item there, and the similarity's score over T is the log of a probability, the weight is
    a T. It is to be chosen on queries of the dev split (`prior_scores`). A search holds what the first stage holds, and
    ``budget`` scores a query.

    Args:
        first_stage: whose order counts; `Given` if none is given.
        budget: items scored a query.
        weight: of the order; 0: the similarity alone.
    """

    budget: int

    def __init__(self, first_stage: FirstStage | None = None, budget: int = 100, weight: float = 1.0) -> None:
        super().__init__()
        if budget < 1:
            raise ValueError(f"budget is the number of items scored a query, at least 1; got {budget}")
        if not 0 <= weight < np.inf:
            raise ValueError(f"weight is that of the first stage's order, a finite number of at least 0; got {weight}")
        self.first_stage = first_stage or Given()
        self.budget = budget
        self.weight = weight

    @classmethod
    def tiny(cls, stage: Any, budget: int) -> Self:
        """See `Searcher.tiny`; without a prior, whose scores are not the similarity's own."""
        return cls(stage, budget, weight=0.0)

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
            scores = prior_scores(scorer.lists(items), self.weight)
        return self.ranked(scorer, items, scores, k)


def prior_scores(scores: Scores, weight: float) -> Scores:
    """Scores (B, K) of items in an order, the first place first, with its prior: less ``weight`` log(place)."""
    places = np.arange(1, scores.shape[1] + 1)
    return (scores - weight * np.log(places)).astype(np.float32)
