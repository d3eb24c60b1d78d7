"""What training lists are: how a query gets its candidates, and how those of a batch become tensors."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence, Set
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import DataLoader

from simzoo.core.batch import Batch
from simzoo.core.candidates import Candidates
from simzoo.core.records import Collection
from simzoo.core.reps import Reps, take
from simzoo.core.targets import Targets
from simzoo.datamodules.loading import CollectionBatches, Lists, Loading, ResumableLoader, Share, cut, uncounted
from simzoo.datamodules.sampling import Floats, Inclusion, logs

__all__ = ["BatchLists", "CollectionLists", "Joining", "OwnLists", "QueryLists", "TrainingLists", "ValidationLists"]

Rows = NDArray[np.int64]
Scores = NDArray[np.float32]


class BatchLists(ABC):
    """What batches are made of: the members of one collection, a query each."""

    candidates: Candidates | None = None

    across: bool = False
    """Whether a query's candidates depend on the other queries of its batch, those of other ranks included."""

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def batch(self, members: Sequence[int], epoch: int) -> Batch:
        """The batch of these members in an epoch; depends on (seed, epoch, member) alone."""

    def share(self, members: Sequence[int], epoch: int, share: Share) -> Batch:
        """A rank's share of the batch of these members."""
        if self.across:
            return cut(self.batch(members, epoch), share)
        own = members[share.places(len(members))]
        return self.batch(own, epoch) if own else uncounted(self.batch(members[:1], epoch))


class TrainingLists(ABC):
    """How queries get the candidates that they are trained on; a recipe names it under ``data.lists``."""

    mines: ClassVar[bool] = False
    """Whether training needs mined candidates."""

    validates_mined: ClassVar[bool] = True
    """Whether validation ranks mined candidates."""

    def gives(self, miner: Set[str]) -> frozenset[str]:
        """Of `simzoo.core.targets.NEEDS`, what its targets hold.

        Args:
            miner: what the miner gives; empty without one.
        """
        return frozenset()

    @abstractmethod
    def part(self, collection: Collection, model: Any, seed: int, needs: Set[str]) -> BatchLists:
        """The training lists of a collection.

        Args:
            collection: of the train split.
            model: what tokenises, by `collate_queries` and `collate_items`.
            seed: of the draws.
            needs: what the loss needs: the rest need not be looked up.
        """

    def validation(self, collection: Collection, model: Any, seed: int, depth: int | None) -> BatchLists:
        """The lists that a collection of the dev or test split is ranked in.

        Args:
            collection: of the split.
            model: what tokenises.
            seed: of draws, where there are some.
            depth: the first so many mined candidates; None: all items.
        """
        return AllItems(collection, model) if depth is None else ValidationLists(collection, model, depth)

    def loader(
        self, loading: Loading, model: Any, parts: Callable[[], Sequence[BatchLists]], needs: Set[str]
    ) -> DataLoader[Batch]:
        """Batches of the train split.

        Args:
            loading: batch size, seed, rank and workers.
            model: what tokenises.
            parts: makes the lists of every collection of the train split.
            needs: what the loss needs.
        """
        found = parts()
        batches = CollectionBatches([len(part) for part in found], loading)
        return ResumableLoader(Lists(found, loading.share), batches, loading)

    def check(self, collection: Collection, mined: Candidates, needs: Set[str]) -> dict[str, int]:
        """Whether lists can be made of what was mined for a collection of the train split.

        Returns:
            Counts of what a person should know of, by what it is.

        Raises:
            ValueError: they cannot.
        """
        return {}


@dataclass
class Drawn:
    """One query's list.

    Attributes:
        rows: (K,) rows of items, each once.
        relevant: rows of all items that are relevant to the query, in the list or not.
        teacher: (K,) a teacher's scores, NaN where there is none; None without a teacher.
        retriever: (K,) a retriever's scores, likewise.
        inclusion: with which probability each item came into the list; None: not known.
        by_score: whether negatives were drawn by a score, so that the loss should know ``inclusion``.
    """

    rows: Rows
    relevant: Rows
    teacher: Scores | None = None
    retriever: Scores | None = None
    inclusion: Inclusion | None = None
    by_score: bool = False


@dataclass
class Joined:
    """The lists of a batch, as arrays.

    Attributes:
        columns: (B, K) rows of items, -1 for none.
        shared: whether every row of ``columns`` is the same.
        others, log_q, batch_log_q, teacher, retriever: (B, K), as in `simzoo.core.targets.Targets`.
    """

    columns: Rows
    shared: bool = False
    others: NDArray[np.bool_] | None = None
    log_q: Floats | None = None
    batch_log_q: Floats | None = None
    teacher: Scores | None = None
    retriever: Scores | None = None


