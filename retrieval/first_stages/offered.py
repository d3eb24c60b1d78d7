"""First stages that look nowhere: chance, an alias table, and the candidates that the data offers."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np

from simzoo.core.records import Query
from simzoo.retrieval.first_stages.first_stage import FirstStage, ScoresAll
from simzoo.retrieval.first_stages.lexical import BM25
from simzoo.retrieval.topk import NOTHING, Rows, Scores

__all__ = ["AliasTable", "Given", "Random"]


class Random(ScoresAll):
    """Items in random order, another one for each query.

    Args:
        seed: of the order, with the query's id and text.
    """

    def __init__(self, seed: int = 0) -> None:
        self.seed = seed

    def prepare(self) -> None:
        """Nothing to prepare."""

    def scores(self, queries: Sequence[Query]) -> Scores:
        """See `ScoresAll.scores`."""
        size = len(self.corpus)
        return np.stack([_chance(self.seed, query).random(size, dtype=np.float32) for query in queries])


class AliasTable(ScoresAll):
    """Items that carry the mention's alias first, then the others by BM25.

    Args:
        by_sense: in the table's order: the most frequent sense first; otherwise in random order.
        seed: of the random order, with the query's id and text.
    """

    def __init__(self, by_sense: bool = True, seed: int = 0) -> None:
        self.by_sense = by_sense
        self.seed = seed
        self._rest = BM25()

    def prepare(self) -> None:
        """See `FirstStage.prepare`.

        Raises:
            ValueError: the corpus has no aliases.
        """
        if not self.corpus.aliases:
            raise ValueError(f"{self.corpus.name} has no alias table; use BM25 or another first stage")
        self._rest.index(self.corpus)

    def scores(self, queries: Sequence[Query]) -> Scores:
        """See `ScoresAll.scores`."""
        scores = self._rest.scores(queries)
        for query, row in zip(queries, scores, strict=True):
            listed = list(dict.fromkeys(self.corpus.aliases.get(query.alias or "", ())))  # its first place counts
            if not self.by_sense:
                listed = list(_chance(self.seed, query).permutation(listed))
            row[listed] = row.max() + 1 + np.arange(len(listed), 0, -1)
        return scores


class Given(FirstStage):
    """The candidates that the data itself offers for each query (`Corpus.candidates`), in their order.

    A query has as many results as it has candidates, and none if the data does not know it. Scores are NaN: an order is
    all that is known.
    """

    def prepare(self) -> None:
        """See `FirstStage.prepare`.

        Raises:
            ValueError: the data offers no candidates.
        """
        if not self.corpus.candidates:
            raise ValueError(f"{self.corpus.name} offers no candidates; use BM25 or another first stage")

    def find(self, queries: Sequence[Query], k: int) -> tuple[Rows, Scores]:
        """See `FirstStage.find`."""
        rows = np.full((len(queries), k), NOTHING, dtype=np.int64)
        for place, query in enumerate(queries):
            offered = np.asarray(self.corpus.candidates.get(query.id, ()), dtype=np.int64)
            if self.corpus.gone is not None:
                offered = offered[~self.corpus.gone[offered]]
            rows[place, : min(len(offered), k)] = offered[:k]
        return rows, np.where(rows == NOTHING, -np.inf, np.nan).astype(np.float32)


def _chance(seed: int, query: Query) -> np.random.Generator:
    digest = hashlib.sha256(f"{query.id}\0{query.text}".encode()).digest()
    return np.random.default_rng([seed, int.from_bytes(digest[:8], "little")])
