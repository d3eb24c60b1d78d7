"""What a searcher is given, what it does, and what it returns."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from simzoo.core.records import Query
from simzoo.retrieval.corpus import Corpus
from simzoo.retrieval.finite import naming
from simzoo.retrieval.scorer import Scorer
from simzoo.retrieval.topk import NOTHING, Rows, Scores, padded, top_order

__all__ = ["QUERIES", "Ranking", "Searcher", "Stopwatch", "check_batch"]

QUERIES = "query representations"  # the step in which queries are encoded for the judge


@dataclass(frozen=True)
class Ranking:
    """Results of B queries.

    Attributes:
        items: (B, k) rows of the corpus, best first; -1 behind the last where a query has fewer.
        scores: (B, k) float32; -inf behind the last.
        calls: (B,) distinct pairs scored for each query.
        seconds: by step, for all queries.
        notes: what else a searcher says of each query, (B,) by name; metrics.json gets the means.
        retrieved: (B, d) what the first stage retrieved, -1 for none, where later stages kept less of it; or None.
        query_bytes: of the representations that were made of the queries.
    """

    items: Rows
    scores: Scores
    calls: NDArray[np.int64]
    seconds: dict[str, float] = field(default_factory=dict)
    notes: dict[str, NDArray[np.float64]] = field(default_factory=dict)
    retrieved: Rows | None = None
    query_bytes: int = 0

    @classmethod
    def joined(cls, parts: Sequence[Ranking], seconds: dict[str, float]) -> Self:
        """Rankings of k results one after the other, and how long they took together; at least one."""
        first = parts[0]
        shown = [part.retrieved for part in parts if part.retrieved is not None]
        return cls(
            items=np.concatenate([part.items for part in parts]),
            scores=np.concatenate([part.scores for part in parts]),
            calls=np.concatenate([part.calls for part in parts]),
            seconds=seconds,
            notes={name: np.concatenate([part.notes[name] for part in parts]) for name in first.notes},
            retrieved=np.concatenate(shown) if len(shown) == len(parts) else None,
            query_bytes=sum(part.query_bytes for part in parts),
            **cls._more(parts),
        )

    @classmethod
    def _more(cls, parts: Sequence[Ranking]) -> dict[str, Any]:
        """The attributes that a subclass adds."""
        return {}

    @classmethod
    def nothing(cls, queries: int, k: int) -> Self:
        """No results for so many queries."""
        items = np.full((queries, k), NOTHING, dtype=np.int64)
        return cls(items, np.full((queries, k), -np.inf, dtype=np.float32), np.zeros(queries, dtype=np.int64))


class Stopwatch:
    """Adds up seconds by step."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = defaultdict(float)

    @contextmanager
    def step(self, name: str) -> Iterator[None]:
        """Times a block."""
        start = time.perf_counter()
        yield
        self.seconds[name] += time.perf_counter() - start


