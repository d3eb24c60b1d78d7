"""What a retriever found for the queries of a collection."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from simzoo.core.records import Collection

__all__ = ["Candidates", "Listed", "num_missed", "relevant_rows"]

Rows = NDArray[np.int64]
Scores = NDArray[np.float32]


@dataclass(frozen=True)
class Listed:
    """A list of items for each query, with their scores.

    Attributes:
        items: (Q, K) rows of items, -1 behind the last one of a query.
        scores: (Q, K).
    """

    items: Rows
    scores: Scores


@dataclass(frozen=True)
class Candidates:
    """What a retriever found for every query of a collection, best first.

    Attributes:
        items: (Q, depth) rows of items.
        scores: (Q, depth) the retriever's scores, NaN where it gives an order only.
        gold_scores: (Q,) the retriever's score of the query's best relevant item.
        teacher: (Q, depth) a teacher's scores of the same items; None without a teacher.
        gold: the retriever's scores of every relevant item of a query, found or not; None: not known.
        gold_teacher: the teacher's scores of the same items as ``gold``; None without a teacher.
        best: the teacher's top items of all, best first; None where it scored the mined ones only.
    """

    items: Rows
    scores: Scores
    gold_scores: Scores
    teacher: Scores | None = None
    gold: Listed | None = None
    gold_teacher: Scores | None = None
    best: Listed | None = None


def relevant_rows(collection: Collection) -> Rows:
    """(Q, G) rows of each query's relevant items, -1 behind the last one."""
    found = [collection.relevant(row) for row in range(len(collection.queries))]
    rows = np.full((len(found), max(map(len, found), default=0)), -1, dtype=np.int64)
    for row, relevant in enumerate(found):
        rows[row, : len(relevant)] = relevant
    return rows


def check_usable(mined: Candidates, collection: Collection, num_hard: int, needs_scores: str = "") -> None:
    """Whether training lists can be made of them.

    Args:
        mined: the candidates of the collection's queries.
        collection: the queries and items.
        num_hard: negatives that are to come from the candidates.
        needs_scores: what needs the retriever's scores; empty: nothing does.

    Raises:
        ValueError: there are fewer candidates, or no scores.
    """
    wanted, depth = min(num_hard, len(collection.items) - 1), mined.items.shape[1]
    if depth < wanted:
        raise ValueError(
            f"{collection.name}: {wanted} negatives a query are to come from the mined candidates, which are only "
            f"{depth}: mine deeper (data.miner.depth), or lower data.lists.hard"
        )
    if needs_scores and not np.isfinite(mined.scores).all():
        raise ValueError(
            f"{collection.name}: {needs_scores} needs the retriever's scores, but it gave an order only: leave that "
            "out, or mine with a retriever that scores"
        )


def num_missed(mined: Candidates, collection: Collection) -> int:
    """Queries with relevant items, none of which was found."""
    relevant = [collection.relevant(row) for row in range(len(collection.queries))]
    found = [np.isin(items, rows).any() for items, rows in zip(mined.items, relevant, strict=True) if rows]
    return len(found) - int(np.sum(found))
