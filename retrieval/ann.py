"""Vector indices on faiss, by inner product."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

try:
    import faiss
except ImportError as error:
    raise ImportError("vector indices need faiss: install the extra cpu or gpu, pip install -e .[cpu]") from error


class IndexKind(ABC):
    """How a vector index is built."""

    @abstractmethod
    def empty(self, width: int, count: int) -> Any:
        """An untrained faiss index for ``count`` vectors of this width."""

    def build(self, vectors: NDArray[np.float32]) -> VectorIndex:
        """Trains the index where it needs it, and adds the vectors (N, d)."""
        index = self.empty(vectors.shape[1], len(vectors))
        index.train(vectors)
        index.add(vectors)
        return VectorIndex(index)


class VectorIndex:
    """A built index."""

    def __init__(self, index: Any) -> None:
        self._index = index

    def search(self, queries: NDArray[np.float32], k: int) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        """Rows (B, k) and inner products (B, k), best first; ties by lower row; row -1 where fewer were found."""
        scores, rows = self._index.search(np.ascontiguousarray(queries, dtype=np.float32), k)
        order = np.lexsort((rows, -scores), axis=1)
        return np.take_along_axis(rows, order, axis=1), np.take_along_axis(scores, order, axis=1)


@dataclass
class Flat(IndexKind):
    """Exact search."""

    def empty(self, width: int, count: int) -> Any:
        """See `IndexKind.empty`."""
        return faiss.IndexFlatIP(width)


@dataclass
class HNSW(IndexKind):
    """Hierarchical navigable small-world graph.

    Attributes:
        links: neighbours a node and layer.
        ef_construction: breadth of the search while building.
        ef_search: breadth of the search; at least k.
    """

    links: int = 32
    ef_construction: int = 200
    ef_search: int = 128

    def empty(self, width: int, count: int) -> Any:
        """See `IndexKind.empty`."""
        index = faiss.IndexHNSWFlat(width, self.links, faiss.METRIC_INNER_PRODUCT)
        index.hnsw.efConstruction = self.ef_construction
        index.hnsw.efSearch = self.ef_search
        return index


@dataclass
class IVF(IndexKind):
    """Inverted lists around k-means centroids.

    Attributes:
        lists: number of centroids; at most the number of vectors.
        probes: lists searched a query.
    """

    lists: int = 100
    probes: int = 16

    def empty(self, width: int, count: int) -> Any:
        """See `IndexKind.empty`."""
        if self.lists > count:
            raise ValueError(f"IVF with {self.lists} lists needs at least as many vectors, got {count}")
        quantizer = faiss.IndexFlatIP(width)
        index = faiss.IndexIVFFlat(quantizer, width, self.lists, faiss.METRIC_INNER_PRODUCT)
        index.nprobe = min(self.probes, self.lists)
        self._quantizer = quantizer  # faiss keeps a bare pointer to it
        return index
