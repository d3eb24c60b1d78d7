"""AXN: adaptive k-NN search with a cross-encoder over fixed item embeddings."""

from __future__ import annotations

from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from retrieval.dense import Dense
from retrieval.first_stage import FirstStage
from retrieval.least_squares import GrowingLeastSquares
from retrieval.normalize import Normalization, fit_normalization
from retrieval.scorer import Rows
from retrieval.searcher import Ranking, Searcher, Stopwatch, check_budget


class AXN(Searcher):
    """AXN (Algorithm 1): scores some items, fits the query's vector to them, scores what now looks best, and again.

    Round 1 takes budget / rounds items from the first stage. Each further round solves least squares for the query
    vector u over all items scored so far (minimum norm), mixes it with the dual encoder's,
    u <- (1 - weight) u + weight u_param, and scores the unscored items with the largest <u, v>. With one round this is
    `Rerank`.

    Args:
        embeddings: the dual encoder whose item vectors are searched.
        first_stage: what retrieves the items of round 1; None: the dual encoder itself.
        budget: items scored a query.
        rounds: R; the paper uses 10 on BEIR and 5 on ZESHEL.
        weight: lambda in [0, 1]; the paper uses 0.8 for k = 1 and 0 for k = 100 on BEIR, 0 on ZESHEL.
        pool: search only among the first stage's top so many items; None: among all.
        normalize: fit s' = beta (s - alpha) on other queries so that scores match the dual encoder's; wanted where
            ``weight`` is not 0.
        query_batch: queries searched together.
    """

    def __init__(
        self,
        embeddings: Dense,
        first_stage: FirstStage | None = None,
        budget: int = 100,
        rounds: int = 5,
        weight: float = 0.0,
        pool: int | None = None,
        normalize: bool = False,
        query_batch: int = 32,
    ) -> None:
        super().__init__()
        if not 0 <= weight <= 1:
            raise ValueError(f"weight is lambda in [0, 1], got {weight}")
        if not 1 <= rounds <= budget:
            raise ValueError(f"each of {rounds} rounds scores at least one item: budget {budget} is too small")
        if pool is not None and pool < budget:
            raise ValueError(f"a pool of {pool} items cannot fill a budget of {budget}")
        if query_batch < 1:
            raise ValueError(f"query_batch must be at least 1, got {query_batch}")
        self.embeddings = embeddings
        self.first_stage: FirstStage = first_stage or embeddings
        self.budget = budget
        self.rounds = rounds
        self.weight = weight
        self.pool = pool
        self.normalize = normalize
        self.query_batch = query_batch

    @classmethod
    def tiny(cls, stage: Any, budget: int) -> Self:
        """See `Searcher.tiny`."""
        return cls(stage, budget=budget, rounds=3)

    def prepare(self, watch: Stopwatch) -> None:
        """Embeds items and queries, indexes the first stage, fits the normalisation."""
        check_budget(self.budget, 1, len(self.task.collection.items))
        with watch.step("item embeddings"):
            self.embeddings.index(self.task.collection)
        if self.first_stage is not self.embeddings:
            with watch.step("first stage"):
                self.first_stage.index(self.task.collection)
        self.normalization = Normalization()
        if self.normalize:
            with watch.step("score normalisation"):
                self.normalization = fit_normalization(self.task, self.embeddings, self.first_stage)

    def search(self, query_rows: Rows, k: int) -> Ranking:
        """See `Searcher.search`."""
        check_budget(self.budget, k, len(self.task.collection.items))
        watch = Stopwatch()
        parts = [
            self._search(query_rows[start : start + self.query_batch], watch)
            for start in range(0, len(query_rows), self.query_batch)
        ]
        items, scores = (np.concatenate(column) for column in zip(*parts, strict=True))
        return self.ranked(query_rows, items, scores, k, watch)

    def _search(self, query_rows: Rows, watch: Stopwatch) -> tuple[Rows, NDArray[np.float32]]:
        sizes = [self.budget // self.rounds + (r < self.budget % self.rounds) for r in range(self.rounds)]
        vectors = torch.from_numpy(self.embeddings.items)
        with watch.step("first stage"):
            found, _ = self.first_stage.search(query_rows, self.pool or sizes[0])
        pool = torch.from_numpy(found) if self.pool else None
        items = found[:, : sizes[0]]
        scores = np.empty((len(query_rows), 0), dtype=np.float32)
        squares = GrowingLeastSquares(len(query_rows), vectors.shape[1])
        for number, size in enumerate(sizes):
            if number:
                with watch.step("query vectors"):
                    fresh = sizes[number - 1]
                    equations = vectors[torch.from_numpy(items[:, -fresh:])].double()
                    squares.add(equations, torch.from_numpy(self.normalization(scores[:, -fresh:])))
                    u = self._mixed(squares.solve(), query_rows)
                with watch.step("approximate scores"):
                    items = np.hstack([items, _best(vectors, u, torch.from_numpy(items), size, pool)])
            with watch.step("scoring"):
                scores = np.hstack([scores, self.task.scorer.score_lists(query_rows, items[:, -size:])])
        return items, scores

    def _mixed(self, fitted: Tensor, query_rows: Rows) -> Tensor:
        if not self.weight:
            return fitted.float()
        own = torch.from_numpy(self.embeddings.queries(query_rows))
        return (1 - self.weight) * fitted.float() + self.weight * own


def _best(vectors: Tensor, u: Tensor, scored: Tensor, size: int, pool: Tensor | None) -> Rows:
    """The ``size`` items (B, size) with the largest <u, v> that are not scored yet; ties go to the lower row."""
    approximate = u @ vectors.T
    if pool is not None:
        inside = torch.zeros_like(approximate, dtype=torch.bool).scatter_(1, pool, True)
        approximate.masked_fill_(~inside, -torch.inf)
    approximate.scatter_(1, scored, -torch.inf)
    values, rows = approximate.topk(size, dim=1)
    # topk breaks ties at the edge as it likes; those queries are sorted whole.
    edge = values[:, -1:]
    unsure = (approximate == edge).sum(dim=1) > (values == edge).sum(dim=1)
    if unsure.any():
        rows[unsure] = approximate[unsure].sort(dim=1, descending=True, stable=True).indices[:, :size]
    best: Rows = rows.numpy()
    return best
