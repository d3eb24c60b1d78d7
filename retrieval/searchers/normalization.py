"""Score normalisation: a cross-encoder's scores on a dual encoder's scale (AXN, A.2)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from simzoo.retrieval.first_stages.first_stage import Embeddings, FirstStage
from simzoo.retrieval.scorer import Scores
from simzoo.retrieval.searcher import SearchTask

QUERIES = 100
ITEMS = 50


@dataclass(frozen=True)
class Normalization:
    """s' = beta (s - alpha); the identity by default."""

    alpha: float = 0.0
    beta: float = 1.0

    def __call__(self, scores: Scores) -> NDArray[np.float64]:
        """Normalised scores, float64."""
        return self.beta * (scores.astype(np.float64) - self.alpha)


def fit_normalization(task: SearchTask, embeddings: Embeddings, first_stage: FirstStage) -> Normalization:
    """Mean and standard deviation of the scores made those of the dual encoder, on at most 100 anchor queries.

    Both score the first stage's top items of those queries; the calls count as indexing.

    Raises:
        ValueError: there are no anchor queries, or the scores are constant.
    """
    if not task.anchor_rows.size:
        raise ValueError("score normalisation needs queries that are not evaluated; evaluate fewer (--queries)")
    rows = task.anchor_rows[:QUERIES]
    items, _ = first_stage.search(rows, min(ITEMS, len(task.collection.items)))
    exact = task.scorer.score_lists(rows, items).astype(np.float64)
    dense = np.einsum("bd,bkd->bk", embeddings.queries(rows), embeddings.items[items]).astype(np.float64)
    for name, scores in (("cross-encoder", exact), ("dual encoder", dense)):
        if not scores.std() > 0:
            raise ValueError(f"the {name} gives the same score to every pair; there is nothing to normalise")
    beta = dense.std() / exact.std()
    return Normalization(float(exact.mean() - dense.mean() / beta), float(beta))
