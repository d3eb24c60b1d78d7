"""p-MRR: does a ranking follow an instruction that was changed? (FollowIR, Weller et al., 2024, arXiv 2403.15246)."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from simzoo.core.records import Collection
from simzoo.retrieval.topk import Rows

__all__ = ["followed", "p_mrr"]


def p_mrr(original: NDArray[np.int64], changed: NDArray[np.int64]) -> float:
    """The mean over M items of a query that its changed instruction makes irrelevant (FollowIR, section 4).

    An item that falls from rank r to rank s gets 1 - r / s, one that rises from r to s gets s / r - 1: near 1 is an
    item that vanishes, 0 one that stays where it was, near -1 one that is pushed up.

    Args:
        original: (M,) ranks from 1 with the original instruction; an item that was not found has the rank behind the
            last.
        changed: (M,) ranks with the changed one.

    Raises:
        ValueError: there are no ranks, or one below 1, or the shapes differ.

    Examples:
        >>> p_mrr(np.array([1, 4]), np.array([2, 4]))  # one item falls from 1 to 2, one stays
        0.25
    """
    if original.shape != changed.shape or original.ndim != 1 or not len(original):
        raise ValueError(f"p-MRR compares M >= 1 ranks with as many, got {original.shape} and {changed.shape}")
    if min(original.min(), changed.min()) < 1:
        raise ValueError("ranks are counted from 1")
    return float(np.where(original >= changed, changed / original - 1, 1 - original / changed).mean())


def followed(items: Rows, collection: Collection, query_rows: Rows) -> NDArray[np.float64]:
    """p-MRR of each query whose instruction was changed (`Collection.changed`).

    The items that count are those that are relevant with the original instruction and not with the changed one. An item
    that was not found has the rank behind the last result, so that rankings should be as deep as the candidates.

    Args:
        items: (B, k) rows, best first, -1 for none.
        collection: with the judgements.
        query_rows: (B,) the queries.

    Returns:
        (B,); NaN for a query that is no original one, whose changed one is not among the B, or in whose judgements
        nothing was changed.

    Examples:
        >>> from simzoo import Collection, Item, Query
        >>> queries = [Query("1-og", "boats"), Query("1-changed", "boats, but not flat ones")]
        >>> texts = [Item("i0", "a flat boat"), Item("i1", "a ship")]
        >>> toy = Collection("toy", texts, queries, judgements=[{0: 1, 1: 1}, {0: 0, 1: 1}], changed={0: 1})
        >>> followed(np.array([[0, 1], [1, 0]]), toy, np.array([0, 1])).tolist()
        [0.5, nan]
    """
    places = {row: place for place, row in enumerate(query_rows.tolist())}
    found = np.full(len(query_rows), np.nan)
    for one, other in collection.changed.items():
        still = set(collection.relevant(other))
        gone = [row for row in collection.relevant(one) if row not in still]
        if one in places and other in places and gone:
            ranks = (_ranks(items[places[row]], gone) for row in (one, other))
            found[places[one]] = p_mrr(*ranks)
    return found


def _ranks(ranking: Rows, items: list[int]) -> NDArray[np.int64]:
    """Ranks from 1 of items in one ranking (k,)."""
    places = {row: place for place, row in enumerate(ranking.tolist(), start=1) if row >= 0}
    return np.array([places.get(row, len(places) + 1) for row in items])
