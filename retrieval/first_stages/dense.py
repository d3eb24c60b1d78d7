"""The dense first stage: vectors of items in a vector index."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from simzoo.core.records import Item, Query
from simzoo.retrieval.embedder import Embedder, check_inner_product, item_vectors
from simzoo.retrieval.first_stages.first_stage import FirstStage
from simzoo.retrieval.first_stages.vector_index import Flat, IndexKind
from simzoo.retrieval.topk import Rows, Scores

if TYPE_CHECKING:
    from simzoo.models.similarity import LearnedSimilarity

__all__ = ["Dense"]


class Dense(FirstStage):
    """Inner-product search over the vectors of a checkpoint, or over those of the corpus; also AXN's item embeddings.

    Args:
        checkpoint: folder of a checkpoint whose similarity is an inner product, or of a Hugging Face encoder; None: the
            corpus brings an embedder.
        ann: how the vectors of a checkpoint are searched.
        store: folder that keeps these vectors from run to run; None: in memory only.
    """

    def __init__(
        self, checkpoint: str | Path | None = None, ann: IndexKind | None = None, store: Path | None = None
    ) -> None:
        self.checkpoint = checkpoint
        self.ann = ann or Flat()
        self.store = store
        self._similarity: LearnedSimilarity | None = None
        self._embedder: Embedder | None = None
        self._embedded: Sequence[Item] | None = None  # whose vectors of a checkpoint are kept

    @classmethod
    def of(cls, similarity: LearnedSimilarity, ann: IndexKind | None = None) -> Dense:
        """Over a model at hand."""
        dense = cls(None, ann)
        dense._similarity = similarity
        return dense

    @property
    def similarity(self) -> LearnedSimilarity:
        """The model, loaded at first use.

        Raises:
            TypeError: its score is not an inner product of two vectors.
            RuntimeError: none is named, and the corpus that brings one was not indexed yet.
        """
        if self._similarity is None:
            if self.checkpoint is None:
                found: LearnedSimilarity = self.embedder.similarity
                return found
            from simzoo.models.formats import load
            from simzoo.models.similarity import fastest_device

            self._similarity = load(self.checkpoint, fastest_device())
        check_inner_product(self._similarity)
        return self._similarity

    @property
    def embedder(self) -> Embedder:
        """The vectors.

        Raises:
            RuntimeError: nothing was indexed.
        """
        if self._embedder is None:
            raise RuntimeError("Dense has no vectors yet: call index(corpus) before")
        return self._embedder

    @property
    def representation_bytes(self) -> int:
        """See `FirstStage.representation_bytes`."""
        return self.embedder.representation_bytes

    @property
    def truncated(self) -> int:
        """See `FirstStage.truncated`."""
        return self.embedder.truncated

    def identity(self) -> str:
        """See `FirstStage.identity`: the weights, not their place."""
        return f"Dense {self.similarity.weights_sha256} {self.ann}"

    def described(self) -> dict[str, Any]:
        """See `FirstStage.described`."""
        return {"sha256": self.similarity.weights_sha256 or None, "bytes": self.representation_bytes}

    def prepare(self) -> None:
        """Encodes all items; a checkpoint's vectors of the items indexed last are kept.

        Raises:
            ValueError: no checkpoint is named, and the corpus has no embedder.
        """
        if self.checkpoint is None and self._similarity is None:
            if self.corpus.embedder is None:
                raise ValueError(f"Dense needs vectors: name a checkpoint, or give {self.corpus.name} an embedder")
            self._embedder = self.corpus.embedder
        elif self.checkpoint is None or self._embedded is not self.corpus.items:
            items = self.corpus.items
            self._embedder = Embedder.of(self.similarity, items, self.ann, isinstance(self.ann, Flat), self.store)
            self._embedded = items

    def grow(self, start: int) -> None:
        """Encodes the new items only; of a flat index the results are those of indexing everything at once.

        A ``store`` is not written to: it keeps what `index` encoded.
        """
        if start == len(self.corpus):
            return
        if self.checkpoint is None and self._similarity is None:
            return self.prepare()
        items, old = self.corpus.items, self.embedder
        new = item_vectors(self.similarity, [items[row] for row in range(start, len(items))])
        vectors = np.concatenate([old.vectors, new])
        index: Any = old.index
        if hasattr(index, "add"):
            index.add(new)
        else:
            index = self.ann.build(vectors)
        self._embedder = Embedder(self.similarity, vectors, index, old.exact)
        self._embedded = items
        return None

    def find(self, queries: Sequence[Query], k: int) -> tuple[Rows, Scores]:
        """See `FirstStage.find`."""
        return self.embedder.search(self.embedder.encode(queries), k, removed=self.corpus.gone)
