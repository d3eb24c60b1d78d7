"""The engine: a similarity, an embedder and a searcher over items in a folder."""

from __future__ import annotations

import copy
import json
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Self, overload

import numpy as np
from numpy.typing import NDArray

from simzoo.core.files import replacing
from simzoo.core.locks import locked
from simzoo.core.records import DataError, History, Item, Query
from simzoo.core.reps import Ragged
from simzoo.models.formats import save as save_model
from simzoo.retrieval.corpus import Corpus
from simzoo.retrieval.distant_index import fetched_index
from simzoo.retrieval.engine_input import Record, blocks_of, id_of, queries_of, records_of
from simzoo.retrieval.first_stages.dense import Dense
from simzoo.retrieval.first_stages.vector_index import Auto, FaissKind
from simzoo.retrieval.hits import Hit, Hits
from simzoo.retrieval.index_folder import VECTORS, IndexFolder, Opened
from simzoo.retrieval.searched_items import SearchedItems
from simzoo.retrieval.searcher import Searcher
from simzoo.retrieval.searchers.exact import Rerank
from simzoo.retrieval.sides import JUDGE, ModelSide, checked_vectors, embedder_side, similarity_side
from simzoo.retrieval.stored_settings import (
    FORMAT,
    MODELS,
    SETTINGS,
    compare,
    named,
    plain_query,
    query_of,
    read,
    settings_of,
    written,
    written_or_name,
)
from simzoo.retrieval.topk import Rows

__all__ = ["Engine"]


