"""The largest scores of each row."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Rows = NDArray[np.int64]
Scores = NDArray[np.float32]

NOTHING = -1  # in place of a row: there is no item; its score is -inf


def top_columns(scores: NDArray[Any], k: int) -> Rows:
    """(B, k) columns of the largest scores in each row of (B, N), best first; ties go to the lower column.

    Only the columns that are kept are sorted. Scores must not be NaN; 1 <= k <= N.
    """
    size = scores.shape[1]
    edge = np.partition(scores, size - k, axis=1)[:, size - k, None]
    kept = scores >= edge
    surplus = np.count_nonzero(kept, axis=1) - k
    unsure = np.flatnonzero(surplus)
    if unsure.size:
        ties = scores[unsure] == edge[unsure]
        later = ties[:, ::-1].cumsum(axis=1)[:, ::-1]  # ties from this column on: the last ones have to go
        kept[unsure] &= ~(ties & (later <= surplus[unsure, None]))
    columns = np.nonzero(kept)[1].reshape(len(scores), k)
    order = np.argsort(-np.take_along_axis(scores, columns, axis=1), axis=1, kind="stable")
    best: Rows = np.take_along_axis(columns, order, axis=1)
    return best


def top_order(scores: NDArray[np.floating], item_rows: Rows, k: int) -> Rows:
    """(B, k) positions of the largest scores in each row of (B, m); ties go to the lower item row."""
    order: Rows = np.lexsort((item_rows, -scores), axis=1)[:, :k]
    return order


def padded(item_rows: Rows, scores: NDArray[Any], k: int) -> tuple[Rows, NDArray[Any]]:
    """Rows and scores (B, m), best first, cut or filled up to (B, k): -1 and -inf where there is no item.

    A place counts as filled by its score: -inf is none.
    """
    item_rows, scores = item_rows[:, :k], scores[:, :k]
    item_rows = np.where(np.isneginf(scores), NOTHING, item_rows)
    missing = k - item_rows.shape[1]
    if missing:
        item_rows = np.pad(item_rows, ((0, 0), (0, missing)), constant_values=NOTHING)
        scores = np.pad(scores, ((0, 0), (0, missing)), constant_values=-np.inf)
    return item_rows, scores


class Running:
    """The best of what goes by, block by block: memory for k items a query, whatever their number.

    Args:
        queries: B.
        k: how many are wanted.

    Attributes:
        rows: (B, m) items, best first, ties by lower row; m is k where so many went by.
        scores: (B, m) theirs.
    """

    def __init__(self, queries: int, k: int) -> None:
        self.k = k
        self.rows: Rows = np.empty((queries, 0), dtype=np.int64)
        self.scores: NDArray[Any] = np.empty((queries, 0), dtype=np.float32)

    def add(self, scores: NDArray[Any], rows: Rows) -> None:
        """Takes scores (B, C) of the items at ``rows`` (C,), which ascend and are others than those before."""
        if not len(rows) or not len(scores):
            return
        if self.rows.shape[1] == self.k and not (scores > self.scores[:, -1:]).any() and rows[0] > self.rows.max():
            return  # later rows lose ties
        columns = top_columns(scores, min(self.k, len(rows)))
        items = np.hstack([self.rows, rows[columns]])
        found = np.hstack([self.scores, np.take_along_axis(scores, columns, axis=1)])
        order = top_order(found, items, self.k)
        self.rows, self.scores = np.take_along_axis(items, order, axis=1), np.take_along_axis(found, order, axis=1)