@dataclass
class Shares:
    """How often one query brings each item of a collection to a batch.

    Attributes:
        positive: (N,) as its positive.
        any: (N,) as its positive or in its list.
    """

    positive: Floats
    any: Floats


def alone(drawn: Sequence[Drawn]) -> Joined:
    """Each query with its own list."""
    width = max(len(entry.rows) for entry in drawn)

    def padded(values: Sequence[Any], fill: float) -> Any:
        if any(value is None for value in values):
            return None
        return np.stack([np.pad(value, (0, width - len(value)), constant_values=fill) for value in values])

    by_score = all(entry.by_score for entry in drawn)
    known = [entry.inclusion and logs(entry.inclusion.of(entry.rows)) for entry in drawn]
    return Joined(
        padded([entry.rows for entry in drawn], -1),
        log_q=padded(known, 0.0) if by_score else None,
        teacher=padded([entry.teacher for entry in drawn], np.nan),
        retriever=padded([entry.retriever for entry in drawn], np.nan),
    )


class Joining(ABC):
    """How the lists of a batch's queries are put together."""

    across: ClassVar[bool] = False
    """Whether a query's candidates depend on the other queries of its batch."""

    @abstractmethod
    def join(self, drawn: Sequence[Drawn], needs: Set[str], shares: Callable[[], Shares] | None) -> Joined:
        """The lists of a batch.

        Args:
            drawn: of each query.
            needs: what the loss needs.
            shares: how often queries bring each item; None: not known.
        """


class OwnLists(TrainingLists, Joining):
    """Lists that each query has for itself. `InBatch` and `OtherPositives` let the queries of a batch share them."""

    counted: ClassVar[bool] = False
    """Whether it is known how often queries bring an item (`Shares`)."""

    def join(self, drawn: Sequence[Drawn], needs: Set[str], shares: Callable[[], Shares] | None) -> Joined:
        """See `Joining.join`: each query keeps its own."""
        return alone(drawn)

    @abstractmethod
    def part(
        self, collection: Collection, model: Any, seed: int, needs: Set[str], joining: Joining | None = None
    ) -> BatchLists:
        """See `TrainingLists.part`; ``joining`` puts the lists of a batch together."""

    def loader(
        self,
        loading: Loading,
        model: Any,
        parts: Callable[[], Sequence[BatchLists]],
        needs: Set[str],
        joining: Joining | None = None,
    ) -> DataLoader[Batch]:
        """See `TrainingLists.loader`; ``joining`` puts the lists of a batch together, where this makes them itself."""
        return super().loader(loading, model, parts, needs)


class QueryLists(OwnLists):
    """Lists that are drawn for the queries of a collection."""

    counted = True

    def part(
        self, collection: Collection, model: Any, seed: int, needs: Set[str], joining: Joining | None = None
    ) -> BatchLists:
        """See `OwnLists.part`."""
        return CollectionLists(self, joining or self, collection, model, seed, needs)

    def members(self, collection: Collection) -> list[int]:
        """Rows of the queries that can be trained on."""
        return [row for row in range(len(collection.queries)) if collection.relevant(row)]

    def shares(self, part: CollectionLists) -> Shares:
        """How often the queries of a collection bring each item."""
        raise NotImplementedError

    @abstractmethod
    def draw(self, part: CollectionLists, row: int, rng: np.random.Generator) -> Drawn:
        """The list of the query at ``row`` of the part's collection."""


