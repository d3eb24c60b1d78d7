"""Items and queries as vectors of scores with the same anchor items."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from simzoo.core.records import Query
from simzoo.retrieval.corpus import Corpus
from simzoo.retrieval.finite import naming
from simzoo.retrieval.scorer import Scorer
from simzoo.retrieval.searcher import Ranking, Searcher, Stopwatch
from simzoo.retrieval.topk import Rows, Running, Scores

BLOCK = 1 << 14  # items whose embeddings are cast to float64 at once


class AnchorItems(Searcher):
    """A query is embedded by its exact scores with k_i anchor items, which are the same for every query.

    Its approximate scores are the inner products with the items' embeddings; the best are scored exactly, and the
    anchors' exact scores compete with theirs. A search reads the embeddings once a batch, in blocks; they are held,
    4 k_i bytes an item.

    Args:
        budget: items scored a query: the anchor items and the retrieved ones. Of fewer items all are scored.
        anchor_items: k_i; all items where there are not so many.
        seed: of the choice of anchors.

    Attributes:
        anchor_rows: (k_i,) ascending, after `index`.
        item_embeddings: (k_i, N).
    """

    needs_pairs = True

    budget: int
    anchor_rows: Rows
    item_embeddings: Scores

    def __init__(self, budget: int, anchor_items: int, seed: int) -> None:
        super().__init__()
        if not 0 < anchor_items < budget:
            raise ValueError(
                f"the budget pays for the anchor items and for what is retrieved: {anchor_items} anchor items leave "
                f"nothing of a budget of {budget}"
            )
        self.budget = budget
        self.anchor_items = anchor_items
        self.seed = seed

    def drawn(self, rng: np.random.Generator) -> Rows:
        """Rows (k_i,) of anchor items, ascending."""
        live = self.corpus.live
        return live[np.sort(rng.choice(len(live), min(self.anchor_items, len(live)), replace=False))]

    @property
    def anchor_removed(self) -> bool:
        """Whether an anchor item was removed since: it may not be scored for new queries."""
        gone = self.corpus.gone
        return gone is not None and bool(gone[self.anchor_rows].any())

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


def anchor_scores(corpus: Corpus, anchors: Sequence[Query], start: int) -> tuple[Scores, int]:
    """Scores (k_q, M) of anchor queries with the items from ``start`` on, 0 for removed ones; and the calls made."""
    judge, rows = corpus.judge, corpus.live[corpus.live >= start]
    assert judge is not None
    scorer = judge.scorer(anchors)
    with naming(anchors, corpus.items):
        scores = scorer.score_items(rows)
    if len(rows) < len(corpus) - start:
        whole = np.zeros((len(anchors), len(corpus) - start), dtype=np.float32)
        whole[:, rows - start] = scores
        scores = whole
    return scores, int(scorer.calls.sum())


def drawn_queries(corpus: Corpus, count: int, rng: np.random.Generator) -> list[Query]:
    """A random sample of the corpus's anchors.

    Raises:
        ValueError: there are fewer than asked for.
    """
    if count > len(corpus.anchors):
        raise ValueError(
            f"anchor_queries = {count}, but {corpus.name} has {len(corpus.anchors)} "
            "queries that are not evaluated; evaluate fewer (--queries) or use fewer anchors"
        )
    chosen = np.sort(rng.choice(len(corpus.anchors), count, replace=False))
    return [corpus.anchors[row] for row in chosen]


def places_of(corpus: Corpus, anchors: Sequence[Query]) -> Rows:
    """Where the anchors stand among the corpus's."""
    places = {id(query): place for place, query in enumerate(corpus.anchors)}
    return np.array([places[id(query)] for query in anchors], dtype=np.int64)
