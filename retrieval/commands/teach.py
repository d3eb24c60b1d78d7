"""``evaluate.py teach``: a teacher's scores, as files to train on."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Literal

from simzoo.core.records import Collection, sample_together
from simzoo.core.shards import ALONE, Worker
from simzoo.datamodules.sources import Source, Split
from simzoo.retrieval.commands.estimate import Estimate, estimated, show_plan
from simzoo.retrieval.commands.parts import loaded
from simzoo.retrieval.first_stages.first_stage import FirstStage
from simzoo.retrieval.first_stages.lexical import BM25
from simzoo.retrieval.results.output import check_parts
from simzoo.retrieval.teaching import write_lessons

if TYPE_CHECKING:
    from simzoo.models.similarity import LearnedSimilarity


def teach(
    checkpoint: str,
    data: Source,
    output: Path,
    first_stage: FirstStage | None = None,
    split: Split = "train",
    top: int = 16,
    random: int = 4,
    queries: int | None = None,
    seed: int = 0,
    bf16: bool = False,
    quantize: Literal["int8"] | None = None,
    plan: bool = False,
    price: float | None = None,
    worker: Worker = ALONE,
) -> None:
    """Writes what a checkpoint thinks of retrieved and random items, for training others on it (`Distillation`).

    Args:
        checkpoint: the teacher; as in ``run``.
        data: the data; every collection of the split is written.
        output: folder for one file a block of queries; a killed run goes on where it was.
        first_stage: what retrieves; BM25 if none is given.
        split: train, dev or test.
        top: items from the top of the first stage, relevant ones not counted.
        random: items drawn from the others.
        queries: only a fixed random sample of so many queries, over all collections; None: all.
        seed: of the sample and the draws.
        bf16: compute the transformers in bfloat16: for hardware that has it.
        quantize: int8 for products of whole numbers of 8 bits in the transformers: faster on a CPU, other digits.
        plan: only say what it takes: calls, memory, bytes on disk, time, cost; judged by some seconds of work.
        price: of an hour of one machine like this one, for the plan's cost.
        worker: which of the processes that share the files this is.
    """
    check_parts(output)
    similarity = loaded(checkpoint, bf16, quantize)
    collections = [c for c in sample_together(data.collections(split), queries, seed) if c.queries]
    if worker.first:
        _show_plan(similarity, collections, 1 + top + random, price)
    if plan:
        return
    for collection in collections:
        write_lessons(similarity, collection, first_stage or BM25(), output, top, random, seed, worker)
    if worker.first:
        print(f"written: {output}")


def _show_plan(similarity: LearnedSimilarity, collections: list[Collection], each: int, price: float | None) -> None:
    """Of ``each`` items a query; one relevant item is counted for each of them."""
    queries = [len(collection.queries) for collection in collections]
    total = Estimate(0, 0, 0, 0)
    for collection, number in zip(collections, queries, strict=True):
        total = estimated(similarity, collection, number, number * min(each, len(collection.items))) + total
    texts = sum(len(item.text) + len(item.title) for c in collections for item in c.items)
    text = texts / max(1, sum(len(collection.items) for collection in collections))
    pairs = sum(queries) * each
    # Compressed to about a third, as text is; in memory one file's records.
    show_plan({"scores": f"{sum(queries):,} queries, about {pairs:,} pairs"}, total, 0, pairs * text / 3, price)
