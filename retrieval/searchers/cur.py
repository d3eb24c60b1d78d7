"""ANNCUR: k-NN search with a cross-encoder by CUR decomposition of its score matrix."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from simzoo.core.records import Query
from simzoo.retrieval.first_stages.first_stage import FirstStage
from simzoo.retrieval.searcher import Stopwatch
from simzoo.retrieval.searchers.anchored import AnchorItems, AnchorScores, drawn_queries, places_of
from simzoo.retrieval.topk import Rows, Scores

__all__ = ["CUR"]

BLOCK = 1 << 14  # items scored with the anchor queries at once

CUT = 1e-3  # a cut-off from here on tames a square, ill-conditioned matrix


class CUR(AnchorItems):
    """ANNCUR (§2.3): items are embedded by their scores with anchor queries, a query by its scores with anchor items.

    R_anc (k_q x N) holds the scores of the anchor queries with all items, C_anc its columns at the k_i anchor items,
    U = pinv(C_anc), E_I = U R_anc. A query's approximate scores are its exact scores at the anchor items times E_I; the
    best of them are scored exactly, and the anchors' exact scores compete with theirs.

    E_I is held (or mapped, beside an engine's index), 4 k_i bytes an item; R_anc goes by in blocks. Up to 1,048,576
    items a search reads all of E_I once a batch, in single precision, and what is near the budget's edge again in
    double. Beyond that it looks, where there is an embedder, at the 10,000 items that its vector index finds nearest:
    reading all of E_I would take longer than everything else, and an item outside the pool is not found. Growing scores
    the new items with the anchor queries, and keeps the anchors as they were drawn: an index over everything at once
    draws others.

    Args:
        budget: items scored a query: the anchor items and the retrieved ones. Of fewer items all are scored.
        anchor_queries: k_q; their scores with all items are computed at indexing.
        anchor_items: k_i; all items where there are not so many.
        rcond: singular values of C_anc below ``rcond`` times the largest are cut off.
        seed: of the choice of anchors.
        first_stage: what the pool comes from; None: the corpus's embedder.
        pool: look only at about so many items of the first stage's, the nearest; 0: at all. None: at all; but of more
            than 1,048,576, where there is a first stage, at 10,000, or 10 times the budget if that is more.

    Examples:
        >>> from simzoo import CUR, Engine
        >>> def score(pairs):
        ...     return [len(query) * text.count("a") + text.count("b") for query, text in pairs]
        >>> search = CUR(budget=6, anchor_queries=3, anchor_items=4)
        >>> engine = Engine(score, search=search, anchors=["x", "xx", "xxxx"])
        >>> engine.add([str(row) for row in range(30)], ["x" + "a" * (row % 5) + "b" * (row % 6) for row in range(30)])
        >>> hits = engine.search("xxx", k=1)
        >>> hits[0].text, hits.calls
        ('xaaaabbbbb', 6)
    """

    rows: ClassVar[str] = "anchor_queries"
    """What the number of R_anc's rows is called."""

    def __init__(
        self,
        budget: int = 100,
        anchor_queries: int = 100,
        anchor_items: int = 50,
        rcond: float = 1e-6,
        seed: int = 0,
        first_stage: FirstStage | None = None,
        pool: int | None = None,
    ) -> None:
        super().__init__(budget, anchor_items, seed, first_stage, pool)
        if anchor_queries < 1 or rcond < 0:
            raise ValueError(f"{self.rows} must be at least 1 and rcond at least 0, got {anchor_queries} and {rcond}")
        if anchor_queries == anchor_items and rcond < CUT:
            warnings.warn(
                f"{self.rows} = anchor_items = {anchor_items} makes C_anc square and ill-conditioned (ANNCUR B.2): "
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
        scores = AnchorScores(self.corpus, self._anchors)
        with watch.step("anchor scores"):
            c_anc = scores(self.anchor_rows)
        self._u = np.linalg.pinv(c_anc.astype(np.float64), rcond=self.rcond)
        embeddings = np.zeros((len(self.corpus), len(self._u)), dtype=np.float32)
        embeddings[self.anchor_rows] = c_anc.T.astype(np.float64) @ self._u.T
        others = np.setdiff1d(self.corpus.live, self.anchor_rows, assume_unique=True)
        self._embed(others, embeddings, scores, watch)
        self.embedded(embeddings, watch)

    def _embed(self, rows: Rows, embeddings: Scores, scores: AnchorScores, watch: Stopwatch) -> None:
        """Writes E_I of the items at ``rows`` into the last of ``embeddings``, computed in double, block by block."""
        first = len(self.corpus) - len(embeddings)
        for start in range(0, len(rows), BLOCK):
            some = rows[start : start + BLOCK]
            with watch.step("anchor scores"):
                r_anc = scores(some)
            with watch.step("item embeddings"):
                embeddings[some - first] = r_anc.T.astype(np.float64) @ self._u.T
        self.index_calls = scores.calls

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
        new = np.zeros((len(self.corpus) - start, len(self._u)), dtype=np.float32)
        if len(new):
            rows = self.corpus.live[self.corpus.live >= start]
            self._embed(rows, new, AnchorScores(self.corpus, self._anchors), watch)
        old = self.item_embeddings
        self.embedded(np.concatenate([old, new]) if len(new) else old, watch, start)

    def state(self) -> dict[str, NDArray[Any]]:
        """See `Searcher.state`: the items' embeddings (N, k_i), and what the embeddings of more of them take."""
        return {
            "embeddings": self.item_embeddings,
            "u": self._u,
            "items": self.anchor_rows,
            "queries": self.places(),
        }

    def restored(self, state: Mapping[str, NDArray[Any]], rows: int, watch: Stopwatch) -> None:
        """See `Searcher.restored`."""
        self._u, self.anchor_rows = state["u"], state["items"]
        self._anchors = self.anchors_at(state["queries"])
        self.item_embeddings, self._stage = state["embeddings"], None
        self.grow(rows, watch)
