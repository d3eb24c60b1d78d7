"""What a search will take, from a few records: cheap where the model is slow, and said what it was made from."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, TypeVar

import numpy as np
import torch

from simzoo.core.progress import plan
from simzoo.core.records import Collection
from simzoo.core.reps import to_device
from simzoo.retrieval.storage.encoding import encode_items, encode_queries

if TYPE_CHECKING:
    from simzoo.models.similarity import LearnedSimilarity

T = TypeVar("T")

SECONDS = 0.5  # after so many, no larger sample is tried
MOST = 256  # records, or pairs


@dataclass(frozen=True)
class Estimate:
    """What a piece of work takes.

    Attributes:
        representations: bytes of the items' and queries' representations.
        seconds: of one worker like this one.
        items: that were encoded for it.
        pairs: that were scored for it.
    """

    representations: float
    seconds: float
    items: int
    pairs: int

    @property
    def rows(self) -> dict[str, str]:
        """For a plan."""
        return {
            "representations": f"about {self.representations / 1e6:,.1f} MB",
            "time": f"about {timedelta(seconds=round(self.seconds))} on this machine, judged by {self.items} items and "
            f"{self.pairs} pair{'s' * (self.pairs != 1)}",
        }

    def __add__(self, other: Estimate) -> Estimate:
        """Of two pieces of work, one after the other; what was measured is that of the first."""
        representations = max(self.representations, other.representations)
        return Estimate(representations, self.seconds + other.seconds, self.items, self.pairs)


def estimated(similarity: LearnedSimilarity, collection: Collection, queries: int, calls: int) -> Estimate:
    """Bytes of the representations and time.

    Args:
        similarity: the model.
        collection: what will be searched.
        queries: how many will be encoded.
        calls: pairs that will be scored at most; 0: none is scored for the estimate either.
    """
    text = similarity.text
    truncated = 0 if text is None else text.truncated
    sample = _spread(collection.items, MOST)
    items = encode_items(similarity, sample[:1])

    def encode(size: int) -> None:
        nonlocal items
        items = encode_items(similarity, sample[:size])

    an_item, encoded = timed(encode, len(sample))
    size = sum(part.nbytes for part in items.values()) / encoded * len(collection.items)
    seconds = an_item * len(collection.items)
    scored = 0
    if queries:
        few = _spread(collection.queries, 1)
        asked = encode_queries(similarity, few)
        a_query, _ = timed(lambda _: encode_queries(similarity, few), 1)
        size += sum(part.nbytes for part in asked.values()) * queries
        seconds += a_query * queries
        here = to_device(asked, similarity.device), to_device(items, similarity.device)
        rows = torch.arange(encoded, device=similarity.device)[None]

        def score(size: int) -> None:
            with torch.inference_mode():
                similarity.score(*here, rows[:, :size]).cpu()  # the copy waits for a GPU to be done

        a_call, scored = timed(score, encoded)
        seconds += a_call * calls
    if text is not None:
        text.truncated = truncated  # these records come again
    return Estimate(size, seconds, encoded, scored)


def show_plan(rows: Mapping[str, str], found: Estimate, held: float, disk: float, price: float | None) -> None:
    """Prints what a command will do and take.

    Args:
        rows: what it will do.
        found: what that takes.
        held: bytes of memory besides the program with its model, and the representations.
        disk: bytes that it will write.
        price: of an hour of a machine like this one, in any currency; None: not known.
    """
    memory = peak_memory() + found.representations + held
    more = {"memory": f"about {memory / 1e6:,.0f} MB on the host", "disk": f"about {disk / 1e6:,.1f} MB"}
    if torch.cuda.is_available():
        more["memory"] += f", {torch.cuda.max_memory_allocated() / 1e6:,.0f} MB on the GPU"
    if price is not None:
        more["cost"] = f"about {found.seconds / 3600 * price:,.2f} at {price:g} an hour, however many workers share it"
    plan("plan", {**rows, **found.rows, **more})


def peak_memory() -> int:
    """Bytes that this process has held at most; 0 where the system does not say."""
    if sys.platform == "win32":
        return 0
    import resource

    held = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return held if sys.platform == "darwin" else 1024 * held


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
