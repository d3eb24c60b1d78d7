"""FIXEDITEM: items and queries compared by their scores with the same few items."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from simzoo.retrieval.finite import naming
from simzoo.retrieval.first_stages.first_stage import FirstStage
from simzoo.retrieval.searcher import Stopwatch
from simzoo.retrieval.searchers.anchored import AnchorItems
from simzoo.retrieval.searchers.item_queries import item_query
from simzoo.retrieval.topk import Scores

__all__ = ["FixedItem"]

QUERIES = 256  # items that are scored together in the place of queries


class FixedItem(AnchorItems):
    """FIXEDITEM (ANNCUR §3.4): the embedding of a query or an item is its k_i scores with fixed anchor items.

    An item is scored in a query's place (A.2), so that one function embeds both; approximate scores are inner products.
    Indexing makes k_i calls an item. Growing makes them for the new items, and keeps the anchor items as they were
    drawn: an index over everything at once draws others. Where one of them was removed everything is prepared anew.

    Args:
        budget: items scored a query: the anchor items and the retrieved ones. Of fewer items all are scored.
        anchor_items: k_i, drawn uniformly; the paper uses 500. All items where there are not so many.
        mentions: mark an item's title as the mention, as A.2 does for entity linking; False where queries have none.
        seed: of the choice of anchors.
        first_stage: what the pool comes from; None: the corpus's embedder.
        pool: look only at about so many items of the first stage's, the nearest; 0: at all. None: at all; but of more
            than 1,048,576, where there is a first stage, at 10,000, or 10 times the budget if that is more.
    """

    def __init__(
        self,
        budget: int = 100,
        anchor_items: int = 50,
        mentions: bool = True,
        seed: int = 0,
        first_stage: FirstStage | None = None,
        pool: int | None = None,
    ) -> None:
        super().__init__(budget, anchor_items, seed, first_stage, pool)
        self.mentions = mentions

    @classmethod
    def tiny(cls, stage: Any, budget: int) -> Self:
        """See `Searcher.tiny`."""
        return cls(budget, anchor_items=max(1, budget // 2))

    def prepare(self, watch: Stopwatch) -> None:
        """Draws the anchor items and scores all items with them.

        Raises:
            DataError: an item has neither title nor text; found before a pair is scored.
        """
        self.anchor_rows = self.drawn(np.random.default_rng(self.seed))
        with watch.step("item embeddings"):
            embeddings = self._embedded(0)
        self.embedded(embeddings, watch)

    def grow(self, start: int, watch: Stopwatch) -> None:
        """See `Searcher.grow`: scores the new items with the anchor items."""
        if self.anchor_removed:
            self.prepare(watch)
            return
        embeddings = self.item_embeddings
        if start < len(self.corpus):
            with watch.step("item embeddings"):
                embeddings = np.concatenate([embeddings, self._embedded(start)])
        self.embedded(embeddings, watch, start)

    def state(self) -> dict[str, NDArray[Any]]:
        """See `Searcher.state`."""
        return {"embeddings": self.item_embeddings, "items": self.anchor_rows}

    def restored(self, state: Mapping[str, NDArray[Any]], rows: int, watch: Stopwatch) -> None:
        """See `Searcher.restored`."""
        self.item_embeddings, self.anchor_rows, self._stage = state["embeddings"], state["items"], None
        self.grow(rows, watch)

    def _embedded(self, start: int) -> Scores:
        """(M, k_i) scores of the items from ``start`` on with the anchor items; 0 for removed ones."""
        judge, items = self.corpus.judge, self.corpus.items
        assert judge is not None
        rows = self.corpus.live[self.corpus.live >= start]
        for row in rows.tolist():
            item_query(items[row], self.mentions)
        found = np.zeros((len(self.corpus) - start, len(self.anchor_rows)), dtype=np.float32)
        for first in range(0, len(rows), QUERIES):
            some = rows[first : first + QUERIES]
            queries = [item_query(items[row], self.mentions) for row in some.tolist()]
            scorer = judge.scorer(queries)
            with naming(queries, items):
                found[some - start] = scorer.score_items(self.anchor_rows)
            self.index_calls += int(scorer.calls.sum())
        return found
