"""Made-up items with clustered vectors, block by block, and a made-up similarity that is near to them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from simzoo.core.records import Query
from simzoo.retrieval.judge import Judge
from simzoo.retrieval.scorer import Scorer

Floats = NDArray[np.float32]
WIDTH = 384
CLUSTER = 250  # items a cluster: the 100 nearest of a query lie in one or two of them
BLOCK = 2048  # as the engine's, so that a block's vectors are made at once
WORDS = 50_000


def _normal(*seed: int, shape: tuple[int, ...]) -> Floats:
    return np.random.default_rng(seed).standard_normal(shape, dtype=np.float32)


class Vectors:
    """Vectors of texts that begin with ``item 17`` or ``query 17``.

    An item lies around one of N / 250 centres, a query around an item's vector; all have length 1. Those of queries are
    remembered: making one takes longer than many a search.
    """

    def __init__(self, items: int) -> None:
        self.items = items
        self._centres = _normal(0, shape=(max(1, items // CLUSTER), WIDTH))
        self._known: dict[str, Floats] = {}
        self._last: tuple[int, Floats] = -1, np.empty((0, WIDTH), dtype=np.float32)

    def _block(self, number: int) -> Floats:
        if self._last[0] != number:
            chosen = np.random.default_rng([1, number]).integers(len(self._centres), size=BLOCK)
            made = self._centres[chosen] + 0.8 * _normal(2, number, shape=(BLOCK, WIDTH))
            self._last = number, made / np.linalg.norm(made, axis=1, keepdims=True)
        return self._last[1]

    def _one(self, text: str) -> Floats:
        kind, number, *_ = text.split()
        if kind == "item":
            return self._block(int(number) // BLOCK)[int(number) % BLOCK]
        if text in self._known:
            return self._known[text]
        near = int(np.random.default_rng([3, int(number)]).integers(self.items))
        made = self._block(near // BLOCK)[near % BLOCK] + 0.5 / WIDTH**0.5 * _normal(4, int(number), shape=(WIDTH,))
        self._known[text] = np.asarray(made / np.linalg.norm(made), dtype=np.float32)
        return self._known[text]

    def __call__(self, texts: Sequence[str]) -> Floats:
        return np.stack([self._one(text) for text in texts])


def records(start: int, stop: int) -> Iterator[tuple[str, str]]:
    """Ids and texts of about 90 characters."""
    for first in range(start, stop, BLOCK):
        drawn = np.random.default_rng([5, first]).integers(WORDS, size=(BLOCK, 12)).tolist()
        for row in range(first, min(first + BLOCK, stop)):
            yield f"i{row}", f"item {row} " + " ".join(f"w{word}" for word in drawn[row - first])


class Near(Judge):
    """An inner product with another vector of the query than the embedder's: cheap, and not the embedder itself.

    Args:
        vectors: (N, d) of the items.
        encode: the embedder's vectors of texts.
    """

    def __init__(self, vectors: Floats, encode: Vectors) -> None:
        self.vectors = vectors
        self.num_items = len(vectors)
        self._encode = encode

    def asked(self, queries: Sequence[Query]) -> Floats:
        """(B, d): the embedder's vectors, turned a little."""
        own = self._encode([query.text for query in queries])
        turned = own + 0.35 * np.roll(own, 1, axis=1)
        return np.ascontiguousarray(turned / np.linalg.norm(turned, axis=1, keepdims=True), dtype=np.float32)

    def scorer(self, queries: Sequence[Query]) -> Scorer:
        """See `Judge.scorer`."""
        return _Near(self.asked(queries), self.vectors)


class _Near(Scorer):
    def __init__(self, asked: Floats, vectors: Floats) -> None:
        super().__init__(self._pairs_of, len(asked), len(vectors))
        self._asked, self._vectors = asked, vectors

    def _pairs_of(self, query_rows: NDArray[np.int64], item_rows: NDArray[np.int64]) -> Floats:
        return np.einsum("pd,pd->p", self._asked[query_rows], self._vectors[item_rows])

    def score_items(self, item_rows: NDArray[np.int64]) -> Floats:
        """See `Scorer.score_items`: a product of matrices, in blocks."""
        scores = np.empty((self.num_queries, len(item_rows)), dtype=np.float32)
        for start in range(0, len(item_rows), 65_536):
            rows = item_rows[start : start + 65_536]
            together = len(rows) and rows[-1] - rows[0] == len(rows) - 1
            taken = self._vectors[rows[0] : rows[-1] + 1] if together else self._vectors[rows]
            scores[:, start : start + len(rows)] = self._asked @ taken.T
        self.calls += len(item_rows)
        return scores
