"""Batches of lists in an order that depends on seed and epoch alone, resumable at any of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

import numpy as np
from torch.utils.data import DataLoader, Dataset, Sampler

from simzoo.core.batch import Batch


class Batched(Protocol):
    """What batches are made of: the members of one collection, a query each."""

    def __len__(self) -> int: ...

    def batch(self, members: Sequence[int], epoch: int) -> Batch:
        """The batch of these members in an epoch; depends on (seed, epoch, member) alone."""


class Lists(Dataset[Batch]):
    """A dataset over batches: an index is a list of (collection, member) and the epoch is set by the sampler."""

    def __init__(self, lists: Sequence[Batched]) -> None:
        self.lists = lists
        self.epoch = 0

    def __getitems__(self, places: list[tuple[int, int]]) -> list[Batch]:
        return [self.lists[places[0][0]].batch([member for _, member in places], self.epoch)]


class CollectionBatches(Sampler[list[tuple[int, int]]]):
    """Batches of (collection, member), each from one collection; the order depends on (seed, epoch) alone.

    Every rank gets the same number of batches, its own ones.
    """

    def __init__(self, sizes: Sequence[int], batch_size: int, seed: int, rank: int, world_size: int) -> None:
        self.sizes = sizes
        self.batch_size = batch_size
        self.seed = seed
        self.rank = rank
        self.world_size = world_size
        self.epoch = 0
        self.start = 0

    def __len__(self) -> int:
        return sum(-(-size // self.batch_size) for size in self.sizes) // self.world_size

    def __iter__(self) -> Iterator[list[tuple[int, int]]]:
        rng = np.random.default_rng([self.seed, self.epoch])
        batches = []
        for i, size in enumerate(self.sizes):
            order = rng.permutation(size)
            batches += [[(i, int(m)) for m in order[j : j + self.batch_size]] for j in range(0, size, self.batch_size)]
        shuffled = rng.permutation(len(batches))[self.rank :: self.world_size][: len(self)]
        start, self.start = self.start, 0
        for index in shuffled[start:]:
            yield batches[index]


class ResumableLoader(DataLoader[Batch]):
    """Begins an epoch where the trainer stands: behind the batches that a resumed run has seen.

    It asks the trainer for (epoch, batches done) instead of keeping a state of its own: the trainer restores a loader's
    state only if nothing needed the loader before, and the learning rate's schedule does.
    """

    def __init__(self, lists: Lists, sampler: CollectionBatches, place: Callable[[], tuple[int, int]]) -> None:
        super().__init__(lists, batch_sampler=sampler, collate_fn=only_batch)
        self.lists = lists
        self.batches = sampler
        self.place = place

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]  # torch promises its own iterator class
        epoch, self.batches.start = self.place()
        self.lists.epoch = self.batches.epoch = epoch
        yield from super().__iter__()


def only_batch(batches: list[Batch]) -> Batch:
    """The batch of a list of one: batches are made whole, so there is nothing to collate."""
    return batches[0]
