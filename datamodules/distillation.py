"""Training lists from files: a query, its items, and what a teacher thinks of them; streamed in constant memory."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import torch
from torch.utils.data import DataLoader, IterableDataset

from simzoo.core.batch import Batch
from simzoo.core.records import Collection, DataError, Item, Query
from simzoo.core.targets import Targets
from simzoo.datamodules.lists import RetrievalData, Split
from simzoo.datamodules.readers.json_lines import Record, read_json_lines

BLOCK = 1024  # rows of a Parquet file held at once


@dataclass(frozen=True)
class Lesson:
    """One record.

    Attributes:
        query: the query.
        items: K items, each id once.
        positive: whether each is relevant.
        scores: the teacher's scores; NaN where there is none.
    """

    query: Query
    items: Sequence[Item]
    positive: Sequence[bool]
    scores: Sequence[float]


class Distillation(RetrievalData):
    """Lists of items with a teacher's scores, from JSON lines or Parquet; dev and test from another data module.

    A record is ``{"query": {"id", "content"}, "items": [{"id", "content", "score", "type"}, ...]}``, the layout of the
    released Hypencoder training data; ``score`` and ``type`` may be missing, an item may have a ``title`` and a query a
    ``mention`` [start, end). `evaluate.py teach` writes such files. Files are read one after the other through
    a buffer that shuffles, so that their size does not matter; a resumed run goes on behind the records it has seen.

    Args:
        records: files ending in .jsonl, .jsonl.gz or .parquet.
        validation: where dev and test come from; None: no validation.
        positive_type: ``type`` of the relevant items; None: the first item of a record is the relevant one.
        batch_size: queries a batch.
        max_negatives: at most so many of a record's other items, drawn anew in each epoch; None: all.
        other_positives: the positives of the batch's other queries are candidates too, behind a query's own, and marked
            as such (`OtherPositivesCrossEntropy`).
        buffer: records that are shuffled among each other.
        seed: of order and draws; None: 0, on the command line seed_everything.
    """

    def __init__(
        self,
        records: list[Path],
        validation: RetrievalData | None = None,
        positive_type: str | None = None,
        batch_size: int = 8,
        max_negatives: int | None = None,
        other_positives: bool = True,
        buffer: int = 10_000,
        seed: int | None = None,
    ) -> None:
        super().__init__(batch_size=batch_size, seed=seed)
        if not records:
            raise ValueError("records names no file")
        if buffer < 1 or (max_negatives is not None and max_negatives < 0):
            raise ValueError(f"buffer must be at least 1 and max_negatives at least 0, got {buffer}, {max_negatives}")
        self.records = records
        self.validation = validation
        self.positive_type = positive_type
        self.max_negatives = max_negatives
        self.other_positives = other_positives
        self.buffer = buffer
        if validation is not None:
            self.val_depth = validation.val_depth

    def read(self, split: Split) -> list[Collection]:
        """The collections of dev and test; training has none."""
        if split == "train" or self.validation is None:
            return []
        return self.validation.collections(split)

    def train_dataloader(self) -> DataLoader[Batch]:
        """Batches of the records, in an order that depends on (seed, epoch) alone."""
        trainer = self.trainer
        assert trainer is not None
        progress = trainer.fit_loop.epoch_loop.batch_progress

        def place() -> tuple[int, int]:
            return int(trainer.current_epoch), int(progress.current.completed)

        lessons = Lessons(self, trainer.lightning_module, place, trainer.global_rank, trainer.world_size)
        return DataLoader(lessons, batch_size=None)


class Lessons(IterableDataset[Batch]):
    """The batches of one rank.

    Args:
        data: the files and the settings.
        model: what tokenises.
        place: (epoch, batches done) of the trainer.
        rank: of this process.
        world_size: processes; each takes its own records.
    """

    def __init__(
        self, data: Distillation, model: Any, place: Callable[[], tuple[int, int]], rank: int, world_size: int
    ) -> None:
        super().__init__()
        self.data = data
        self.model = model
        self.place = place
        self.rank = rank
        self.world_size = world_size

    def __iter__(self) -> Iterator[Batch]:
        epoch, done = self.place()
        # The order does not depend on what is made of the records, so that those seen are passed over cheaply.
        rng = np.random.default_rng([self.data.seed, epoch, self.rank])
        for number, lessons in enumerate(self._batches(rng)):
            if number >= done:
                yield self._batch(lessons, epoch, number)

    def _batches(self, rng: np.random.Generator) -> Iterator[list[Lesson]]:
        batch = []
        for lesson in self._shuffled(rng):
            batch.append(lesson)
            if len(batch) == self.data.batch_size:
                yield batch
                batch = []
        # Ranks must take the same number of steps: the incomplete batch is left to the next epoch's order.
        if batch and self.world_size == 1:
            yield batch

    def _shuffled(self, rng: np.random.Generator) -> Iterator[Lesson]:
        """The rank's records through the buffer; whole rounds of all ranks only."""
        buffer: list[Lesson] = []
        for lesson in self._own():
            if len(buffer) < self.data.buffer:
                buffer.append(lesson)
                continue
            place = int(rng.integers(len(buffer)))
            yield buffer[place]
            buffer[place] = lesson
        for place in rng.permutation(len(buffer)):
            yield buffer[place]

    def _own(self) -> Iterator[Lesson]:
        every = (lesson for path in self.data.records for lesson in read_lessons(path, self.data.positive_type))
        turn: list[Lesson] = []
        for lesson in every:
            turn.append(lesson)
            if len(turn) == self.world_size:
                yield turn[self.rank]
                turn = []

    def _batch(self, lessons: Sequence[Lesson], epoch: int, number: int) -> Batch:
        rng = np.random.default_rng([self.data.seed, epoch, self.rank, number])
        rows: dict[str, int] = {}
        items: list[Item] = []
        lists, positives, scores = [], [], []
        for lesson in lessons:
            kept = self._kept(lesson, rng)
            for place in kept:
                item = lesson.items[place]
                if rows.setdefault(item.id, len(items)) == len(items):
                    items.append(item)
            lists.append([rows[lesson.items[place].id] for place in kept])
            positives.append({rows[lesson.items[place].id] for place in kept if lesson.positive[place]})
            scores.append([lesson.scores[place] for place in kept])
        width = max(len(entry) for entry in lists)
        columns = np.full((len(lessons), width), -1, dtype=np.int64)
        taught = np.full((len(lessons), width), np.nan, dtype=np.float32)
        for row, (entry, values) in enumerate(zip(lists, scores, strict=True)):
            columns[row, : len(entry)], taught[row, : len(entry)] = entry, values
        others = None
        if self.data.other_positives:
            every = np.unique([row for own in positives for row in own])
            added = np.stack([np.where(np.isin(every, list(own)), -1, every) for own in positives])
            # An item that is in the query's own list must not come a second time.
            added = np.where((added[:, :, None] == columns[:, None]).any(axis=2), -1, added)
            columns = np.concatenate([columns, added], axis=1)
            taught = np.concatenate([taught, np.full(added.shape, np.nan, dtype=np.float32)], axis=1)
            others = torch.arange(columns.shape[1]).expand(columns.shape) >= width
        labels = np.stack([np.isin(row, list(own)) for row, own in zip(columns, positives, strict=True)])
        return Batch(
            self.model.collate_queries([lesson.query for lesson in lessons]),
            self.model.collate_items(items),
            torch.from_numpy(columns),
            Targets(
                torch.from_numpy(labels.astype(np.float32)),
                torch.from_numpy(columns >= 0),
                torch.from_numpy(taught),
                others,
            ),
            [lesson.query.id for lesson in lessons],
        )

    def _kept(self, lesson: Lesson, rng: np.random.Generator) -> list[int]:
        """Places of the items of one list: the positives and the drawn negatives, in the record's order."""
        negatives = [place for place, positive in enumerate(lesson.positive) if not positive]
        if self.data.max_negatives is not None and len(negatives) > self.data.max_negatives:
            negatives = rng.choice(negatives, self.data.max_negatives, replace=False).tolist()
        return sorted([*(place for place, positive in enumerate(lesson.positive) if positive), *negatives])


