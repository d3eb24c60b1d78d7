"""Score normalisation: a cross-encoder's scores on a dual encoder's scale (AXN, A.2)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from simzoo.retrieval.corpus import Corpus
from simzoo.retrieval.embedder import Embedder
from simzoo.retrieval.finite import naming
from simzoo.retrieval.first_stages.first_stage import FirstStage
from simzoo.retrieval.scorer import Scorer
from simzoo.retrieval.topk import Scores

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


def fit_normalization(corpus: Corpus, embedder: Embedder, first_stage: FirstStage) -> tuple[Normalization, Scorer]:
    """Mean and standard deviation of the scores made those of the dual encoder, on at most 100 anchor queries.

    Both score the first stage's top items of those queries.

    Returns:
        The normalisation, and the scorer that was asked, whose calls count as indexing.

    Raises:
        ValueError: there are no anchor queries, or the scores are constant.
    """
    if not len(corpus.anchors) or corpus.judge is None:
        raise ValueError("score normalisation needs queries that are not evaluated; evaluate fewer (--queries)")
    queries = corpus.anchors[:QUERIES]
    items, _ = first_stage.search(queries, min(ITEMS, len(corpus.live)))
    scorer = corpus.judge.scorer(queries)
    with naming(queries, corpus.items):
        exact = scorer.lists(items)[items >= 0].astype(np.float64)
    vectors = embedder.take(items.clip(min=0))
    dense = np.einsum("bd,bkd->bk", embedder.encode(queries), vectors)[items >= 0].astype(np.float64)
    for name, scores in (("cross-encoder", exact), ("dual encoder", dense)):
        if not scores.size or not scores.std() > 0:
            raise ValueError(f"the {name} gives the same score to every pair; there is nothing to normalise")
    beta = dense.std() / exact.std()
    return Normalization(float(exact.mean() - dense.mean() / beta), float(beta)), scorer
