"""Several first stages as one, by reciprocal rank fusion."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from simzoo.core.records import Query
from simzoo.retrieval.first_stages.dense import Dense
from simzoo.retrieval.first_stages.first_stage import FirstStage
from simzoo.retrieval.first_stages.lexical import BM25
from simzoo.retrieval.topk import Rows, Scores, top_order

__all__ = ["Fused"]


class Fused(FirstStage):
    """Reciprocal rank fusion: an item's score is the sum over the stages of 1 / (constant + its rank there).

    Items that a stage scores alike share the last of their ranks, so that those of which it knows nothing gain nothing
    by their order.

    Args:
        stages: what is fused; None: `BM25` and the dual encoder's vectors, which the corpus brings (`Dense`).
        depth: results of each stage that are looked at, or as many as are asked for, if that is more.
        constant: of the formula; 60 in the paper (Cormack, Clarke and Buettcher, 2009).
    """

    def __init__(self, stages: list[FirstStage] | None = None, depth: int = 1000, constant: float = 60.0) -> None:
        self.stages = [BM25(), Dense()] if stages is None else stages
        if not self.stages:
            raise ValueError("Fused needs at least one first stage to fuse, got none")
        if depth < 1 or constant < 0:
            raise ValueError(f"depth must be at least 1 and constant at least 0, got {depth} and {constant}")
        self.depth = depth
        self.constant = constant

    @property
    def representation_bytes(self) -> int:
        """See `FirstStage.representation_bytes`."""
        return sum(stage.representation_bytes for stage in self.stages)

    @property
    def truncated(self) -> int:
        """See `FirstStage.truncated`."""
        return sum(stage.truncated for stage in self.stages)

    def identity(self) -> str:
        """See `FirstStage.identity`."""
        parts = " + ".join(stage.identity() for stage in self.stages)
        return f"Fused {self.depth} {self.constant} of {parts}"

    def described(self) -> dict[str, Any]:
        """See `FirstStage.described`."""
        return {"bytes": self.representation_bytes}

    def prepare(self) -> None:
        """Indexes the stages."""
        for stage in self.stages:
            stage.index(self.corpus)

    def grow(self, start: int) -> None:
        """See `FirstStage.grow`: as its stages do."""
        for stage in self.stages:
            stage.extend(self.corpus, start)

    def find(self, queries: Sequence[Query], k: int) -> tuple[Rows, Scores]:
        """See `FirstStage.find`."""
        depth = min(max(k, self.depth), len(self.corpus))
        every = [stage.search(queries, depth) for stage in self.stages]
        items = np.full((len(queries), k), -1, dtype=np.int64)
        scores = np.full((len(queries), k), -np.inf, dtype=np.float32)
        for query in range(len(queries)):
            found = [rows[query][rows[query] >= 0] for rows, _ in every]
            rows, places = np.unique(np.concatenate(found), return_inverse=True)
            shares = [self._shares(known[query][: len(some)]) for some, (_, known) in zip(found, every, strict=True)]
            total = np.bincount(places, np.concatenate(shares), minlength=len(rows)).astype(np.float32)
            order = top_order(total[None], rows[None], k)[0]
            items[query, : len(order)], scores[query, : len(order)] = rows[order], total[order]
        return items, scores

    def _shares(self, scores: Scores) -> Scores:
        """1 / (constant + rank) of scores (m,), best first; NaN: an order is all that is known."""
        ranks = np.arange(1, len(scores) + 1)
        last = np.searchsorted(-scores, -scores, side="right")
        return (1 / (self.constant + np.where(np.isnan(scores), ranks, last))).astype(np.float32)
