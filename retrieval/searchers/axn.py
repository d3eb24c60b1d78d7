"""AXN: adaptive k-NN search with a cross-encoder over fixed item embeddings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from simzoo.core.records import Query
from simzoo.retrieval.embedder import Embedder
from simzoo.retrieval.first_stages.dense import Dense
from simzoo.retrieval.first_stages.first_stage import FirstStage
from simzoo.retrieval.scorer import Scorer
from simzoo.retrieval.searcher import Ranking, Searcher, Stopwatch, check_batch
from simzoo.retrieval.searchers.least_squares import GrowingLeastSquares
from simzoo.retrieval.searchers.normalization import Normalization, fit_normalization
from simzoo.retrieval.topk import Rows, Running, top_columns

Floats = NDArray[np.float32]
BLOCK = 1024  # items whose vectors are cast to float64 at once: they stay in the processor's cache
SEGMENT = 64 * BLOCK  # items whose approximate scores are held at once
SOLVED = 8  # queries solved at once: with more, each d x d temporary is too large for malloc to use again
SCANNED = 1 << 20  # items up to which every round looks at all vectors
POOL = 10_000  # items that it looks at beyond that


class AXN(Searcher):
    """AXN (Algorithm 1): scores some items, fits the query's vector to them, scores what now looks best, and again.

    Round 1 takes budget / rounds items from the first stage. Each further round solves least squares for the query
    vector u over all items scored so far (minimum norm), mixes it with the dual encoder's,
    u <- (1 - weight) u + weight u_param, and scores the unscored items with the largest <u, v>. With one round this is
    `Rerank`. Where a first stage has too few items for a query, the dual encoder's nearest fill up.

    What a search reads beside the scorer: round 1 what the first stage reads; each further round the vectors of the
    pool, or, without one, all vectors (in blocks, as float64), or, where the vector index is approximate, what that
    index reads for u. It holds 12 bytes a query for each item of the batch's pools; without a pool the approximate
    scores of 65,536 items at once.

    Growing encodes the new items only. The results are those of indexing everything at once, but that the score
    normalisation stays as it was fitted.

    Args:
        embeddings: the dual encoder whose item vectors are searched; None: the corpus's embedder.
        first_stage: what retrieves the items of round 1; None: the dual encoder itself.
        budget: items scored a query.
        rounds: R; the paper uses 10 on BEIR and 5 on ZESHEL.
        weight: lambda in [0, 1]; the paper uses 0.8 for k = 1 and 0 for k = 100 on BEIR, 0 on ZESHEL.
        pool: search only among the first stage's top so many items; 0: among all. None: among all; but of more than
            1,048,576 whose vector index is exact, among 10,000, or 10 times the budget if that is more.
        normalize: fit s' = beta (s - alpha) on other queries so that scores match the dual encoder's; wanted where
            ``weight`` is not 0.
        query_batch: queries searched together.
    """

    needs_pairs = True

    budget: int

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
    ) -> None:
        super().__init__()
        if not 0 <= weight <= 1:
            raise ValueError(f"weight is lambda in [0, 1], got {weight}")
        if not 1 <= rounds <= budget:
            raise ValueError(f"each of {rounds} rounds scores at least one item: budget {budget} is too small")
        if pool and pool < budget:
            raise ValueError(f"a pool of {pool} items cannot fill a budget of {budget}")
        self.embeddings = embeddings or Dense()
        self.first_stage: FirstStage = first_stage or self.embeddings
        self.budget = budget
        self.rounds = rounds
        self.weight = weight
        self.pool = pool
        self.normalize = normalize
        self.query_batch = check_batch(query_batch)
        self.normalization = Normalization()

    @classmethod
    def tiny(cls, stage: Any, budget: int) -> Self:
        """See `Searcher.tiny`."""
        return cls(stage, budget=budget, rounds=3)

    def prepare(self, watch: Stopwatch) -> None:
        """Embeds the items, indexes the first stage, fits the normalisation."""
        self._prepare_items(watch)
        if self.normalize:
            with watch.step("score normalisation"):
                fitted, asked = fit_normalization(self.corpus, self.embeddings.embedder, self.first_stage)
            self.normalization, self.index_calls = fitted, int(asked.calls.sum())

    def state(self) -> dict[str, NDArray[Any]] | None:
        """See `Searcher.state`: alpha and beta of the normalisation."""
        if not self.normalize:
            return None
        return {"normalization": np.array([self.normalization.alpha, self.normalization.beta])}

    def restored(self, state: Mapping[str, NDArray[Any]], rows: int, watch: Stopwatch) -> None:
        """See `Searcher.restored`."""
        self._prepare_items(watch)
        alpha, beta = state["normalization"].tolist()
        self.normalization = Normalization(alpha, beta)

    def _prepare_items(self, watch: Stopwatch) -> None:
        with watch.step("item embeddings"):
            self.embeddings.index(self.corpus)
        if self.first_stage is not self.embeddings:
            with watch.step("first stage"):
                self.first_stage.index(self.corpus)

    def grow(self, start: int, watch: Stopwatch) -> None:
        """See `Searcher.grow`: embeds the new items; the normalisation stays."""
        with watch.step("item embeddings"):
            self.embeddings.extend(self.corpus, start)
        if self.first_stage is not self.embeddings:
            with watch.step("first stage"):
                self.first_stage.extend(self.corpus, start)

    def find(self, scorer: Scorer, queries: Sequence[Query], k: int, watch: Stopwatch) -> Ranking:
        """See `Searcher.find`."""
        budget, embedder = self.affordable(), self.embeddings.embedder
        rounds = min(self.rounds, budget)
        sizes = [budget // rounds + (r < budget % rounds) for r in range(rounds)]
        pool = self._pool()
        with watch.step("first stage"):
            found = self._filled(self.first_stage.search(queries, pool or sizes[0])[0], queries)
        choose = _Pool(embedder, found) if pool else _All(embedder, self.corpus.gone)
        items = found[:, : sizes[0]]
        scores = np.empty((len(queries), 0), dtype=np.float32)
        few = [slice(start, start + SOLVED) for start in range(0, len(queries), SOLVED)]
        squares = [GrowingLeastSquares(len(items[part]), embedder.vectors.shape[1], budget) for part in few]
        for number, size in enumerate(sizes):
            if number:
                fresh = sizes[number - 1]
                with watch.step("query vectors"):
                    equations = torch.from_numpy(embedder.take(items[:, -fresh:]))
                    targets = torch.from_numpy(self.normalization(scores[:, -fresh:]))
                    for system, part in zip(squares, few, strict=True):
                        system.add(equations[part], targets[part])
                    u = self._mixed(torch.cat([system.solve() for system in squares]), queries)
                with watch.step("approximate scores"):
                    items = np.hstack([items, choose(u, items, fresh, size)])
            with watch.step("scoring"):
                scores = np.hstack([scores, scorer.lists(items[:, -size:])])
        return self.ranked(scorer, items, scores, k)

    def _pool(self) -> int:
        """Items of the pool; 0: all."""
        size = len(self.corpus.live)
        if self.pool is not None:
            return min(self.pool, size)
        large = size > SCANNED and self.embeddings.embedder.exact
        return max(POOL, 10 * self.budget) if large else 0

    def _filled(self, found: Rows, queries: Sequence[Query]) -> Rows:
        """What a first stage found (B, m), the dual encoder's nearest in the places of what it did not find."""
        short = np.flatnonzero((found < 0).any(axis=1))
        if short.size:
            embedder, found = self.embeddings.embedder, found.copy()
            vectors = embedder.encode(queries)[short]
            near, _ = embedder.search(vectors, found.shape[1], exclude=found[short], removed=self.corpus.gone)
            for row, others in zip(short, near, strict=True):
                more = others[others >= 0]
                missing = np.flatnonzero(found[row] < 0)
                if len(more) < len(missing):  # an approximate index did not look far enough
                    more = np.append(more, np.setdiff1d(self.corpus.live, np.append(found[row], more)))
                found[row, missing] = more[: len(missing)]
        return found

    def _mixed(self, fitted: Tensor, queries: Sequence[Query]) -> Tensor:
        if not self.weight:
            return fitted
        own = torch.from_numpy(self.embeddings.embedder.encode(queries)).double()
        return (1 - self.weight) * fitted + self.weight * own


