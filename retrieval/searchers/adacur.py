"""ADACUR: CUR whose anchor items are chosen for each query, round by round."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from simzoo.core.records import Query
from simzoo.retrieval.embedder import Embedder
from simzoo.retrieval.first_stages.first_stage import FirstStage
from simzoo.retrieval.first_stages.lexical import BM25
from simzoo.retrieval.searcher import Stopwatch
from simzoo.retrieval.searchers.anchored import anchor_scores, drawn_queries, places_of
from simzoo.retrieval.searchers.rounds import Fit, Floats, InRounds
from simzoo.retrieval.searchers.solvers import LeastNorm, System
from simzoo.retrieval.topk import Rows, Scores

__all__ = ["AdaCUR"]


class AdaCUR(InRounds):
    """ADACUR (AXN §3, A.4): approximate scores C_q pinv(R_A) R_anc, with the anchor items A chosen adaptively.

    R_anc (k_q x N) holds the scores of the anchor queries with all items. Round 1 scores budget / rounds items from the
    first stage; each further round takes all items A scored so far as anchor items, R_A = R_anc at A and C_q the
    query's scores at A, and scores the unscored items with the largest approximate scores. This is `AXN` with the
    columns of R_anc as item vectors: R_anc^T pinv(R_A)^T C_q^T is least squares of least norm.

    While |A| passes k_q, R_A is square and ill-conditioned (ANNCUR B.2), so ``rcond`` is large. What a search reads and
    holds: `InRounds`; R_anc is held, 4 k_q bytes an item, and where it is that large each round solves eigenvectors
    of at most k_q x k_q a query. Growing scores the anchor queries with the new items; the results are those of
    indexing everything at once.

    Args:
        first_stage: what retrieves the items of round 1; None: `BM25`. Where it has too few for a query, those that the
            anchor queries score highest on average fill up.
        budget: items scored a query.
        anchor_queries: k_q; their scores with all items are computed at indexing.
        rounds: R; the paper uses 10 on BEIR and 5 on ZESHEL.
        rcond: singular values of R_A below ``rcond`` times the largest are cut off; at least 1e-6.
        pool: search only among the first stage's top so many items; see `InRounds`.
        seed: of the choice of anchor queries.
        query_batch: queries searched together.
    """

    def __init__(
        self,
        first_stage: FirstStage | None = None,
        budget: int = 100,
        anchor_queries: int = 100,
        rounds: int = 5,
        rcond: float = 1e-3,
        pool: int | None = None,
        seed: int = 0,
        query_batch: int = 32,
    ) -> None:
        super().__init__(first_stage or BM25(), budget, rounds, pool, query_batch)
        if anchor_queries < 1:
            raise ValueError(f"anchor_queries must be at least 1, got {anchor_queries}")
        self.solver = LeastNorm(rcond)
        self.anchor_queries = anchor_queries
        self.rcond = rcond
        self.seed = seed

    @classmethod
    def tiny(cls, stage: Any, budget: int) -> Self:
        """See `Searcher.tiny`."""
        return cls(stage, budget, anchor_queries=8, rounds=3)

    @property
    def embedder(self) -> Embedder:
        """See `InRounds.embedder`: the columns of R_anc."""
        return self._embedder

    def prepare(self, watch: Stopwatch) -> None:
        """Scores the anchor queries with all items, and indexes the first stage.

        Raises:
            ValueError: there are fewer anchor queries than asked for.
        """
        self._anchors = drawn_queries(self.corpus, self.anchor_queries, np.random.default_rng(self.seed))
        with watch.step("first stage"):
            self.first_stage.index(self.corpus)
        with watch.step("anchor scores"):
            scores, self.index_calls = anchor_scores(self.corpus, self._anchors, 0)
        self._embedder = _Columns(np.ascontiguousarray(scores.T))

    def grow(self, start: int, watch: Stopwatch) -> None:
        """See `Searcher.grow`."""
        with watch.step("first stage"):
            self.first_stage.extend(self.corpus, start)
        self._taken(self._embedder.vectors, start, watch)

    def state(self) -> dict[str, NDArray[Any]]:
        """See `Searcher.state`: R_anc^T (N, k_q)."""
        return {"scores": self._embedder.vectors, "queries": places_of(self.corpus, self._anchors)}

    def restored(self, state: Mapping[str, NDArray[Any]], rows: int, watch: Stopwatch) -> None:
        """See `Searcher.restored`."""
        self._anchors = [self.corpus.anchors[place] for place in state["queries"].tolist()]
        with watch.step("first stage"):
            self.first_stage.index(self.corpus)
        self._taken(state["scores"], rows, watch)

    def _taken(self, vectors: Floats, start: int, watch: Stopwatch) -> None:
        """R_anc^T of the old items, and what the new ones add."""
        if start < len(self.corpus):
            with watch.step("anchor scores"):
                scores, self.index_calls = anchor_scores(self.corpus, self._anchors, start)
            vectors = np.concatenate([vectors, scores.T])
        self._embedder = _Columns(vectors)

    def fit(self, queries: Sequence[Query]) -> Fit:
        """See `InRounds.fit`."""
        return _Solved(self.solver.begin(torch.empty(len(queries), self._embedder.vectors.shape[1]), self.budget))

    def others(self, queries: Sequence[Query], found: Rows, short: Rows) -> Sequence[Rows]:
        """See `InRounds.others`: those that the anchor queries score highest on average."""
        live, count = self.corpus.live, found.shape[1]
        best = live[np.argsort(-self._embedder.vectors[live].mean(axis=1, dtype=np.float64), kind="stable")]
        best = best[: 2 * count]  # at most `count` of them are among what was found
        return [best[~np.isin(best, found[row])][:count] for row in short]


class _Columns(Embedder):
    """Columns of R_anc, which are scanned."""

    def __init__(self, vectors: Floats) -> None:
        super().__init__(None, vectors, _NoIndex(), exact=True)


class _NoIndex:
    def search(self, queries: Floats, k: int) -> tuple[Rows, Scores]:
        """See `VectorSearch.search`: never asked, as exact vectors are scanned."""
        raise TypeError("anchor scores have no vector index")


class _Solved:
    """The solution of all equations so far."""

    def __init__(self, system: System) -> None:
        self._system = system

    def __call__(self, vectors: Floats, scores: Scores) -> Tensor:
        """See `Fit`."""
        self._system.add(torch.from_numpy(vectors), torch.from_numpy(scores))
        return self._system.solve()
