"""Search in rounds: score some items, fit the query's vector to them, score what now looks best, and again."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from simzoo.core.records import Query
from simzoo.retrieval.embedder import Embedder
from simzoo.retrieval.first_stages.first_stage import FirstStage
from simzoo.retrieval.scorer import Scorer
from simzoo.retrieval.searcher import Ranking, Searcher, Stopwatch, check_batch
from simzoo.retrieval.searchers.choice import AllItems, Choice, Pools
from simzoo.retrieval.topk import Rows, Scores

Floats = NDArray[np.float32]
SCANNED = 1 << 20  # items up to which every round looks at all vectors
POOL = 10_000  # items that it looks at beyond that


class Fit(Protocol):
    """What is known so far of the vectors of B queries."""

    def __call__(self, vectors: Floats, scores: Scores) -> Tensor:
        """Query vectors (B, d) float64, from one more round of item vectors (B, n, d) and exact scores (B, n)."""


class InRounds(Searcher):
    """Round 1 takes budget / rounds items from the first stage; each further round the best by the fitted vector.

    What a search reads beside the scorer: round 1 what the first stage reads; each further round the vectors of the
    pool, or, without one, all vectors in blocks, or, where the vector index is approximate, what that index reads for
    u. It holds the vectors of the batch's pools, at most 512 MB (more are read again each round); without a pool the
    approximate scores of a block, 4 MB. These are single precision; what they leave undecided is computed in double
    (`simzoo.retrieval.searchers.choice.largest`).

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
        choose: Choice = Pools(embedder, found) if pool else AllItems(embedder, self.corpus.gone)
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
