"""Vectors in several indices: a large one, those of what was added since, and the newest rows, which are scanned."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from simzoo.retrieval.first_stages.vector_index import Auto, FaissKind, Flat
from simzoo.retrieval.first_stages.vector_search import Floats, Removed, Rows, VectorIndex

TAIL = 65_536  # rows that are scanned before they get an index of their own


class SegmentedIndex:
    """Searches each part and merges.

    Scores are those of the vectors themselves (see `vector_index`), so parts are comparable, and the results over
    `Flat` parts are those of one flat index.

    Args:
        vectors: (N, d), mapped.
        parts: (first row, index) of parts that follow each other; rows behind them are scanned.
    """

    def __init__(self, vectors: Floats, parts: Sequence[tuple[int, VectorIndex]]) -> None:
        self.vectors = vectors
        self.parts = list(parts)
        behind = parts[-1][0] + len(parts[-1][1].vectors) if parts else 0
        if behind < len(vectors):
            self.parts.append((behind, VectorIndex(vectors[behind:], Flat())))
        self._removed: Removed | None = None
        self._slices: list[Removed | None] = [None] * len(self.parts)

    @property
    def exact(self) -> bool:
        """Whether every vector is looked at."""
        return all(part.exact for _, part in self.parts)

    def search(self, queries: Floats, k: int, removed: Removed | None = None) -> tuple[Rows, Floats]:
        """See `VectorIndex.search`."""
        found = [part.search(queries, k, gone) for part, gone in self._with(removed)]
        rows, scores = self._joined(queries, found)
        order = np.lexsort((rows, -scores), axis=1)[:, :k]
        return np.take_along_axis(rows, order, axis=1), np.take_along_axis(scores, order, axis=1)

    def near(self, queries: Floats, k: int, removed: Removed | None = None) -> tuple[Rows, Floats]:
        """See `VectorIndex.near`."""
        rows, scores = self._joined(queries, [part.near(queries, k, gone) for part, gone in self._with(removed)])
        if rows.shape[1] > k:
            best = np.argpartition(-scores, k, axis=1)[:, :k]
            rows, scores = np.take_along_axis(rows, best, axis=1), np.take_along_axis(scores, best, axis=1)
        return rows, scores

    def _with(self, removed: Removed | None) -> Iterator[tuple[VectorIndex, Removed | None]]:
        if removed is not self._removed:  # an index remembers what it made of the array it was given
            self._removed = removed
            self._slices = [
                None if removed is None else removed[start : start + len(part.vectors)] for start, part in self.parts
            ]
        return zip((part for _, part in self.parts), self._slices, strict=True)

    def _joined(self, queries: Floats, found: Sequence[tuple[Rows, Floats]]) -> tuple[Rows, Floats]:
        """The parts' results side by side, in rows of the whole."""
        rows = [np.where(part < 0, -1, part + start) for (start, _), (part, _) in zip(self.parts, found, strict=True)]
        nothing = np.empty((len(queries), 0))
        return np.hstack([nothing.astype(np.int64), *rows]), np.hstack(
            [nothing.astype(np.float32), *(scores for _, scores in found)]
        )


def next_parts(
    parts: Sequence[tuple[int, int]], count: int, kind: Auto | FaissKind
) -> tuple[list[tuple[int, int]], tuple[int, int] | None]:
    """Which parts stay and which one is to be built, when there are ``count`` rows.

    Few new rows are scanned. Many get a part, into which smaller ones before it are merged, so that each row is indexed
    about log2(N) times while items are added, and there are about as many parts.

    Args:
        parts: (start, stop) of those that are there.
        count: N.
        kind: how vectors are indexed.

    Returns:
        The parts that stay, and the one to build; None: nothing.
    """
    stop = parts[-1][1] if parts else 0
    part_kind = kind_of(kind, count)
    if isinstance(part_kind, Flat) or count - stop <= min(TAIL, stop):
        return list(parts), None
    kept, start = list(parts), stop
    while kept and kept[-1][1] - kept[-1][0] <= 2 * (count - start):
        start = kept.pop()[0]
    return (list(parts), None) if count - start < part_kind.least else (kept, (start, count))


def kind_of(kind: Auto | FaissKind, count: int) -> FaissKind:
    """How the parts of an index of so many rows are built."""
    return kind.of(count) if isinstance(kind, Auto) else kind
