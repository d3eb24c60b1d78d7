"""Which pairs of a query and an item are scored for a sparse score matrix (AXN §2.1, B.4)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import numpy as np

from simzoo.core.records import Item, Query
from simzoo.retrieval.corpus import Corpus
from simzoo.retrieval.first_stages.first_stage import FirstStage
from simzoo.retrieval.first_stages.lexical import BM25
from simzoo.retrieval.topk import Rows


class PairSampling(ABC):
    """Pairs in an order of their own; shard i is the same whoever asks for it, and when."""

    corpus: Corpus
    queries: Sequence[Query]

    def begin(self, corpus: Corpus, queries: Sequence[Query]) -> None:
        """Takes the N items and the Q training queries.

        Raises:
            ValueError: there are fewer than it is to draw from.
        """
        self.corpus, self.queries = corpus, queries
        self.check()

    @abstractmethod
    def check(self) -> None:
        """Refuses a corpus or queries that are too few."""

    @abstractmethod
    def prepare(self) -> None:
        """What `pairs` needs besides; not called where every shard is there already."""

    @property
    @abstractmethod
    def total(self) -> int:
        """Pairs of all shards together."""

    @abstractmethod
    def shards(self, size: int) -> int:
        """Number of shards of about ``size`` pairs."""

    @abstractmethod
    def pairs(self, shard: int, size: int) -> tuple[Rows, Rows]:
        """Rows (P,) of queries and of items of one shard, each pair once in all shards together."""

    @abstractmethod
    def identity(self) -> dict[str, Any]:
        """What the pairs depend on besides queries and items."""


class _Listed(PairSampling):
    """For each of some rows, the top of a first stage and random ones of the rest.

    Args:
        top: from the top of the first stage.
        random: drawn from the others; also in the place of what the first stage does not find.
        first_stage: what retrieves; None: BM25.
        seed: of the draws.
    """

    def __init__(self, top: int, random: int, first_stage: FirstStage | None = None, seed: int = 0) -> None:
        if top < 0 or random < 0 or not top + random:
            raise ValueError(f"top and random are at least 0, and one of them more; got {top} and {random}")
        self.top = top
        self.random = random
        self.first_stage = first_stage or BM25()
        self.seed = seed

    @property
    @abstractmethod
    def sides(self) -> tuple[int, int]:
        """How many rows get a list, and from how many it is drawn."""

    @abstractmethod
    def asked(self, rows: range) -> Sequence[Query]:
        """What the first stage is asked."""

    def check(self) -> None:
        """See `PairSampling.check`."""
        if self.top + self.random > self.sides[1]:
            raise ValueError(
                f"{type(self).__name__}: top {self.top} + random {self.random} is more than the {self.sides[1]} that "
                "there are to draw from"
            )

    @property
    def total(self) -> int:
        """See `PairSampling.total`."""
        return self.sides[0] * (self.top + self.random)

    def shards(self, size: int) -> int:
        """See `PairSampling.shards`."""
        return -(-self.sides[0] // self._rows(size))

    def _rows(self, size: int) -> int:
        return max(1, size // (self.top + self.random))

    def lists(self, shard: int, size: int) -> tuple[Rows, Rows]:
        """Rows (P,) that get lists, and rows (P,) of the lists, best first."""
        step = self._rows(size)
        rows = range(shard * step, min((shard + 1) * step, self.sides[0]))
        found = np.empty((len(rows), 0), dtype=np.int64)
        if self.top:
            found, _ = self.first_stage.search(self.asked(rows), self.top)
        lists = [self._filled(near, row) for near, row in zip(found, rows, strict=True)]
        return np.repeat(np.asarray(rows, dtype=np.int64), self.top + self.random), np.concatenate(lists)

    def _filled(self, near: Rows, row: int) -> Rows:
        near = near[near >= 0]
        wanted = self.top + self.random - len(near)
        drawn = np.random.default_rng([self.seed, row]).choice(self.sides[1] - len(near), wanted, replace=False)
        banned = np.sort(near)
        # The drawn numbers count the rows that are not banned: they are moved behind the banned ones before them.
        behind = np.searchsorted(banned - np.arange(len(banned)), drawn, side="right")
        return np.concatenate([near, np.sort(drawn + behind)])

    def identity(self) -> dict[str, Any]:
        """See `PairSampling.identity`."""
        stage = self.first_stage.identity() if self.top else None
        kind = type(self).__name__
        return {"class": kind, "top": self.top, "random": self.random, "first_stage": stage, "seed": self.seed}


class QueriesToItems(_Listed):
    """For each training query k_d = top + random items: Q k_d calls (AXN §2.1, Q -> I in B.4).

    Args:
        top: items from the top of the first stage.
        random: items drawn from the others; also in the place of what the first stage does not find.
        first_stage: what retrieves; None: BM25. The paper: the dual encoder.
        seed: of the draws.
    """

    def __init__(self, top: int = 100, random: int = 0, first_stage: FirstStage | None = None, seed: int = 0) -> None:
        super().__init__(top, random, first_stage, seed)

    @property
    def sides(self) -> tuple[int, int]:
        """See `_Listed.sides`."""
        return len(self.queries), len(self.corpus)

    def prepare(self) -> None:
        """Indexes the items."""
        if self.top:
            self.first_stage.index(self.corpus)

    def asked(self, rows: range) -> Sequence[Query]:
        """See `_Listed.asked`."""
        return [self.queries[row] for row in rows]

    def pairs(self, shard: int, size: int) -> tuple[Rows, Rows]:
        """See `PairSampling.pairs`."""
        return self.lists(shard, size)


class ItemsToQueries(_Listed):
    """For each item k_d = top + random training queries: N k_d calls (I -> Q in B.4), so that no item is left out.

    Args:
        top: queries from the top of the first stage, which is asked with the item's title and text.
        random: queries drawn from the others; also in the place of what the first stage does not find.
        first_stage: what retrieves queries; None: BM25.
        seed: of the draws.
    """

    def __init__(self, top: int = 0, random: int = 5, first_stage: FirstStage | None = None, seed: int = 0) -> None:
        super().__init__(top, random, first_stage, seed)

    @property
    def sides(self) -> tuple[int, int]:
        """See `_Listed.sides`."""
        return len(self.corpus), len(self.queries)

    def prepare(self) -> None:
        """Indexes the queries, as if they were items."""
        if self.top:
            self.first_stage.index(Corpus([Item(query.id, query.text) for query in self.queries]))

    def asked(self, rows: range) -> Sequence[Query]:
        """See `_Listed.asked`."""
        items = [self.corpus.items[row] for row in rows]
        # An item without a word finds nothing, and gets random queries.
        return [Query(item.id, f"{item.title} {item.text}".strip() or item.id) for item in items]

    def pairs(self, shard: int, size: int) -> tuple[Rows, Rows]:
        """See `PairSampling.pairs`."""
        items, queries = self.lists(shard, size)
        return queries, items


class Uniform(PairSampling):
    """Pairs drawn evenly, each at most once.

    Args:
        number: how many.
        seed: of the draws.
    """

    def __init__(self, number: int = 100_000, seed: int = 0) -> None:
        if number < 1:
            raise ValueError(f"number of pairs must be at least 1, got {number}")
        self.number = number
        self.seed = seed

    def check(self) -> None:
        """See `PairSampling.check`."""
        every = len(self.queries) * len(self.corpus)
        if self.number > every:
            raise ValueError(f"Uniform: number is {self.number:,}, but there are {every:,} pairs")

    def prepare(self) -> None:
        """Nothing to prepare."""

    @property
    def total(self) -> int:
        """See `PairSampling.total`."""
        return self.number

    def shards(self, size: int) -> int:
        """See `PairSampling.shards`."""
        return -(-self.number // size)

    def pairs(self, shard: int, size: int) -> tuple[Rows, Rows]:
        """See `PairSampling.pairs`: one draw from each of as many equal strata of all pairs as there are draws."""
        numbers = range(shard * size, min((shard + 1) * size, self.number))
        every = len(self.queries) * len(self.corpus)
        edges = np.array([number * every // self.number for number in (*numbers, numbers.stop)], dtype=np.int64)
        drawn = np.random.default_rng([self.seed, shard]).integers(edges[:-1], edges[1:])
        queries, items = np.divmod(drawn, len(self.corpus))
        return queries, items

    def identity(self) -> dict[str, Any]:
        """See `PairSampling.identity`."""
        return {"class": type(self).__name__, "number": self.number, "seed": self.seed}
