"""Lists for learning a teacher's order: its top items and as many hard negatives."""

from __future__ import annotations

from collections.abc import Set
from typing import ClassVar

import numpy as np

from simzoo.core.candidates import Candidates
from simzoo.core.records import Collection
from simzoo.datamodules.lists.base import CollectionLists, Drawn, QueryLists

__all__ = ["Distilled"]

UNLABELLED = "training queries have no relevant item; trained on all the same"


class Distilled(QueryLists):
    """A teacher's top items with its scores, and as many hard negatives: the retriever's first ones outside them.

    For `MatchLoss` and `PairLoss` (ANNCUR A.3), which need no labels: queries without a relevant item are trained on,
    too, and counted. The miner's teacher says where its top items come from: of the mined candidates
    (`simzoo.retrieval.mining.OfMined`), or of all items, as ANNCUR has it (`simzoo.retrieval.mining.OfAll`).

    Args:
        top: how many of either.
    """

    mines = True
    counted: ClassVar[bool] = False

    def __init__(self, top: int = 16) -> None:
        if top < 1:
            raise ValueError(f"top must be at least 1, got {top}")
        self.top = top

    def gives(self, miner: Set[str]) -> frozenset[str]:
        """See `TrainingLists.gives`: nothing without a teacher."""
        return frozenset({"teacher", "halves"}) if "teacher" in miner else frozenset()

    def members(self, collection: Collection) -> list[int]:
        """See `QueryLists.members`: every query."""
        return list(range(len(collection.queries)))

    def check(self, collection: Collection, mined: Candidates, needs: Set[str]) -> dict[str, int]:
        """See `TrainingLists.check`."""
        if mined.teacher is None:
            raise ValueError("a teacher's scores are missing: give data.miner a teacher")
        depth = mined.items.shape[1]
        if depth < 2 * self.top:
            raise ValueError(
                f"{collection.name}: data.lists.top {self.top} needs {2 * self.top} mined candidates a query, got "
                f"{depth}: mine deeper (data.miner.depth)"
            )
        if mined.best is not None and mined.best.items.shape[1] < self.top:
            raise ValueError(
                f"{collection.name}: data.lists.top {self.top} needs as many of the teacher's top items, got "
                f"{mined.best.items.shape[1]}: raise data.miner.teacher.top"
            )
        return {UNLABELLED: sum(not collection.relevant(row) for row in range(len(collection.queries)))}

    def draw(self, part: CollectionLists, row: int, rng: np.random.Generator) -> Drawn:
        """See `QueryLists.draw`: there is nothing to draw."""
        mined = part.mined()
        if mined.teacher is None:
            raise ValueError("a teacher's scores are missing: give data.miner a teacher")
        items, scores = mined.items[row], mined.teacher[row]
        if mined.best is not None:
            items, scores = mined.best.items[row], mined.best.scores[row]
        order = np.argsort(-scores, kind="stable")[: self.top]
        top = items[order]
        hard = mined.items[row][~np.isin(mined.items[row], top)][: self.top]
        teacher = np.concatenate([scores[order], np.full(len(hard), np.nan, dtype=np.float32)])
        return Drawn(np.concatenate([top, hard]), np.array(part.collection.relevant(row), dtype=np.int64), teacher)
