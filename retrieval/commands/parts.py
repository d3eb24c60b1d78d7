"""What the commands share: the collection, the similarity, its scorer, and what a search will cost."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Literal

from simzoo.core.progress import plan
from simzoo.core.records import Collection, DataError
from simzoo.core.shards import Worker
from simzoo.core.startup import importing
from simzoo.datamodules.sources import Source
from simzoo.retrieval.commands.estimate import Estimate, estimated, show_plan
from simzoo.retrieval.judge import SimilarityJudge
from simzoo.retrieval.searcher import Searcher

if TYPE_CHECKING:
    from simzoo.models.similarity import LearnedSimilarity


def loaded(checkpoint: str, bf16: bool, quantize: Literal["int8"] | None = None) -> LearnedSimilarity:
    """The checkpoint, on the fastest device that computes so."""
    with importing():  # here, so that help need not wait for it
        import torch

        from simzoo.models.formats import load
        from simzoo.models.similarity import fastest_device

    device = fastest_device() if quantize is None else "cpu"
    return load(checkpoint, device, getattr(torch, dtype_of(bf16)), quantize=quantize)


def dtype_of(bf16: bool) -> str:
    """What the transformers compute in."""
    return "bfloat16" if bf16 else "float32"


def several(data: Source) -> list[Collection]:
    """The data sets of the test split.

    Raises:
        DataError: none has queries.
    """
    collections = data.collections("test")
    if not collections:
        raise DataError("the test split has no queries; only a search for a typed query can do without")
    return collections


def single(data: Source, asked: bool = True) -> Collection:
    """The one data set of the test split.

    Args:
        data: the data.
        asked: its queries are needed; without, items alone will do.

    Raises:
        DataError: there are several, or none with queries.
    """
    collections = several(data) if asked else data.read("test")
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
    plan(
        "plan", {**planned(searcher, collection, queries), **_measured(similarity, searcher, collection, queries).rows}
    )
    return SimilarityJudge.of(similarity, collection.items, store, dtype)


def show_search_plan(
    similarity: LearnedSimilarity | None, searcher: Searcher, collection: Collection, queries: int, price: float | None
) -> None:
    """Prints what a search will take, for ``--plan``."""
    found = Estimate(0, 0, 0, 0) if similarity is None else _measured(similarity, searcher, collection, queries)
    show_plan(planned(searcher, collection, queries), found, 0, 0, price)


def planned(searcher: Searcher, collection: Collection, queries: int) -> dict[str, str]:
    """What a search will do."""
    calls = _calls(searcher, collection, queries)
    return {
        "data": f"{collection.name}: {len(collection.items):,} items, {queries:,} queries",
        "search": f"{type(searcher).__name__}, at most {calls:,} scored pairs besides indexing",
    }


def _calls(searcher: Searcher, collection: Collection, queries: int) -> int:
    return queries * min(searcher.budget or len(collection.items), len(collection.items))


def _measured(similarity: LearnedSimilarity, searcher: Searcher, collection: Collection, queries: int) -> Estimate:
    return estimated(similarity, collection, queries, _calls(searcher, collection, queries))


def store_of(folder: Path, worker: Worker) -> Path | None:
    """Where several workers encode the items together: a folder beside that of their work; alone, in memory.

    It stays: which of them still reads it is not known, and the same command typed again goes on with it.
    """
    return None if worker.alone else folder.with_name(f"{folder.name}.items")
