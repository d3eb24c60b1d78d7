"""Batches of lists in an order that depends on seed and epoch alone, resumable at any of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset, Sampler

from simzoo.core.batch import Batch
from simzoo.core.reps import take

__all__ = ["Loading"]


def _at_the_start() -> tuple[int, int]:
    return 0, 0


@dataclass(frozen=True)
class Loading:
    """How batches are loaded.

    Attributes:
        batch_size: queries a batch.
        seed: of the order.
        rank: of this process.
        world_size: processes; each loads its own batches.
        workers: processes that make batches ahead; 0: none.
        pin_memory: copy batches into memory that a GPU reads faster.
        place: (epoch, batches done) of the trainer.
    """

    batch_size: int = 8
    seed: int = 0
    rank: int = 0
    world_size: int = 1
    workers: int = 0
    pin_memory: bool = False
    place: Callable[[], tuple[int, int]] = _at_the_start

    @property
    def options(self) -> dict[str, Any]:
        """Those of torch's loader."""
        return {"num_workers": self.workers, "pin_memory": self.pin_memory}


class Batched(Protocol):
    """What batches are made of: the members of one collection, a query each."""

    def __len__(self) -> int: ...

    def batch(self, members: Sequence[int], epoch: int) -> Batch:
        """The batch of these members in an epoch; depends on (seed, epoch, member) alone."""


class Lists(Dataset[Batch]):
    """A dataset over batches: an index is a list of (collection, member) and the epoch is set by the loader.

    The members of `EMPTY` make a batch of no queries.
    """

    def __init__(self, lists: Sequence[Batched]) -> None:
        self.lists = lists
        self.epoch = 0

    def __getitems__(self, places: list[tuple[int, int]]) -> list[Batch]:
        members = [member for _, member in places]
        if members == [EMPTY]:
            return [without_queries(self.lists[places[0][0]].batch([0], self.epoch))]
        return [self.lists[places[0][0]].batch(members, self.epoch)]


EMPTY = -1
"""The member of a batch without queries."""


def without_queries(batch: Batch) -> Batch:
    """A batch of no queries, otherwise as the given one: for a rank that has fewer batches than the others."""
    rows = torch.empty(0, dtype=torch.int64)
    targets = type(batch.targets)(batch.targets.labels[:0], batch.targets.mask[:0])
    return Batch(take(batch.queries, rows), batch.items, batch.candidates[:0], targets, [])


class CollectionBatches(Sampler[list[tuple[int, int]]]):
    """Batches of (collection, member), each from one collection; the order depends on (seed, epoch) alone.

    Every rank gets the same number of batches, its own ones.
    """

    def __init__(self, sizes: Sequence[int], loading: Loading) -> None:
        self.sizes = sizes
        self.loading = loading
        self.epoch = 0
        self.start = 0

    def __len__(self) -> int:
        return sum(-(-size // self.loading.batch_size) for size in self.sizes) // self.loading.world_size

    def __iter__(self) -> Iterator[list[tuple[int, int]]]:
        rng = np.random.default_rng([self.loading.seed, self.epoch])
        step = self.loading.batch_size
        batches = []
        for i, size in enumerate(self.sizes):
            order = rng.permutation(size)
            batches += [[(i, int(m)) for m in order[j : j + step]] for j in range(0, size, step)]
        shuffled = rng.permutation(len(batches))[self.loading.rank :: self.loading.world_size][: len(self)]
        start, self.start = self.start, 0
        for index in shuffled[start:]:
            yield batches[index]


class ResumableLoader(DataLoader[Batch]):
    """Begins an epoch where the trainer stands: behind the batches that a resumed run has seen.

    It asks the trainer for (epoch, batches done) instead of keeping a state of its own: the trainer restores a loader's
    state only if nothing needed the loader before, and the learning rate's schedule does.
    """

    def __init__(self, lists: Lists, sampler: CollectionBatches, loading: Loading) -> None:
        super().__init__(lists, batch_sampler=sampler, collate_fn=only_batch, **loading.options)
        self.lists = lists
        self.batches = sampler
        self.place = loading.place

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]  # torch promises its own iterator class
        epoch, self.batches.start = self.place()
        self.lists.epoch = self.batches.epoch = epoch
        yield from super().__iter__()


def evaluation_loader(lists: Sequence[Batched], loading: Loading) -> DataLoader[Batch]:
    """Every query once over all ranks, in order.

    Every rank gets the same number of batches, because ranks talk to each other at each of them: some have a last one
    without queries.
    """
    batches = [
        [(i, int(row)) for row in rows]
        for i, part in enumerate(lists)
        for rows in np.array_split(np.arange(len(part)), -(-len(part) // loading.batch_size))
    ]
    if batches:
        batches += [[(0, EMPTY)]] * (-len(batches) % loading.world_size)
    own = batches[loading.rank :: loading.world_size]
    return DataLoader(Lists(lists), batch_sampler=own, collate_fn=only_batch, **loading.options)


def only_batch(batches: list[Batch]) -> Batch:
    """The batch of a list of one: batches are made whole, so there is nothing to collate."""
    return batches[0]
