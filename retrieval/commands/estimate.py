"""What a search will take, from a few records: cheap where the model is slow, and said what it was made from."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, TypeVar

import numpy as np
import torch

from simzoo.core.records import Collection
from simzoo.core.reps import to_device
from simzoo.retrieval.storage.encoding import encode_items, encode_queries

if TYPE_CHECKING:
    from simzoo.models.similarity import LearnedSimilarity

T = TypeVar("T")

SECONDS = 0.5  # after so many, no larger sample is tried
MOST = 256  # records, or pairs


def estimated(similarity: LearnedSimilarity, collection: Collection, queries: int, calls: int) -> dict[str, str]:
    """Bytes of the representations and time, for a plan.

    Args:
        similarity: the model.
        collection: what will be searched.
        queries: how many will be encoded.
        calls: pairs that will be scored at most.
    """
    text = similarity.text
    truncated = 0 if text is None else text.truncated
    sample = _spread(collection.items, MOST)
    items = encode_items(similarity, sample[:1])
    asked = encode_queries(similarity, _spread(collection.queries, 1))

    def encode(size: int) -> None:
        nonlocal items
        items = encode_items(similarity, sample[:size])

    an_item, encoded = timed(encode, len(sample))
    a_query, _ = timed(lambda _: encode_queries(similarity, _spread(collection.queries, 1)), 1)
    here = to_device(asked, similarity.device), to_device(items, similarity.device)
    rows = torch.arange(encoded, device=similarity.device)[None]

    def score(size: int) -> None:
        with torch.inference_mode():
            similarity.score(*here, rows[:, :size]).cpu()  # the copy waits for a GPU to be done

    a_call, scored = timed(score, encoded)
    if text is not None:
        text.truncated = truncated  # these records come again
    size = sum(part.nbytes for part in items.values()) / encoded * len(collection.items)
    size += sum(part.nbytes for part in asked.values()) * queries
    seconds = an_item * len(collection.items) + a_query * queries + a_call * calls
    return {
        "representations": f"about {size / 1e6:,.1f} MB",
        "time": f"about {timedelta(seconds=round(seconds))} on this machine, judged by {encoded} items and "
        f"{scored} pair{'s' * (scored > 1)}",
    }


def timed(step: Callable[[int], object], most: int) -> tuple[float, int]:
    """Seconds for one of many, and the number that they were measured with.

    Sizes double until `SECONDS` are spent; the last one counts, in which what is done once weighs least.

    Args:
        step: does so many.
        most: the largest number.
    """
    size, spent = 1, 0.0
    while True:
        start = time.perf_counter()
        step(size)
        took = time.perf_counter() - start
        spent += took
        if size >= most or spent >= SECONDS:
            return took / size, size
        size = min(2 * size, most)


def _spread(records: Sequence[T], most: int) -> list[T]:
    """Some of the records at random: the first of a file are often its shortest."""
    order = np.random.default_rng(0).permutation(len(records))
    return [records[row] for row in order[:most]]