def read_lessons(path: Path, positive_type: str | None = None) -> Iterator[Lesson]:
    """The records of a file, one at a time.

    Raises:
        DataError: with file and line (of Parquet: row): a record without query, items or a positive; an item twice; a
            score that is not a number.
    """
    records = _parquet(path) if path.suffix == ".parquet" else read_json_lines(path)
    for record in records:
        yield _lesson(record, positive_type)


def _parquet(path: Path) -> Iterator[Record]:
    if not path.is_file():
        raise DataError("there is no such file", path)
    try:
        file = pq.ParquetFile(path)
        number = 0
        for batch in file.iter_batches(BLOCK):
            for fields in batch.to_pylist():
                number += 1
                yield Record(fields, path, number)
        if number == 0:
            raise DataError("holds no rows", path)
    except (OSError, ValueError) as error:
        if isinstance(error, DataError):
            raise
        raise DataError(f"is not a whole Parquet file ({error})", path) from error


def _lesson(record: Record, positive_type: str | None) -> Lesson:
    query, listed = record.fields.get("query"), record.fields.get("items")
    if not isinstance(query, dict) or not isinstance(listed, list) or not listed:
        raise record.error("expected the keys query, an object, and items, a list that is not empty")
    asked = Record(query, record.path, record.line)
    items, scores, kinds = [], [], []
    for fields in listed:
        if not isinstance(fields, dict):
            raise record.error(f"expected an item as an object, got {fields!r}")
        item = Record(fields, record.path, record.line)
        items.append(Item(item.identifier("id"), item.text("content"), item.text("title", "")))
        scores.append(_score(item))
        kinds.append(fields.get("type"))
    if len({item.id for item in items}) != len(items):
        raise record.error(f"query {asked.identifier('id')!r} lists an item more than once")
    first = [True] + [False] * (len(items) - 1)
    positive = first if positive_type is None else [kind == positive_type for kind in kinds]
    if not any(positive):
        raise record.error(
            f"query {asked.identifier('id')!r} has no item of type {positive_type!r}; its types are "
            f"{', '.join(sorted({repr(kind) for kind in kinds}))}"
        )
    mention = query.get("mention")
    if mention is not None and not (isinstance(mention, list) and list(map(type, mention)) == [int, int]):
        raise record.error(f"expected [start, end] under 'mention', got {mention!r}")
    try:
        span = None if mention is None else (mention[0], mention[1])
        return Lesson(Query(asked.identifier("id"), asked.text("content"), span), items, positive, scores)
    except DataError as error:
        raise record.error(str(error)) from error


def _score(item: Record) -> float:
    return math.nan if item.fields.get("score") is None else item.number("score")
