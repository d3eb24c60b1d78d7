"""Next-item recommendation: histories by user, split by leaving the last actions out, and their training batches."""

from __future__ import annotations

from collections.abc import Sequence, Set
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from simzoo.core.batch import Batch
from simzoo.core.records import Collection, DataError, History, Item
from simzoo.core.reps import Ragged, Reps, take
from simzoo.core.targets import Targets
from simzoo.datamodules.lists.base import BatchLists, TrainingLists
from simzoo.datamodules.loading import Share, uncounted
from simzoo.datamodules.readers.interactions import Interactions, Layout, load_interactions
from simzoo.datamodules.sources import Source, Split

__all__ = ["NextItemEvaluation", "NextItemLists", "NextItemTraining", "NextItems", "leave_one_out"]

Rows = NDArray[np.int64]

NO_NEXT = "users with one training action, which has no next one: not trained on"


class NextItems(Source):
    """Users' histories; the item to be found is the one that comes next.

    Of a user's n actions the last is for testing, the one before it for validation (leave-one-out by time); training
    goes over the first n - 2, each position predicting the next. RAILS's authors train on the first n - 1 and look at
    the last one while they train: ``hold_out=False``.

    Args:
        path: the file of interactions.
        layout: its layout: sasrec, recbole, movielens or amazon; see `load_interactions`.
        min_actions: users with fewer actions are dropped and counted; at least 3.
        min_item_actions: items with fewer actions are dropped and counted, before the users are.
        hold_out: keeps an action of each user apart to choose the best step by; otherwise that is chosen on the action
            that tests, too, and the result says less about new ones.
        unused_items: keeps items in the catalogue whose users were all dropped; otherwise they are dropped and counted.
    """

    def __init__(
        self,
        path: Path,
        layout: Layout,
        min_actions: int = 5,
        min_item_actions: int = 1,
        hold_out: bool = True,
        unused_items: bool = True,
    ) -> None:
        if min_actions < 3:
            raise ValueError(f"min_actions must be at least 3 (train, validation, test), got {min_actions}")
        self.path = path
        self.layout = layout
        self.min_actions = min_actions
        self.min_item_actions = min_item_actions
        self.hold_out = hold_out
        self.unused_items = unused_items

    @cached_property
    def interactions(self) -> Interactions:
        """What the file holds, without rare items and users."""
        read = load_interactions(self.path, self.layout)
        return read.frequent(self.min_actions, self.min_item_actions, self.unused_items)

    @property
    def item_ids(self) -> list[str]:
        """Every item's id, by row: the command line hands them to the model, whose embeddings are as many."""
        return list(self.interactions.item_ids)

    def read(self, split: Split) -> list[Collection]:
        """The histories of a split, each with its next item."""
        return [leave_one_out(self.interactions, split, self.hold_out)]


class NextItemLists(TrainingLists):
    """Every position of a history with its next item and drawn negatives, or all items; for `NextItems`.

    Negatives are drawn evenly, so that there is nothing to correct.

    Args:
        sampling: a training position's candidates besides the next item. ``position``: ``negatives`` items, drawn for
            each position alone. ``batch``: ``negatives`` items, drawn for all positions of the batch together, which
            makes the scores one matrix product. ``all``: every item.
        negatives: how many are drawn, uniformly and with replacement.
        avoid_seen: draws no item of the user's own training history, as SASRec does; otherwise only the next item
            itself is never drawn.
        val_negatives: validate and test against so many random items that the user has not seen, for example 100 as in
            the SASRec paper, the same ones each time; None: against every item not seen.
    """

    validates_mined = False

    def __init__(
        self,
        sampling: Literal["position", "batch", "all"] = "position",
        negatives: int = 128,
        avoid_seen: bool = False,
        val_negatives: int | None = None,
    ) -> None:
        if negatives < 1 or (val_negatives is not None and val_negatives < 1):
            raise ValueError(f"negatives and val_negatives must be at least 1, got {negatives} and {val_negatives}")
        self.sampling = sampling
        self.negatives = negatives
        self.avoid_seen = avoid_seen
        self.val_negatives = val_negatives

    def part(
        self, collection: Collection, model: Any, seed: int = 0, needs: Set[str] = frozenset()
    ) -> NextItemTraining:
        """See `TrainingLists.part`."""
        return NextItemTraining(self, collection, model, seed)

    def validation(
        self, collection: Collection, model: Any, seed: int = 0, depth: int | None = 0
    ) -> NextItemEvaluation:
        """See `TrainingLists.validation`; there is no depth."""
        return NextItemEvaluation(self, collection, model, seed)


