"""Linear search: scores some items, fits a linear model to the scores, scores what now looks best, and again."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from simzoo.core.records import Query
from simzoo.retrieval.first_stages.dense import Dense
from simzoo.retrieval.scorer import Scorer
from simzoo.retrieval.searcher import Ranking, Searcher, Stopwatch, check_batch
from simzoo.retrieval.searchers.vectors import own_vectors
from simzoo.retrieval.topk import Rows, Running

__all__ = ["LinearSearch"]

Floats = NDArray[np.float32]
SAMPLE = 20_000  # items that the principal components are computed from
BLOCK = 1 << 16  # items whose approximate scores are held at once
FLAT = 1e-12  # vectors that vary less than this share of their length do not vary


class LinearSearch(Searcher):
    """A query's scores as a linear function of the item vectors, fitted anew after each round.

    For similarities with item vectors that are no inner product, as Hypencoder: near its best items a q-net is well
    described by a linear function, and one product with all items costs as much as a few q-net evaluations. The first
    round scores random anchors, the same ones for every query; each further round solves ridge regression over all that
    is scored, in the first principal components of the vectors, and scores the best unscored items by it. It is `AXN`
    without a dual encoder for the queries: anchors instead of a first stage, components and a penalty instead of the
    least-norm solution.

    A search reads the components of all items once a round, in blocks; they are held, 4 (components + 1) bytes an item.
    Growing reduces the new vectors, and keeps the anchors and the axes: an index over everything at once has others.

    Args:
        vectors: the dual encoder whose item vectors are used; None: the similarity's own item vectors, or the corpus's
            embedder.
        anchors: random items scored first.
        budget: items scored a query, the anchors included; of fewer items all are scored.
        rounds: in which the rest of the budget is scored, equal shares.
        components: of the item vectors that the model sees.
        ridge: the penalty, as a share of the components' mean variance and for each scored item.
        query_batch: queries searched together.
        seed: of the anchors, and of the items that the components are computed from.
    """

    needs_pairs = True

    budget: int

    def __init__(
        self,
        vectors: Dense | None = None,
        anchors: int = 256,
        budget: int = 1_756,
        rounds: int = 6,
        components: int = 128,
        ridge: float = 0.1,
        query_batch: int = 32,
        seed: int = 0,
    ) -> None:
        super().__init__()
        if not 1 <= anchors <= budget:
            raise ValueError(f"anchors must be at least 1 and at most the budget of {budget}, got {anchors}")
        if not 1 <= rounds <= max(budget - anchors, 1):
            raise ValueError(f"each of {rounds} rounds scores at least one item: budget {budget} is too small")
        if components < 1 or not ridge > 0:
            raise ValueError(f"components must be at least 1 and ridge positive, got {components} and {ridge}")
        self.vectors = vectors
        self.anchors = anchors
        self.budget = budget
        self.rounds = rounds
        self.components = components
        self.ridge = ridge
        self.query_batch = check_batch(query_batch)
        self.seed = seed

    @classmethod
    def tiny(cls, stage: Any, budget: int) -> Self:
        """See `Searcher.tiny`."""
        return cls(stage, max(1, budget // 2), budget, rounds=1, components=4)

    def prepare(self, watch: Stopwatch) -> None:
        """Finds the anchors and the principal components."""
        with watch.step("item vectors"):
            vectors = own_vectors(self.corpus, self.vectors)
        with watch.step("principal components"):
            order = np.random.default_rng(self.seed).permutation(self.corpus.live)
            self._anchors = np.sort(order[: self.anchors])
            some = vectors[order[:SAMPLE]]
            self._centre = some.mean(axis=0)
            covariance = np.cov(some.T, dtype=np.float64, bias=True).reshape(len(self._centre), -1)
            _, axes = np.linalg.eigh(covariance)
            self._axes = axes[:, ::-1][:, : self.components].astype(np.float32)
            self._reduced = self._components(vectors)
            variance = float(self._reduced[:, :-1].var(dtype=np.float64))
            scale = float(np.square(some, dtype=np.float64).mean())
            # Where all vectors are equal the model is its offset, whatever the penalty; 0 would make it singular.
            variance = variance if variance > FLAT * scale else 1.0
            self._penalty = self.ridge * np.append(np.full(self._axes.shape[1], variance), 0.0)

    def _components(self, vectors: Floats) -> Floats:
        """(N, components + 1): the last column of ones is the model's offset, which is not penalised."""
        reduced = np.ones((len(vectors), self._axes.shape[1] + 1), dtype=np.float32)
        for start in range(0, len(vectors), BLOCK):
            reduced[start : start + BLOCK, :-1] = (vectors[start : start + BLOCK] - self._centre) @ self._axes
        return reduced

    def grow(self, start: int, watch: Stopwatch) -> None:
        """See `Searcher.grow`: reduces the new vectors; all is prepared anew where an anchor was removed."""
        if self.corpus.gone is not None and self.corpus.gone[self._anchors].any():
            self.prepare(watch)
            return
        with watch.step("item vectors"):
            vectors = own_vectors(self.corpus, self.vectors, start)
        with watch.step("principal components"):
            self._reduced = np.concatenate([self._reduced, self._components(vectors[start:])])

    def find(self, scorer: Scorer, queries: Sequence[Query], k: int, watch: Stopwatch) -> Ranking:
        """See `Searcher.find`."""
        size, width = len(queries), self._reduced.shape[1]
        fresh = items = np.tile(self._anchors, (size, 1))
        with watch.step("scoring"):
            found = scores = scorer.lists(items)
        # The normal equations of each query's model; numpy takes query by query, so that none changes another's.
        system, target = np.zeros((size, width, width)), np.zeros((size, width, 1))
        rest = self.affordable() - len(self._anchors)
        rounds = min(self.rounds, rest)
        for number in range(rounds):
            with watch.step("linear models"):
                x = self._reduced[fresh].astype(np.float64)
                system += x.mT @ x
                target += x.mT @ found[:, :, None]
                models = np.linalg.solve(system + items.shape[1] * np.diag(self._penalty), target)
            with watch.step("approximate scores"):
                count = rest // rounds + (number < rest % rounds)
                fresh = np.sort(self._best(models[:, :, 0].astype(np.float32), items, count), axis=1)
            with watch.step("scoring"):
                found = scorer.lists(fresh)
            items, scores = np.hstack([items, fresh]), np.hstack([scores, found])
        return self.ranked(scorer, items, scores, k)

    def _best(self, models: Floats, items: Rows, count: int) -> Rows:
        """(B, count) items of the largest approximate scores, scored (B, n) and removed ones aside."""
        best = Running(len(models), count)
        for first in range(0, len(self._reduced), BLOCK):
            approximate = models @ self._reduced[first : first + BLOCK].T
            last = first + approximate.shape[1]
            row, place = np.nonzero((items >= first) & (items < last))
            approximate[row, items[row, place] - first] = -np.inf
            if self.corpus.gone is not None:
                approximate[:, self.corpus.gone[first:last]] = -np.inf
            best.add(approximate, np.arange(first, last))
        return best.rows
