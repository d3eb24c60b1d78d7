"""The dense first stage: vectors of items in a vector index."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from simzoo.core.records import Item, Query
from simzoo.core.shards import ALONE, Worker
from simzoo.retrieval.corpus import Corpus
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
        queries: another checkpoint that encodes the queries, into the same space: that of the dual encoder from which a
            `MatrixFactorization` started, which has no vectors of new queries itself. None: ``checkpoint``.

    Raises:
        ValueError: ``queries`` without ``checkpoint``.
    """

    def __init__(
        self,
        checkpoint: str | Path | None = None,
        ann: IndexKind | None = None,
        store: Path | None = None,
        queries: str | Path | None = None,
    ) -> None:
        if queries is not None and checkpoint is None:
            raise ValueError(f"Dense: queries {queries} goes with a checkpoint whose items' vectors are in its space")
        self.checkpoint = checkpoint
        self.queries = queries
        self._asks: LearnedSimilarity | None = None
        self.ann = ann or Flat()
        self.store = store
        self._similarity: LearnedSimilarity | None = None
        self._embedder: Embedder | None = None
        self._embedded: Sequence[Item] | None = None  # whose vectors of a checkpoint are kept
        self._together: Path | None = None  # where workers encode them together
        self._worker = ALONE

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
    def asks(self) -> LearnedSimilarity | None:
        """What encodes the queries in the place of `similarity`, loaded at first use."""
        if self.queries is not None and self._asks is None:
            from simzoo.models.formats import load
            from simzoo.models.similarity import fastest_device

            self._asks = load(self.queries, fastest_device())
        return self._asks

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
        asked = f" asked by {self.asks.weights_sha256}" if self.asks is not None else ""
        return f"Dense {self.similarity.weights_sha256} {self.ann}{asked}"

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
            vectors = item_vectors(self.similarity, items, self.store or self._together, self._worker)
            index, exact = self.ann.build(vectors), isinstance(self.ann, Flat)
            self._embedder = Embedder(self.similarity, vectors, index, exact, self.asks)
            self._embedded = items

    def index_together(self, corpus: Corpus, folder: Path, worker: Worker) -> None:
        """See `FirstStage.index_together`: each encodes some of the items. Without a ``store`` they use the folder."""
        self._together, self._worker = None if worker.alone else folder, worker
        try:
            self.index(corpus)
        finally:
            self._together, self._worker = None, ALONE

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
        self._embedder = Embedder(self.similarity, vectors, index, old.exact, self.asks)
        self._embedded = items
        return None

    def find(self, queries: Sequence[Query], k: int) -> tuple[Rows, Scores]:
        """See `FirstStage.find`."""
        return self.embedder.search(self.embedder.encode(queries), k, removed=self.corpus.gone)

    def pool(self, queries: Sequence[Query], count: int) -> Rows:
        """See `FirstStage.pool`: by the index's own scores, which are not computed anew."""
        return self.embedder.near(self.embedder.encode(queries), count, self.corpus.gone)
