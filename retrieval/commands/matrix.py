"""``evaluate.py matrix``: exact scores of queries with all items."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from simzoo.core.shards import ALONE, Worker
from simzoo.datamodules.sources import Source
from simzoo.retrieval.commands.estimate import estimated, show_plan
from simzoo.retrieval.commands.parts import dtype_of, loaded, single, store_of
from simzoo.retrieval.evaluation import split_queries
from simzoo.retrieval.judge import SimilarityJudge
from simzoo.retrieval.results.output import check_file
from simzoo.retrieval.storage.score_matrix import build_matrix, score_shards


def matrix(
    checkpoint: str,
    data: Source,
    output: Path,
    queries: int | None = None,
    seed: int = 0,
    shards: Path | None = None,
    bf16: bool = False,
    quantize: Literal["int8"] | None = None,
    overwrite: bool = False,
    plan: bool = False,
    price: float | None = None,
    worker: Worker = ALONE,
) -> None:
    """Scores queries with all items exactly, resumably: the oracle for Top-k-Recall.

    Args:
        checkpoint: as in ``run``.
        data: the data; its test split must be one collection.
        output: file to write, for example out/noun.event.safetensors.
        queries: a fixed random sample of so many queries; None: all.
        seed: of the sample.
        shards: folder of the finished parts; None: beside the output.
        bf16: compute the transformers in bfloat16: for hardware that has it.
        quantize: int8 for products of whole numbers of 8 bits in the transformers: faster on a CPU, other digits.
        overwrite: replace the output file; it is refused otherwise.
        plan: only say what it takes: calls, memory, bytes on disk, time, cost; judged by some seconds of work.
        price: of an hour of one machine like this one, for the plan's cost.
        worker: which of the processes that share the shards this is.
    """
    check_file(output, overwrite)
    collection = single(data)
    rows, _ = split_queries(collection, queries, seed)
    calls = len(rows) * len(collection.items)
    size = 4 * calls
    if worker.first:
        check_file(output, overwrite, room=size)
    similarity = loaded(checkpoint, bf16, quantize)
    if worker.first:
        rows_of = {"scores": f"{len(rows):,} queries x {len(collection.items):,} items = {calls:,} pairs"}
        # The shards and the file; in memory the scores, and the file's bytes.
        show_plan(rows_of, estimated(similarity, collection, len(rows), calls), 2 * size, 2 * size, price)
    if plan:
        return
    folder = shards or output.with_suffix(".shards")
    made_by = f"{similarity.weights_sha256}{' in bfloat16' * bf16}"
    judge = SimilarityJudge.of(similarity, collection.items, store_of(folder, worker), dtype_of(bf16), worker)
    if not worker.first:
        score_shards(judge.scorer, collection, rows, made_by, folder, worker=worker)
        return
    build_matrix(judge.scorer, collection, rows, made_by, folder, worker=worker).save(output)
    print(f"written: {output}")