class _Pool:
    """The next items of each query among those of its pool (B, m)."""

    def __init__(self, embedder: Embedder, found: Rows) -> None:
        self._embedder = embedder
        self._rows = np.unique(found)
        self._closed = np.ones((len(found), len(self._rows)), dtype=bool)
        np.put_along_axis(self._closed, np.searchsorted(self._rows, found), False, axis=1)

    def __call__(self, u: Tensor, items: Rows, fresh: int, size: int) -> Rows:
        """(B, size) with the largest <u, v>; of the items (B, n) that are scored the last ``fresh`` are new."""
        np.put_along_axis(self._closed, np.searchsorted(self._rows, items[:, -fresh:]), True, axis=1)
        approximate = np.empty(self._closed.shape, dtype=np.float32)
        for start in range(0, len(self._rows), BLOCK):
            part = slice(start, start + BLOCK)
            approximate[:, part] = _products(u, self._embedder.take(self._rows[part]))
        approximate[self._closed] = -np.inf
        best: Rows = self._rows[top_columns(approximate, size)]
        return best


class _All:
    """The next items of each query among all: by the vector index where it is approximate, else by a scan."""

    def __init__(self, embedder: Embedder, gone: NDArray[np.bool_] | None) -> None:
        self._embedder = embedder
        self._gone = gone

    def __call__(self, u: Tensor, items: Rows, fresh: int, size: int) -> Rows:
        """See `_Pool.__call__`."""
        if self._embedder.exact:
            return self._scanned(u, items, size)
        found, _ = self._embedder.search(u.float().numpy(), size, exclude=items, removed=self._gone)
        short = np.flatnonzero((found < 0).any(axis=1))  # the index did not look far enough
        if short.size:
            found[short] = self._scanned(u[short], items[short], size)
        return found

    def _scanned(self, u: Tensor, items: Rows, size: int) -> Rows:
        vectors, best = self._embedder.vectors, Running(len(u), size)
        for first in range(0, len(vectors), SEGMENT):
            last = min(first + SEGMENT, len(vectors))
            approximate = np.empty((len(u), last - first), dtype=np.float32)
            for start in range(first, last, BLOCK):
                stop = min(start + BLOCK, last)
                approximate[:, start - first : stop - first] = _products(u, vectors[start:stop])
            row, place = np.nonzero((items >= first) & (items < last))
            approximate[row, items[row, place] - first] = -np.inf
            if self._gone is not None:
                approximate[:, self._gone[first:last]] = -np.inf
            best.add(approximate, np.arange(first, last))
        return best.rows


def _products(u: Tensor, vectors: Floats) -> Floats:
    """<u, v> (B, n), computed in float64 and rounded to float32.

    Items with equal vectors then tie, whatever the order in which a matrix product adds up: the lower row goes first.
    """
    found: Floats = (u @ torch.from_numpy(vectors.astype(np.float64)).T).float().numpy()
    return found
