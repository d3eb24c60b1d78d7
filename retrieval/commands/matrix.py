"""``evaluate.py matrix``: exact scores of queries with all items."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from simzoo.core.progress import plan
from simzoo.datamodules.sources import Source
from simzoo.retrieval.commands.estimate import estimated
from simzoo.retrieval.commands.parts import loaded, single
from simzoo.retrieval.evaluation import split_queries
from simzoo.retrieval.judge import SimilarityJudge
from simzoo.retrieval.results.output import check_file
from simzoo.retrieval.storage.score_matrix import build_matrix


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
    """
    check_file(output, overwrite)
    collection = single(data)
    rows, _ = split_queries(collection, queries, seed)
    calls = len(rows) * len(collection.items)
    check_file(output, overwrite, room=4 * calls)
    similarity = loaded(checkpoint, bf16, quantize)
    plan(
        "plan",
        {
            "scores": f"{len(rows):,} queries x {len(collection.items):,} items = {calls:,} pairs",
            "file": f"{4 * calls / 1e6:.1f} MB",
            **estimated(similarity, collection, len(rows), calls),
        },
    )
    judge = SimilarityJudge.of(similarity, collection.items)
    folder = shards or output.with_suffix(".shards")
    made_by = f"{similarity.weights_sha256}{' in bfloat16' * bf16}"
    build_matrix(judge.scorer, collection, rows, made_by, folder).save(output)
    print(f"written: {output}")
