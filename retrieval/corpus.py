"""What is searched, before any query is known."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from simzoo.core.records import Collection, Item, Query
from simzoo.retrieval.embedder import Embedder
from simzoo.retrieval.judge import Judge
from simzoo.retrieval.topk import Rows

__all__ = ["Corpus"]


class Shelf(Protocol):
    """Where first stages keep what they have made of the items, for whoever opens them next."""

    def get(self, name: str) -> Path | None:
        """The folder that was kept under a name, made of these items by these rows; None: there is none."""

    def put(self, name: str, write: Callable[[Path], None]) -> Path | None:
        """Keeps the folder that ``write`` makes at the path it is given; None: nothing can be kept now."""


@dataclass(frozen=True)
class Corpus:
    """N items, and what is known of them.

    Attributes:
        items: may be a store on disk: it is indexed by row and never copied into a list.
        judge: the expensive similarity over these items; None: none is called.
        embedder: vectors of the items, for searchers and first stages that name none of their own.
        anchors: other queries, which indexing may use (CUR, score normalisation).
        aliases: alias table: normal form to rows, the most frequent sense first (`AliasTable`).
        candidates: what the data itself offers: query id to rows, best first (`Given`).
        removed: (N,) rows that are no longer there: they are never returned, nor scored.
        name: for messages.
        shelf: what first stages have made of the items, beside them on disk; None: nothing is kept.

    Examples:
        >>> corpus = Corpus([Item("i0", "a flat boat"), Item("i1", "a house")], removed=np.array([True, False]))
        >>> len(corpus), corpus.live.tolist()
        (2, [1])
    """

    items: Sequence[Item]
    judge: Judge | None = None
    embedder: Embedder | None = None
    anchors: Sequence[Query] = ()
    aliases: Mapping[str, Sequence[int]] = field(default_factory=dict)
    candidates: Mapping[str, Sequence[int]] = field(default_factory=dict)
    removed: NDArray[np.bool_] | None = None
    name: str = "the corpus"
    shelf: Shelf | None = None

    def __post_init__(self) -> None:
        for kind, part in (("judge", self.judge), ("embedder", self.embedder)):
            if part is not None and part.num_items != len(self.items):
                raise ValueError(f"the {kind} is over {part.num_items} items, but {self.name} has {len(self.items)}")
        if self.removed is not None and (self.removed.shape != (len(self.items),) or self.removed.dtype != np.bool_):
            raise ValueError(
                f"removed marks rows: expected ({len(self.items)},) bool, got {self.removed.shape} {self.removed.dtype}"
            )

    @classmethod
    def of(
        cls,
        collection: Collection,
        judge: Judge | None = None,
        embedder: Embedder | None = None,
        anchors: Sequence[Query] = (),
    ) -> Corpus:
        """The items of a collection, its alias table, and the candidates that it offers for its queries."""
        offered: Mapping[str, Sequence[int]] = {}
        if collection.candidates:
            asked = zip(collection.queries, collection.candidates, strict=True)
            offered = {query.id: rows for query, rows in asked}
        return cls(collection.items, judge, embedder, anchors, collection.aliases, offered, name=collection.name)

    def __len__(self) -> int:
        """N, removed ones included."""
        return len(self.items)

    @cached_property
    def live(self) -> Rows:
        """Rows that are there, ascending."""
        return np.arange(len(self)) if self.removed is None else np.flatnonzero(~self.removed)

    @property
    def gone(self) -> NDArray[np.bool_] | None:
        """`removed`, or None where no row is."""
        return None if self.removed is None or len(self.live) == len(self) else self.removed
