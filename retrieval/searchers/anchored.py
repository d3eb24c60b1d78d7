"""Items and queries as vectors of scores with the same anchor items."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from simzoo.core.records import Query
from simzoo.retrieval.corpus import Corpus
from simzoo.retrieval.finite import naming
from simzoo.retrieval.first_stages.dense import Dense
from simzoo.retrieval.first_stages.first_stage import FirstStage
from simzoo.retrieval.first_stages.vector_index import Flat
from simzoo.retrieval.first_stages.vector_search import VectorIndex
from simzoo.retrieval.scorer import Scorer
from simzoo.retrieval.searcher import Ranking, Searcher, Stopwatch
from simzoo.retrieval.searchers.rounds import POOL, SCANNED
from simzoo.retrieval.topk import Rows, Scores, top_columns


class AnchorItems(Searcher):
    """A query is embedded by its exact scores with k_i anchor items, which are the same for every query.

    Its approximate scores are the inner products with the items' embeddings; the best are scored exactly, and the
    anchors' exact scores compete with theirs. The embeddings are held, 4 k_i bytes an item. Without a pool a search
    reads all of them once a batch, in blocks; with one, those of the pool's items and what the first stage reads.

    Args:
        budget: items scored a query: the anchor items and the retrieved ones. Of fewer items all are scored.
        anchor_items: k_i; all items where there are not so many.
        seed: of the choice of anchors.
        first_stage: what the pool comes from; None: the corpus's embedder.
        pool: look only at about so many items of the first stage's, the nearest; 0: at all. None: at all; but of more
            than 1,048,576, where there is a first stage, at 10,000, or 10 times the budget if that is more.

    Attributes:
        anchor_rows: (k_i,) ascending, after `index`.
        item_embeddings: (N, k_i).
    """

    needs_pairs = True

    budget: int
    anchor_rows: Rows
    item_embeddings: Scores

    def __init__(
        self, budget: int, anchor_items: int, seed: int, first_stage: FirstStage | None = None, pool: int | None = None
    ) -> None:
        super().__init__()
        if not 0 < anchor_items < budget:
            raise ValueError(
                f"the budget pays for the anchor items and for what is retrieved: {anchor_items} anchor items leave "
                f"nothing of a budget of {budget}"
            )
        if pool and pool < budget:
            raise ValueError(f"a pool of {pool} items cannot fill a budget of {budget}")
        self.budget = budget
        self.anchor_items = anchor_items
        self.seed = seed
        self.first_stage = first_stage
        self.pool = pool
        self._stage: FirstStage | None = None

    def drawn(self, rng: np.random.Generator) -> Rows:
        """Rows (k_i,) of anchor items, ascending."""
        live = self.corpus.live
        return live[np.sort(rng.choice(len(live), min(self.anchor_items, len(live)), replace=False))]

    @property
    def anchor_removed(self) -> bool:
        """Whether an anchor item was removed since: it may not be scored for new queries."""
        gone = self.corpus.gone
        return gone is not None and bool(gone[self.anchor_rows].any())

    def embedded(self, embeddings: Scores, watch: Stopwatch, start: int | None = None) -> None:
        """Takes the embeddings (N, k_i) of all items, and indexes the first stage where a pool comes from it.

        Args:
            embeddings: in memory or memory-mapped.
            watch: for the seconds.
            start: the items before it were embedded before; None: none were.
        """
        self.item_embeddings = embeddings
        self._index = VectorIndex(embeddings, Flat())
        self._closed = np.zeros(len(embeddings), dtype=bool) if self.corpus.gone is None else self.corpus.gone.copy()
        self._closed[self.anchor_rows] = True
        before, self._stage = self._stage, self._pooling()
        if self._stage is not None:
            with watch.step("first stage"):
                if start is None or before is None:
                    self._stage.index(self.corpus)
                else:
                    self._stage.extend(self.corpus, start)

    def _pooling(self) -> FirstStage | None:
        """What the pool comes from; None: there is none.

        Raises:
            ValueError: a pool is asked for, and there is nothing that it could come from.
        """
        stage = self._stage or self.first_stage or (None if self.corpus.embedder is None else Dense())
        if self.pool and stage is None:
            raise ValueError(f"a pool needs a first stage, or {self.corpus.name} an embedder")
        wanted = len(self.corpus.live) > SCANNED if self.pool is None else self.pool > 0
        return stage if wanted else None

    def find(self, scorer: Scorer, queries: Sequence[Query], k: int, watch: Stopwatch) -> Ranking:
        """See `Searcher.find`."""
        anchors = np.tile(self.anchor_rows, (len(queries), 1))
        count = self.affordable() - anchors.shape[1]
        with watch.step("scoring"):
            anchor_scores = scorer.lists(anchors)
        if self._stage is not None and count:
            with watch.step("first stage"):
                pool = self._stage.pool(queries, min(self.pool or max(POOL, 10 * self.budget), len(self._closed)))
            with watch.step("approximate scores"):
                retrieved = self._best_of(pool, anchor_scores, count)
        else:
            with watch.step("approximate scores"):
                retrieved = self._index.search(anchor_scores, count, self._closed)[0]
        with watch.step("scoring"):
            scores = scorer.lists(retrieved)
        return self.ranked(scorer, np.hstack([anchors, retrieved]), np.hstack([anchor_scores, scores]), k)

    def _best_of(self, pool: Rows, anchor_scores: Scores, count: int) -> Rows:
        """(B, count) items of the pool (B, m) with the largest approximate scores; of all where it has too few."""
        best = np.empty((len(pool), count), dtype=np.int64)
        for place, known in enumerate(anchor_scores):
            rows = np.sort(pool[place][pool[place] >= 0])
            rows = rows[~self._closed[rows]]
            if len(rows) < count:
                best[place] = self._index.search(known[None], count, self._closed)[0][0]
                continue
            embeddings = self.item_embeddings[rows].astype(np.float64)
            # einsum adds up each product alone: equal embeddings tie, and come by row.
            scores = np.einsum("nd,d->n", embeddings, known.astype(np.float64)).astype(np.float32)
            best[place] = rows[top_columns(scores[None], count)[0]]
        return best


class AnchorScores:
    """Scores of anchor queries with items as they are asked for.

    Args:
        corpus: the items.
        anchors: k_q queries.
    """

    def __init__(self, corpus: Corpus, anchors: Sequence[Query]) -> None:
        assert corpus.judge is not None
        self._items, self._anchors = corpus.items, anchors
        self._scorer = corpus.judge.scorer(anchors)

    def __call__(self, rows: Rows) -> Scores:
        """(k_q, M) with the items at ``rows`` (M,)."""
        with naming(self._anchors, self._items):
            return self._scorer.score_items(rows)

    @property
    def calls(self) -> int:
        """Pairs scored so far."""
        return int(self._scorer.calls.sum())


def anchor_scores(corpus: Corpus, anchors: Sequence[Query], start: int) -> tuple[Scores, int]:
    """Scores (k_q, M) of anchor queries with the items from ``start`` on, 0 for removed ones; and the calls made."""
    asked, rows = AnchorScores(corpus, anchors), corpus.live[corpus.live >= start]
    scores = asked(rows)
    if len(rows) < len(corpus) - start:
        whole = np.zeros((len(anchors), len(corpus) - start), dtype=np.float32)
        whole[:, rows - start] = scores
        scores = whole
    return scores, asked.calls


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
