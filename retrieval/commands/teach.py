"""``evaluate.py teach``: a teacher's scores, as files to train on."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from simzoo.core.progress import plan
from simzoo.core.records import sample_together
from simzoo.datamodules.sources import Source, Split
from simzoo.retrieval.commands.parts import loaded
from simzoo.retrieval.first_stages.first_stage import FirstStage
from simzoo.retrieval.first_stages.lexical import BM25
from simzoo.retrieval.results.output import check_parts
from simzoo.retrieval.teaching import write_lessons


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
    """
    check_parts(output)
    similarity = loaded(checkpoint, bf16, quantize)
    collections = [c for c in sample_together(data.collections(split), queries, seed) if c.queries]
    number = sum(len(collection.queries) for collection in collections)
    plan("plan", {"scores": f"{number:,} queries, about {number * (1 + top + random):,} pairs"})
    for collection in collections:
        write_lessons(similarity, collection, first_stage or BM25(), output, top, random, seed)
    print(f"written: {output}")
