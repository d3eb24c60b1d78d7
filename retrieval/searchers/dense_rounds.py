"""Search in rounds over the item vectors of a dual encoder."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from simzoo.core.records import Query
from simzoo.retrieval.embedder import Embedder
from simzoo.retrieval.first_stages.dense import Dense
from simzoo.retrieval.first_stages.first_stage import FirstStage
from simzoo.retrieval.searcher import Stopwatch
from simzoo.retrieval.searchers.normalization import Normalization, fit_normalization
from simzoo.retrieval.searchers.rounds import InRounds
from simzoo.retrieval.topk import Rows


class DenseRounds(InRounds):
    """`InRounds` with a dual encoder, whose nearest items fill up where a first stage has too few.

    Growing encodes the new items only. The results are those of indexing everything at once, but that the score
    normalisation stays as it was fitted.

    Args:
        embeddings: the dual encoder whose item vectors are searched; None: the corpus's embedder.
        first_stage: what retrieves the items of round 1; None: the dual encoder itself.
        budget: items scored a query.
        rounds: R.
        pool: see `InRounds`.
        normalize: fit s' = beta (s - alpha) on other queries so that scores match the dual encoder's.
        query_batch: queries searched together.
    """

    def __init__(
        self,
        embeddings: Dense | None,
        first_stage: FirstStage | None,
        budget: int,
        rounds: int,
        pool: int | None,
        normalize: bool,
        query_batch: int,
    ) -> None:
        self.embeddings = embeddings or Dense()
        super().__init__(first_stage or self.embeddings, budget, rounds, pool, query_batch)
        self.normalize = normalize
        self.normalization = Normalization()

    @property
    def embedder(self) -> Embedder:
        """See `InRounds.embedder`."""
        return self.embeddings.embedder

    def prepare(self, watch: Stopwatch) -> None:
        """Embeds the items, indexes the first stage, fits the normalisation."""
        self._prepare_items(watch)
        if self.normalize:
            with watch.step("score normalisation"):
                fitted, asked = fit_normalization(self.corpus, self.embedder, self.first_stage)
            self.normalization, self.index_calls = fitted, int(asked.calls.sum())

    def state(self) -> dict[str, NDArray[Any]] | None:
        """See `Searcher.state`: alpha and beta of the normalisation."""
        if not self.normalize:
            return None
        return {"normalization": np.array([self.normalization.alpha, self.normalization.beta])}

    def restored(self, state: Mapping[str, NDArray[Any]], rows: int, watch: Stopwatch) -> None:
        """See `Searcher.restored`."""
        self._prepare_items(watch)
        alpha, beta = state["normalization"].tolist()
        self.normalization = Normalization(alpha, beta)

    def _prepare_items(self, watch: Stopwatch) -> None:
        with watch.step("item embeddings"):
            self.embeddings.index(self.corpus)
        if self.first_stage is not self.embeddings:
            with watch.step("first stage"):
                self.first_stage.index(self.corpus)

    def grow(self, start: int, watch: Stopwatch) -> None:
        """See `Searcher.grow`: embeds the new items; the normalisation stays."""
        with watch.step("item embeddings"):
            self.embeddings.extend(self.corpus, start)
        if self.first_stage is not self.embeddings:
            with watch.step("first stage"):
                self.first_stage.extend(self.corpus, start)

    def others(self, queries: Sequence[Query], found: Rows, short: Rows) -> Sequence[Rows]:
        """See `InRounds.others`: the dual encoder's nearest."""
        vectors = self.embedder.encode(queries)[short]
        near, _ = self.embedder.search(vectors, found.shape[1], exclude=found[short], removed=self.corpus.gone)
        return [rows[rows >= 0] for rows in near]

    def own(self, queries: Sequence[Query]) -> Tensor:
        """The dual encoder's vectors (B, d) of queries, float64."""
        return torch.from_numpy(self.embedder.encode(queries)).double()
