"""The largest scores of each row."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from simzoo.retrieval.scorer import Rows


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
