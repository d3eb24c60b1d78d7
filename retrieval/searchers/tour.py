"""TOUR: the query's vector takes one gradient step a round towards the exact scores (AXN, B.2)."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from simzoo.core.records import Query
from simzoo.retrieval.first_stages.dense import Dense
from simzoo.retrieval.first_stages.first_stage import FirstStage
from simzoo.retrieval.searchers.dense_rounds import DenseRounds
from simzoo.retrieval.searchers.normalization import Normalization
from simzoo.retrieval.searchers.rounds import Fit, Floats
from simzoo.retrieval.topk import Scores

__all__ = ["Tour", "TourCE", "TourMSE"]

LARGEST = 1e15  # entries of a query's vector: beyond, approximate scores are no longer finite in single precision

Gradient = Callable[[Tensor, Tensor], Tensor]  # of approximate and exact scores (B, n): d loss / d approximate (B, n)


class Tour(DenseRounds):
    """The query's vector begins as the dual encoder's; after each round it takes one step u <- u - rate dL/du.

    L compares approximate scores <u, v> and exact ones over the items that the round has scored. Each round scores the
    best items that are not scored yet, so that every round spends its share of the budget. What a search reads and
    holds: `InRounds`; what growing does: `DenseRounds`.

    Args:
        embeddings: the dual encoder; None: the corpus's embedder.
        first_stage: what retrieves the items of round 1; None: the dual encoder itself.
        budget: items scored a query.
        rounds: R; AXN's paper uses 10 on BEIR.
        rate: of the gradient step; None: that of AXN's paper, 0.1 for TourCE and 1e-3 for TourMSE.
        pool: search only among the first stage's top so many items; see `InRounds`.
        normalize: bring exact scores to the dual encoder's scale first (AXN A.2); wanted wherever the two differ.
        query_batch: queries searched together.
    """

    paper_rate: ClassVar[float]
    """The rate that AXN's paper takes."""

    def __init__(
        self,
        embeddings: Dense | None = None,
        first_stage: FirstStage | None = None,
        budget: int = 100,
        rounds: int = 5,
        rate: float | None = None,
        pool: int | None = None,
        normalize: bool = False,
        query_batch: int = 32,
    ) -> None:
        super().__init__(embeddings, first_stage, budget, rounds, pool, normalize, query_batch)
        self.rate = self.paper_rate if rate is None else rate
        if not self.rate > 0:
            raise ValueError(f"rate is that of a gradient step and must be positive, got {rate}")

    @classmethod
    def tiny(cls, stage: Any, budget: int) -> Self:
        """See `Searcher.tiny`."""
        return cls(stage, budget=budget, rounds=3)

    @abstractmethod
    def gradient(self, approximate: Tensor, exact: Tensor) -> Tensor:
        """d L / d approximate (B, n), of approximate and exact scores (B, n), float64."""

    def fit(self, queries: Sequence[Query]) -> Fit:
        """See `InRounds.fit`."""
        return _Steps(self.own(queries), self.gradient, self.rate, self.normalization)


class TourCE(Tour):
    """TOUR-CE: L = KL(softmax(exact) || softmax(approximate)); see `Tour` for what it does, reads and is given.

    AXN's paper takes the rate 0.1 of 0.1, 0.5 and 1.0.
    """

    paper_rate = 0.1

    def gradient(self, approximate: Tensor, exact: Tensor) -> Tensor:
        """See `Tour.gradient`."""
        return approximate.softmax(dim=1) - exact.softmax(dim=1)


class TourMSE(Tour):
    """TOUR-MSE: L is the mean squared difference of the scores; see `Tour` for what it does, reads and is given.

    AXN's paper takes the rate 1e-3 of 1e-2, 1e-3 and 1e-4. Above the reciprocal of the longest item vector's squared
    length steps may overshoot.
    """

    paper_rate = 1e-3

    def gradient(self, approximate: Tensor, exact: Tensor) -> Tensor:
        """See `Tour.gradient`."""
        return 2 * (approximate - exact) / exact.shape[1]


class _Steps:
    """u and its gradient steps."""

    def __init__(self, own: Tensor, gradient: Gradient, rate: float, normalization: Normalization) -> None:
        self._u = own
        self._gradient = gradient
        self._rate = rate
        self._normalization = normalization

    def __call__(self, vectors: Floats, scores: Scores) -> Tensor:
        """See `Fit`.

        Raises:
            FloatingPointError: the steps are too long, and the vectors grow without end.
        """
        items, exact = torch.from_numpy(vectors).double(), torch.from_numpy(self._normalization(scores))
        slope = self._gradient((items @ self._u[..., None])[..., 0], exact)
        self._u = self._u - self._rate * (slope[:, None] @ items)[:, 0]
        if not bool((self._u.abs() <= LARGEST).all()):
            raise FloatingPointError(
                f"gradient steps at rate {self._rate} made a query's vector larger than {LARGEST:g}; take a smaller "
                "rate, or normalize=True where the scores are on another scale than the dual encoder's"
            )
        return self._u
