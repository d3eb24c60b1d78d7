"""Vector indices by inner product, on faiss."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from simzoo.retrieval.topk import top_columns

try:
    import faiss
except ImportError as error:
    raise ImportError("vector indices need faiss: install the extra cpu or gpu, pip install -e .[cpu]") from error


class VectorSearch(Protocol):
    """What an index kind builds."""

    def search(self, queries: NDArray[np.float32], k: int) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        """Rows (B, k) and inner products (B, k) of queries (B, d), best first; ties by lower row."""


class IndexKind(ABC):
    """How vectors are indexed."""

    @abstractmethod
    def build(self, vectors: NDArray[np.float32]) -> VectorSearch:
        """An index of vectors (N, d)."""


class FaissKind(IndexKind):
    """How a faiss index is built."""

    @abstractmethod
    def empty(self, width: int, count: int) -> Any:
        """An untrained faiss index for ``count`` vectors of this width."""

    def build(self, vectors: NDArray[np.float32]) -> VectorIndex:
        """Trains the index where it needs it, and adds the vectors (N, d)."""
        index = self.empty(vectors.shape[1], len(vectors))
        index.train(vectors)
        index.add(vectors)
        return VectorIndex(index, vectors)


class VectorIndex:
    """A built faiss index, and the vectors (N, d) in it."""

    def __init__(self, index: Any, vectors: NDArray[np.float32]) -> None:
        self._index = index
        self._vectors = vectors

    def search(self, queries: NDArray[np.float32], k: int) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        """Rows (B, k) and inner products (B, k), best first; ties by lower row.

        A query for which the index finds fewer than k (too few probes), or that has a tie at the edge, which faiss
        breaks as it likes, is searched through all vectors.
        """
        queries = np.ascontiguousarray(queries, dtype=np.float32)
        scores, rows = self._index.search(queries, min(k + 1, len(self._vectors)))
        unsure = (rows[:, :k] < 0).any(axis=1)
        if rows.shape[1] > k:
            unsure |= (scores[:, k] == scores[:, k - 1]) & (rows[:, k] >= 0)
        rows, scores = rows[:, :k], scores[:, :k]
        if unsure.any():
            every = (queries[unsure].astype(np.float64) @ self._vectors.T.astype(np.float64)).astype(np.float32)
            rows[unsure] = top_columns(every, k)
            scores[unsure] = np.take_along_axis(every, rows[unsure], axis=1)
        order = np.lexsort((rows, -scores), axis=1)
        return np.take_along_axis(rows, order, axis=1), np.take_along_axis(scores, order, axis=1)


@dataclass
class Flat(FaissKind):
    """Exact search."""

    def empty(self, width: int, count: int) -> Any:
        """See `FaissKind.empty`."""
        return faiss.IndexFlatIP(width)


@dataclass
class HNSW(FaissKind):
    """Hierarchical navigable small-world graph.

    Attributes:
        links: neighbours a node and layer.
        ef_construction: breadth of the search while building.
        ef_search: breadth of the search; at least k.
    """

    links: int = 32
    ef_construction: int = 200
    ef_search: int = 128

    def __post_init__(self) -> None:
        if self.links < 2 or self.ef_construction < 1 or self.ef_search < 1:
            raise ValueError(f"HNSW needs at least 2 links and breadths of at least 1, got {self}")

    def empty(self, width: int, count: int) -> Any:
        """See `FaissKind.empty`."""
        index = faiss.IndexHNSWFlat(width, self.links, faiss.METRIC_INNER_PRODUCT)
        index.hnsw.efConstruction = self.ef_construction
        index.hnsw.efSearch = self.ef_search
        return index


@dataclass
class IVF(FaissKind):
    """Inverted lists around k-means centroids.

    Attributes:
        lists: number of centroids; at most the number of vectors.
        probes: lists searched a query.
    """

    lists: int = 100
    probes: int = 16

    def __post_init__(self) -> None:
        if self.lists < 1 or self.probes < 1:
            raise ValueError(f"IVF needs at least one list and one probe, got {self}")

    def empty(self, width: int, count: int) -> Any:
        """See `FaissKind.empty`."""
        if self.lists > count:
            raise ValueError(f"IVF with {self.lists} lists needs at least as many vectors, got {count}")
        quantizer = faiss.IndexFlatIP(width)
        index = faiss.IndexIVFFlat(quantizer, width, self.lists, faiss.METRIC_INNER_PRODUCT)
        index.nprobe = min(self.probes, self.lists)
        self._quantizer = quantizer  # faiss keeps a bare pointer to it
        return index
