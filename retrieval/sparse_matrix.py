"""Sparse score matrices: sampled pairs scored in shards, resumable at any moment (AXN §2.1)."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import save

from simzoo.core.files import replacing
from simzoo.core.records import DataError, Query
from simzoo.core.shards import ALONE, Shards, Worker, writing
from simzoo.datamodules.readers.score_entries import (
    FINISHED,
    FORMAT,
    MANIFEST,
    QUERIES,
    read_manifest,
    read_shard,
    shard_path,
)
from simzoo.retrieval.corpus import Corpus
from simzoo.retrieval.finite import naming
from simzoo.retrieval.pair_sampling import PairSampling
from simzoo.retrieval.topk import Rows, Scores

SHARD = 8192  # pairs: what a kill can cost
CHUNK = 1024  # pairs that a scorer gets at once: what an error can cost
SAMPLED = 100  # training queries whose scores the normalisation is fitted on

Known = Callable[[Sequence[Query], Rows, Rows], NDArray[Any]]
"""A dual encoder's scores (P,) of pairs: rows of the queries given, and of items."""


def build_sparse_matrix(
    corpus: Corpus,
    queries: Sequence[Query],
    sampling: PairSampling,
    folder: Path,
    fingerprint: str,
    checkpoint: str,
    normalize: Known | None = None,
    vectors: str | None = None,
    shard: int = SHARD,
    worker: Worker = ALONE,
) -> None:
    """Scores sampled pairs of training queries and items, in shards under ``folder``.

    A shard is written under another name and then renamed, so that a run that is killed at any moment goes on where it
    was and ends with the same bytes. Where the scorer raises, what it had scored of the shard is kept as well. Besides
    the items, the queries and what the first stage and the judge hold, the work holds one shard: its pairs and scores,
    its queries' representations, and what the first stage found for it. The pairs and scores of a shard of 8,192 take
    less than 3 MiB, however many items, queries and shards there are (`benchmarks/sparse_matrix/build.py`).

    Args:
        corpus: N items with a judge.
        queries: Q training queries.
        sampling: which pairs.
        folder: of the shards, with one writer at a time.
        fingerprint: names the data.
        checkpoint: names what makes the scores.
        normalize: a dual encoder's scores, whose mean and deviation alpha and beta give to the scores of the first 100
            queries; None: alpha is 0 and beta 1.
        vectors: names what made the vectors that lie beside the shards; None: there are none.
        shard: pairs a shard, about.
        worker: which of several workers this process is, who score one shard each in turn.

    Raises:
        DataError: the folder holds shards that were made otherwise.
        FloatingPointError: a score is not finite; names the query and the item.
        ValueError: the scorer gave scores of another shape, or there are too few queries or items.
        InUse: another process writes there.
    """
    if corpus.judge is None or not corpus.judge.pointwise:
        raise ValueError(f"{corpus.name}: a score matrix needs a similarity that scores single pairs")
    if not len(queries):
        raise ValueError(f"{corpus.name} has no training queries: evaluate fewer (--queries)")
    if shard < 1:
        raise ValueError(f"a shard holds at least 1 pair, got {shard}")
    sampling.begin(corpus, queries)
    shards = sampling.shards(shard)
    manifest: dict[str, Any] = {
        "format": FORMAT,
        "sampling": sampling.identity(),
        "fingerprint": fingerprint,
        "checkpoint": checkpoint,
        "normalized": normalize is not None,
        "vectors": vectors,
        "queries": len(queries),
        "items": len(corpus),
        "pairs_a_shard": shard,
        "shards": shards,
    }
    paths = [shard_path(folder, number) for number in range(shards)]
    prepare = cache(sampling.prepare)

    def score(number: int) -> None:
        prepare()
        _score(corpus, queries, sampling.pairs(number, shard), folder, number)

    def finish() -> None:
        alpha, beta = _normalization(folder, shards, queries, normalize)
        _write_json(folder / FINISHED, {"entries": sampling.total, "alpha": alpha, "beta": beta})

    with writing(folder, worker):
        _claim(folder, manifest, [query.id for query in queries])
        if (folder / FINISHED).exists():
            return
        work = Shards(folder, paths, worker, folder / FINISHED)
        work.make(score, f"scoring {sampling.total:,} pairs")
        work.finish(finish)
        if worker.first:
            work.clean()


def _claim(folder: Path, manifest: dict[str, Any], query_ids: list[str]) -> None:
    path = folder / MANIFEST
    if path.exists():
        found = read_manifest(folder)
        differing = [key for key in manifest if found.get(key) != manifest[key]]
        same = not differing and json.loads((folder / QUERIES).read_text(encoding="utf-8")) == query_ids
        if not same:
            raise DataError(
                f"holds shards of another run ({', '.join(differing) or 'queries'} differ); choose another folder or "
                "remove it",
                path,
            )
        return
    _write_json(folder / QUERIES, query_ids)  # before the manifest, which says that all is there
    _write_json(path, manifest)


def _score(corpus: Corpus, queries: Sequence[Query], pairs: tuple[Rows, Rows], folder: Path, number: int) -> None:
    """Scores one shard, behind what an earlier attempt has scored of it."""
    path = shard_path(folder, number)
    partial = path.with_suffix(".partial")
    query_rows, item_rows = pairs
    scores = np.empty(len(query_rows), dtype=np.float32)
    done = 0
    if partial.exists():
        known = read_shard(partial)["score"]
        done = len(known)
        scores[:done] = known
    rows, places = np.unique(query_rows, return_inverse=True)
    asked = [queries[row] for row in rows.tolist()]
    assert corpus.judge is not None
    scorer = corpus.judge.scorer(asked)
    try:
        while done < len(scores):
            part = slice(done, done + CHUNK)
            with naming(asked, corpus.items):
                scores[part] = scorer(places[part], item_rows[part])
            done += CHUNK
    except BaseException:
        if done:  # what came before is paid for
            _write_shard(partial, query_rows[:done], item_rows[:done], scores[:done])
        raise
    _write_shard(path, query_rows, item_rows, scores)
    partial.unlink(missing_ok=True)


def _write_shard(path: Path, query_rows: Rows, item_rows: Rows, scores: Scores) -> None:
    columns = {"query": query_rows.astype(np.int32), "item": item_rows.astype(np.int32), "score": scores}
    with replacing(path) as file:
        file.write(save(columns))


def _normalization(folder: Path, shards: int, queries: Sequence[Query], known: Known | None) -> tuple[float, float]:
    """Alpha and beta (AXN A.4), of the entries of the first queries."""
    if known is None:
        return 0.0, 1.0
    few = queries[:SAMPLED]
    exact, dense = [], []
    for number in range(shards):
        shard = read_shard(shard_path(folder, number))
        mine = shard["query"] < len(few)
        if mine.any():
            exact.append(shard["score"][mine].astype(np.float64))
            dense.append(known(few, shard["query"][mine].astype(np.int64), shard["item"][mine].astype(np.int64)))
    teacher, wanted = np.concatenate(exact), np.concatenate(dense).astype(np.float64)
    for name, scores in (("similarity", teacher), ("dual encoder", wanted)):
        if not scores.std() > 0:
            raise ValueError(
                f"the {name} gives the same score to every pair of the first {len(few)} queries: there is nothing to "
                "normalise; leave out --normalize"
            )
    beta = wanted.std() / teacher.std()
    return float(teacher.mean() - wanted.mean() / beta), float(beta)


def _write_json(path: Path, value: Any) -> None:
    with replacing(path) as file:
        file.write((json.dumps(value) + "\n").encode())
