"""What the commands share: the collection, the similarity, its scorer, and what a search will cost."""

from __future__ import annotations

import time
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from simzoo.core.progress import plan
from simzoo.core.records import Collection, DataError
from simzoo.core.startup import importing
from simzoo.datamodules.lists import RetrievalData
from simzoo.retrieval.judge import SimilarityJudge
from simzoo.retrieval.searcher import Searcher
from simzoo.retrieval.storage.encoding import encode_items

if TYPE_CHECKING:
    from simzoo.models.similarity import LearnedSimilarity


def loaded(checkpoint: str, bf16: bool) -> LearnedSimilarity:
    """The checkpoint, on the fastest device."""
    with importing():  # here, so that help need not wait for it
        import torch

        from simzoo.models.formats import load
        from simzoo.models.similarity import fastest_device

    return load(checkpoint, fastest_device(), getattr(torch, dtype_of(bf16)))


def dtype_of(bf16: bool) -> str:
    """What the transformers compute in."""
    return "bfloat16" if bf16 else "float32"


def single(data: RetrievalData) -> Collection:
    """The one collection of the test split.

    Raises:
        DataError: there are several.
    """
    collections = data.collections("test")
    if len(collections) != 1:
        names = ", ".join(collection.name for collection in collections)
        raise DataError(f"the test split holds {names}; choose one of them, for example with --data.world noun.event")
    return collections[0]


def judge_of(
    similarity: LearnedSimilarity | None,
    searcher: Searcher,
    collection: Collection,
    queries: int,
    store: Path | None,
    dtype: str,
) -> SimilarityJudge | None:
    """The similarity over the collection's items, after printing what the search will cost; None without one.

    Raises:
        DataError: there is no similarity, but the searcher needs one.
    """
    if similarity is None:
        if searcher.calls_similarity:
            raise DataError(f"--search {type(searcher).__name__} needs a similarity: give --checkpoint")
        return None
    calls = queries * min(searcher.budget or len(collection.items), len(collection.items))
    plan(
        "plan",
        {
            "data": f"{collection.name}: {len(collection.items):,} items, {queries:,} queries",
            "search": f"{type(searcher).__name__}, at most {calls:,} scored pairs besides indexing",
            **estimated(similarity, collection, queries, calls),
        },
    )
    return SimilarityJudge.of(similarity, collection.items, store, dtype)


def estimated(similarity: LearnedSimilarity, collection: Collection, queries: int, calls: int) -> dict[str, str]:
    """Bytes of the representations and time, extrapolated from a few queries and items."""
    few = min(64, len(collection.items)), min(8, len(collection.queries))
    start = time.perf_counter()
    judge = SimilarityJudge(similarity, encode_items(similarity, collection.items[: few[0]]))
    scorer = judge.scorer(collection.queries[: few[1]])
    encoded = time.perf_counter()
    scorer.lists(np.tile(np.arange(few[0]), (few[1], 1)))
    scored = time.perf_counter()
    if similarity.text is not None:
        similarity.text.truncated = 0  # these records come again
    shares = len(collection.items) / few[0], queries / few[1]
    size = shares[0] * judge.representation_bytes + shares[1] * scorer.representation_bytes
    share = (len(collection.items) + queries) / sum(few)
    seconds = share * (encoded - start) + calls * (scored - encoded) / (few[0] * few[1])
    return {
        "representations": f"about {size / 1e6:,.1f} MB",
        "time": f"about {timedelta(seconds=round(seconds))} on this machine",
    }
