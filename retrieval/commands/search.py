"""``evaluate.py search``: one query answered."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Literal

from simzoo.core.progress import show_table
from simzoo.core.records import Collection, DataError, Item, Query
from simzoo.core.startup import importing
from simzoo.datamodules.sources import Source
from simzoo.retrieval.commands.parts import loaded, single
from simzoo.retrieval.corpus import Corpus
from simzoo.retrieval.judge import SimilarityJudge
from simzoo.retrieval.searcher import Searcher
from simzoo.retrieval.searchers.exact import Exact
from simzoo.retrieval.topk import NOTHING


def search(
    query: str,
    checkpoint: str | None = None,
    data: Source | None = None,
    search: Searcher | None = None,
    index: Path | None = None,
    k: int = 10,
    mention: str = "",
    bf16: bool = False,
    quantize: Literal["int8"] | None = None,
) -> None:
    """Answers one query: the ranked items, calls and milliseconds.

    Args:
        query: the query's text.
        checkpoint: a checkpoint of any known layout: folder, file, archive, or org/name@revision; not with an index.
        data: the data; its test split must be one collection; not with an index.
        search: the searcher; if none is given, Exact, or that of the index.
        index: folder that an `Engine` has saved; it knows its items and its similarity.
        k: results.
        mention: the words of the query that are the mention, if the model marks one.
        bf16: compute the transformers in bfloat16: for hardware that has it.
        quantize: int8 for products of whole numbers of 8 bits in the transformers: faster on a CPU, other digits.
    """
    start = query.find(mention) if mention else -1
    if mention and start < 0:
        raise DataError(f"the mention {mention!r} does not stand in the query {query!r}")
    asked = Query("asked", query, (start, start + len(mention)) if mention else None)
    if index is not None:
        if checkpoint is not None or data is not None:
            raise DataError(f"--index {index} knows its items and its similarity: leave out --checkpoint and --data")
        hits, calls, spent = _in_index(index, search, asked, k)
    elif checkpoint is None or data is None:
        raise DataError("what is searched is missing: give --index, or --checkpoint and --data")
    else:
        hits, calls, spent = _in_collection(
            single(data, asked=False), checkpoint, search or Exact(), asked, k, bf16, quantize
        )
    rows = []
    for place, (item, score) in enumerate(hits, start=1):
        shown = f"{item.title}: {item.text}" if item.title else item.text
        rows.append((str(place), f"{score:.3f}", item.id, " ".join(shown.split())))  # files end in line feeds
    show_table(("", "score", "id", "item"), rows, query)
    print(f"{calls} calls, {spent:.1f} ms")


Found = tuple[list[tuple[Item, float]], int, float]
"""Items with their scores, calls, and milliseconds."""


def _in_index(folder: Path, search: Searcher | None, query: Query, k: int) -> Found:
    with importing():
        from simzoo.retrieval.engine import Engine

    found = Engine.load(folder, search=search).search(query, k)
    return [(hit.item, hit.score) for hit in found], found.calls, found.milliseconds


def _in_collection(
    collection: Collection,
    checkpoint: str,
    searcher: Searcher,
    query: Query,
    k: int,
    bf16: bool,
    quantize: Literal["int8"] | None,
) -> Found:
    judge = SimilarityJudge.of(loaded(checkpoint, bf16, quantize), collection.items)
    searcher.index(Corpus.of(collection, judge, anchors=collection.queries))
    began = time.perf_counter()
    ranking = searcher.search([query], min(k, len(collection.items)))
    spent = 1000 * (time.perf_counter() - began)
    found = zip(ranking.items[0], ranking.scores[0], strict=True)
    hits = [(collection.items[row], float(score)) for row, score in found if row != NOTHING]
    return hits, int(ranking.calls[0]), spent
