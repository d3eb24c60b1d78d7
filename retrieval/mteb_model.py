"""Any engine as a model of MTEB, by its search protocol: `mteb.evaluate(MTEBModel(engine, "me/my-model"), task)`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np

from simzoo.core.extras import extra
from simzoo.core.records import DataError, Item, Query
from simzoo.retrieval.engine import Engine
from simzoo.retrieval.first_stages.offered import Given
from simzoo.retrieval.results.run_files import falling
from simzoo.retrieval.searcher import Searcher
from simzoo.retrieval.searchers.exact import Rerank
from simzoo.retrieval.stored_settings import written_or_name
from simzoo.retrieval.topk import Rows, Scores

__all__ = ["MTEBModel"]

BLOCK = 256  # queries searched together: bounds the memory of results
Found = dict[str, dict[str, float]]


class MTEBModel:
    """An engine's similarity, embedder and searcher as a model that MTEB evaluates on its retrieval tasks.

    Each task's documents are indexed in an engine of their own, in a temporary folder. Scores are given back as
    float32 that fall strictly, so that mteb, which breaks ties by ids, keeps the searcher's order; a searcher with a
    budget gives that many results. A query with an instruction is the query, a blank and the instruction, as in mteb.

    Tasks of re-ranking name each query's candidates: these are scored by the similarity, whatever the searcher is.
    Where the searcher calls no similarity, they are ordered as in its ranking of all documents.

    Args:
        engine: without items.
        name: how mteb files the results: organisation/model.
        revision: of the model; None: none is named.

    Raises:
        ValueError: the engine holds items, or the name has no organisation.

    Examples:
        >>> from simzoo import Engine, MTEBModel
        >>> words = Engine(lambda pairs: [len(set(a.split()) & set(b.split())) for a, b in pairs])
        >>> model = MTEBModel(words, "me/shared-words")
        >>> model.index([{"id": "i0", "text": "a flat boat"}, {"id": "i1", "text": "a house"}])
        >>> model.search([{"id": "q0", "text": "the boat"}], top_k=1)
        {'q0': {'i0': 1.0}}
    """

    def __init__(self, engine: Engine, name: str, revision: str | None = None) -> None:
        if len(engine):
            raise ValueError(
                f"MTEB indexes the documents of its tasks: give an engine without items, not one with {len(engine):,}"
            )
        if name.count("/") != 1 or not all(name.split("/")):
            raise ValueError(f"mteb files results under organisation/model; got the name {name!r}")
        self.engine = engine
        self.name = name
        self.revision = revision
        self._task: _Task | None = None

    @cached_property
    def mteb_model_meta(self) -> Any:
        """What mteb writes beside the results: name, revision, and the searcher's settings.

        Raises:
            MissingExtraError: mteb is not installed.
        """
        meta: Any = extra("mteb.models", "mteb", "an engine as a model of MTEB").ModelMeta
        return meta.create_empty(
            overwrites={
                "name": self.name,
                **({} if self.revision is None else {"revision": self.revision}),
                "framework": ["PyTorch"],
                "experiment_kwargs": {"search": written_or_name(self.engine.searcher)},
            }
        )

    def index(self, corpus: Iterable[Mapping[str, Any]], **_about: Any) -> None:
        """Indexes a task's documents: rows with ``id``, ``text`` and perhaps ``title``.

        Raises:
            DataError: an id is there twice, or a document is no text.
        """
        filled = self.engine.without_items()
        filled.add(map(_item, corpus))
        self._task = _Task(filled)

    def search(
        self,
        queries: Iterable[Mapping[str, Any]],
        *,
        top_k: int,
        top_ranked: Mapping[str, Sequence[str]] | None = None,
        **_about: Any,
    ) -> Found:
        """Scores by query and document, of at most ``top_k`` documents a query.

        Args:
            queries: rows with ``id``, ``text`` and perhaps ``instruction``.
            top_k: results a query.
            top_ranked: ids of the candidates by query, in tasks of re-ranking.

        Raises:
            RuntimeError: nothing was indexed.
            DataError: a query is no text, or a candidate is no document.
        """
        if self._task is None:
            raise RuntimeError("MTEBModel has no documents yet: call index(corpus) before search")
        asked = [_query(row) for row in queries]
        found: Found = {}
        for start in range(0, len(asked), BLOCK):
            block = asked[start : start + BLOCK]
            if top_ranked is None:
                found |= self._task.searched(block, top_k)
            else:
                found |= self._task.reranked(block, top_k, [top_ranked.get(query.id, ()) for query in block])
        return found


class _Task:
    """The documents of one task.

    Args:
        engine: with them; it is held, because its folder goes with it.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._corpus = engine.corpus
        self._ids = [item.id for item in self._corpus.items]

    @cached_property
    def _searcher(self) -> Searcher:
        """Indexed at the first search: re-ranking does without."""
        self._engine.searcher.index(self._corpus)
        return self._engine.searcher

    @cached_property
    def _rows(self) -> dict[str, int]:
        return {name: row for row, name in enumerate(self._ids)}

    def searched(self, queries: Sequence[Query], k: int) -> Found:
        """The searcher's results."""
        most = len(self._ids)
        ranking = self._searcher.search(queries, min(k, most, self._searcher.budget or most))
        return self._found(queries, ranking.items, ranking.scores)

    def reranked(self, queries: Sequence[Query], k: int, offered: Sequence[Sequence[str]]) -> Found:
        """The best of each query's candidates.

        Raises:
            DataError: a candidate is no document.
        """
        listed = {query.id: self._known(query, names) for query, names in zip(queries, offered, strict=True)}
        deepest = max(map(len, listed.values()))
        if not deepest:
            return {query.id: {} for query in queries}
        if self._engine.searcher.calls_similarity:
            rerank = Rerank(Given(), budget=deepest)
            rerank.index(replace(self._corpus, candidates=listed))
            ranking = rerank.search(queries, min(k, deepest))
            return self._found(queries, ranking.items, ranking.scores)
        found: Found = {}
        for query in queries:
            whole = self._searcher.search([query], len(self._ids))
            kept = np.isin(whole.items[0], listed[query.id])
            found |= self._found([query], whole.items[:, kept][:, :k], whole.scores[:, kept][:, :k])
        return found

    def _known(self, query: Query, names: Sequence[str]) -> list[int]:
        for name in names:
            if name not in self._rows:
                raise DataError(f"query {query.id!r} has the candidate {name!r}, which is no document of the task")
        return list(dict.fromkeys(self._rows[name] for name in names))

    def _found(self, queries: Sequence[Query], items: Rows, scores: Scores) -> Found:
        """What mteb takes, of (B, k) rows and their scores."""
        return {
            query.id: {self._ids[row]: score for row, score in zip(rows, values, strict=True) if row >= 0}
            for query, rows, values in zip(queries, items.tolist(), falling(scores).tolist(), strict=True)
        }


def _item(row: Mapping[str, Any]) -> Item:
    text, title = row["text"], row.get("title") or ""
    if not isinstance(text, str) or not isinstance(title, str):
        raise DataError(f"document {row['id']!r} is no text: {text!r:.80}; simzoo searches texts")
    return Item(str(row["id"]), text, title)


def _query(row: Mapping[str, Any]) -> Query:
    text, instruction = row["text"], row.get("instruction")
    if not isinstance(text, str):
        raise DataError(f"query {row['id']!r} is no text: {text!r:.80}; conversations are not searched")
    return Query(str(row["id"]), f"{text} {instruction}" if instruction else text)
