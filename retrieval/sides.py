"""What an engine is given as its similarity and as its embedder, brought to one form each."""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from simzoo.core.records import Item, Query
from simzoo.core.reps import Ragged, Reps
from simzoo.models.formats import load
from simzoo.models.similarity import LearnedSimilarity, fastest_device
from simzoo.retrieval.embedder import Embedder, check_inner_product
from simzoo.retrieval.first_stages.segmented_index import SegmentedIndex
from simzoo.retrieval.judge import CallableJudge, Judge, SimilarityJudge
from simzoo.retrieval.remote import Remote
from simzoo.retrieval.storage.encoding import encode_items, encode_queries
from simzoo.retrieval.storage.segments import Columns
from simzoo.retrieval.topk import Rows, Scores, padded

Floats = NDArray[np.float32]
JUDGE = "judge."  # before the names of the columns with the similarity's representations


class Side(ABC):
    """One of the two.

    Attributes:
        identity: what a settings file says of it.
    """

    identity: dict[str, str]

    @abstractmethod
    def columns(self, items: Sequence[Item]) -> Mapping[str, NDArray[Any] | Ragged]:
        """What is kept of items on disk."""


class ModelSide(Side):
    """A learned similarity.

    Args:
        model: in evaluation mode.
        name: of its checkpoint; empty for a model at hand.
    """

    def __init__(self, model: LearnedSimilarity, name: str = "") -> None:
        if model.training:
            raise ValueError(f"{type(model).__name__} is in training mode and would score at random: call eval()")
        self.model = model
        self.identity = {"checkpoint": name, "sha256": model.weights_sha256, "class": type(model).__name__}

    def columns(self, items: Sequence[Item]) -> Mapping[str, NDArray[Any] | Ragged]:
        """See `Side.columns`: the representations."""
        return {name: _array(part) for name, part in encode_items(self.model, items).items()}

    def judge(self, items: Sequence[Item], columns: Columns, shared: str | None) -> Judge:
        """Over what is on disk: columns of its own, or the embedder's vectors."""
        if shared is not None:
            return SimilarityJudge(self.model, {"vector": columns.part(shared)})
        names = [name for name in columns.generation.columns if name.startswith(JUDGE)]
        return SimilarityJudge(self.model, {name.removeprefix(JUDGE): columns.part(name) for name in names})

    def vectors(self, items: Sequence[Item]) -> Floats:
        """(M, d) of an inner product."""
        return _vectors(encode_items(self.model, items))

    def encode(self, queries: Sequence[Query]) -> Floats:
        """(B, d) of an inner product."""
        return _vectors(encode_queries(self.model, queries))


class FunctionSide(Side):
    """A function of pairs of texts; nothing of the items is kept for it.

    Args:
        function: of (query text, item text) pairs, to as many scores.
        chunk: most pairs given to it at once.
    """

    def __init__(self, function: Callable[[list[tuple[str, str]]], Any], chunk: int = 1024) -> None:
        self.function = function
        self.chunk = chunk
        where = function.url if isinstance(function, Remote) else getattr(function, "__qualname__", "")
        self.identity = {"function": where or type(function).__qualname__}

    def columns(self, items: Sequence[Item]) -> Mapping[str, NDArray[Any] | Ragged]:
        """See `Side.columns`."""
        return {}

    def judge(self, items: Sequence[Item], columns: Columns, shared: str | None) -> Judge:
        """Over the texts."""
        return CallableJudge(self.function, items, self.chunk)


class TextVectors:
    """A function of texts to vectors, as an embedder.

    Args:
        function: of a list of texts to (M, d) vectors; queries and items alike.
    """

    def __init__(self, function: Callable[[list[str]], Any]) -> None:
        self.function = function
        self.identity = {"function": getattr(function, "__qualname__", "") or type(function).__qualname__}

    def vectors(self, items: Sequence[Item]) -> Floats:
        """(M, d)."""
        return self._of([f"{item.title} {item.text}".strip() for item in items])

    def encode(self, queries: Sequence[Query]) -> Floats:
        """(B, d)."""
        return self._of([query.text for query in queries])

    def _of(self, texts: list[str]) -> Floats:
        return checked_vectors(self.function(texts), len(texts), "the embedder gave")


