"""ITEMCUR: ANNCUR with items in the place of the anchor queries."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, Self

import numpy as np

from simzoo.core.records import DataError, Query
from simzoo.retrieval.first_stages.first_stage import FirstStage
from simzoo.retrieval.searchers.cur import CUR
from simzoo.retrieval.searchers.item_queries import item_query, with_words
from simzoo.retrieval.topk import Rows

__all__ = ["ItemCUR"]


class ItemCUR(CUR):
    """ITEMCUR (ANNCUR §3.4): `CUR` whose anchor queries are items (A.2), for an index that knows no queries.

    A similarity that was trained on queries and items is not calibrated for two items: the paper finds it behind ANNCUR
    and ahead of FIXEDITEM. What it reads, holds, and how it grows: `CUR`.

    Args:
        budget: items scored a query: the anchor items and the retrieved ones. Of fewer items all are scored.
        index_items: items that stand in for queries when the index is made (the paper's k_i^ind); all with a title or a
            text where there are not so many. Their scores with all items are computed at indexing.
        anchor_items: k_i, drawn apart from those; all items where there are not so many.
        rcond: singular values of C_anc below ``rcond`` times the largest are cut off.
        mentions: mark an item's title as the mention, as A.2 does for entity linking; False where queries have none.
        seed: of the choice of anchors.
        first_stage: what the pool comes from; None: the corpus's embedder.
        pool: look only at about so many items of the first stage's, the nearest; 0: at all. None: at all; but of more
            than 1,048,576, where there is a first stage, at 10,000, or 10 times the budget if that is more.
    """

    rows: ClassVar[str] = "index_items"

    def __init__(
        self,
        budget: int = 100,
        index_items: int = 100,
        anchor_items: int = 50,
        rcond: float = 1e-6,
        mentions: bool = True,
        seed: int = 0,
        first_stage: FirstStage | None = None,
        pool: int | None = None,
    ) -> None:
        super().__init__(budget, index_items, anchor_items, rcond, seed, first_stage, pool)
        self.index_items = index_items
        self.mentions = mentions

    @classmethod
    def tiny(cls, stage: Any, budget: int) -> Self:
        """See `Searcher.tiny`."""
        return cls(budget, index_items=8, anchor_items=max(1, budget // 2), rcond=1e-3)

    def draw_anchors(self, rng: np.random.Generator) -> Sequence[Query]:
        """The items that stand in for queries.

        Raises:
            DataError: no item has a title or a text.
        """
        order = rng.permutation(self.corpus.live)
        some = order[:0]
        while len(some) < self.index_items and len(order):
            more, order = np.split(order, [self.index_items])
            some = np.append(some, with_words(self.corpus.items, more))
        if not len(some):
            raise DataError(f"no item of {self.corpus.name} has a title or a text: none can stand in for a query")
        self._index_rows = np.sort(some[: self.index_items])
        return self.anchors_at(self._index_rows)

    def places(self) -> Rows:
        """See `CUR.places`: the items' rows."""
        return self._index_rows

    def anchors_at(self, places: Rows) -> Sequence[Query]:
        """See `CUR.anchors_at`."""
        self._index_rows = np.asarray(places)
        return [item_query(self.corpus.items[row], self.mentions) for row in places.tolist()]

    @property
    def anchor_removed(self) -> bool:
        """See `AnchorItems.anchor_removed`; an item that stands in for a query counts as well."""
        gone = self.corpus.gone
        return super().anchor_removed or (gone is not None and bool(gone[self._index_rows].any()))
