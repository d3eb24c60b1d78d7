"""Graph search: a greedy walk over the items' neighbour graph, for any similarity of single pairs."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from simzoo.retrieval.first_stages.dense import Dense
from simzoo.retrieval.first_stages.first_stage import FirstStage
from simzoo.retrieval.scorer import Rows, Scores
from simzoo.retrieval.searcher import Ranking, Searcher, SearchTask, Stopwatch, check_budget
from simzoo.retrieval.storage.graph import GraphConfig, build_graph

NOTHING = -1
# A scored item as one number: the smaller, the better; of equal scores the lower row first. Sorting these is several
# times faster than sorting by two keys.
Keys = NDArray[np.int64]
WORST = np.iinfo(np.int64).max  # no item


class EntryPoints(ABC):
    """Where a walk begins."""

    @abstractmethod
    def index(self, task: SearchTask, vectors: NDArray[np.float32]) -> None:
        """Offline work over the items and their vectors (N, d)."""

    @abstractmethod
    def of(self, query_rows: Rows) -> Rows:
        """(B, m) items."""


@dataclass
class RandomItems(EntryPoints):
    """Random items, the same for every query, as in the paper.

    Attributes:
        count: how many; all items where there are fewer.
        seed: of the draw.
    """

    count: int = 10_000
    seed: int = 0

    def index(self, task: SearchTask, vectors: NDArray[np.float32]) -> None:
        """See `EntryPoints.index`."""
        order = np.random.default_rng(self.seed).permutation(len(vectors))
        self._items = np.sort(order[: self.count])

    def of(self, query_rows: Rows) -> Rows:
        """See `EntryPoints.of`."""
        return np.tile(self._items, (len(query_rows), 1))


@dataclass
class Retrieved(EntryPoints):
    """What a first stage finds for the query.

    Attributes:
        first_stage: what retrieves.
        count: items of each query.
    """

    first_stage: FirstStage
    count: int = 100

    def index(self, task: SearchTask, vectors: NDArray[np.float32]) -> None:
        """See `EntryPoints.index`."""
        self.first_stage.index(task.collection)

    def of(self, query_rows: Rows) -> Rows:
        """See `EntryPoints.of`."""
        return self.first_stage.search(query_rows, min(self.count, self.first_stage.num_items))[0]


class GraphSearch(Searcher):
    """Scores entry points, then round by round the unscored neighbours of the best items (Hypencoder, Algorithm 1).

    A walk ends after ``rounds``, where no unscored neighbour is left, where the budget is spent, or (``stop_early``)
    after a round that changes nothing among the best k. All queries of a batch walk together; a query's walk does not
    depend on the others.

    Args:
        vectors: the dual encoder whose item vectors make the graph; None: the similarity's own item vectors.
        entry_points: where walks begin; None: 10,000 random items.
        graph: how the graph is built.
        breadth: n, the items whose neighbours are scored next.
        rounds: most rounds, the one over the entry points included.
        best_first: expand the best items that are not expanded yet, of all rounds; otherwise, as in the paper, the best
            ones of the last round.
        offered: of each round's items, only so many best ones can become results: n in Algorithm 1; None: all.
        stop_early: ends a walk after a round that adds none of the best k.
        budget: most items scored a query, the entry points included; None: no limit but the rounds.
        query_batch: queries searched together.
    """

    needs_pairs = True

    def __init__(
        self,
        vectors: Dense | None = None,
        entry_points: EntryPoints | None = None,
        graph: GraphConfig | None = None,
        breadth: int = 64,
        rounds: int = 16,
        best_first: bool = False,
        offered: int | None = None,
        stop_early: bool = False,
        budget: int | None = None,
        query_batch: int = 32,
    ) -> None:
        super().__init__()
        for name, value in (("breadth", breadth), ("rounds", rounds), ("query_batch", query_batch)):
            if value < 1:
                raise ValueError(f"{name} must be at least 1, got {value}")
        if offered is not None and offered < 1:
            raise ValueError(f"offered must be at least 1, got {offered}")
        self.vectors = vectors
        self.entry_points: EntryPoints = entry_points or RandomItems()
        self.graph = graph or GraphConfig()
        self.breadth = breadth
        self.rounds = rounds
        self.best_first = best_first
        self.offered = offered
        self.stop_early = stop_early
        self.most = budget
        self.query_batch = query_batch

    @classmethod
    def tiny(cls, stage: Any, budget: int) -> Self:
        """See `Searcher.tiny`; the budget goes into entry points, since a graph need not be connected."""
        return cls(stage, RandomItems(budget), GraphConfig(4), 2, budget=budget)

    def prepare(self, watch: Stopwatch) -> None:
        """Builds or opens the graph, and finds the entry points."""
        with watch.step("item vectors"):
            vectors = own_vectors(self.task, self.vectors)
        with watch.step("neighbour graph"):
            self._neighbors = build_graph(vectors, self.graph)
        with watch.step("entry points"):
            self.entry_points.index(self.task, vectors)

    def search(self, query_rows: Rows, k: int) -> Ranking:
        """See `Searcher.search`.

        Raises:
            ValueError: k is larger than the item set; or a walk scored fewer than k items.
        """
        num_items = len(self.task.collection.items)
        check_budget(min(self.most or num_items, num_items), k, num_items)
        watch = Stopwatch()
        starts = range(0, len(query_rows), self.query_batch)
        parts = [self._walk(query_rows[start : start + self.query_batch], k, watch) for start in starts]
        if not parts:
            empty = np.empty((0, k), dtype=np.int64)
            return Ranking(empty, empty.astype(np.float32), np.empty(0, dtype=np.int64), dict(watch.seconds))
        items, scores, calls = (np.concatenate(column) for column in zip(*parts, strict=True))
        return Ranking(items, scores, calls, dict(watch.seconds))

    def _walk(self, query_rows: Rows, k: int, watch: Stopwatch) -> tuple[Rows, Scores, NDArray[np.int64]]:
        size, num_items = len(query_rows), len(self.task.collection.items)
        seen = np.zeros((size, num_items), dtype=bool)
        results = waiting = np.full((size, k), WORST)  # what waits is scored and not expanded yet
        with watch.step("entry points"):
            fresh = self._unseen(seen, self.entry_points.of(query_rows))
        for number in range(self.rounds):
            left = self.rounds - number
            if number:
                with watch.step("neighbours"):
                    expanded, waiting = waiting[:, : self.breadth], waiting[:, self.breadth :]
                    fresh = self._unseen(seen, self._near(_items(expanded)))
            if not (fresh >= 0).any():
                break
            with watch.step("scoring"):
                found = self.task.scorer.score_lists(query_rows, fresh)
            with watch.step("results"):
                before, scored = results, _best(_keys(fresh, found), max(k, self.breadth * left))
                results = _best(np.hstack([results, scored[:, : self.offered]]), k)
                # Of what waits, no more than this can be expanded in the rounds that are left.
                waiting = _best(np.hstack([waiting, scored]), self.breadth * left) if self.best_first else scored
                if self.stop_early:
                    waiting = np.where((results == before).all(axis=1)[:, None], WORST, waiting)
        short = np.flatnonzero(results[:, k - 1] == WORST)
        if short.size:
            raise ValueError(
                f"the walk of query {self.task.collection.queries[query_rows[short[0]]].id!r} scored fewer than "
                f"k = {k} items: give it more entry points, rounds or breadth"
            )
        return _items(results), _scores(results), seen.sum(axis=1)

    def _near(self, items: Rows) -> Rows:
        """(B, m degree) the neighbours of (B, m) items; -1 for those of no item."""
        near: Rows = self._neighbors[items.clip(0)]
        near[items == NOTHING] = NOTHING
        return near.reshape(len(items), -1)

    def _unseen(self, seen: NDArray[np.bool_], items: Rows) -> Rows:
        """(B, m) the items (B, any) not seen yet, each once, ascending, -1 behind; they are seen from now on."""
        items = np.sort(items, axis=1)
        rows = np.arange(len(items))[:, None]
        new = (items >= 0) & ~seen[rows, items.clip(0)]
        new[:, 1:] &= items[:, 1:] != items[:, :-1]
        if self.most is not None:
            new &= new.cumsum(axis=1) <= self.most - seen.sum(axis=1)[:, None]
        counts = new.sum(axis=1)
        seen[np.repeat(rows[:, 0], counts), items[new]] = True
        fresh = np.full((len(items), max(int(counts.max(initial=0)), 1)), NOTHING, dtype=np.int64)
        fresh[np.arange(fresh.shape[1]) < counts[:, None]] = items[new]
        return fresh


def own_vectors(task: SearchTask, dual_encoder: Dense | None) -> NDArray[np.float32]:
    """(N, d) item vectors: a dual encoder's, or those that the similarity has itself.

    Raises:
        TypeError: it has none.
    """
    if dual_encoder is not None:
        dual_encoder.index(task.collection)
        return dual_encoder.items
    represented = task.scorer.represented
    vector = None if represented is None else represented.items.get("vector")
    if not isinstance(vector, Tensor):
        raise TypeError("this similarity has no item vectors of its own: name a dual encoder (vectors)")
    found: NDArray[np.float32] = vector.float().cpu().numpy()
    return found


def _keys(items: Rows, scores: Scores) -> Keys:
    """(B, m) of items below 2^31 and their scores."""
    bits = (scores + np.float32(0)).view(np.int32)  # of floats, all but the negative ones are in order; -0 becomes 0
    ordered = np.where(bits < 0, bits ^ np.int32(0x7FFFFFFF), bits).astype(np.int64)
    return np.where(items == NOTHING, WORST, (~ordered << 32) | items)


def _items(keys: Keys) -> Rows:
    return np.where(keys == WORST, NOTHING, keys & 0xFFFFFFFF)


def _scores(keys: Keys) -> Scores:
    ordered = (~(keys >> 32)).astype(np.int32)
    scores: Scores = np.where(ordered < 0, ordered ^ np.int32(0x7FFFFFFF), ordered).view(np.float32)
    return scores


def _best(keys: Keys, count: int) -> Keys:
    """(B, count) or fewer, best first."""
    if count < keys.shape[1] // 2:
        keys = np.partition(keys, count, axis=1)[:, :count]
    return np.sort(keys, axis=1)[:, :count]
