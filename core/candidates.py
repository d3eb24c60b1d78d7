"""What a retriever found for the queries of a collection."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from simzoo.core.records import Collection


@dataclass(frozen=True)
class Candidates:
    """What a retriever found for every query of a collection, best first.

    Attributes:
        items: (Q, depth) rows of items.
        scores: (Q, depth) the retriever's scores.
        gold_scores: (Q,) the retriever's score of the query's best relevant item.
        teacher: (Q, depth) a teacher's scores of the same items; None without a teacher.
    """

    items: NDArray[np.int64]
    scores: NDArray[np.float32]
    gold_scores: NDArray[np.float32]
    teacher: NDArray[np.float32] | None = None


def check_usable(mined: Candidates, collection: Collection, num_hard: int, needs_scores: str = "") -> None:
    """Whether training lists can be made of them.

    Args:
        mined: the candidates of the collection's queries.
        collection: the queries and items.
        num_hard: negatives that are to come from the candidates.
        needs_scores: settings that need the retriever's scores; empty: none does.

    Raises:
        ValueError: there are fewer candidates, or no scores.
    """
    wanted, depth = min(num_hard, len(collection.items) - 1), mined.items.shape[1]
    if depth < wanted:
        raise ValueError(
            f"{collection.name}: {wanted} negatives a query are to come from the mined candidates, which are only "
            f"{depth}: mine deeper, or lower data.negatives or data.hard"
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
