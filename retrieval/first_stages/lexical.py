"""Lexical first stages: BM25 and TF-IDF over titles and texts."""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Sequence
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path
from typing import Any

import bm25s
import numpy as np

from simzoo.core.extras import extra
from simzoo.core.records import DataError, Item, Query
from simzoo.retrieval.first_stages.first_stage import ScoresAll
from simzoo.retrieval.topk import Rows, Scores, top_columns, top_order

__all__ = ["BM25", "TFIDF"]


class BM25(ScoresAll):
    """BM25 over title and text (bm25s, Lucene's variant), English stop words removed.

    bm25s retrieves k + 1 items of each query and breaks ties as it likes. Where the last two tie, so that an item of a
    lower row may have been left out, that query's scores of all items are looked at. A search holds 4 bytes an item.

    Beside an engine's items the index is kept in their folder and memory-mapped: opening it reads no text. New items
    change the weight of every word: the first search after items were added indexes all texts anew; removed ones count
    in the weights until then.

    Args:
        k1: saturation of term frequency, at least 0.
        b: length normalisation, in [0, 1].
        store: folder that keeps the index from run to run, one folder in it for each set of texts, memory-mapped; None:
            in memory only.
    """

    def __init__(self, k1: float = 1.5, b: float = 0.75, store: Path | None = None) -> None:
        if not k1 >= 0 or not 0 <= b <= 1:
            raise ValueError(f"BM25 takes k1 of at least 0 and b in [0, 1], got {k1} and {b}")
        self.k1 = k1
        self.b = b
        self.store = None if store is None else Path(store)

    def prepare(self) -> None:
        """See `FirstStage.prepare`.

        Raises:
            ValueError: no item has a word.
            DataError: the store is damaged.
        """
        if self.store is None:
            self._shelved()
            return
        folder = self.store / self._digest()
        if not folder.is_dir():
            self._keep(self._built(), folder)
        self._index = _opened(folder)

    def _shelved(self) -> None:
        """Takes the index that is kept beside the items; makes and keeps it where there is none."""
        shelf = self.corpus.shelf
        name = f"bm25s {version('bm25s')} {self.k1} {self.b}"
        folder = None if shelf is None else shelf.get(name)
        if folder is None:
            self._index = index = self._built()
            folder = None if shelf is None else shelf.put(name, lambda path: index.save(path, show_progress=False))
        if folder is not None:
            self._index = _opened(folder)

    def _digest(self) -> str:
        """Names what an index depends on."""
        digest = hashlib.sha256(f"bm25s {version('bm25s')} {self.k1} {self.b}\n".encode())
        for item in self.corpus.items:
            text = text_of(item).encode()
            digest.update(f"{len(text)} ".encode() + text)
        return digest.hexdigest()[:32]

    def _keep(self, index: Any, folder: Path) -> None:
        """Writes the index under another name and renames it: a folder that is there is whole."""
        scratch = folder.with_name(f"{folder.name}.{os.getpid()}.tmp")
        try:
            index.save(scratch, show_progress=False)
            with suppress(OSError):  # another process was faster, with the same bytes
                scratch.rename(folder)
            if not folder.is_dir():
                raise DataError("could not be written", folder)
        finally:
            shutil.rmtree(scratch, ignore_errors=True)

    def _built(self) -> Any:
        index = bm25s.BM25(k1=self.k1, b=self.b)
        tokens = _tokens([text_of(item) for item in self.corpus.items])
        if not tokens.vocab:
            raise ValueError(
                f"no item of {self.corpus.name} has a word that is no stop word: BM25 has nothing to index"
            )
        index.index(tokens, show_progress=False)
        return index

    def _words(self, queries: Sequence[Query]) -> list[list[str]]:
        """The words of each query that an item has."""
        asked = _tokens([query.text for query in queries], ids=False)
        return [[word for word in words if word in self._index.vocab_dict] for words in asked]

    def scores(self, queries: Sequence[Query]) -> Scores:
        """See `ScoresAll.scores`; 0 for every item where no word of the query is known."""
        return np.stack([self._scores(words) for words in self._words(queries)])

    def _scores(self, words: list[str]) -> Scores:
        if not words:
            return np.zeros(len(self.corpus), dtype=np.float32)
        found: Scores = self._index.get_scores(words).astype(np.float32)
        return found

    def find(self, queries: Sequence[Query], k: int) -> tuple[Rows, Scores]:
        """See `FirstStage.find`."""
        words, gone = self._words(queries), self.corpus.gone
        size = min(k + 1, len(self.corpus))
        rows = np.full((len(queries), size), -1, dtype=np.int64)
        scores = np.zeros((len(queries), size), dtype=np.float32)
        known = np.array([place for place, some in enumerate(words) if some], dtype=np.int64)
        if known.size:
            asked = [words[place] for place in known]
            settings = {"show_progress": False, "return_as": "tuple", "backend_selection": "numpy"}
            rows[known], scores[known] = self._index.retrieve(asked, k=size, **settings)
        unsure = (rows < 0).any(axis=1)
        if size > k:
            unsure |= scores[:, k] == scores[:, k - 1]
        if gone is not None:
            unsure |= gone[rows].any(axis=1)
        order = top_order(scores, rows, k)
        rows, scores = np.take_along_axis(rows, order, axis=1), np.take_along_axis(scores, order, axis=1)
        for place in np.flatnonzero(unsure):
            every = self._scores(words[place])
            if gone is not None:
                every[gone] = -np.inf
            rows[place] = top_columns(every[None], k)[0]
            scores[place] = every[rows[place]]
        return rows, scores


class TFIDF(ScoresAll):
    """Cosine of TF-IDF vectors over title and text (scikit-learn, the extra ``tfidf``)."""

    def prepare(self) -> None:
        """See `FirstStage.prepare`.

        Raises:
            ImportError: scikit-learn is not installed.
            ValueError: no item has a word.
        """
        self._vectorizer = extra("sklearn.feature_extraction.text", "tfidf", "TFIDF").TfidfVectorizer()
        try:
            vectors = self._vectorizer.fit_transform([text_of(item) for item in self.corpus.items])
        except ValueError as error:
            raise ValueError(f"TF-IDF cannot index the items of {self.corpus.name}: {error}") from error
        self._items = vectors.T.tocsr()

    def scores(self, queries: Sequence[Query]) -> Scores:
        """See `ScoresAll.scores`: one sparse product."""
        asked = self._vectorizer.transform([query.text for query in queries])
        found: Scores = (asked @ self._items).toarray().astype(np.float32)
        return found


def text_of(item: Item) -> str:
    """Title and text."""
    return f"{item.title} {item.text}".strip()


def _opened(folder: Path) -> Any:
    try:
        return bm25s.BM25.load(folder, mmap=True, allow_pickle=False, show_progress=False)
    except (OSError, ValueError, KeyError) as error:
        raise DataError(f"is no whole BM25 index ({error}); remove the folder, and it is made again", folder) from error


def _tokens(texts: list[str], ids: bool = True) -> Any:
    return bm25s.tokenize(texts, stopwords="en", return_ids=ids, show_progress=False)
