"""The dense first stage: a dual encoder's vectors in a faiss index."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simzoo.core.records import Collection
from simzoo.core.reps import Reps
from simzoo.models.formats import load
from simzoo.models.similarity import LearnedSimilarity, fastest_device
from simzoo.retrieval.first_stages.first_stage import FirstStage
from simzoo.retrieval.first_stages.vector_index import Flat, IndexKind
from simzoo.retrieval.storage.encoding import encode_items, encode_queries


class Dense(FirstStage):
    """Inner-product search over the vectors of a checkpoint; also the item embeddings of AXN.

    Args:
        checkpoint: folder of a checkpoint whose similarity is an inner product, or of a Hugging Face encoder.
        ann: how the vectors are searched.
        store: folder that keeps the items' vectors from run to run; None: in memory only.
    """

    def __init__(self, checkpoint: str | Path, ann: IndexKind | None = None, store: Path | None = None) -> None:
        self.checkpoint = checkpoint
        self.ann = ann or Flat()
        self.store = store
        self._similarity: LearnedSimilarity | None = None
        self._searched: Any = None
        self._indexed: Collection | None = None

    @classmethod
    def of(cls, similarity: LearnedSimilarity, ann: IndexKind | None = None) -> Dense:
        """Over a model at hand."""
        dense = cls("", ann)
        dense._similarity = similarity
        return dense

    @property
    def similarity(self) -> LearnedSimilarity:
        """The model, loaded at first use.

        Raises:
            TypeError: its score is not an inner product of two vectors.
        """
        if self._similarity is None:
            self._similarity = load(self.checkpoint, fastest_device())
        if not self._similarity.is_inner_product:
            raise TypeError(
                f"{type(self._similarity).__name__} ({self.checkpoint}) is no inner product of two vectors: a vector "
                "index cannot search it"
            )
        return self._similarity

    def identity(self) -> str:
        """See `FirstStage.identity`: the weights, not their place."""
        return f"Dense {self.similarity.weights_sha256} {self.ann}"

    def index(self, collection: Collection) -> None:
        """Encodes all items and queries of the collection; a checkpoint's vectors of the one indexed last are kept."""
        if self.checkpoint and self._indexed is collection:
            return
        self.num_items = len(collection.items)
        key = f"{self.similarity.weights_sha256} float32"
        self.items = _vectors(encode_items(self.similarity, collection.items, self.store, key))
        self._queries = _vectors(encode_queries(self.similarity, collection.queries))
        self._searched = self.ann.build(self.items)
        self._indexed = collection

    def queries(self, query_rows: NDArray[np.int64]) -> NDArray[np.float32]:
        """(B, d) query vectors."""
        return self._queries[query_rows]

    def search(self, query_rows: NDArray[np.int64], k: int) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        """See `FirstStage.search`."""
        self.check(k)
        found: tuple[NDArray[np.int64], NDArray[np.float32]] = self._searched.search(self.queries(query_rows), k)
        return found


def _vectors(reps: Reps) -> NDArray[np.float32]:
    vector: Any = reps["vector"]
    return np.ascontiguousarray(vector.float().numpy())
