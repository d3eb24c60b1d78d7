"""Lists that the queries of a batch share: other queries' items are candidates, too."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence, Set
from typing import Any

import numpy as np
from torch.utils.data import DataLoader

from simzoo.core.batch import Batch
from simzoo.core.candidates import Candidates
from simzoo.core.records import Collection
from simzoo.datamodules.lists.base import (
    BatchLists,
    Drawn,
    Joined,
    Joining,
    OwnLists,
    Rows,
    Shares,
    TrainingLists,
    alone,
)
from simzoo.datamodules.loading import Loading
from simzoo.datamodules.sampling import Floats, batch_probability, logs

__all__ = ["InBatch", "OtherPositives", "Shared"]


class Shared(TrainingLists, Joining):
    """Lists of each query, put together in a batch; on several ranks in the joint batch of all of them.

    Args:
        lists: how each query gets its own.
    """

    across = True

    def __init__(self, lists: OwnLists) -> None:
        self.lists = lists

    @property
    def mines(self) -> bool:  # type: ignore[override]  # of the lists that it shares
        """See `TrainingLists.mines`."""
        return self.lists.mines

    @abstractmethod
    def gives(self, miner: Set[str]) -> frozenset[str]:
        """See `TrainingLists.gives`."""

    def part(self, collection: Collection, model: Any, seed: int, needs: Set[str]) -> BatchLists:
        """See `TrainingLists.part`."""
        return self.lists.part(collection, model, seed, needs, self)

    def loader(
        self, loading: Loading, model: Any, parts: Callable[[], Sequence[BatchLists]], needs: Set[str]
    ) -> DataLoader[Batch]:
        """See `TrainingLists.loader`."""
        return self.lists.loader(loading, model, parts, needs, self)

    def check(self, collection: Collection, mined: Candidates, needs: Set[str]) -> dict[str, int]:
        """See `TrainingLists.check`."""
        return self.lists.check(collection, mined, needs)

    def _in_batch(self) -> frozenset[str]:
        return frozenset({"batch_log_q"}) if self.lists.counted else frozenset()


class InBatch(Shared):
    """Every item of the batch is a candidate of every query, but never a negative of one it is relevant to.

    An item is in the batch by the query's own draw or by one of the B - 1 others, each of which brings it with its
    share p: as a positive, or in its list. So Q = 1 - (1 - pi) (1 - p)^(B - 1); `InBatchCrossEntropy` can take its log
    off.

    Args:
        lists: how each query gets the items that it brings.
    """

    def gives(self, miner: Set[str]) -> frozenset[str]:
        """See `TrainingLists.gives`; a teacher's and a retriever's scores are those of the query's own list."""
        return (self.lists.gives(miner) - {"halves"}) | self._in_batch()

    def join(self, drawn: Sequence[Drawn], needs: Set[str], shares: Callable[[], Shares] | None) -> Joined:
        """See `Joining.join`."""
        items = np.unique(np.concatenate([entry.rows for entry in drawn]))
        columns = items[None].repeat(len(drawn), axis=0)
        joined = Joined(columns, shared=True)
        for name in ("teacher", "retriever"):
            if all(getattr(entry, name) is not None for entry in drawn):
                values = np.full(columns.shape, np.nan, dtype=np.float32)
                for row, entry in enumerate(drawn):
                    values[row, np.searchsorted(items, entry.rows)] = getattr(entry, name)
                setattr(joined, name, values)
        if "batch_log_q" in needs and shares is not None:
            others = batch_probability(shares().any[items], len(drawn))
            own = np.stack([entry.inclusion.of(items) if entry.inclusion else 0 * others for entry in drawn])
            joined.batch_log_q = logs(1 - (1 - own) * (1 - others))
        return joined


class OtherPositives(Shared):
    """The positives of the batch's other queries are candidates, too, behind a query's own, and marked as such.

    A positive of another query that is in the query's own list is marked there. For `OtherPositivesCrossEntropy`, which
    can take off log Q = log(1 - (1 - p)^(B - 1)), p being an item's share of the training positives.

    Args:
        lists: how each query gets its own.
    """

    def gives(self, miner: Set[str]) -> frozenset[str]:
        """See `TrainingLists.gives`."""
        return (self.lists.gives(miner) - {"halves"}) | {"others"} | self._in_batch()

    def join(self, drawn: Sequence[Drawn], needs: Set[str], shares: Callable[[], Shares] | None) -> Joined:
        """See `Joining.join`."""
        own = alone(drawn)
        positives = np.unique(np.concatenate([entry.rows[np.isin(entry.rows, entry.relevant)] for entry in drawn]))
        relevant = np.stack([np.isin(positives, entry.relevant) for entry in drawn])
        listed = (positives[:, None] == own.columns[:, None]).any(axis=2)
        columns = np.concatenate([own.columns, np.where(relevant | listed, -1, positives)], axis=1)
        marked = np.isin(own.columns, positives) & (own.columns >= 0)
        marked &= ~np.stack([np.isin(row, entry.relevant) for row, entry in zip(own.columns, drawn, strict=True)])
        others = np.concatenate([marked, np.ones(relevant.shape, dtype=np.bool_)], axis=1)
        joined = Joined(
            columns,
            others=others,
            teacher=_widened(own.teacher, columns),
            retriever=_widened(own.retriever, columns),
        )
        if shares is not None and ("batch_log_q" in needs or own.log_q is not None):
            brought = batch_probability(shares().positive[columns.clip(min=0)], len(drawn))
            joined.batch_log_q = _where(columns, logs(brought))
            if own.log_q is not None:
                # An item is a candidate by the query's own draw or by another query.
                pairs = zip(drawn, columns, strict=True)
                listed_by = np.stack([entry.inclusion.of(row) for entry, row in pairs if entry.inclusion])
                joined.log_q = _where(columns, logs(1 - (1 - listed_by) * (1 - brought)))
        return joined


def _where(columns: Rows, values: Floats) -> Floats:
    return np.where(columns >= 0, values, 0.0)


def _widened(values: Any, columns: Rows) -> Any:
    if values is None:
        return None
    missing = np.full((len(columns), columns.shape[1] - values.shape[1]), np.nan, dtype=np.float32)
    return np.concatenate([values, missing], axis=1)
