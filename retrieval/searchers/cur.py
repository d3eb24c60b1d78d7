"""ANNCUR: k-NN search with a cross-encoder by CUR decomposition of its score matrix."""

from __future__ import annotations

import warnings
from typing import Any, Self

import numpy as np

from simzoo.retrieval.scorer import Rows
from simzoo.retrieval.searcher import Ranking, Searcher, Stopwatch, check_budget
from simzoo.retrieval.topk import top_columns

CUT = 1e-3  # a cut-off from here on tames a square, ill-conditioned matrix


class CUR(Searcher):
    """ANNCUR (§2.3): items are embedded by their scores with anchor queries, a query by its scores with anchor items.

    R_anc (k_q x N) holds the scores of the anchor queries with all items, C_anc its columns at the k_i anchor items,
    U = pinv(C_anc), E_I = U R_anc. A query's approximate scores are its exact scores at the anchor items times E_I; the
    best of them are scored exactly, and the anchors' exact scores compete with theirs.

    Args:
        budget: items scored a query: the anchor items and the retrieved ones.
        anchor_queries: k_q; their scores with all items are computed at indexing.
        anchor_items: k_i.
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
        return cls(budget, anchor_queries=8, anchor_items=budget // 2)

    def prepare(self, watch: Stopwatch) -> None:
        """Scores the anchor queries with all items and embeds the items.

        Raises:
            ValueError: there are fewer anchor queries or items than asked for.
        """
        task, num_items = self.task, len(self.task.collection.items)
        check_budget(self.budget, 1, num_items)
        if self.anchor_queries > len(task.anchor_rows):
            raise ValueError(
                f"anchor_queries = {self.anchor_queries}, but {task.collection.name} has {len(task.anchor_rows)} "
                "queries that are not evaluated; evaluate fewer (--queries) or use fewer anchors"
            )
        rng = np.random.default_rng(self.seed)
        anchors = np.sort(rng.choice(task.anchor_rows, self.anchor_queries, replace=False))
        self.anchor_rows = np.sort(rng.choice(num_items, self.anchor_items, replace=False))
        with watch.step("anchor scores"):
            r_anc = task.scorer.score_lists(anchors, np.tile(np.arange(num_items), (len(anchors), 1))).astype(
                np.float64
            )
        with watch.step("item embeddings"):
            u = np.linalg.pinv(r_anc[:, self.anchor_rows], rcond=self.rcond)
            self.item_embeddings = u @ r_anc

    def search(self, query_rows: Rows, k: int) -> Ranking:
        """See `Searcher.search`."""
        check_budget(self.budget, k, len(self.task.collection.items))
        watch = Stopwatch()
        anchors = np.tile(self.anchor_rows, (len(query_rows), 1))
        with watch.step("scoring"):
            anchor_scores = self.task.scorer.score_lists(query_rows, anchors)
        with watch.step("approximate scores"):
            approximate = anchor_scores.astype(np.float64) @ self.item_embeddings
            approximate[:, self.anchor_rows] = -np.inf
            retrieved = top_columns(approximate, self.budget - self.anchor_items)
        with watch.step("scoring"):
            scores = self.task.scorer.score_lists(query_rows, retrieved)
        items, exact = np.hstack([anchors, retrieved]), np.hstack([anchor_scores, scores])
        return self.ranked(query_rows, items, exact, k, watch)