class Engine:
    """Searches items with any similarity; items come and go, queries come later.

    Args:
        similarity: what ranks: name or folder of a checkpoint, a `LearnedSimilarity`, a `Remote`, a
            sentence-transformers ``CrossEncoder``, or any function of a list of (query text, item text) to as many
            scores; None: for searchers that call none.
        embedder: vectors for the search: name or folder of a checkpoint whose score is an inner product, such a model,
            or a function of texts to vectors; None: the similarity itself, if it is such a one.
        search: the searcher; None: `Rerank` of the embedder's nearest, or of BM25's best where there is no embedder.
        anchors: other queries, which CUR and score normalisation need; kept with the index. None: those that the folder
            keeps. `set_anchors` sets others.
        index: how vectors are indexed; None: by size (`Auto`).
        folder: where the index is, or is to be; None: a temporary one, until `save`.

    Raises:
        DataError: the folder holds an index that other settings have made.

    Examples:
        >>> from simzoo import Engine
        >>> engine = Engine(lambda pairs: [len(set(a.split()) & set(b.split())) for a, b in pairs])
        >>> engine.add(["i0", "i1", "i2"], ["a flat boat", "a house", "a boat on the river"])
        >>> [(hit.id, hit.score) for hit in engine.search("a river boat", k=2)]
        [('i2', 3.0), ('i0', 2.0)]
    """

    def __init__(
        self,
        similarity: Any = None,
        embedder: Any = None,
        search: Searcher | None = None,
        *,
        anchors: Sequence[str | Query] | None = None,
        index: Auto | FaissKind | None = None,
        folder: str | Path | None = None,
    ) -> None:
        self._similarity = similarity_side(similarity)
        same = embedder is None or (type(embedder) is type(similarity) and embedder == similarity)
        self._embedder = None if same else embedder_side(embedder)
        if self._embedder is None and isinstance(self._similarity, ModelSide):
            self._embedder = self._similarity if self._similarity.model.is_inner_product else None
        default = Rerank(Dense()) if self._embedder is not None else Rerank()
        self.searcher = search if search is not None else default
        if self.searcher.calls_similarity and self._similarity is None:
            raise ValueError(f"{type(self.searcher).__name__} needs a similarity: Engine(similarity, ...)")
        self._index = index or Auto()
        self._temporary = None if folder is not None else tempfile.TemporaryDirectory(prefix="simzoo-engine-")
        self._place(Path(self._temporary.name if folder is None and self._temporary else folder or ""))
        if (self.folder / SETTINGS).exists():
            for name, side in (("similarity", self._similarity), ("embedder", self._embedder)):
                compare(self.folder, name, None if side is None else side.identity)
            if anchors is None:
                path = self.folder / SETTINGS
                anchors = [query_of(query, path) for query in settings_of(self.folder)["anchors"]]
        self._items.anchors = queries_of(anchors or (), "anchor")

    def _place(self, folder: Path) -> None:
        self.folder = folder
        self._store = IndexFolder(folder, self._index)
        self._items = SearchedItems(self._store, self._similarity, self._embedder, self.searcher)

    # -- items ---------------------------------------------------------------------------------------------------------

    def add(
        self,
        items: Iterable[Record] | Sequence[str],
        texts: Sequence[str] | None = None,
        *,
        titles: Sequence[str] | None = None,
        vectors: NDArray[Any] | None = None,
    ) -> None:
        """Adds items; they are there when it returns, all of them or none.

        Items are represented and written in blocks. Where an addition to an index with a folder was killed, adding the
        same items again goes on behind what it had finished.

        Args:
            items: ids, with ``texts``; or records (`Record`), of which an iterator may give any number.
            texts: one for each id.
            titles: one for each id; optional.
            vectors: (M, d) of the items, where they are at hand: the embedder is not asked for them.

        Raises:
            DataError: an id that is there already or stands twice, or a record that is none.
            InUse: another process writes to the index.
            OSError: no room is left; the index is as it was.
        """
        self._write(items, texts, titles, vectors, update=False)

    def update(
        self,
        items: Iterable[Record] | Sequence[str],
        texts: Sequence[str] | None = None,
        *,
        titles: Sequence[str] | None = None,
        vectors: NDArray[Any] | None = None,
    ) -> None:
        """Replaces items that are there; see `add`.

        Raises:
            DataError: an id is not there.
        """
        self._write(items, texts, titles, vectors, update=True)

    def remove(self, ids: Sequence[str]) -> None:
        """Removes items: they are marked, and left out of every search; `compact` frees their place.

        Raises:
            DataError: an id is not there; then none is removed.
            InUse: another process writes to the index.
        """
        if isinstance(ids, str):
            raise TypeError(f"remove takes a list of ids, got the text {ids!r}; write [{ids!r}]")
        self._claim()
        self._store.remove([id_of(name) for name in ids])
        self.refresh()

    def compact(self) -> None:
        """Copies the index without what was removed, with one vector index over all; see `IndexFolder.compact`.

        Raises:
            InUse: another process writes to the index.
        """
        self._claim()
        self._store.compact()
        self.refresh()

    def _write(self, items: Any, texts: Any, titles: Any, vectors: Any, update: bool) -> None:
        records = records_of(items, texts, titles)
        self._claim()
        if vectors is not None and self._embedder is None:
            raise ValueError("vectors were given, but there is no embedder that makes vectors of queries")
        self._store.add(blocks_of(records, vectors), self._represent, update)
        self.refresh()

    def _represent(
        self, items: Sequence[Item], given: NDArray[np.float32] | None
    ) -> Mapping[str, NDArray[Any] | Ragged]:
        found: dict[str, NDArray[Any] | Ragged] = {}
        if self._similarity is not None and self._similarity is not self._embedder:
            found |= {JUDGE + name: part for name, part in self._similarity.columns(items).items()}
        if self._embedder is not None:
            vectors = given if given is not None else self._embedder.vectors(items)
            found[VECTORS] = checked_vectors(vectors, len(items), "the embedder gave")
        return found

    @property
    def corpus(self) -> Corpus:
        """The items as they are now, with what scores and embeds them: for other searchers than the engine's own.

        Raises:
            ValueError: there are no items.
        """
        return self._items.corpus()

    # -- search --------------------------------------------------------------------------------------------------------

    @overload
    def search(self, queries: str | Query, k: int = 10) -> Hits: ...  # type: ignore[overload-overlap]
    @overload
    def search(self, queries: Sequence[str | Query], k: int = 10) -> list[Hits]: ...
    def search(self, queries: str | Query | Sequence[str | Query], k: int = 10) -> Hits | list[Hits]:
        """The best k items of a query, or of each of several; of a `History`, the best that it does not hold.

        Args:
            queries: a text, a `Query` with a mention or a history, or a list of them.
            k: results a query.

        Raises:
            ValueError: k, with the longest history's items besides, is above the searcher's budget; or k is below 1, or
                there are no items.
        """
        one = isinstance(queries, str | Query)
        asked = queries_of([queries] if isinstance(queries, str | Query) else queries, "query")
        opened, corpus = self._items.ready()
        self.searcher.check(k)
        seen = [_seen(query, opened) for query in asked]
        deep = k + max(map(len, seen), default=0)
        if self.searcher.budget is not None and deep > self.searcher.budget:
            raise ValueError(
                f"{k} results besides the {deep - k} items of a history need a budget of {deep} scored items, got "
                f"{self.searcher.budget}; take another search, for example Retrieve(Dense())"
            )
        start = time.perf_counter()
        ranking = self.searcher.search(asked, deep)
        share = 1000 / max(1, len(asked))
        spent = (time.perf_counter() - start) * share
        steps = {name: seconds * share for name, seconds in ranking.seconds.items()}
        exact = None if corpus.embedder is None else corpus.embedder.exact
        how = {"search": written_or_name(self.searcher), "exact_vector_index": exact, "items": opened.count}
        results = []
        for place, (rows, calls) in enumerate(zip(ranking.items, ranking.calls, strict=True)):
            new = np.flatnonzero((rows >= 0) & ~np.isin(rows, seen[place]))[:k]
            hits = tuple(_hit(opened.items.shown(rows[at]), ranking.scores[place, at]) for at in new)
            results.append(Hits(hits, int(calls), spent, steps, how))
        return results[0] if one else results

    def prepare(self) -> None:
        """Does now what the first search does before it: opens the folder, and the searcher's offline work.

        Raises:
            ValueError: there are no items.
        """
        self._items.ready()

    @property
    def anchors(self) -> list[Query]:
        """Other queries, which CUR and score normalisation need."""
        return self._items.anchors

    def set_anchors(self, anchors: Sequence[str | Query]) -> None:
        """Takes other anchors and keeps them with the index; the next search prepares the searcher anew with them.

        Raises:
            InUse: another process writes to the index.
        """
        queries = queries_of(anchors, "anchor")
        self._claim()
        with locked(self.folder):
            settings = settings_of(self.folder) | {"anchors": [plain_query(query) for query in queries]}
            self._write_settings(settings)
        self._items.anchors = queries
        self._items.forget()

    def refresh(self) -> None:
        """Looks at what is on disk now: what another process has written since is found from then on."""
        self._items.refresh()

    def __len__(self) -> int:
        return self._items.opened.count

    def __contains__(self, name: str) -> bool:
        return self._find(name) >= 0

    def __getitem__(self, name: str) -> Item:
        row = self._find(name)
        if row < 0:
            raise KeyError(f"there is no item {name!r} in {self.folder}")
        return self._items.opened.items.shown(row)

    def _find(self, name: str) -> int:
        return int(self._items.opened.rows([name])[0])

    # -- folder --------------------------------------------------------------------------------------------------------

    def save(self, folder: str | Path) -> None:
        """Puts the index into a folder, where it stays; what is added afterwards goes there.

        Raises:
            DataError: the folder is there already and holds something else.
            TypeError: the searcher cannot be written.
        """
        target = Path(folder)
        if target.exists() and self.folder.exists() and target.samefile(self.folder):
            self._claim()
            return
        if target.exists() and (not target.is_dir() or any(target.iterdir())):
            raise DataError("is there already; remove it, or choose another folder", target)
        self._claim()
        target.parent.mkdir(parents=True, exist_ok=True)
        self._store.copy(target)
        anchors = self.anchors
        self._place(target)
        self._items.anchors = anchors
        if self._temporary is not None:
            self._temporary.cleanup()
            self._temporary = None

    def without_items(self) -> Self:
        """An engine of the same similarity, embedder, searcher and anchors, without items, in a temporary folder.

        Raises:
            ValueError: the engine holds items, which its searcher may have indexed.
        """
        if len(self):
            raise ValueError(f"only an engine without items can be taken again; this one has {len(self):,}")
        other = copy.copy(self)
        other.searcher = copy.deepcopy(self.searcher)
        other._temporary = tempfile.TemporaryDirectory(prefix="simzoo-engine-")
        other._place(Path(other._temporary.name))
        other._items.anchors = list(self.anchors)
        return other

    @classmethod
    def load(
        cls,
        folder: str | Path,
        similarity: Any = None,
        embedder: Any = None,
        search: Searcher | None = None,
    ) -> Self:
        """Opens an index. Nothing is imported or called because a file says so: functions have to be handed over again.

        Args:
            folder: of the index; or org/name, or org/name@revision, of one on the Hub, which is copied into a temporary
                folder until `save`.
            similarity: instead of the one that the index names; needed where that was a function or a `Remote`.
            embedder: likewise.
            search: another searcher.

        Raises:
            DataError: there is no index, it is damaged, or what it was made with is not what it is given.
            HubError: the Hub does not give it.
        """
        temporary = fetched_index(folder)
        folder = Path(folder if temporary is None else temporary.name)
        settings = settings_of(folder)
        models = {"similarity": similarity, "embedder": embedder}
        for name, given in models.items():
            if given is None and settings[name] is not None:
                models[name] = named(folder, name, settings[name])
        if settings["embedder"] is not None and settings["embedder"] == settings["similarity"]:
            models["embedder"] = None if embedder is None else embedder  # the similarity itself
        path = folder / SETTINGS
        engine = cls(
            **models,
            search=search if search is not None else read(settings["search"], path, Searcher),
            index=read(settings["index"], path, Auto, FaissKind),
            folder=folder,
        )
        engine._temporary = temporary
        return engine

    def _claim(self) -> None:
        """Writes down what the index is made with, once."""
        self.folder.mkdir(parents=True, exist_ok=True)
        if (self.folder / SETTINGS).exists():
            return
        for name, side in (("similarity", self._similarity), ("embedder", self._embedder)):
            at_hand = isinstance(side, ModelSide) and not side.identity["checkpoint"]
            if (
                at_hand
                and isinstance(side, ModelSide)
                and not (name == "embedder" and self._similarity is self._embedder)
            ):
                save_model(side.model, self.folder / MODELS[name])
        self._write_settings(self._described())

    def _write_settings(self, settings: Mapping[str, Any]) -> None:
        with replacing(self.folder / SETTINGS) as file:
            file.write(json.dumps(settings, indent=1).encode())

    def _described(self) -> dict[str, Any]:
        return {
            "format": FORMAT,
            "similarity": None if self._similarity is None else self._similarity.identity,
            "embedder": None if self._embedder is None else self._embedder.identity,
            "search": written(self.searcher, Searcher),
            "index": written(self._index, Auto, FaissKind),
            "anchors": [plain_query(query) for query in self.anchors],
        }


def _seen(query: Query, opened: Opened) -> Rows:
    """The items that a history holds, which are no results of it."""
    rows = np.unique(opened.rows(query.items if isinstance(query, History) else ()))
    return rows[rows >= 0]


def _hit(item: Item, score: Any) -> Hit:
    return Hit(item.id, float(score), item.text, item)
