"""``evaluate.py encode``: the items' representations on disk, for ``run`` and ``sparse_matrix`` to read."""

from __future__ import annotations

from pathlib import Path

from simzoo.core.shards import ALONE, Worker
from simzoo.datamodules.sources import Source
from simzoo.retrieval.commands.estimate import estimated, show_plan
from simzoo.retrieval.commands.parts import dtype_of, loaded, single
from simzoo.retrieval.judge import SimilarityJudge
from simzoo.retrieval.results.output import check_parts


def encode(
    checkpoint: str,
    data: Source,
    output: Path,
    bf16: bool = False,
    plan: bool = False,
    price: float | None = None,
    worker: Worker = ALONE,
) -> None:
    """Encodes all items of a data set, resumably: what the option ``--store`` of other commands reads.

    Args:
        checkpoint: as in ``run``.
        data: the data; its test split must be one collection.
        output: folder of the representations; a killed run goes on where it was.
        bf16: compute the transformers in bfloat16: for hardware that has it.
        plan: only say what it takes: memory, bytes on disk, time, cost; judged by some seconds of work.
        price: of an hour of one machine like this one, for the plan's cost.
        worker: which of the processes that share the blocks this is.
    """
    check_parts(output)
    collection = single(data, asked=False)
    similarity = loaded(checkpoint, bf16)
    if worker.first:
        found = estimated(similarity, collection, 0, 0)
        # While blocks are joined, both they and the files are there; in memory there is a block, the rest is mapped.
        show_plan(
            {"items": f"{len(collection.items):,}"}, found, -found.representations, 2 * found.representations, price
        )
    if plan:
        return
    SimilarityJudge.of(similarity, collection.items, output, dtype_of(bf16), worker)
    if worker.first:
        print(f"written: {output}")
