"""Vectors in a database server, by inner product: for item sets that do not fit one process."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from simzoo.core.extras import extra
from simzoo.retrieval.index_kind import IndexKind, VectorSearch

__all__ = ["Qdrant", "QdrantIndex"]


@dataclass
class Qdrant(IndexKind):
    """A collection of a Qdrant server for each set of vectors; one that is there already is used again.

    Attributes:
        location: address of the server, http://host:6333; or ``:memory:``, embedded in this process and exact.
        prefix: of the collections' names; a digest of the vectors follows.
        ef_search: breadth of the server's search; None: its own setting.
    """

    calls_out: ClassVar[bool] = True

    location: str = "http://localhost:6333"
    prefix: str = "simzoo"
    ef_search: int | None = None

    def build(self, vectors: NDArray[np.float32]) -> VectorSearch:
        """Uploads vectors (N, d) unless a whole collection of them is there."""
        qdrant = extra("qdrant_client", "qdrant", "Qdrant")
        client, models = qdrant.QdrantClient(self.location), qdrant.models
        name = f"{self.prefix}-{hashlib.sha256(vectors.tobytes()).hexdigest()[:20]}"
        if client.collection_exists(name) and client.count(name).count != len(vectors):
            client.delete_collection(name)  # an upload that did not end
        if not client.collection_exists(name):
            size = models.VectorParams(size=vectors.shape[1], distance=models.Distance.DOT)
            client.create_collection(name, vectors_config=size)
            client.upload_collection(name, vectors=vectors, ids=range(len(vectors)), wait=True)
        return QdrantIndex(client, name, self.ef_search)


class QdrantIndex:
    """A collection whose points are numbered by row."""

    def __init__(self, client: Any, name: str, ef_search: int | None) -> None:
        self._client = client
        self._name = name
        self._models = extra("qdrant_client", "qdrant", "Qdrant").models
        self._params = None if ef_search is None else self._models.SearchParams(hnsw_ef=ef_search)

    def search(self, queries: NDArray[np.float32], k: int) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        """See `VectorSearch.search`.

        Raises:
            RuntimeError: the server finds fewer than k.
        """
        asked = [self._models.QueryRequest(query=query, limit=k, params=self._params) for query in queries.tolist()]
        found = [answer.points for answer in self._client.query_batch_points(self._name, asked)] if asked else []
        short = min(map(len, found), default=k)
        if short < k:
            raise RuntimeError(f"Qdrant's collection {self._name} gives {short} of {k} results; is it still loading?")
        rows = np.array([[point.id for point in points] for points in found], dtype=np.int64).reshape(-1, k)
        scores = np.array([[point.score for point in points] for points in found], dtype=np.float32).reshape(-1, k)
        order = np.lexsort((rows, -scores), axis=1)
        return np.take_along_axis(rows, order, axis=1), np.take_along_axis(scores, order, axis=1)
