"""``evaluate.py search``: one query answered."""

from __future__ import annotations

import time

from simzoo.core.progress import show_table
from simzoo.core.records import DataError, Query
from simzoo.datamodules.sources import Source
from simzoo.retrieval.commands.parts import loaded, single
from simzoo.retrieval.corpus import Corpus
from simzoo.retrieval.judge import SimilarityJudge
from simzoo.retrieval.searcher import Searcher
from simzoo.retrieval.searchers.exact import Exact
from simzoo.retrieval.topk import NOTHING


def search(
    checkpoint: str,
    data: Source,
    query: str,
    search: Searcher | None = None,
    k: int = 10,
    mention: str = "",
    bf16: bool = False,
) -> None:
    """Answers one query: the ranked items, calls and milliseconds.

    Args:
        checkpoint: a checkpoint of any known layout: folder, file, archive, or org/name@revision.
        data: the data; its test split must be one collection.
        query: the query's text.
        search: the searcher; Exact if none is given.
        k: results.
        mention: the words of the query that are the mention, if the model marks one.
        bf16: compute the transformers in bfloat16: for hardware that has it.
    """
    start = query.find(mention) if mention else -1
    if mention and start < 0:
        raise DataError(f"the mention {mention!r} does not stand in the query {query!r}")
    asked = Query("asked", query, (start, start + len(mention)) if mention else None)
    collection = single(data, asked=False)
    searcher = search or Exact()
    judge = SimilarityJudge.of(loaded(checkpoint, bf16), collection.items)
    searcher.index(Corpus.of(collection, judge, anchors=collection.queries))
    began = time.perf_counter()
    ranking = searcher.search([asked], min(k, len(collection.items)))
    spent = 1000 * (time.perf_counter() - began)
    found = [(row, score) for row, score in zip(ranking.items[0], ranking.scores[0], strict=True) if row != NOTHING]
    rows = []
    for place, (row, score) in enumerate(found, start=1):
        item = collection.items[row]
        shown = f"{item.title}: {item.text}" if item.title else item.text
        rows.append((str(place), f"{score:.3f}", item.id, shown))
    show_table(("", "score", "id", "item"), rows, query)
    print(f"{ranking.calls[0]} calls, {spent:.1f} ms")
