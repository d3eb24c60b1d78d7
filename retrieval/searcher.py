"""What a searcher is given, what it does, and what it returns."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from simzoo.core.records import Collection
from simzoo.retrieval.scorer import Rows, Scorer, Scores


@dataclass(frozen=True)
class SearchTask:
    """A collection, the similarity that ranks it, and which queries serve for what.

    Attributes:
        collection: items and queries.
        scorer: over all queries x all items of the collection.
        query_rows: queries that are evaluated.
        anchor_rows: other queries, which indexing may use (CUR's anchors, score normalisation).
    """

    collection: Collection
    scorer: Scorer
    query_rows: Rows
    anchor_rows: Rows

    def __post_init__(self) -> None:
        shape = len(self.collection.queries), len(self.collection.items)
        if (self.scorer.num_queries, self.scorer.num_items) != shape:
            raise ValueError(
                f"the scorer is over {self.scorer.num_queries} queries and {self.scorer.num_items} items, but "
                f"{self.collection.name} has {shape[0]} and {shape[1]}"
            )
        for name, rows in (("evaluated", self.query_rows), ("anchor", self.anchor_rows)):
            if rows.size and not (rows.min() >= 0 and rows.max() < shape[0]):
                raise IndexError(f"{name} query rows run from 0 to {shape[0] - 1}, got {rows.min()} to {rows.max()}")
        both = np.intersect1d(self.query_rows, self.anchor_rows)
        if both.size:
            raise ValueError(f"{both.size} queries are evaluated and anchors at once; anchors must be other queries")


@dataclass(frozen=True)
class Ranking:
    """Results of B queries.

    Attributes:
        items: (B, k) rows, best first.
        scores: (B, k) float32.
        calls: (B,) distinct pairs scored for each query.
        seconds: by step, for the whole batch.
        notes: what else a searcher says of each query, (B,) by name; metrics.json gets the means.
    """

    items: Rows
    scores: Scores
    calls: NDArray[np.int64]
    seconds: dict[str, float] = field(default_factory=dict)
    notes: dict[str, NDArray[np.float64]] = field(default_factory=dict)


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

    Attributes:
        index_seconds: seconds of the offline work by step, after `index`.
        index_calls: pairs scored by the offline work.
    """

    calls_similarity: ClassVar[bool] = True
    """Whether the ranking is by the similarity's scores."""

    needs_pairs: ClassVar[bool] = False
    """Whether it scores single pairs, which a similarity that compares candidates with each other cannot."""

    needs_representations: ClassVar[bool] = False
    """Whether it reads the representations that the scorer was made from, instead of calling the scorer."""

    budget: int | None = None
    """Items scored a query; None: all of them, or none."""

    def __init__(self) -> None:
        self.index_seconds: dict[str, float] = {}
        self.index_calls = 0
        self._task: SearchTask | None = None

    @property
    def task(self) -> SearchTask:
        """What was indexed.

        Raises:
            RuntimeError: nothing was.
        """
        if self._task is None:
            raise RuntimeError(f"{type(self).__name__} has no index yet: call index(task) before search")
        return self._task

    @classmethod
    @abstractmethod
    def tiny(cls, stage: Any, budget: int) -> Self:
        """A searcher for the contract tests: over a `Dense` first stage, scoring ``budget`` items a query."""

    def index(self, task: SearchTask) -> None:
        """Offline work; must be called before `search`.

        Raises:
            TypeError: the similarity compares candidates with each other, and the searcher needs single pairs.
        """
        if self.needs_pairs and not task.scorer.pointwise:
            raise TypeError(
                f"{type(self).__name__} scores single pairs, but this similarity compares the candidates of a list "
                "with each other; use Rerank or Pipeline, which give it whole lists"
            )
        self._task = task
        before = int(task.scorer.calls.sum())
        watch = Stopwatch()
        self.prepare(watch)
        self.index_seconds = dict(watch.seconds)
        self.index_calls = int(task.scorer.calls.sum()) - before

    @abstractmethod
    def prepare(self, watch: Stopwatch) -> None:
        """The searcher's own offline work on ``self.task``."""

    @abstractmethod
    def search(self, query_rows: Rows, k: int) -> Ranking:
        """The top ``k`` items of each of B queries, by exact scores.

        Raises:
            ValueError: k is larger than the number of items that will have been scored.
        """

    def stage_costs(self) -> list[dict[str, Any]]:
        """Calls and bytes of each stage before the last one, for metrics.json; none for most searchers."""
        return []

    def ranked(self, query_rows: Rows, item_rows: Rows, scores: Scores, k: int, watch: Stopwatch) -> Ranking:
        """Ranking of the scored items (B, m); a query's calls are these, or one if they were scored as a list."""
        calls = item_rows.shape[1] if self.task.scorer.pointwise else 1
        order = top_order(scores, item_rows, k)
        return Ranking(
            np.take_along_axis(item_rows, order, axis=1),
            np.take_along_axis(scores, order, axis=1),
            np.full(len(query_rows), calls, dtype=np.int64),
            dict(watch.seconds),
        )


def top_order(scores: NDArray[np.floating], item_rows: Rows, k: int) -> Rows:
    """(B, k) positions of the largest scores in each row of (B, m); ties go to the lower item row."""
    order: Rows = np.lexsort((item_rows, -scores), axis=1)[:, :k]
    return order


def check_budget(budget: int, k: int, num_items: int) -> None:
    """Refuses budgets that cannot be spent and results that cannot be had."""
    if budget > num_items:
        raise ValueError(f"budget {budget} is larger than the item set of {num_items}; give at most {num_items}")
    if k < 1:
        raise ValueError(f"k is the number of results a query, at least 1; got {k}")
    if k > budget:
        raise ValueError(f"k = {k} results need a budget of at least {k} scored items, got {budget}")
