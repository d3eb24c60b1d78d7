"""``evaluate.py sparse_matrix``: scores of sampled pairs, for training matrix factorizations on."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from simzoo.core.files import replacing
from simzoo.core.records import Query
from simzoo.core.shards import ALONE, Worker
from simzoo.datamodules.sources import Source
from simzoo.retrieval.commands.estimate import estimated, show_plan
from simzoo.retrieval.commands.parts import dtype_of, loaded, single, store_of
from simzoo.retrieval.corpus import Corpus
from simzoo.retrieval.evaluation import split_queries
from simzoo.retrieval.first_stages.dense import Dense
from simzoo.retrieval.judge import SimilarityJudge
from simzoo.retrieval.pair_sampling import PairSampling, QueriesToItems
from simzoo.retrieval.results.output import check_parts
from simzoo.retrieval.sparse_matrix import SHARD, build_sparse_matrix
from simzoo.retrieval.topk import Rows


def sparse_matrix(
    checkpoint: str,
    data: Source,
    output: Path,
    sampling: PairSampling | None = None,
    queries: int | None = None,
    train_queries: int | None = None,
    seed: int = 0,
    vectors: Dense | None = None,
    normalize: bool = False,
    shard: int = SHARD,
    store: Path | None = None,
    bf16: bool = False,
    quantize: Literal["int8"] | None = None,
    plan: bool = False,
    price: float | None = None,
    worker: Worker = ALONE,
) -> None:
    """Scores sampled pairs of training queries and items, resumably: what a `MatrixFactorization` is trained on.

    The training queries are the anchors that the data brings; where it brings none, the test split's queries without
    those that ``run`` evaluates with the same ``queries`` and ``seed``.

    Args:
        checkpoint: as in ``run``.
        data: the data; its test split must be one collection.
        output: folder of the shards; a killed run goes on where it was.
        sampling: which pairs; 100 items a query from BM25 if none is given.
        queries: so many queries are held out, as ``run`` evaluates them. None: all of the test split.
        train_queries: only a random sample of so many training queries; None: all.
        seed: of the sample of queries.
        vectors: a dual encoder whose vectors of the items and training queries are written beside the shards, for
            matrix factorizations to start from.
        normalize: fit s' = beta (s - alpha), so that the scores have the mean and deviation of those of ``vectors``.
        shard: pairs a shard, about: what a kill can cost.
        store: folder that keeps the items' representations, so that a killed run goes on.
        bf16: compute the transformers in bfloat16: for hardware that has it.
        quantize: int8 for products of whole numbers of 8 bits in the transformers: faster on a CPU, other digits.
        plan: only say what it takes: calls, memory, bytes on disk, time, cost; judged by some seconds of work.
        price: of an hour of one machine like this one, for the plan's cost.
        worker: which of the processes that share the shards this is.
    """
    check_parts(output)
    if normalize and vectors is None:
        raise ValueError("--normalize true needs the dual encoder whose scale is wanted: give --vectors")
    collection = single(data)
    sampling = sampling or QueriesToItems()
    _, others = split_queries(collection, queries, seed)
    every = list(collection.anchors or [collection.queries[row] for row in others])
    drawn = np.sort(np.random.default_rng(seed).permutation(len(every))[:train_queries])
    asked = [every[row] for row in drawn.tolist()]
    sampling.begin(Corpus.of(collection), asked)
    similarity = loaded(checkpoint, bf16, quantize)
    if worker.first:
        rows = {"scores": f"{len(asked):,} queries x {len(collection.items):,} items, {sampling.total:,} pairs"}
        found = estimated(similarity, collection, len(asked), sampling.total)
        show_plan(rows, found, 0, 12 * sampling.total, price)
    if plan:
        return

    def dense(few: Sequence[Query], query_rows: Rows, item_rows: Rows) -> NDArray[Any]:
        assert vectors is not None
        encoded, taken = vectors.embedder.encode(few), vectors.embedder.take(item_rows)
        products: NDArray[Any] = np.einsum("pd,pd->p", encoded[query_rows], taken)
        return products

    made_by = f"{similarity.weights_sha256}{' in bfloat16' * bf16}"
    known = dense if normalize else None
    beside = None if vectors is None else vectors.identity()
    place = store or store_of(output, worker)
    judge = SimilarityJudge.of(similarity, collection.items, place, dtype_of(bf16), worker)
    corpus = Corpus.of(collection, judge)
    if vectors is not None:
        vectors.index(corpus)
    build_sparse_matrix(corpus, asked, sampling, output, collection.fingerprint, made_by, known, beside, shard, worker)
    if not worker.first:
        return
    if vectors is not None:
        _write(output / "items.npy", vectors.embedder.vectors)
        _write(output / "queries.npy", vectors.embedder.encode(asked))
    print(f"written: {output}")


def _write(path: Path, vectors: NDArray[np.float32]) -> None:
    """Vectors as .npy, unless they are there."""
    if not path.exists():
        with replacing(path) as file:
            np.save(file, vectors)
