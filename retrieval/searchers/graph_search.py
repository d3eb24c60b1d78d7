"""Graph search: a greedy walk over the items' neighbour graph, for any similarity of single pairs."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from simzoo.core.records import Query
from simzoo.retrieval.corpus import Corpus
from simzoo.retrieval.first_stages.dense import Dense
from simzoo.retrieval.first_stages.first_stage import FirstStage
from simzoo.retrieval.scorer import Scorer
from simzoo.retrieval.searcher import Ranking, Searcher, Stopwatch, check_batch
from simzoo.retrieval.searchers.vectors import neighbors_of, own_vectors
from simzoo.retrieval.storage.graph import GraphConfig
from simzoo.retrieval.topk import NOTHING, Rows, Scores, padded

__all__ = ["EntryPoints", "GraphSearch", "RandomItems", "Retrieved"]

# A scored item as one number: the smaller, the better; of equal scores the lower row first. Sorting these is several
# times faster than sorting by two keys.
Keys = NDArray[np.int64]
WORST = np.iinfo(np.int64).max  # no item


class EntryPoints(ABC):
    """Where a walk begins."""

    @abstractmethod
    def index(self, corpus: Corpus) -> None:
        """Offline work over the items."""

    @abstractmethod
    def of(self, queries: Sequence[Query]) -> Rows:
        """(B, m) items, -1 for none."""


@dataclass
class RandomItems(EntryPoints):
    """Random items, the same for every query, as in the paper.

    Attributes:
        count: how many; all items where there are fewer.
        seed: of the draw.
    """

    count: int = 10_000
    seed: int = 0

    def index(self, corpus: Corpus) -> None:
        """See `EntryPoints.index`."""
        order = np.random.default_rng(self.seed).permutation(corpus.live)
        self._items = np.sort(order[: self.count])

    def of(self, queries: Sequence[Query]) -> Rows:
        """See `EntryPoints.of`."""
        return np.tile(self._items, (len(queries), 1))


@dataclass
class Retrieved(EntryPoints):
    """What a first stage finds for the query.

    Attributes:
        first_stage: what retrieves.
        count: items of each query.
    """

    first_stage: FirstStage
    count: int = 100

    def index(self, corpus: Corpus) -> None:
        """See `EntryPoints.index`."""
        self.first_stage.index(corpus)

    def of(self, queries: Sequence[Query]) -> Rows:
        """See `EntryPoints.of`."""
        return self.first_stage.search(queries, min(self.count, len(self.first_stage.corpus)))[0]


class GraphSearch(Searcher):
    """Scores entry points, then round by round the unscored neighbours of the best items (Hypencoder, Algorithm 1).

    A walk ends after ``rounds``, where no unscored neighbour is left, where the budget is spent, or (``stop_early``)
    after a round that changes nothing among the best k. All queries of a batch walk together; a query's walk does not
    depend on the others. A walk that scores fewer than k items has fewer results.

    The graph is held (4 bytes an item for each neighbour, memory-mapped where it has a folder), and one byte an item
    for each query of a batch. A new item may be anybody's neighbour: growing builds the graph anew.

    Args:
        vectors: the dual encoder whose item vectors make the graph; None: the similarity's own item vectors, or the
            corpus's embedder.
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
    spends_budget: ClassVar[bool] = False

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
        for name, value in (("breadth", breadth), ("rounds", rounds)):
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
        self.budget = budget
        self.query_batch = check_batch(query_batch)

    @classmethod
    def tiny(cls, stage: Any, budget: int) -> Self:
        """See `Searcher.tiny`; the budget goes into entry points, since a graph need not be connected."""
        return cls(stage, RandomItems(budget), GraphConfig(4), 2, budget=budget)

    def prepare(self, watch: Stopwatch) -> None:
        """Builds or opens the graph, and finds the entry points."""
        with watch.step("item vectors"):
            vectors = own_vectors(self.corpus, self.vectors)
        with watch.step("neighbour graph"):
            self._neighbors = neighbors_of(vectors, self.graph)
        with watch.step("entry points"):
            self.entry_points.index(self.corpus)

    def find(self, scorer: Scorer, queries: Sequence[Query], k: int, watch: Stopwatch) -> Ranking:
        """See `Searcher.find`."""
        size = len(queries)
        seen = np.zeros((size, len(self.corpus)), dtype=bool)
        if self.corpus.gone is not None:
            seen |= self.corpus.gone  # a walk passes them by
        left = np.full(size, len(self.corpus) if self.budget is None else self.budget)
        results = waiting = np.full((size, k), WORST)  # what waits is scored and not expanded yet
        with watch.step("entry points"):
            fresh = self._unseen(seen, left, self.entry_points.of(queries))
        for number in range(self.rounds):
            more = self.rounds - number
            if number:
                with watch.step("neighbours"):
                    expanded, waiting = waiting[:, : self.breadth], waiting[:, self.breadth :]
                    fresh = self._unseen(seen, left, self._near(_items(expanded)))
            if not (fresh >= 0).any():
                break
            with watch.step("scoring"):
                found = scorer.lists(fresh)
            with watch.step("results"):
                before, scored = results, _best(_keys(fresh, found), max(k, self.breadth * more))
                results = _best(np.hstack([results, scored[:, : self.offered]]), k)
                # Of what waits, no more than this can be expanded in the rounds that are left.
                waiting = _best(np.hstack([waiting, scored]), self.breadth * more) if self.best_first else scored
                if self.stop_early:
                    waiting = np.where((results == before).all(axis=1)[:, None], WORST, waiting)
        rows, scores = _items(results), np.where(results == WORST, np.float32(-np.inf), _scores(results))
        return Ranking(*padded(rows, scores, k), scorer.calls.copy(), query_bytes=scorer.representation_bytes)

    def _near(self, items: Rows) -> Rows:
        """(B, m degree) the neighbours of (B, m) items; -1 for those of no item."""
        near: Rows = self._neighbors[items.clip(0)]
        near[items == NOTHING] = NOTHING
        return near.reshape(len(items), -1)

    def _unseen(self, seen: NDArray[np.bool_], left: Rows, items: Rows) -> Rows:
        """(B, m) the items (B, any) not seen yet, each once, ascending, -1 behind; they are seen from now on.

        At most ``left`` (B,) of each query's budget, which they are taken from.
        """
        items = np.sort(items, axis=1)
        rows = np.arange(len(items))[:, None]
        new = (items >= 0) & ~seen[rows, items.clip(0)]
        new[:, 1:] &= items[:, 1:] != items[:, :-1]
        new &= new.cumsum(axis=1) <= left[:, None]
        counts = new.sum(axis=1)
        left -= counts
        seen[np.repeat(rows[:, 0], counts), items[new]] = True
        fresh = np.full((len(items), max(int(counts.max(initial=0)), 1)), NOTHING, dtype=np.int64)
        fresh[np.arange(fresh.shape[1]) < counts[:, None]] = items[new]
        return fresh


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
