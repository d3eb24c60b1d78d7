"""ANNCUR: k-NN search with a cross-encoder by CUR decomposition of its score matrix."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from simzoo.core.records import Query
from simzoo.retrieval.searcher import Stopwatch
from simzoo.retrieval.searchers.anchored import BLOCK, AnchorItems, anchor_scores, drawn_queries, places_of
from simzoo.retrieval.topk import Rows, Scores

__all__ = ["CUR"]

CUT = 1e-3  # a cut-off from here on tames a square, ill-conditioned matrix


class CUR(AnchorItems):
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

    def __init__(
        self, budget: int = 100, anchor_queries: int = 100, anchor_items: int = 50, rcond: float = 1e-6, seed: int = 0
    ) -> None:
        super().__init__(budget, anchor_items, seed)
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
        self.anchor_queries = anchor_queries
        self.rcond = rcond

    @classmethod
    def tiny(cls, stage: Any, budget: int) -> Self:
        """See `Searcher.tiny`."""
        return cls(budget, anchor_queries=8, anchor_items=max(1, budget // 2))

    def prepare(self, watch: Stopwatch) -> None:
        """Scores the anchor queries with all items and embeds the items.

        Raises:
            ValueError: there are fewer anchor queries than asked for.
        """
        rng = np.random.default_rng(self.seed)
        self._anchors = self.draw_anchors(rng)
        self.anchor_rows = self.drawn(rng)
        with watch.step("anchor scores"):
            r_anc, self.index_calls = anchor_scores(self.corpus, self._anchors, 0)
        with watch.step("item embeddings"):
            self._u = np.linalg.pinv(r_anc[:, self.anchor_rows].astype(np.float64), rcond=self.rcond)
            self.item_embeddings = _embedded(self._u, r_anc)

    def draw_anchors(self, rng: np.random.Generator) -> Sequence[Query]:
        """The k_q anchor queries."""
        return drawn_queries(self.corpus, self.anchor_queries, rng)

    def places(self) -> Rows:
        """Where the anchor queries come from."""
        return places_of(self.corpus, self._anchors)

    def anchors_at(self, places: Rows) -> Sequence[Query]:
        """The anchor queries from there."""
        return [self.corpus.anchors[place] for place in places.tolist()]

    def grow(self, start: int, watch: Stopwatch) -> None:
        """See `Searcher.grow`: scores the anchor queries with the new items; the anchors stay.

        Anchor items that were removed since stay in the equations, but are not scored for new queries: then everything
        is prepared anew.
        """
        if self.anchor_removed:
            self.prepare(watch)
            return
        if start == len(self.corpus):
            return
        with watch.step("anchor scores"):
            r_anc, self.index_calls = anchor_scores(self.corpus, self._anchors, start)
        with watch.step("item embeddings"):
            self.item_embeddings = np.hstack([self.item_embeddings, _embedded(self._u, r_anc)])

    def state(self) -> dict[str, NDArray[Any]]:
        """See `Searcher.state`: the items' embeddings (k_i, N), and what the embeddings of more of them take."""
        return {
            "embeddings": self.item_embeddings,
            "u": self._u,
            "items": self.anchor_rows,
            "queries": self.places(),
        }

    def restored(self, state: Mapping[str, NDArray[Any]], rows: int, watch: Stopwatch) -> None:
        """See `Searcher.restored`."""
        self.item_embeddings, self._u, self.anchor_rows = state["embeddings"], state["u"], state["items"]
        self._anchors = self.anchors_at(state["queries"])
        self.grow(rows, watch)


def _embedded(u: NDArray[np.float64], r_anc: Scores) -> Scores:
    """E_I = U R_anc (k_i, N), single precision, computed in double, block by block."""
    found = np.empty((len(u), r_anc.shape[1]), dtype=np.float32)
    for start in range(0, r_anc.shape[1], BLOCK):
        found[:, start : start + BLOCK] = u @ r_anc[:, start : start + BLOCK].astype(np.float64)
    return found