def leave_one_out(interactions: Interactions, split: Split, hold_out: bool = True) -> Collection:
    """The histories of a split and the item that follows each: the user's last one (test), the one before (dev), ...

    Args:
        interactions: at least three actions a user.
        split: train: the first n - 3 actions, and the next one; every shorter prefix is trained on, too.
        hold_out: otherwise train has the first n - 2 actions, and the next one; dev is what test is.

    Returns:
        The collection; its notes count the users who have no training action with a next one.
    """
    behind = {"train": 3, "dev": 2, "test": 1}[split]
    if not hold_out:
        behind = max(behind - 1, 1)
    names = interactions.item_ids
    queries, judgements = [], []
    offsets = interactions.offsets
    for user, start, stop in zip(interactions.user_ids, offsets, offsets[1:], strict=False):
        end = stop - behind
        if end <= start:
            continue
        items = tuple(names[row] for row in interactions.items[start:end])
        times = None if interactions.times is None else tuple(interactions.times[start:end].tolist())
        now = None if interactions.times is None else int(interactions.times[end])
        queries.append(History.of(user, items, times, now))
        judgements.append({int(interactions.items[end]): 1})
    left = len(interactions.user_ids) - len(queries)
    return Collection(
        interactions.name,
        [Item(name, interactions.texts.get(name, "")) for name in names],
        queries,
        judgements,
        notes={**interactions.notes, **({NO_NEXT: left} if left else {})},
    )


class _Histories(BatchLists):
    """The histories of a collection as rows, and as the model's tokens."""

    def __init__(self, lists: NextItemLists, collection: Collection, model: Any, seed: int) -> None:
        self.lists = lists
        self.seed = seed
        self.num_items = len(collection.items)
        self.ids = [query.id for query in collection.queries]
        self.queries: Reps = model.collate_queries(collection.queries)
        self.items: Reps = model.collate_items(collection.items)
        rows = {item.id: row for row, item in enumerate(collection.items)}
        self.sequences: list[Rows] = []
        for place, query in enumerate(collection.queries):
            assert isinstance(query, History)
            self.sequences.append(np.array([*(rows[i] for i in query.items), *collection.relevant(place)]))
        # The items of each history and the next one, sorted, once each: what must not be drawn as a negative.
        self.seen = [np.unique(sequence) for sequence in self.sequences]

    def __len__(self) -> int:
        return len(self.ids)

    def _check_unseen(self, needed: int, reason: str) -> None:
        for name, seen in zip(self.ids, self.seen, strict=True):
            if self.num_items - len(seen) < needed:
                raise DataError(
                    f"user {name!r} has not seen {self.num_items - len(seen)} of the {self.num_items} items; {reason} "
                    f"needs at least {needed}"
                )

    def _batch(
        self,
        members: Sequence[int],
        candidates: Rows,
        labels: torch.Tensor,
        mask: torch.Tensor,
        every_position: bool,
        shared: Rows | None = None,
    ) -> Batch:
        items, places = self.items, [candidates, *([] if shared is None else [shared])]
        # Sorting out which items are needed pays off only if they are few among all.
        if sum(rows.size for rows in places) < self.num_items:
            chosen, where = np.unique(np.concatenate([rows.ravel() for rows in places]), return_inverse=True)
            items = take(self.items, torch.from_numpy(chosen))
            places = [where[: candidates.size].reshape(candidates.shape), where[candidates.size :]][: len(places)]
        return Batch(
            queries=take(self.queries, torch.tensor(np.asarray(members))),
            items=items,
            candidates=torch.from_numpy(places[0]),
            targets=Targets(labels, mask),
            query_ids=[self.ids[member] for member in members],
            every_position=every_position,
            shared=None if shared is None else torch.from_numpy(places[1]),
        )


