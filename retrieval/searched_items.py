"""The items of an index folder as they are now, and a searcher that has indexed them."""

from __future__ import annotations

import hashlib
import json
import threading
from contextlib import suppress

from simzoo.core.locks import InUse
from simzoo.core.records import Query
from simzoo.retrieval.corpus import Corpus
from simzoo.retrieval.index_folder import VECTORS, IndexFolder, Opened
from simzoo.retrieval.item_shelf import ItemShelf
from simzoo.retrieval.searcher import Searcher
from simzoo.retrieval.sides import FunctionSide, ModelSide, StoredEmbedder, TextVectors
from simzoo.retrieval.stored_settings import plain_query, written_or_name

STATES = 2  # version of what searchers keep


class SearchedItems:
    """Opens the folder when it is first asked for, and indexes when there are other items than before.

    Args:
        store: the folder.
        similarity: what judges; None: nothing does.
        embedder: whose vectors the folder holds; None: it holds none. The similarity itself: they are shared.
        searcher: what is indexed.

    Attributes:
        anchors: other queries, which the searcher may need.
    """

    def __init__(
        self,
        store: IndexFolder,
        similarity: ModelSide | FunctionSide | None,
        embedder: ModelSide | TextVectors | None,
        searcher: Searcher,
    ) -> None:
        self.anchors: list[Query] = []
        self._store = store
        self._similarity = similarity
        self._embedder = embedder
        self._searcher = searcher
        self._opened: Opened | None = None
        self._corpus: Corpus | None = None
        self._indexed = ""  # the data folder of what the searcher knows
        self._lock = threading.Lock()

    @property
    def opened(self) -> Opened:
        """What was on disk when it was last looked at."""
        if self._opened is None:
            self._opened = self._store.read()
        return self._opened

    def refresh(self) -> None:
        """Looks at what is on disk now."""
        opened = self._store.read()
        with self._lock:
            if self._opened is None or opened.generation != self._opened.generation:
                self._opened = opened

    def forget(self) -> None:
        """The searcher is to be prepared anew."""
        with self._lock:
            self._corpus = None

    def corpus(self) -> Corpus:
        """The items on disk now, not indexed.

        Raises:
            ValueError: there are none.
        """
        return self._corpus_of(_not_empty(self._store.read()))

    def ready(self) -> tuple[Opened, Corpus]:
        """The items, indexed by the searcher.

        Raises:
            ValueError: there are none.
        """
        with self._lock:
            opened = _not_empty(self.opened)
            if self._corpus is None or self._corpus.items is not opened.items:
                corpus = self._corpus_of(opened)
                old, self._corpus = self._corpus, None
                # The rows that the searcher knows are still the first ones, unless a compaction has copied them.
                if old is not None and opened.generation.data == self._indexed:
                    self._searcher.extend(corpus, len(old))
                else:
                    self._prepare(opened, corpus)
                self._corpus, self._indexed = corpus, opened.generation.data
            return opened, self._corpus

    def _prepare(self, opened: Opened, corpus: Corpus) -> None:
        """Indexes, or takes up what the searcher has paid for at an earlier opening."""
        made_with = [STATES, *map(plain_query, self.anchors), written_or_name(self._searcher)]
        identity = None if self._similarity is None else self._similarity.identity
        settings = hashlib.sha256(json.dumps([made_with, identity]).encode()).hexdigest()
        kept = self._store.kept(opened, settings)
        if kept is not None:
            self._searcher.restore(corpus, *kept)
            return
        self._searcher.index(corpus)
        state = self._searcher.state()
        if state is not None:
            # Who may not write now, or at all, can search nevertheless.
            with suppress(InUse, PermissionError):
                self._store.keep(opened, settings, state)

    def _corpus_of(self, opened: Opened) -> Corpus:
        embedder = None
        if self._embedder is not None and opened.vectors is not None:
            embedder = StoredEmbedder(self._embedder, opened.vectors.vectors, opened.vectors)
        judge = None
        if self._similarity is not None:
            shared = VECTORS if self._similarity is self._embedder else None
            judge = self._similarity.judge(opened.items, opened.columns, shared)
        shelf = ItemShelf(self._store, opened)
        return Corpus(
            opened.items,
            judge,
            embedder,
            self.anchors,
            removed=opened.removed,
            name=str(self._store.folder),
            shelf=shelf,
        )


def _not_empty(opened: Opened) -> Opened:
    if not opened.count:
        raise ValueError("the index holds no items: add some first")
    return opened
