"""Reranking by the similarity and by the place that an item has in a given order, such as that of a word's senses."""

from __future__ import annotations

from typing import Any, Self

import numpy as np

from simzoo.retrieval.first_stages.first_stage import FirstStage
from simzoo.retrieval.first_stages.offered import Given
from simzoo.retrieval.searchers.exact import Rerank
from simzoo.retrieval.topk import Scores

__all__ = ["RankPrior"]


class RankPrior(Rerank):
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

    def __init__(self, first_stage: FirstStage | None = None, budget: int = 100, weight: float = 1.0) -> None:
        super().__init__(first_stage or Given(), budget)
        if not 0 <= weight < np.inf:
            raise ValueError(f"weight is that of the first stage's order, a finite number of at least 0; got {weight}")
        self.weight = weight

    @classmethod
    def tiny(cls, stage: Any, budget: int) -> Self:
        """See `Searcher.tiny`; without a prior, whose scores are not the similarity's own."""
        return cls(stage, budget, weight=0.0)

    def rescored(self, scores: Scores) -> Scores:
        """See `Rerank.rescored`."""
        return prior_scores(scores, self.weight)


def prior_scores(scores: Scores, weight: float) -> Scores:
    """Scores (B, K) of items in an order, the first place first, with its prior: less ``weight`` log(place)."""
    places = np.arange(1, scores.shape[1] + 1)
    return (scores - weight * np.log(places)).astype(np.float32)