class NextItemTraining(_Histories):
    """Every position of the histories, with its next item and negatives."""

    def __init__(self, lists: NextItemLists, collection: Collection, model: Any, seed: int) -> None:
        super().__init__(lists, collection, model, seed)
        if lists.avoid_seen:
            self._check_unseen(1, "avoid_seen")
        tokens = self.queries["ids"]
        assert isinstance(tokens, Ragged)
        # A model reads the last so many actions of a history; only they have a position to predict from.
        kept = tokens.lengths.tolist()
        self.targets = [sequence[-count:] for sequence, count in zip(self.sequences, kept, strict=True)]

    def batch(self, members: Sequence[int], epoch: int) -> Batch:
        """See `BatchLists.batch`. T positions, with (T, 1 + negatives) candidates, or (T, 1) and shared ones."""
        return self._drawn(members, epoch, members[0])

    def share(self, members: Sequence[int], epoch: int, share: Share) -> Batch:
        """See `BatchLists.share`: negatives of the batch are drawn for all ranks together, others for each rank."""
        own = members[share.places(len(members))]
        first = members[0] if self.lists.sampling == "batch" or not own else own[0]
        return self._drawn(own, epoch, first) if own else uncounted(self._drawn(members[:1], epoch, first))

    def _drawn(self, members: Sequence[int], epoch: int, first: int) -> Batch:
        positives = np.concatenate([self.targets[member] for member in members])
        users = np.repeat(np.arange(len(members)), [len(self.targets[member]) for member in members])
        # A batch's members are drawn anew in every epoch, so that its first one tells it from the others.
        rng = np.random.default_rng([self.seed, epoch, first])
        shared = None
        candidates = positives[:, None]
        if self.lists.sampling == "position":
            negatives = self._negatives(rng, members, users, positives)
            candidates = np.concatenate([candidates, negatives], axis=1)
            counted = np.ones(negatives.shape, dtype=bool)
        else:
            whole = self.lists.sampling == "all"
            shared = np.arange(self.num_items) if whole else rng.integers(self.num_items, size=self.lists.negatives)
            counted = shared != candidates
            if self.lists.avoid_seen:
                counted &= ~np.stack([np.isin(shared, self.seen[member]) for member in members])[users]
        mask = torch.from_numpy(np.concatenate([np.ones((len(users), 1), dtype=bool), counted], axis=1))
        labels = torch.zeros(mask.shape)
        labels[:, 0] = 1
        return self._batch(members, candidates, labels, mask, True, shared)

    def _negatives(self, rng: np.random.Generator, members: Sequence[int], users: Rows, positives: Rows) -> Rows:
        """(T, negatives)."""
        shape = (len(positives), self.lists.negatives)
        if not self.lists.avoid_seen:
            drawn = rng.integers(self.num_items - 1, size=shape)
            return drawn + (drawn >= positives[:, None])
        seen = [self.seen[member] for member in members]
        left = np.array([self.num_items - len(banned) for banned in seen])
        return outside(seen, rng.integers(left[users][:, None], size=shape), users[:, None])


class NextItemEvaluation(_Histories):
    """Whole histories, with the next item among every item not seen, or among sampled ones."""

    def __init__(self, lists: NextItemLists, collection: Collection, model: Any, seed: int) -> None:
        super().__init__(lists, collection, model, seed)
        self._check_unseen(lists.val_negatives or 1, "ranking the next item among items not seen")

    def batch(self, members: Sequence[int], epoch: int) -> Batch:
        """See `BatchLists.batch`. Candidates (1, M) with the seen items masked, or (B, 1 + val_negatives)."""
        targets = np.array([self.sequences[member][-1] for member in members])
        if self.lists.val_negatives is not None:
            candidates = np.stack([self._sampled(member, self.lists.val_negatives) for member in members])
            labels = torch.zeros(candidates.shape)
            labels[:, 0] = 1
            return self._batch(members, candidates, labels, torch.ones(labels.shape, dtype=torch.bool), False)
        mask = torch.ones(len(members), self.num_items, dtype=torch.bool)
        for place, member in enumerate(members):
            mask[place, self.seen[member]] = False
        labels = torch.zeros(mask.shape)
        labels[torch.arange(len(members)), targets] = 1
        mask[labels > 0] = True
        return self._batch(members, np.arange(self.num_items)[None], labels, mask, False)

    def _sampled(self, member: int, count: int) -> Rows:
        """(1 + count,): the next item, then items not seen, each once, the same in every epoch."""
        rng = np.random.default_rng([self.seed, member])
        seen = self.seen[member]
        drawn = rng.choice(self.num_items - len(seen), count, replace=False)
        return np.concatenate([self.sequences[member][-1:], outside([seen], drawn, np.zeros_like(drawn))])


def outside(banned: Sequence[Rows], drawn: Rows, which: Rows) -> Rows:
    """The items numbered ``drawn`` among those that are not banned: draws from the complement without rejection.

    Args:
        banned: for each of some users the rows of items, sorted, once each.
        drawn: any shape, numbers in [0, items - n) for n banned ones.
        which: user of each number, in a shape that is expanded to that of ``drawn``.

    Returns:
        Rows of items, as many.
    """
    # How many items that are not banned stand before each banned one; of all users in one sorted list.
    before = np.concatenate([rows - np.arange(len(rows)) for rows in banned])
    starts = np.cumsum([0, *(len(rows) for rows in banned)])
    apart = 1 + max(int(before.max(initial=0)), int(drawn.max(initial=0)))
    keys = before + np.repeat(np.arange(len(banned)) * apart, np.diff(starts))
    shifted: Rows = drawn + np.searchsorted(keys, drawn + which * apart, side="right") - starts[which]
    return shifted
