"""Vectors of items, and of queries as they come: what vector search, AXN and neighbour graphs look in."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simzoo.core.records import Item, Query
from simzoo.core.reps import Reps
from simzoo.core.shards import ALONE, Worker
from simzoo.retrieval.index_kind import IndexKind, VectorSearch
from simzoo.retrieval.storage.encoding import encode_items, encode_queries
from simzoo.retrieval.topk import Rows, Scores, padded

__all__ = ["Embedder"]

Floats = NDArray[np.float32]
BLOCK = 4096  # vectors whose norms are computed at once
KEPT = 4096  # queries whose vectors are kept


class Embedder:
    """A similarity that is an inner product, bound to N items.

    Args:
        similarity: a `LearnedSimilarity` with `is_inner_product`; None: for vectors that come from elsewhere, whose
            class overrides `encode`.
        vectors: (N, d) float32, in memory or memory-mapped.
        index: over these vectors.
        exact: whether the index is exact; otherwise it is approximate.
        asks: another one that encodes the queries, into the same space; None: ``similarity``.

    Raises:
        TypeError: the similarity's score is not an inner product of two vectors.
        ValueError: it is in training mode.
    """

    def __init__(
        self, similarity: Any, vectors: Floats, index: VectorSearch, exact: bool, asks: Any | None = None
    ) -> None:
        for one in (similarity, asks):
            check_inner_product(one)
        self.similarity = similarity
        self.asks = similarity if asks is None else asks
        self.vectors = vectors
        self.index = index
        self.exact = exact
        self._recent: OrderedDict[tuple[Query, ...], Floats] = OrderedDict()
        self._lock = Lock()

    @classmethod
    def of(
        cls, similarity: Any, items: Sequence[Item], ann: IndexKind, exact: bool, store: Path | None = None
    ) -> Embedder:
        """Encodes the items and builds the index.

        Args:
            similarity: a `LearnedSimilarity` with `is_inner_product`.
            items: N items.
            ann: how their vectors are indexed.
            exact: whether that is exact.
            store: folder that keeps the vectors from run to run; None: in memory only.
        """
        check_inner_product(similarity)
        vectors = item_vectors(similarity, items, store)
        return cls(similarity, vectors, ann.build(vectors), exact)

    @property
    def num_items(self) -> int:
        """N."""
        return len(self.vectors)

    @property
    def representation_bytes(self) -> int:
        """Of the items' vectors."""
        return int(self.vectors.nbytes)

    @property
    def truncated(self) -> int:
        """Texts that were longer than the model takes, so far."""
        text = getattr(self.similarity, "text", None)
        return text.truncated if text is not None else 0

    @cached_property
    def longest(self) -> float:
        """The largest norm of an item's vector; all vectors are read for it, once."""
        return longest_of(self.vectors)

    def take(self, rows: Rows) -> Floats:
        """(..., d) vectors of the items at ``rows`` (...)."""
        taken: Floats = self.vectors[rows]
        return taken

    def encode(self, queries: Sequence[Query]) -> Floats:
        """(B, d) vectors of queries; those of the last batches are kept, for the next who asks."""
        asked = tuple(queries)
        with self._lock:
            known = self._recent.get(asked)
        if known is None:
            known = self._encoded(asked)
            with self._lock:
                self._recent[asked] = known
                while len(self._recent) > 1 and sum(map(len, self._recent)) > KEPT:
                    self._recent.popitem(last=False)
        return known

    def _encoded(self, queries: Sequence[Query]) -> Floats:
        found = _vectors(encode_queries(self.asks, queries))
        if found.shape[1] != self.vectors.shape[1]:
            raise ValueError(
                f"the queries' vectors have width {found.shape[1]}, the items' {self.vectors.shape[1]}: they are not "
                "of one space"
            )
        return found

    def search(
        self,
        vectors: Floats,
        k: int,
        exclude: Rows | None = None,
        removed: NDArray[np.bool_] | None = None,
    ) -> tuple[Rows, Scores]:
        """Rows (B, k) and inner products (B, k) of the items nearest to vectors (B, d); -1 and -inf behind the last.

        Args:
            vectors: (B, d), of queries or fitted to scores.
            k: how many are wanted.
            exclude: (B, m) rows that are not wanted, each of a query's once; -1 for none.
            removed: (N,) rows that are no longer there.
        """
        gone = 0 if removed is None else int(removed.sum())
        asked = min(k + (0 if exclude is None else exclude.shape[1]) + gone, self.num_items)
        rows, scores = self.index.search(np.ascontiguousarray(vectors, dtype=np.float32), asked)
        out = rows < 0
        if removed is not None:
            out |= removed[rows]
        if exclude is not None:
            base = np.arange(len(rows))[:, None] * self.num_items
            out |= np.isin(rows + base, (exclude + base)[exclude >= 0])
        if out.any():
            order = np.argsort(out, axis=1, kind="stable")
            rows = np.take_along_axis(rows, order, axis=1)
            scores = np.take_along_axis(np.where(out, -np.inf, scores), order, axis=1)
        return padded(rows, scores, k)

    def near(self, vectors: Floats, k: int, removed: NDArray[np.bool_] | None = None) -> Rows:
        """Rows (B, m) of about the k items nearest to vectors (B, d), m at most k, in no certain order; -1 for none.

        For a large k: where the index can, it is what the index finds, without the vectors' own scores.
        """
        return self.search(vectors, k, removed=removed)[0]


def item_vectors(similarity: Any, items: Sequence[Item], store: Path | None = None, worker: Worker = ALONE) -> Floats:
    """(N, d) vectors of items; see `Embedder.of`, and `encode_items` of several workers."""
    return _vectors(encode_items(similarity, items, store, f"{similarity.weights_sha256} float32", worker))


def longest_of(vectors: Floats) -> float:
    """At least the largest norm of (N, d) vectors, at most 1 % more: it is computed in single precision."""
    most = 0.0
    for start in range(0, len(vectors), BLOCK):
        block = vectors[start : start + BLOCK]
        most = max(most, float(np.einsum("nd,nd->n", block, block).max()))
    return 1.005 * math.sqrt(most)


def check_inner_product(similarity: Any) -> None:
    """Refuses what a vector index cannot search, and a model in training mode.

    Raises:
        TypeError: the similarity's score is not an inner product of two vectors.
    """
    if similarity is not None and not similarity.is_inner_product:
        raise TypeError(
            f"{type(similarity).__name__} is no inner product of two vectors: a vector index cannot search it"
        )


def _vectors(reps: Reps) -> Floats:
    vector: Any = reps["vector"]
    return np.ascontiguousarray(vector.float().numpy())