class Searcher(ABC):
    """Finds the top items of queries; the cost is the number of pairs it has scored.

    An index knows items only. Subclasses implement `prepare`, the offline work, and `find`, the search for one batch of
    queries; `grow` where more items need not be the whole work again.

    Attributes:
        index_seconds: seconds of the offline work by step, after `index` or `extend`.
        index_calls: pairs scored by it.
        query_batch: queries searched together; results do not depend on it.
    """

    calls_similarity: ClassVar[bool] = True
    """Whether the ranking is by the similarity's scores."""

    needs_pairs: ClassVar[bool] = False
    """Whether it scores single pairs, which a similarity that compares candidates with each other cannot."""

    needs_representations: ClassVar[bool] = False
    """Whether it reads the representations that the judge was made from, instead of calling the scorer."""

    spends_budget: ClassVar[bool] = True
    """Whether the budget is what it scores, where there are so many items; otherwise it is a limit."""

    ranking: ClassVar[type[Ranking]] = Ranking
    """What it returns."""

    budget: int | None = None
    """Items scored a query; all items where there are not so many. None: all of them, or none."""

    query_batch: int = 32

    def __init__(self) -> None:
        self.index_seconds: dict[str, float] = {}
        self.index_calls = 0
        self._corpus: Corpus | None = None
        self._prepared = False

    @property
    def corpus(self) -> Corpus:
        """What was indexed.

        Raises:
            RuntimeError: nothing was.
        """
        if self._corpus is None:
            raise RuntimeError(f"{type(self).__name__} has no index yet: call index(corpus) before search")
        return self._corpus

    @classmethod
    @abstractmethod
    def tiny(cls, stage: Any, budget: int) -> Self:
        """A searcher for the contract tests: over a `Dense` first stage, scoring ``budget`` items a query."""

    # -- offline -------------------------------------------------------------------------------------------------------

    def index(self, corpus: Corpus) -> None:
        """Offline work over the items; must be called before `search`.

        Raises:
            TypeError: the similarity compares candidates with each other, and the searcher needs single pairs.
            ValueError: the searcher needs a similarity, and the corpus has no judge.
        """
        self._check(corpus)
        self._corpus = corpus
        self._timed(self.prepare)

    def extend(self, corpus: Corpus, start: int) -> None:
        """The corpus has grown, its rows from ``start`` on are new; or others were removed since.

        What this costs and whether the results are those of one `index` over everything, `grow` says.

        Args:
            corpus: all items, the old ones in their rows.
            start: how many there were; their number, if none was added.

        Raises:
            ValueError: another number of items was indexed before.
        """
        if len(self.corpus) != start or len(corpus) < start:
            raise ValueError(
                f"{type(self).__name__} has indexed {len(self.corpus)} items; it cannot take a corpus of {len(corpus)} "
                f"whose rows from {start} on are new. Index it anew"
            )
        self._check(corpus)
        self._corpus = corpus
        self._timed(self.prepare if not self._prepared else lambda watch: self.grow(start, watch))

    def _timed(self, work: Callable[[Stopwatch], None]) -> None:
        watch = Stopwatch()
        self.index_calls = 0
        self._prepared = len(self.corpus.live) > 0  # of nothing there is nothing to prepare
        if self._prepared:
            work(watch)
        self.index_seconds = dict(watch.seconds)

    def _check(self, corpus: Corpus) -> None:
        if not self.calls_similarity:
            return
        if corpus.judge is None:
            raise ValueError(f"{type(self).__name__} needs a similarity: {corpus.name} has no judge")
        if self.needs_pairs and not corpus.judge.pointwise:
            raise TypeError(
                f"{type(self).__name__} scores single pairs, but this similarity compares the candidates of a list "
                "with each other; use Rerank or Pipeline, which give it whole lists"
            )

    @abstractmethod
    def prepare(self, watch: Stopwatch) -> None:
        """The searcher's own offline work on ``self.corpus``."""

    def grow(self, start: int, watch: Stopwatch) -> None:
        """Takes in the rows of ``self.corpus`` from ``start`` on. Here: all the work again, and so the same results."""
        self.prepare(watch)

    def state(self) -> dict[str, NDArray[Any]] | None:
        """What the offline work has paid for in calls, as arrays by name, to be kept beside an index; None: nothing."""
        return None

    def restore(self, corpus: Corpus, state: Mapping[str, NDArray[Any]], rows: int) -> None:
        """Takes the place of `index`, where `state` was kept by the same searcher over the first rows of the corpus.

        Args:
            corpus: all items.
            state: what `state` gave, perhaps memory-mapped.
            rows: how many items there were.
        """
        self._check(corpus)
        self._corpus = corpus
        self._timed(lambda watch: self.restored(state, rows, watch))

    def restored(self, state: Mapping[str, NDArray[Any]], rows: int, watch: Stopwatch) -> None:
        """Makes of ``state`` what `prepare` would have made, and takes in the rows from ``rows`` on."""
        raise NotImplementedError(f"{type(self).__name__} keeps no state")

    # -- online --------------------------------------------------------------------------------------------------------

    def search(self, queries: Sequence[Query], k: int) -> Ranking:
        """The top ``k`` items of each of B queries, by exact scores.

        Raises:
            ValueError: k is below 1, or above the number of items that are scored a query.
            RuntimeError: nothing was indexed.
        """
        corpus = self.corpus
        self.check(k)
        if not len(queries) or not len(corpus.live):
            return self.ranking.nothing(len(queries), k)
        watch, parts = Stopwatch(), []
        for start in range(0, len(queries), self.query_batch):
            batch = queries[start : start + self.query_batch]
            with watch.step(QUERIES):
                scorer = self._scorer(batch)
            with naming(batch, corpus.items):
                parts.append(self.find(scorer, batch, k, watch))
        return self.ranking.joined(parts, dict(watch.seconds))

    def check(self, k: int) -> None:
        """Refuses results that cannot be had.

        Raises:
            ValueError: k is below 1 or above the budget.
        """
        if k < 1:
            raise ValueError(f"k is the number of results a query, at least 1; got {k}")
        if self.budget is not None and k > self.budget:
            raise ValueError(f"k = {k} results need a budget of at least {k} scored items, got {self.budget}")

    def _scorer(self, queries: Sequence[Query]) -> Scorer:
        judge = self.corpus.judge
        if judge is None or not self.calls_similarity:
            return Scorer(_never, len(queries), len(self.corpus))
        return judge.scorer(queries)

    @abstractmethod
    def find(self, scorer: Scorer, queries: Sequence[Query], k: int, watch: Stopwatch) -> Ranking:
        """The ranking (B, k) of one batch of queries.

        Args:
            scorer: over this batch and all items.
            queries: B, at least 1; there is an item that is not removed.
            k: results a query; see `ranked`.
            watch: for the seconds by step.
        """

    def affordable(self, count: int | None = None) -> int:
        """The budget, or another number of items, at most as many as there are."""
        most = len(self.corpus.live)
        count = self.budget if count is None else count
        return most if count is None else min(count, most)

    def ranked(self, scorer: Scorer, item_rows: Rows, scores: Scores, k: int) -> Ranking:
        """Ranking of the scored items (B, m), -1 for none; a query's calls are the scorer's."""
        order = top_order(scores, item_rows, k)
        rows, found = np.take_along_axis(item_rows, order, axis=1), np.take_along_axis(scores, order, axis=1)
        return Ranking(*padded(rows, found, k), scorer.calls.copy(), query_bytes=scorer.representation_bytes)

    @property
    def truncated(self) -> int:
        """Texts that were longer than models of its own take, so far."""
        return 0

    def stage_costs(self) -> list[dict[str, Any]]:
        """Calls and bytes of each stage before the last one, for metrics.json; none for most searchers."""
        return []


def check_batch(query_batch: int) -> int:
    """Queries searched together.

    Raises:
        ValueError: fewer than one.
    """
    if query_batch < 1:
        raise ValueError(f"query_batch must be at least 1, got {query_batch}")
    return query_batch


def _never(query_rows: Rows, item_rows: Rows) -> Scores:
    raise TypeError("this search was given no similarity, and scores nothing")
