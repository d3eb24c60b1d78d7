"""Candidates that a data set offers, added to its collection."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from simzoo.core.records import Collection, DataError
from simzoo.datamodules.readers.notes import Notes

__all__ = ["with_candidates"]

UNKNOWN = "candidates that are no items, dropped"
NONE = "queries without candidates, kept"


def with_candidates(collection: Collection, offered: Mapping[str, Sequence[str]], depth: int | None) -> Collection:
    """The collection with the candidates of its queries, in their order, each once.

    Args:
        collection: without candidates.
        offered: ids of items by id of a query, best first.
        depth: most candidates to keep for a query; None: all.

    Raises:
        DataError: the depth is below 1.
    """
    if depth is not None and depth < 1:
        raise DataError(f"depth is the number of candidates to keep for a query, at least 1; got {depth}")
    notes = Notes()
    listed = []
    for query in collection.queries:
        names = list(dict.fromkeys(offered.get(query.id, ())))[:depth]
        for name in names:
            if name not in collection.rows:
                notes.drop(UNKNOWN, name)
        listed.append([collection.rows[name] for name in names if name in collection.rows])
        notes.keep(NONE, not listed[-1])
    return replace(collection, candidates=listed, notes={**collection.notes, **notes.told(collection.name)})
