"""Linear search: scores some items, fits a linear model to the scores, scores what now looks best, and again."""

from __future__ import annotations

from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from simzoo.retrieval.first_stages.dense import Dense
from simzoo.retrieval.scorer import Rows, Scores
from simzoo.retrieval.searcher import Ranking, Searcher, Stopwatch, check_budget
from simzoo.retrieval.searchers.graph_search import own_vectors
from simzoo.retrieval.topk import top_columns

Floats = NDArray[np.float32]
SAMPLE = 20_000  # items that the principal components are computed from


class LinearSearch(Searcher):
    """A query's scores as a linear function of the item vectors, fitted anew after each round.

    For similarities with item vectors that are no inner product, as Hypencoder: near its best items a q-net is well
    described by a linear function, and one product with all items costs as much as a few q-net evaluations. The first
    round scores random anchors, the same ones for every query; each further round solves ridge regression over all that
    is scored, in the first principal components of the vectors, and scores the best unscored items by it. It is `AXN`
    without a dual encoder for the queries: anchors instead of a first stage, components and a penalty instead of the
    least-norm solution.

    Args:
        vectors: the dual encoder whose item vectors are used; None: the similarity's own item vectors.
        anchors: random items scored first.
        budget: items scored a query, the anchors included.
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
        if components < 1 or query_batch < 1 or not ridge > 0:
            raise ValueError(
                f"components and query_batch must be at least 1 and ridge positive, got {components}, {query_batch}, "
                f"{ridge}"
            )
        self.vectors = vectors
        self.anchors = anchors
        self.budget = budget
        self.rounds = rounds
        self.components = components
        self.ridge = ridge
        self.query_batch = query_batch
        self.seed = seed

    @classmethod
    def tiny(cls, stage: Any, budget: int) -> Self:
        """See `Searcher.tiny`."""
        return cls(stage, max(1, budget // 2), budget, rounds=1, components=4)

    def prepare(self, watch: Stopwatch) -> None:
        """Finds the anchors and the principal components."""
        with watch.step("item vectors"):
            vectors = own_vectors(self.task, self.vectors)
        check_budget(self.budget, 1, len(vectors))
        with watch.step("principal components"):
            order = np.random.default_rng(self.seed).permutation(len(vectors))
            self._anchors = np.sort(order[: self.anchors])
            some = vectors[order[:SAMPLE]]
            centre = some.mean(axis=0)
            _, axes = np.linalg.eigh(np.cov(some.T, dtype=np.float64).reshape(len(centre), -1))
            reduced = (vectors - centre) @ axes[:, ::-1][:, : self.components].astype(np.float32)
            # A last column of ones is the model's offset, which is not penalised.
            self._reduced: Floats = np.pad(reduced, ((0, 0), (0, 1)), constant_values=1).astype(np.float32)
            self._penalty = self.ridge * np.append(np.full(reduced.shape[1], reduced.var()), 0.0)

    def search(self, query_rows: Rows, k: int) -> Ranking:
        """See `Searcher.search`.

        Raises:
            ValueError: k is larger than the budget or the item set.
        """
        check_budget(self.budget, k, len(self.task.collection.items))
        watch = Stopwatch()
        starts = range(0, max(len(query_rows), 1), self.query_batch)
        parts = [self._search(query_rows[start : start + self.query_batch], watch) for start in starts]
        items, scores = (np.concatenate(column) for column in zip(*parts, strict=True))
        return self.ranked(query_rows, items, scores, k, watch)

    def _search(self, query_rows: Rows, watch: Stopwatch) -> tuple[Rows, Scores]:
        size, width = len(query_rows), self._reduced.shape[1]
        fresh = items = np.tile(self._anchors, (size, 1))
        with watch.step("scoring"):
            found = scores = self.task.scorer.score_lists(query_rows, items)
        # The normal equations of each query's model; numpy takes query by query, so that none changes another's.
        system, target = np.zeros((size, width, width)), np.zeros((size, width, 1))
        rest = self.budget - self.anchors
        for number in range(self.rounds if rest else 0):
            count = rest // self.rounds + (number < rest % self.rounds)
            with watch.step("linear models"):
                x = self._reduced[fresh].astype(np.float64)
                system += x.mT @ x
                target += x.mT @ found[:, :, None]
                models = np.linalg.solve(system + items.shape[1] * np.diag(self._penalty), target)
            with watch.step("approximate scores"):
                approximate = models[:, :, 0].astype(np.float32) @ self._reduced.T
                np.put_along_axis(approximate, items, -np.inf, axis=1)
                fresh = np.sort(top_columns(approximate, count), axis=1)
            with watch.step("scoring"):
                found = self.task.scorer.score_lists(query_rows, fresh)
            items, scores = np.hstack([items, fresh]), np.hstack([scores, found])
        return items, scores
