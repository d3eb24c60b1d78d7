"""First stages: cheap retrievers over a collection."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, Protocol

import bm25s
import numpy as np
from numpy.typing import NDArray
from sklearn.feature_extraction.text import TfidfVectorizer

from simzoo.core.records import Collection
from simzoo.retrieval.scorer import Rows, Scores
from simzoo.retrieval.topk import top_columns


class Embeddings(Protocol):
    """Vectors whose inner products approximate a similarity: what AXN searches in."""

    items: NDArray[np.float32]
    """(N, d)."""

    def queries(self, query_rows: Rows) -> NDArray[np.float32]:
        """(B, d)."""


class FirstStage(ABC):
    """Retrieves without the similarity."""

    num_items = 0

    @abstractmethod
    def index(self, collection: Collection) -> None:
        """Offline work over the collection's items."""

    @abstractmethod
    def search(self, query_rows: Rows, k: int) -> tuple[Rows, Scores]:
        """Top items of B queries: rows (B, k) and scores (B, k), best first; ties go to the lower row.

        Raises:
            ValueError: k is larger than the item set.
        """

    def identity(self) -> str:
        """Names what the results depend on besides the collection: what was mined is kept under it."""
        plain = {k: v for k, v in vars(self).items() if not k.startswith("_") and isinstance(v, int | float | str)}
        return f"{type(self).__name__} {sorted(plain.items() - {('num_items', self.num_items)})}"

    def check(self, k: int) -> None:
        """Refuses to return more items than there are."""
        if not 1 <= k <= self.num_items:
            raise ValueError(f"a first stage over {self.num_items} items cannot return {k} of them")


class _ScoresAll(FirstStage):
    """A first stage that scores every item of a query."""

    @abstractmethod
    def scores(self, query_row: int) -> Scores:
        """(N,) scores of all items."""

    def search(self, query_rows: Rows, k: int) -> tuple[Rows, Scores]:
        """See `FirstStage.search`."""
        self.check(k)
        rows = np.empty((len(query_rows), k), dtype=np.int64)
        values = np.empty((len(query_rows), k), dtype=np.float32)
        for i, query_row in enumerate(query_rows):
            scores = self.scores(int(query_row))
            rows[i] = top_columns(scores[None], k)[0]
            values[i] = scores[rows[i]]
        return rows, values


class BM25(_ScoresAll):
    """BM25 over title and text (bm25s, Lucene's variant), English stop words removed.

    Args:
        k1: saturation of term frequency.
        b: length normalisation.
    """

    def __init__(self, k1: float = 1.5, b: float = 0.75) -> None:
        self.k1 = k1
        self.b = b

    def index(self, collection: Collection) -> None:
        """See `FirstStage.index`."""
        self.num_items = len(collection.items)
        self._index = bm25s.BM25(k1=self.k1, b=self.b)
        tokens = _tokens([_text(item) for item in collection.items])
        if not tokens.vocab:
            raise ValueError(f"no item of {collection.name} has a word that is no stop word: BM25 has nothing to index")
        self._index.index(tokens, show_progress=False)
        self._queries = _tokens([query.text for query in collection.queries], ids=False)

    def scores(self, query_row: int) -> Scores:
        """See `_ScoresAll.scores`; 0 for every item where no word of the query is known."""
        known = [word for word in self._queries[query_row] if word in self._index.vocab_dict]
        if not known:
            return np.zeros(self.num_items, dtype=np.float32)
        found: Scores = self._index.get_scores(known).astype(np.float32)
        return found


class TFIDF(_ScoresAll):
    """Cosine of TF-IDF vectors over title and text (scikit-learn)."""

    def index(self, collection: Collection) -> None:
        """See `FirstStage.index`."""
        self.num_items = len(collection.items)
        vectorizer = TfidfVectorizer()
        try:
            self._items = vectorizer.fit_transform([_text(item) for item in collection.items])
        except ValueError as error:
            raise ValueError(f"TF-IDF cannot index the items of {collection.name}: {error}") from error
        self._queries = vectorizer.transform([query.text for query in collection.queries])

    def scores(self, query_row: int) -> Scores:
        """See `_ScoresAll.scores`."""
        found: Scores = (self._items @ self._queries[query_row].T).toarray()[:, 0].astype(np.float32)
        return found


class Random(_ScoresAll):
    """Items in random order, another one for each query.

    Args:
        seed: of the order.
    """

    def __init__(self, seed: int = 0) -> None:
        self.seed = seed

    def index(self, collection: Collection) -> None:
        """See `FirstStage.index`."""
        self.num_items = len(collection.items)

    def scores(self, query_row: int) -> Scores:
        """See `_ScoresAll.scores`."""
        return np.random.default_rng([self.seed, query_row]).random(self.num_items, dtype=np.float32)


class AliasTable(_ScoresAll):
    """Items that carry the mention's alias first, then the others by BM25.

    Args:
        by_sense: in the table's order: the most frequent sense first; otherwise in random order.
        seed: of the random order.
    """

    def __init__(self, by_sense: bool = True, seed: int = 0) -> None:
        self.by_sense = by_sense
        self.seed = seed
        self._rest = BM25()

    def index(self, collection: Collection) -> None:
        """See `FirstStage.index`.

        Raises:
            ValueError: the collection has no aliases.
        """
        if not collection.aliases:
            raise ValueError(f"{collection.name} has no alias table; use BM25 or another first stage")
        self.num_items = len(collection.items)
        self._rest.index(collection)
        listed = (collection.aliases.get(query.alias or "", ()) for query in collection.queries)
        self._listed = [list(dict.fromkeys(rows)) for rows in listed]  # a row listed twice keeps its first place

    def scores(self, query_row: int) -> Scores:
        """See `_ScoresAll.scores`."""
        scores = self._rest.scores(query_row)
        listed = self._listed[query_row]
        if not self.by_sense:
            listed = list(np.random.default_rng([self.seed, query_row]).permutation(listed))
        scores[listed] = scores.max() + 1 + np.arange(len(listed), 0, -1)
        return scores


class Given(FirstStage):
    """The candidates that the data itself offers for each query (`Collection.candidates`), in their order.

    Scores are NaN: an order is all that is known.
    """

    def index(self, collection: Collection) -> None:
        """See `FirstStage.index`.

        Raises:
            ValueError: the data offers no candidates.
        """
        if not collection.candidates:
            raise ValueError(f"{collection.name} offers no candidates; use BM25 or another first stage")
        self.num_items = len(collection.items)
        self._collection = collection

    def search(self, query_rows: Rows, k: int) -> tuple[Rows, Scores]:
        """See `FirstStage.search`.

        Raises:
            ValueError: a query has fewer than k candidates.
        """
        listed = [self._collection.candidates[row] for row in query_rows]
        for row, candidates in zip(query_rows, listed, strict=True):
            if len(candidates) < k:
                least = min(map(len, self._collection.candidates))
                raise ValueError(
                    f"{self._collection.name}: {k} candidates were asked for, but query "
                    f"{self._collection.queries[row].id!r} has {len(candidates)}; every query has {least}"
                )
        rows = np.array([candidates[:k] for candidates in listed], dtype=np.int64).reshape(len(listed), k)
        return rows, np.full(rows.shape, np.nan, dtype=np.float32)


def _text(item: Any) -> str:
    return f"{item.title} {item.text}".strip()


def _tokens(texts: list[str], ids: bool = True) -> Any:
    return bm25s.tokenize(texts, stopwords="en", return_ids=ids, show_progress=False)
