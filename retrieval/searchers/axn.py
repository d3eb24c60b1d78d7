"""AXN: adaptive k-NN search with a cross-encoder over fixed item embeddings."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self

import torch
from torch import Tensor

from simzoo.core.records import Query
from simzoo.retrieval.first_stages.dense import Dense
from simzoo.retrieval.first_stages.first_stage import FirstStage
from simzoo.retrieval.searchers.dense_rounds import DenseRounds
from simzoo.retrieval.searchers.evidence import Evidence
from simzoo.retrieval.searchers.normalization import Normalization
from simzoo.retrieval.searchers.rounds import Fit, Floats
from simzoo.retrieval.searchers.solvers import LeastNorm, Ridge, System
from simzoo.retrieval.topk import Scores

__all__ = ["AXN"]


class AXN(DenseRounds):
    """AXN (Algorithm 1): scores some items, fits the query's vector to them, scores what now looks best, and again.

    Round 1 takes budget / rounds items from the first stage. Each further round solves least squares for the query
    vector u over all items scored so far (minimum norm), mixes it with the dual encoder's,
    u <- (1 - weight) u + weight u_param, and scores the unscored items with the largest <u, v>. With one round this is
    `Rerank`. Where a first stage has too few items for a query, the dual encoder's nearest fill up. What a search
    reads and holds: `InRounds`; what growing does: `DenseRounds`.

    Args:
        embeddings: the dual encoder whose item vectors are searched; None: the corpus's embedder.
        first_stage: what retrieves the items of round 1; None: the dual encoder itself.
        budget: items scored a query.
        rounds: R; the paper uses 10 on BEIR and 5 on ZESHEL.
        weight: lambda in [0, 1]; the paper uses 0.8 for k = 1 and 0 for k = 100 on BEIR, 0 on ZESHEL.
        pool: search only among the first stage's top so many items; 0: among all. None: among all; but of more than
            1,048,576 whose vector index is exact, among 10,000, or 10 times the budget if that is more.
        normalize: fit s' = beta (s - alpha) on other queries so that scores match the dual encoder's; wanted where
            ``weight`` is not 0, or where ``solver`` is a `Ridge` or `Evidence` around the dual encoder's vector.
        query_batch: queries searched together.
        solver: how u is solved for; None: `LeastNorm`, as in the paper.

    Examples:
        >>> from simzoo import AXN, Engine
        >>> def embed(texts):
        ...     return [[float(text.count("boat")), float(text.count("river"))] for text in texts]
        >>> def score(pairs):
        ...     return [text.count("river") - 0.5 * text.count("boat") for query, text in pairs]
        >>> engine = Engine(score, embed, AXN(budget=6, rounds=2))
        >>> texts = [f"x{' boat' * (row % 5)}{' river' * (row % 6)}" for row in range(30)]
        >>> engine.add([str(row) for row in range(30)], texts)
        >>> hits = engine.search("boat", k=1)  # the embedder looks for boats, the scores for rivers: 6 of 30 are enough
        >>> hits[0].text, hits.calls
        ('x river river river river river', 6)
    """

    def __init__(
        self,
        embeddings: Dense | None = None,
        first_stage: FirstStage | None = None,
        budget: int = 100,
        rounds: int = 5,
        weight: float = 0.0,
        pool: int | None = None,
        normalize: bool = False,
        query_batch: int = 32,
        solver: LeastNorm | Ridge | Evidence | None = None,
    ) -> None:
        if not 0 <= weight <= 1:
            raise ValueError(f"weight is lambda in [0, 1], got {weight}")
        super().__init__(embeddings, first_stage, budget, rounds, pool, normalize, query_batch)
        self.weight = weight
        self.solver = solver or LeastNorm()

    @classmethod
    def tiny(cls, stage: Any, budget: int) -> Self:
        """See `Searcher.tiny`."""
        return cls(stage, budget=budget, rounds=3)

    def fit(self, queries: Sequence[Query]) -> Fit:
        """See `InRounds.fit`."""
        width = self.embedder.vectors.shape[1]
        own = self.own(queries) if self.weight or self.solver.centred else torch.zeros(len(queries), width).double()
        return _Mixed(self.solver.begin(own, self.budget), own, self.weight, self.normalization)


class _Mixed:
    """u <- (1 - weight) u + weight u_param (AXN Eq. 7), on normalised scores."""

    def __init__(self, system: System, own: Tensor, weight: float, normalization: Normalization) -> None:
        self._system = system
        self._own = own
        self._weight = weight
        self._normalization = normalization

    def __call__(self, vectors: Floats, scores: Scores) -> Tensor:
        """See `Fit`."""
        self._system.add(torch.from_numpy(vectors), torch.from_numpy(self._normalization(scores)))
        fitted = self._system.solve()
        return fitted if not self._weight else (1 - self._weight) * fitted + self._weight * self._own
