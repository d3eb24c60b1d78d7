"""AXN: adaptive k-NN search with a cross-encoder over fixed item embeddings."""

from __future__ import annotations

from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from simzoo.retrieval.first_stages.dense import Dense
from simzoo.retrieval.first_stages.first_stage import FirstStage
from simzoo.retrieval.scorer import Rows
from simzoo.retrieval.searcher import Ranking, Searcher, Stopwatch, check_budget
from simzoo.retrieval.searchers.least_squares import GrowingLeastSquares
from simzoo.retrieval.searchers.normalization import Normalization, fit_normalization
from simzoo.retrieval.topk import top_columns

Floats = NDArray[np.float32]
BLOCK = 1024  # items whose vectors are cast to float64 at once: they stay in the processor's cache
SOLVED = 8  # queries solved at once: with more, each d x d temporary is too large for malloc to use again


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

    needs_pairs = True

    budget: int

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
        starts = range(0, max(len(query_rows), 1), self.query_batch)
        parts = [self._search(query_rows[start : start + self.query_batch], watch) for start in starts]
        items, scores = (np.concatenate(column) for column in zip(*parts, strict=True))
        return self.ranked(query_rows, items, scores, k, watch)

    def _search(self, query_rows: Rows, watch: Stopwatch) -> tuple[Rows, NDArray[np.float32]]:
        sizes = [self.budget // self.rounds + (r < self.budget % self.rounds) for r in range(self.rounds)]
        vectors = self.embeddings.items
        with watch.step("first stage"):
            found, _ = self.first_stage.search(query_rows, self.pool or sizes[0])
        rows = np.unique(found) if self.pool else np.arange(len(vectors))
        closed = np.full((len(query_rows), len(rows)), bool(self.pool))
        np.put_along_axis(closed, np.searchsorted(rows, found), False, axis=1)
        items = found[:, : sizes[0]]
        scores = np.empty((len(query_rows), 0), dtype=np.float32)
        few = [slice(start, start + SOLVED) for start in range(0, max(len(query_rows), 1), SOLVED)]
        squares = [GrowingLeastSquares(len(query_rows[part]), vectors.shape[1], self.budget) for part in few]
        for number, size in enumerate(sizes):
            if number:
                with watch.step("query vectors"):
                    fresh = sizes[number - 1]
                    equations = torch.from_numpy(vectors[items[:, -fresh:]])
                    targets = torch.from_numpy(self.normalization(scores[:, -fresh:]))
                    for system, part in zip(squares, few, strict=True):
                        system.add(equations[part], targets[part])
                    u = self._mixed(torch.cat([system.solve() for system in squares]), query_rows)
                with watch.step("approximate scores"):
                    np.put_along_axis(closed, np.searchsorted(rows, items[:, -fresh:]), True, axis=1)
                    items = np.hstack([items, _best(vectors, u, rows, closed, size)])
            with watch.step("scoring"):
                scores = np.hstack([scores, self.task.scorer.score_lists(query_rows, items[:, -size:])])
        return items, scores

    def _mixed(self, fitted: Tensor, query_rows: Rows) -> Tensor:
        if not self.weight:
            return fitted
        own = torch.from_numpy(self.embeddings.queries(query_rows)).double()
        return (1 - self.weight) * fitted + self.weight * own


def _best(vectors: Floats, u: Tensor, rows: Rows, closed: NDArray[np.bool_], size: int) -> Rows:
    """The ``size`` items (B, size) of ``rows`` (U,), closed (B, U) ones aside, with the largest <u, v>.

    Computed in float64 and rounded to float32: items with equal vectors then tie, whatever the order in which a matrix
    product adds up, and the lower row goes first. Blocks keep the float64 copy of the vectors small.
    """
    whole = len(rows) == len(vectors)
    approximate = np.empty((len(u), len(rows)), dtype=np.float32)
    for start in range(0, len(rows), BLOCK):
        part = slice(start, start + BLOCK)
        block = torch.from_numpy(vectors[part] if whole else vectors[rows[part]]).double()
        approximate[:, part] = (u @ block.T).float().numpy()
    approximate[closed] = -np.inf
    best: Rows = rows[top_columns(approximate, size)]
    return best