def checked_vectors(found: Any, count: int, who: str) -> Floats:
    """(M, d) float32.

    Raises:
        ValueError: another shape, or numbers that are not finite.
    """
    vectors = np.ascontiguousarray(found, dtype=np.float32)
    if vectors.ndim != 2 or len(vectors) != count or not vectors.shape[1]:
        raise ValueError(f"{who} vectors of shape {vectors.shape}; expected ({count}, d)")
    if not np.isfinite(vectors).all():
        row = int(np.flatnonzero(~np.isfinite(vectors).all(axis=1))[0])
        raise ValueError(f"{who} a vector that is not finite, the first for row {row} of {count}")
    return vectors


class StoredEmbedder(Embedder):
    """Vectors on disk and what encodes queries.

    Args:
        side: what encodes.
        vectors: (N, d), mapped.
        index: over them.
    """

    def __init__(self, side: ModelSide | TextVectors, vectors: Floats, index: SegmentedIndex) -> None:
        super().__init__(side.model if isinstance(side, ModelSide) else None, vectors, index, index.exact)
        self._side = side
        self._segments = index

    def _encoded(self, queries: Sequence[Query]) -> Floats:
        found = self._side.encode(queries)
        if found.shape[1] != self.vectors.shape[1]:
            raise ValueError(
                f"the embedder gives queries {found.shape[1]} dimensions, but the items have {self.vectors.shape[1]}"
            )
        return found

    def search(
        self, vectors: Floats, k: int, exclude: Rows | None = None, removed: NDArray[np.bool_] | None = None
    ) -> tuple[Rows, Scores]:
        """See `Embedder.search`; the index itself leaves removed rows out."""
        most = k + (0 if exclude is None else exclude.shape[1])
        rows, scores = self._segments.search(np.ascontiguousarray(vectors, dtype=np.float32), most, removed)
        if exclude is not None:
            base = np.arange(len(rows))[:, None] * self.num_items
            out = (rows < 0) | np.isin(rows + base, (exclude + base)[exclude >= 0])
            order = np.argsort(out, axis=1, kind="stable")[:, :k]
            rows = np.take_along_axis(np.where(out, -1, rows), order, axis=1)
            scores = np.take_along_axis(np.where(out, -np.inf, scores), order, axis=1)
        return padded(rows, scores, k)

    def near(self, vectors: Floats, k: int, removed: NDArray[np.bool_] | None = None) -> Rows:
        """See `Embedder.near`."""
        return self._segments.near(vectors, k, removed)[0]


def similarity_side(given: Any) -> ModelSide | FunctionSide | None:
    """What an engine was given as its similarity.

    Raises:
        TypeError: it is none of what is taken.
    """
    if given is None:
        return None
    if isinstance(given, str | Path):
        return ModelSide(load(given, fastest_device()), str(given))
    if isinstance(given, LearnedSimilarity):
        return ModelSide(given)
    if isinstance(given, Remote):
        return FunctionSide(given, given.batch)
    if _is(given, "sentence_transformers", "CrossEncoder"):
        # Least squares on squashed scores fits the squashing: logits.
        logits = torch.nn.Identity()
        return FunctionSide(lambda pairs: given.predict(pairs, activation_fn=logits, show_progress_bar=False))
    if callable(given):
        return FunctionSide(given)
    raise TypeError(
        "a similarity is the name or folder of a checkpoint, a LearnedSimilarity, a Remote, or a function of a list of "
        f"(query text, item text); got {type(given).__name__}"
    )


def embedder_side(given: Any) -> ModelSide | TextVectors | None:
    """What an engine was given as its embedder.

    Raises:
        TypeError: it is none of what is taken, or its score is no inner product.
    """
    if given is None:
        return None
    if isinstance(given, str | Path | LearnedSimilarity):
        side = similarity_side(given)
        assert isinstance(side, ModelSide)
        check_inner_product(side.model)
        return side
    if _is(given, "sentence_transformers", "SentenceTransformer"):
        return TextVectors(lambda texts: given.encode(texts, show_progress_bar=False))
    if callable(given):
        return TextVectors(given)
    raise TypeError(
        "an embedder is the name or folder of a checkpoint whose score is an inner product, such a LearnedSimilarity, "
        f"or a function of a list of texts to vectors; got {type(given).__name__}"
    )


def _is(given: Any, package: str, name: str) -> bool:
    """Whether it is an object of a class of a package that somebody else has imported."""
    module = sys.modules.get(package)
    return module is not None and isinstance(given, getattr(module, name))


def _array(part: Any) -> NDArray[Any] | Ragged:
    return part if isinstance(part, Ragged) else np.ascontiguousarray(part.numpy())


def _vectors(reps: Reps) -> Floats:
    vector: Any = reps["vector"]
    return np.ascontiguousarray(vector.float().numpy())
