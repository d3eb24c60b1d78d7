"""The item vectors that searchers build neighbour graphs and linear models on."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from simzoo.retrieval.corpus import Corpus
from simzoo.retrieval.first_stages.dense import Dense
from simzoo.retrieval.judge import SimilarityJudge
from simzoo.retrieval.storage.graph import GraphConfig, build_graph


def own_vectors(corpus: Corpus, dual_encoder: Dense | None, start: int | None = None) -> NDArray[np.float32]:
    """(N, d) item vectors: a dual encoder's, or those that the similarity has itself, or the corpus's embedder's.

    Args:
        corpus: the items.
        dual_encoder: None: the similarity's own.
        start: the dual encoder was indexed, but for the rows from this on; None: it was not.

    Raises:
        TypeError: there are none.
    """
    if dual_encoder is not None:
        if start is None:
            dual_encoder.index(corpus)
        else:
            dual_encoder.extend(corpus, start)
        return dual_encoder.embedder.vectors
    vector = corpus.judge.items.get("vector") if isinstance(corpus.judge, SimilarityJudge) else None
    if isinstance(vector, Tensor):
        found: NDArray[np.float32] = vector.float().cpu().numpy()
        return found
    if corpus.embedder is None:
        raise TypeError("this similarity has no item vectors of its own: name a dual encoder (vectors)")
    return corpus.embedder.vectors


def neighbors_of(vectors: NDArray[np.float32], config: GraphConfig) -> NDArray[np.int32]:
    """(N, degree) rows of each item's neighbours; no columns for a single item, which has none."""
    if len(vectors) < 2:
        return np.empty((len(vectors), 0), dtype=np.int32)
    return build_graph(vectors, config)