class CollectionLists(BatchLists):
    """Training lists of one collection."""

    def __init__(
        self, lists: QueryLists, joining: Joining, collection: Collection, model: Any, seed: int, needs: Set[str]
    ) -> None:
        self.lists = lists
        self.joining = joining
        self.across = joining.across
        self.collection = collection
        self.seed = seed
        self.needs = needs
        self.queries: Reps = model.collate_queries(collection.queries)
        self.items: Reps = model.collate_items(collection.items)
        self.rows = lists.members(collection)
        self._shares: tuple[Candidates | None, Shares] | None = None

    def __len__(self) -> int:
        return len(self.rows)

    def shares(self) -> Shares:
        """How often one query brings each item, with the candidates of now."""
        if self._shares is None or self._shares[0] is not self.candidates:
            self._shares = self.candidates, self.lists.shares(self)
        return self._shares[1]

    def mined(self) -> Candidates:
        """What was mined.

        Raises:
            ValueError: nothing was.
        """
        if self.candidates is None:
            raise ValueError(f"{type(self.lists).__name__} needs mined candidates: give the recipe a data.miner")
        return self.candidates

    def batch(self, members: Sequence[int], epoch: int) -> Batch:
        """See `BatchLists.batch`."""
        rows = [self.rows[member] for member in members]
        drawn = [self.lists.draw(self, row, np.random.default_rng([self.seed, epoch, row])) for row in rows]
        joined = self.joining.join(drawn, self.needs, self.shares if self.lists.counted else None)
        queries = take(self.queries, torch.tensor(rows))
        return as_batch(joined, drawn, queries, self.items, [self.collection.queries[row].id for row in rows])


def as_batch(joined: Joined, drawn: Sequence[Drawn], queries: Reps, items: Reps, names: list[str]) -> Batch:
    """The tensors of joined lists, with the items that stand in them.

    Args:
        joined: of the whole batch.
        drawn: of each query.
        queries: tokens of the B queries.
        items: tokens of all items that ``joined.columns`` may name.
        names: ids of the queries.
    """
    columns = joined.columns
    chosen, where = np.unique(columns, return_inverse=True)
    candidates = torch.from_numpy(where.reshape(columns.shape)) - int(chosen[0] == -1)
    labels = np.stack([np.isin(row, entry.relevant) for row, entry in zip(columns, drawn, strict=True)])
    targets = Targets(
        torch.from_numpy(labels.astype(np.float32)),
        torch.from_numpy(columns >= 0),
        _floats(joined.teacher),
        None if joined.others is None else torch.from_numpy(joined.others),
        _floats(joined.retriever),
        _floats(joined.log_q),
        _floats(joined.batch_log_q),
    )
    kept = take(items, torch.from_numpy(chosen[chosen >= 0]))
    return Batch(queries, kept, candidates[:1] if joined.shared else candidates, targets, names)


def _floats(values: Any) -> torch.Tensor | None:
    return None if values is None else torch.from_numpy(np.asarray(values, dtype=np.float32))


class ValidationLists(BatchLists):
    """Validation lists of one collection: each query with its first ``depth`` mined candidates."""

    def __init__(self, collection: Collection, model: Any, depth: int) -> None:
        self.collection = collection
        self.depth = depth
        self.queries: Reps = model.collate_queries(collection.queries)
        self.items: Reps = model.collate_items(collection.items)

    def __len__(self) -> int:
        return len(self.collection.queries)

    def batch(self, members: Sequence[int], epoch: int) -> Batch:
        """The batch of these queries."""
        if self.candidates is None:
            raise ValueError("validation ranks mined candidates: give the recipe a data.miner")
        columns = self.candidates.items[np.asarray(members), : self.depth]
        chosen, where = np.unique(columns, return_inverse=True)
        labels = np.stack([np.isin(c, self.collection.relevant(m)) for c, m in zip(columns, members, strict=True)])
        targets = Targets(torch.from_numpy(labels.astype(np.float32)), torch.ones(labels.shape, dtype=torch.bool))
        return Batch(
            take(self.queries, torch.tensor(np.asarray(members))),
            take(self.items, torch.from_numpy(chosen)),
            torch.from_numpy(where.reshape(columns.shape)),
            targets,
            [self.collection.queries[m].id for m in members],
        )


class AllItems(BatchLists):
    """Validation lists of one collection: each query with all items, which are encoded for each batch anew."""

    def __init__(self, collection: Collection, model: Any) -> None:
        self.collection = collection
        self.queries: Reps = model.collate_queries(collection.queries)
        self.items: Reps = model.collate_items(collection.items)

    def __len__(self) -> int:
        return len(self.collection.queries)

    def batch(self, members: Sequence[int], epoch: int) -> Batch:
        """The batch of these queries; its candidates are (1, N)."""
        every = np.arange(len(self.collection.items))
        labels = np.stack([np.isin(every, self.collection.relevant(member)) for member in members])
        return Batch(
            take(self.queries, torch.tensor(np.asarray(members))),
            self.items,
            torch.from_numpy(every)[None],
            Targets(torch.from_numpy(labels.astype(np.float32)), torch.ones(labels.shape, dtype=torch.bool)),
            [self.collection.queries[member].id for member in members],
        )
