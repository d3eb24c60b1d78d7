"""ANNCUR: k-NN search with a cross-encoder by CUR decomposition of its score matrix."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from simzoo.core.records import Query
from simzoo.retrieval.scorer import Scorer
from simzoo.retrieval.searcher import Ranking, Searcher, Stopwatch
from simzoo.retrieval.topk import Rows, Running, Scores

CUT = 1e-3  # a cut-off from here on tames a square, ill-conditioned matrix
BLOCK = 1 << 14  # items whose embeddings are cast to float64 at once


class CUR(Searcher):
    """ANNCUR (§2.3): items are embedded by their scores with anchor queries, a query by its scores with anchor items.

    R_anc (k_q x N) holds the scores of the anchor queries with all items, C_anc its columns at the k_i anchor items,
    U = pinv(C_anc), E_I = U R_anc. A query's approximate scores are its exact scores at the anchor items times E_I; the
    best of them are scored exactly, and the anchors' exact scores compete with theirs.

    A search reads E_I once a batch, in blocks; E_I is held, 4 k_i bytes an item. Indexing holds R_anc as well, 4 k_q
    bytes an item. Growing scores the new items with the anchor queries, and keeps the anchors as they were drawn: an
    index over everything at once draws others.

    Args:
        budget: items scored a query: the anchor items and the retrieved ones. Of fewer items all are scored.
        anchor_queries: k_q; their scores with all items are computed at indexing.
        anchor_items: k_i; all items where there are not so many.
        rcond: singular values of C_anc below ``rcond`` times the largest are cut off.
        seed: of the choice of anchors.
    """

    needs_pairs = True

    budget: int

    def __init__(
        self, budget: int = 100, anchor_queries: int = 100, anchor_items: int = 50, rcond: float = 1e-6, seed: int = 0
    ) -> None:
        super().__init__()
        if not 0 < anchor_items < budget:
            raise ValueError(
                f"the budget pays for the anchor items and for what is retrieved: {anchor_items} anchor items leave "
                f"nothing of a budget of {budget}"
            )
        if anchor_queries < 1 or rcond < 0:
            raise ValueError(
                f"anchor_queries must be at least 1 and rcond at least 0, got {anchor_queries} and {rcond}"
            )
        if anchor_queries == anchor_items and rcond < CUT:
            warnings.warn(
                f"anchor_queries = anchor_items = {anchor_items} makes C_anc square and ill-conditioned (ANNCUR B.2): "
                f"recall drops sharply. Choose different numbers, or an rcond of {CUT} or more.",
                stacklevel=2,
            )
        self.budget = budget
        self.anchor_queries = anchor_queries
        self.anchor_items = anchor_items
        self.rcond = rcond
        self.seed = seed

    @classmethod
    def tiny(cls, stage: Any, budget: int) -> Self:
        """See `Searcher.tiny`."""
        return cls(budget, anchor_queries=8, anchor_items=max(1, budget // 2))

    def prepare(self, watch: Stopwatch) -> None:
        """Scores the anchor queries with all items and embeds the items.

        Raises:
            ValueError: there are fewer anchor queries than asked for.
        """
        corpus, live = self.corpus, self.corpus.live
        if self.anchor_queries > len(corpus.anchors):
            raise ValueError(
                f"anchor_queries = {self.anchor_queries}, but {corpus.name} has {len(corpus.anchors)} "
                "queries that are not evaluated; evaluate fewer (--queries) or use fewer anchors"
            )
        rng = np.random.default_rng(self.seed)
        chosen = np.sort(rng.choice(len(corpus.anchors), self.anchor_queries, replace=False))
        self._anchors = [corpus.anchors[row] for row in chosen]
        size = min(self.anchor_items, len(live))
        self.anchor_rows = live[np.sort(rng.choice(len(live), size, replace=False))]
        with watch.step("anchor scores"):
            r_anc = self._scored(0)
        with watch.step("item embeddings"):
            self._u = np.linalg.pinv(r_anc[:, self.anchor_rows].astype(np.float64), rcond=self.rcond)
            self.item_embeddings = _embedded(self._u, r_anc)

    def grow(self, start: int, watch: Stopwatch) -> None:
        """See `Searcher.grow`: scores the anchor queries with the new items; the anchors stay.

        Anchor items that were removed since stay in the equations, but are not scored for new queries: then everything
        is prepared anew.
        """
        if self.corpus.gone is not None and self.corpus.gone[self.anchor_rows].any():
            self.prepare(watch)
            return
        if start == len(self.corpus):
            return
        with watch.step("anchor scores"):
            r_anc = self._scored(start)
        with watch.step("item embeddings"):
            self.item_embeddings = np.hstack([self.item_embeddings, _embedded(self._u, r_anc)])

    def state(self) -> dict[str, NDArray[Any]]:
        """See `Searcher.state`: the items' embeddings (k_i, N), and what the embeddings of more of them take."""
        places = {id(query): place for place, query in enumerate(self.corpus.anchors)}
        chosen = np.array([places[id(query)] for query in self._anchors], dtype=np.int64)
        return {"embeddings": self.item_embeddings, "u": self._u, "items": self.anchor_rows, "queries": chosen}

    def restored(self, state: Mapping[str, NDArray[Any]], rows: int, watch: Stopwatch) -> None:
        """See `Searcher.restored`."""
        self.item_embeddings, self._u, self.anchor_rows = state["embeddings"], state["u"], state["items"]
        self._anchors = [self.corpus.anchors[place] for place in state["queries"].tolist()]
        self.grow(rows, watch)

    def _scored(self, start: int) -> Scores:
        """Scores of the anchor queries with the items from ``start`` on, 0 for removed ones."""
        judge, live = self.corpus.judge, self.corpus.live
        assert judge is not None
        scorer = judge.scorer(self._anchors)
        rows = live[live >= start]
        scores = scorer.score_items(rows)
        self.index_calls = int(scorer.calls.sum())
        if len(rows) == len(self.corpus) - start:
            return scores
        whole = np.zeros((len(self._anchors), len(self.corpus) - start), dtype=np.float32)
        whole[:, rows - start] = scores
        return whole

    def find(self, scorer: Scorer, queries: Sequence[Query], k: int, watch: Stopwatch) -> Ranking:
        """See `Searcher.find`."""
        anchors = np.tile(self.anchor_rows, (len(queries), 1))
        with watch.step("scoring"):
            anchor_scores = scorer.lists(anchors)
        with watch.step("approximate scores"):
            retrieved = self._best(anchor_scores, self.affordable() - anchors.shape[1])
        with watch.step("scoring"):
            scores = scorer.lists(retrieved)
        return self.ranked(scorer, np.hstack([anchors, retrieved]), np.hstack([anchor_scores, scores]), k)

    def _best(self, anchor_scores: Scores, count: int) -> Rows:
        """(B, count) items of the largest approximate scores, anchors and removed ones aside."""
        closed = np.zeros(len(self.corpus), dtype=bool) if self.corpus.gone is None else self.corpus.gone.copy()
        closed[self.anchor_rows] = True
        best, known = Running(len(anchor_scores), count), anchor_scores.astype(np.float64)
        for start in range(0, len(closed) if count else 0, BLOCK):
            rows = np.flatnonzero(~closed[start : start + BLOCK]) + start
            embeddings = self.item_embeddings[:, start : start + BLOCK].astype(np.float64)
            best.add((known @ embeddings)[:, rows - start], rows)
        return best.rows


def _embedded(u: NDArray[np.float64], r_anc: Scores) -> Scores:
    """E_I = U R_anc (k_i, N), single precision, computed in double, block by block."""
    found = np.empty((len(u), r_anc.shape[1]), dtype=np.float32)
    for start in range(0, r_anc.shape[1], BLOCK):
        found[:, start : start + BLOCK] = u @ r_anc[:, start : start + BLOCK].astype(np.float64)
    return found
