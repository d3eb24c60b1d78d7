"""Training on the entries of a sparse score matrix: its queries with the items that were scored for them."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence, Set
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from simzoo.core.batch import Batch
from simzoo.core.records import Collection, DataError
from simzoo.core.reps import Reps, take
from simzoo.core.targets import Targets
from simzoo.datamodules.lists.base import BatchLists, TrainingLists
from simzoo.datamodules.readers.score_entries import read_entries
from simzoo.datamodules.sources import Source, Split

__all__ = ["MatrixEntries", "ScoredPairs"]

Rows = NDArray[np.int64]


class ScoredPairs(Source):
    """The items of a collection, and the training queries of a sparse score matrix with their scored items.

    The scores are those of ``evaluate.py sparse_matrix``, normalised with its alpha and beta. Validation has the same
    queries: `MatrixEntries` holds some of their entries out.

    Args:
        data: the data that the matrix was made with.
        matrix: its folder.
    """

    def __init__(self, data: Source, matrix: Path) -> None:
        self.data = data
        self.matrix = matrix

    @cached_property
    def collection(self) -> Collection:
        """The items, and the queries with ``candidates`` and ``scores``, read once.

        Raises:
            DataError: the matrix was made with other data.
        """
        entries = read_entries(self.matrix)
        every = self.data.collections("test")
        found = [collection for collection in every if collection.fingerprint == entries.fingerprint]
        if not found:
            names = ", ".join(f"{one.name} {one.fingerprint[:12]}" for one in every)
            raise DataError(
                f"was made with other data (fingerprint {entries.fingerprint[:12]}) than {names} as it is now: same "
                "version and options?",
                self.matrix,
            )
        queries = {query.id: query for query in (*found[0].queries, *found[0].anchors)}
        spans = list(zip(entries.offsets[:-1].tolist(), entries.offsets[1:].tolist(), strict=True))
        scores = entries.normalized
        return Collection(
            found[0].name,
            found[0].items,
            [queries[name] for name in entries.query_ids],
            [{} for _ in entries.query_ids],
            candidates=[entries.items[start:stop] for start, stop in spans],  # type: ignore[misc]  # arrays: 12 bytes
            scores=[scores[start:stop] for start, stop in spans],  # type: ignore[misc]  # an entry, not a hundred
        )

    @property
    def item_ids(self) -> list[str]:
        """See `Source.item_ids`."""
        return [item.id for item in self.collection.items]

    @property
    def query_ids(self) -> list[str]:
        """See `Source.query_ids`."""
        return [query.id for query in self.collection.queries]

    def read(self, split: Split) -> list[Collection]:
        """See `Source.read`: the same queries for every split."""
        return [self.collection]


class MatrixEntries(TrainingLists):
    """All entries of a sparse score matrix, a query's together; for `ScoredPairs`, with `SquaredError`.

    Args:
        entries: most entries of a query in one batch; a query with more stands in several.
        held_out: share of the entries that are validated on and not trained on: in validation the item of a query's
            best held-out score is the relevant one. 0: none, without validation.
    """

    validates_mined = False

    def __init__(self, entries: int = 128, held_out: float = 0.1) -> None:
        if entries < 1 or not 0 <= held_out < 1:
            raise ValueError(f"entries must be at least 1 and held_out a share in [0, 1), got {entries} and {held_out}")
        self.entries = entries
        self.held_out = held_out

    def gives(self, miner: Set[str]) -> frozenset[str]:
        """See `TrainingLists.gives`."""
        return frozenset({"teacher"})

    def part(self, collection: Collection, model: Any, seed: int, needs: Set[str]) -> EntryLists:
        """See `TrainingLists.part`."""
        return EntryLists(self, collection, model, seed, held=False)

    def validation(self, collection: Collection, model: Any, seed: int, depth: int | None) -> EntryLists:
        """See `TrainingLists.validation`; there is no depth."""
        return EntryLists(self, collection, model, seed, held=True)


class EntryLists(BatchLists):
    """The entries of a collection, those held out or the others, in runs of one query each.

    Of the items only those are collated that entries name. It holds 8 bytes an entry besides.
    """

    def __init__(self, lists: MatrixEntries, collection: Collection, model: Any, seed: int, held: bool) -> None:
        if not collection.scores:
            raise DataError(f"{collection.name} has no scored candidates; MatrixEntries is for ScoredPairs")
        self.collection = collection
        self.runs: list[tuple[int, Rows]] = []  # a query and places among its entries
        for row, query in enumerate(collection.queries):
            digest = hashlib.sha256(query.id.encode()).digest()
            rng = np.random.default_rng([seed, int.from_bytes(digest[:8], "little")])
            out = rng.random(len(collection.candidates[row])) < lists.held_out
            places = np.flatnonzero(out == held)
            # Not in the items' order, which may say something of them.
            shuffled = rng.permutation(places)
            size = len(shuffled) if held else lists.entries
            self.runs += [(row, shuffled[start : start + size]) for start in range(0, len(shuffled), max(size, 1))]
        named = [np.asarray(collection.candidates[row])[places] for row, places in self.runs]
        self.held = held
        self.known = np.unique(np.concatenate(named)) if named else np.empty(0, dtype=np.int64)
        self.queries: Reps = model.collate_queries(collection.queries)
        self.items: Reps = model.collate_items([collection.items[row] for row in self.known.tolist()])

    def __len__(self) -> int:
        return len(self.runs)

    def batch(self, members: Sequence[int], epoch: int) -> Batch:
        """See `BatchLists.batch`; candidates (B, K), -1 behind a run's last entry; their scores are the teacher's."""
        runs = [self.runs[member] for member in members]
        width = max(len(places) for _, places in runs)
        columns = np.full((len(runs), width), -1, dtype=np.int64)
        teacher = np.full((len(runs), width), np.nan, dtype=np.float32)
        for place, (row, places) in enumerate(runs):
            columns[place, : len(places)] = np.asarray(self.collection.candidates[row])[places]
            teacher[place, : len(places)] = np.asarray(self.collection.scores[row])[places]
        chosen, where = np.unique(columns, return_inverse=True)
        padded = int(chosen[0] == -1)
        labels = torch.zeros(columns.shape)
        if self.held:
            labels[torch.arange(len(runs)), torch.from_numpy(np.nanargmax(teacher, axis=1))] = 1
        return Batch(
            take(self.queries, torch.tensor([row for row, _ in runs])),
            take(self.items, torch.from_numpy(np.searchsorted(self.known, chosen[padded:]))),
            torch.from_numpy(where.reshape(columns.shape)) - padded,
            Targets(labels, torch.from_numpy(columns >= 0), torch.from_numpy(teacher)),
            [self.collection.queries[row].id for row, _ in runs],
        )
