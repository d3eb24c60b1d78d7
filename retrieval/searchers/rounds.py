"""Search in rounds: score some items, fit the query's vector to them, score what now looks best, and again."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from simzoo.core.records import Query
from simzoo.retrieval.embedder import Embedder
from simzoo.retrieval.first_stages.first_stage import FirstStage
from simzoo.retrieval.scorer import Scorer
from simzoo.retrieval.searcher import Ranking, Searcher, Stopwatch, check_batch
from simzoo.retrieval.topk import Rows, Running, Scores, top_columns

Floats = NDArray[np.float32]
BLOCK = 1024  # items whose vectors are cast to float64 at once: they stay in the processor's cache
SEGMENT = 64 * BLOCK  # items whose approximate scores are held at once
SCANNED = 1 << 20  # items up to which every round looks at all vectors
POOL = 10_000  # items that it looks at beyond that


class Fit(Protocol):
    """What is known so far of the vectors of B queries."""

    def __call__(self, vectors: Floats, scores: Scores) -> Tensor:
        """Query vectors (B, d) float64, from one more round of item vectors (B, n, d) and exact scores (B, n)."""


class InRounds(Searcher):
    """Round 1 takes budget / rounds items from the first stage; each further round the best by the fitted vector.

    What a search reads beside the scorer: round 1 what the first stage reads; each further round the vectors of the
    pool, or, without one, all vectors (in blocks, as float64), or, where the vector index is approximate, what that
    index reads for u. It holds 12 bytes a query for each item of the batch's pools; without a pool the approximate
    scores of 65,536 items at once.

    Args:
        first_stage: what retrieves the items of round 1; where it has too few for a query, `others` fill up.
        budget: items scored a query.
        rounds: R.
        pool: search only among the first stage's top so many items; 0: among all. None: among all; but of more than
            1,048,576 whose vector index is exact, among 10,000, or 10 times the budget if that is more.
        query_batch: queries searched together.
    """

    needs_pairs = True

    budget: int

    def __init__(
        self, first_stage: FirstStage, budget: int, rounds: int, pool: int | None = None, query_batch: int = 32
    ) -> None:
        super().__init__()
        if not 1 <= rounds <= budget:
            raise ValueError(f"each of {rounds} rounds scores at least one item: budget {budget} is too small")
        if pool and pool < budget:
            raise ValueError(f"a pool of {pool} items cannot fill a budget of {budget}")
        self.first_stage = first_stage
        self.budget = budget
        self.rounds = rounds
        self.pool = pool
        self.query_batch = check_batch(query_batch)

    @property
    @abstractmethod
    def embedder(self) -> Embedder:
        """The item vectors that are searched."""

    @abstractmethod
    def fit(self, queries: Sequence[Query]) -> Fit:
        """Begins the vectors of B queries."""

    @abstractmethod
    def others(self, queries: Sequence[Query], found: Rows, short: Rows) -> Sequence[Rows]:
        """At most m items besides what a first stage found (B, m), best first, for the queries at ``short``."""

    def find(self, scorer: Scorer, queries: Sequence[Query], k: int, watch: Stopwatch) -> Ranking:
        """See `Searcher.find`."""
        budget, embedder = self.affordable(), self.embedder
        rounds = min(self.rounds, budget)
        sizes = [budget // rounds + (r < budget % rounds) for r in range(rounds)]
        pool = self._pool()
        with watch.step("first stage"):
            found = self._filled(self.first_stage.search(queries, pool or sizes[0])[0], queries)
        choose = _Pool(embedder, found) if pool else _All(embedder, self.corpus.gone)
        items = found[:, : sizes[0]]
        scores = np.empty((len(queries), 0), dtype=np.float32)
        fit = self.fit(queries)
        for number, size in enumerate(sizes):
            if number:
                fresh = sizes[number - 1]
                with watch.step("query vectors"):
                    u = fit(embedder.take(items[:, -fresh:]), scores[:, -fresh:])
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
        large = size > SCANNED and self.embedder.exact
        return max(POOL, 10 * self.budget) if large else 0

    def _filled(self, found: Rows, queries: Sequence[Query]) -> Rows:
        """What a first stage found (B, m), other items in the places of what it did not find."""
        short = np.flatnonzero((found < 0).any(axis=1))
        if short.size:
            others, found = self.others(queries, found, short), found.copy()
            for row, more in zip(short, others, strict=True):
                missing = np.flatnonzero(found[row] < 0)
                if len(more) < len(missing):  # an approximate index did not look far enough
                    more = np.append(more, np.setdiff1d(self.corpus.live, np.append(found[row], more)))
                found[row, missing] = more[: len(missing)]
        return found


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
