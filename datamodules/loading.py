"""Batches of lists in an order that depends on seed and epoch alone, resumable at any of them."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Protocol

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset, Sampler

from simzoo.core.batch import Batch
from simzoo.core.reps import num_rows, take

__all__ = ["Loading"]


def _at_the_start() -> tuple[int, int]:
    return 0, 0


@dataclass(frozen=True)
class Share:
    """The part of a joint batch that one of the ranks gets that train together.

    Attributes:
        rank: of this process.
        world_size: processes that share the batch.
    """

    rank: int = 0
    world_size: int = 1

    def places(self, count: int) -> slice:
        """Of ``count`` things those of this rank, as many as any other's or one less; none where there are too few."""
        return slice(count * self.rank // self.world_size, count * (self.rank + 1) // self.world_size)

    def counts(self, count: int) -> list[int]:
        """How many of ``count`` things each rank gets."""
        bounds = [count * rank // self.world_size for rank in range(self.world_size + 1)]
        return [stop - start for start, stop in itertools.pairwise(bounds)]


@dataclass(frozen=True)
class Loading:
    """How batches are loaded.

    Attributes:
        batch_size: queries of a rank's batch.
        seed: of the order.
        rank: of this process.
        world_size: processes; each gets its share of joint batches of ``world_size * batch_size`` queries.
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
    def share(self) -> Share:
        """This rank's."""
        return Share(self.rank, self.world_size)

    @property
    def joint_size(self) -> int:
        """Queries of a batch of all ranks."""
        return self.batch_size * self.world_size

    @property
    def options(self) -> dict[str, Any]:
        """Those of torch's loader."""
        return {"num_workers": self.workers, "pin_memory": self.pin_memory}


class Batched(Protocol):
    """What batches are made of: the members of one collection, a query each."""

    def __len__(self) -> int: ...

    def batch(self, members: Sequence[int], epoch: int) -> Batch:
        """The batch of these members in an epoch; depends on (seed, epoch, member) alone."""

    def share(self, members: Sequence[int], epoch: int, share: Share) -> Batch:
        """A rank's share of it."""


class Lists(Dataset[Batch]):
    """A dataset over batches: an index is a list of (collection, member) and the epoch is set by the loader.

    The members of `EMPTY` make a batch of no queries.
    """

    def __init__(self, lists: Sequence[Batched], share: Share | None = None) -> None:
        self.lists = lists
        self.shared = share or Share()
        self.epoch = 0

    def __getitems__(self, places: list[tuple[int, int]]) -> list[Batch]:
        members = [member for _, member in places]
        if members == [EMPTY]:
            return [without_queries(self.lists[places[0][0]].batch([0], self.epoch))]
        return [self.lists[places[0][0]].share(members, self.epoch, self.shared)]


EMPTY = -1
"""The member of a batch without queries."""


def without_queries(batch: Batch) -> Batch:
    """A batch of no queries, otherwise as the given one: for a rank that has fewer batches than the others."""
    rows = torch.empty(0, dtype=torch.int64)
    targets = type(batch.targets)(batch.targets.labels[:0], batch.targets.mask[:0])
    return Batch(take(batch.queries, rows), batch.items, batch.candidates[:0], targets, [])


def uncounted(batch: Batch) -> Batch:
    """The batch without a candidate that counts: for a rank whose share of a small batch is empty.

    It takes part in the step, so that no rank waits for it, and adds nothing to the loss.
    """
    labels, mask = batch.targets.labels, batch.targets.mask
    targets = replace(batch.targets, labels=torch.zeros_like(labels), mask=torch.zeros_like(mask))
    return replace(batch, targets=targets)


def cut(batch: Batch, share: Share) -> Batch:
    """A rank's share of a joint batch: some of its queries and, to be encoded, some of its items.

    All ranks keep the same items. Where there are fewer items than ranks, each encodes all of them.
    """
    if share.world_size == 1:
        return batch
    queries, items = len(batch.query_ids), num_rows(batch.items)
    places = share.places(queries)
    empty = places.start == places.stop
    rows = torch.arange(queries)[slice(0, 1) if empty else places]
    parts: dict[str, Any] = {part.name: getattr(batch.targets, part.name) for part in fields(batch.targets)}
    targets: dict[str, Any] = {name: None if part is None else part[rows] for name, part in parts.items()}
    own = Batch(
        take(batch.queries, rows),
        batch.items,
        batch.candidates if len(batch.candidates) == 1 else batch.candidates[rows],
        replace(batch.targets, **targets),
        [batch.query_ids[row] for row in rows.tolist()],
        shares=share.counts(items) if items >= share.world_size else None,
    )
    return uncounted(own) if empty else own


class CollectionBatches(Sampler[list[tuple[int, int]]]):
    """Batches of (collection, member), each from one collection; the order depends on (seed, epoch) alone.

    They are joint batches of all ranks: every rank takes the same steps, and N ranks train as one process does whose
    batches are N times as large.
    """

    def __init__(self, sizes: Sequence[int], loading: Loading) -> None:
        self.sizes = sizes
        self.loading = loading
        self.epoch = 0
        self.start = 0

    def __len__(self) -> int:
        return sum(-(-size // self.loading.joint_size) for size in self.sizes)

    def __iter__(self) -> Iterator[list[tuple[int, int]]]:
        rng = np.random.default_rng([self.loading.seed, self.epoch])
        step = self.loading.joint_size
        batches = []
        for i, size in enumerate(self.sizes):
            order = rng.permutation(size)
            batches += [[(i, int(m)) for m in order[j : j + step]] for j in range(0, size, step)]
        start, self.start = self.start, 0
        for index in rng.permutation(len(batches))[start:]:
            yield batches[index]


class LateLoader(DataLoader[Batch]):
    """Starts its worker processes with the first batch.

    Lightning asks for the iterator before the callbacks in which candidates are mined, and a process that is started
    then never sees them. For the same reason they are not persistent.
    """

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]  # torch promises its own iterator class
        yield from super().__iter__()


class ResumableLoader(LateLoader):
    """Begins an epoch where the trainer stands: behind the batches that a resumed run has seen.

    It asks the trainer for (epoch, batches done) instead of keeping a state of its own: the trainer restores a loader's
    state only if nothing needed the loader before, and the learning rate's schedule does.
    """

    def __init__(self, lists: Lists, sampler: CollectionBatches, loading: Loading) -> None:
        super().__init__(lists, batch_sampler=sampler, collate_fn=only_batch, **loading.options)
        self.lists = lists
        self.batches = sampler
        self.place = loading.place

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]  # as above
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
    return LateLoader(Lists(lists), batch_sampler=own, collate_fn=only_batch, **loading.options)


def only_batch(batches: list[Batch]) -> Batch:
    """The batch of a list of one: batches are made whole, so there is nothing to collate."""
    return batches[0]
