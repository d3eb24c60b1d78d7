"""Lists from files: a query, its items, and what a teacher thinks of them; streamed in constant memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence, Set
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from simzoo.core.batch import Batch
from simzoo.core.records import Collection, DataError, Item
from simzoo.datamodules.lists.base import BatchLists, Drawn, Joining, OwnLists, Scores, as_batch
from simzoo.datamodules.loading import Loading, cut, uncounted
from simzoo.datamodules.readers.lessons import Lesson, read_lessons

__all__ = ["FromFiles", "HalvesFromFiles", "Lessons", "StreamLoader"]


class FromFiles(OwnLists):
    """Lists of items with a teacher's scores, from JSON lines or Parquet. The source serves validation only.

    A record is ``{"query": {"id", "content"}, "items": [{"id", "content", "score", "type"}, ...]}``, the layout of the
    released Hypencoder training data; ``score`` and ``type`` may be missing, an item may have a ``title`` and a query a
    ``mention`` [start, end). `evaluate.py teach` writes such files. Files are read one after the other through
    a buffer that shuffles, so that their size does not matter; a resumed run goes on behind the records it has seen.

    Args:
        records: files ending in .jsonl, .jsonl.gz or .parquet, or folders of such files.
        positive_type: ``type`` of the relevant items; None: the first item of a record is the relevant one.
        max_negatives: at most so many of a record's other items, drawn anew in each epoch; None: all.
        buffer: records that are shuffled among each other.
    """

    def __init__(
        self,
        records: list[Path],
        positive_type: str | None = None,
        max_negatives: int | None = None,
        buffer: int = 10_000,
    ) -> None:
        if not records:
            raise ValueError("records names no file")
        if buffer < 1 or (max_negatives is not None and max_negatives < 0):
            raise ValueError(f"buffer must be at least 1 and max_negatives at least 0, got {buffer}, {max_negatives}")
        self.records = records
        self.positive_type = positive_type
        self.max_negatives = max_negatives
        self.buffer = buffer

    def gives(self, miner: Set[str]) -> frozenset[str]:
        """See `TrainingLists.gives`: the records' scores, NaN where a record has none."""
        return frozenset({"teacher"})

    @cached_property
    def files(self) -> list[Path]:
        """The files of the records, those of a folder by name.

        Raises:
            DataError: a folder has none.
        """
        return [file for path in self.records for file in _files(path)]

    def chosen(self, lesson: Lesson, rng: np.random.Generator) -> tuple[list[int], Scores]:
        """Places in a record of the items of one list, and the scores (K,) that go with them.

        Here the positives and the drawn negatives, in the record's order, all with their scores.
        """
        negatives = [place for place, positive in enumerate(lesson.positive) if not positive]
        if self.max_negatives is not None and len(negatives) > self.max_negatives:
            negatives = rng.choice(negatives, self.max_negatives, replace=False).tolist()
        kept = sorted([*(place for place, positive in enumerate(lesson.positive) if positive), *negatives])
        return kept, np.array([lesson.scores[place] for place in kept], dtype=np.float32)

    def part(
        self, collection: Collection, model: Any, seed: int, needs: Set[str], joining: Joining | None = None
    ) -> BatchLists:
        """Not used: the files bring their own queries."""
        raise TypeError("FromFiles brings its own queries, and makes no lists of a collection")

    def loader(
        self,
        loading: Loading,
        model: Any,
        parts: Callable[[], Sequence[BatchLists]],
        needs: Set[str],
        joining: Joining | None = None,
    ) -> DataLoader[Batch]:
        """See `TrainingLists.loader`: batches of the records, in an order that depends on (seed, epoch) alone."""
        return StreamLoader(Lessons(self, joining or self, loading, model, needs))


class HalvesFromFiles(FromFiles):
    """A teacher's top items of each record with its scores, and as many hard negatives: the first others of the record.

    For `MatchLoss` and `PairLoss` (ANNCUR A.3), as `Distilled` is, from files. Relevant items are never negatives. With
    files of `evaluate.py teach`, whose records go on in the first stage's order, these are its first ones.

    Args:
        records: as in `FromFiles`.
        top: how many of either.
        positive_type: as in `FromFiles`.
        buffer: as in `FromFiles`.
    """

    def __init__(
        self, records: list[Path], top: int = 16, positive_type: str | None = None, buffer: int = 10_000
    ) -> None:
        super().__init__(records, positive_type, None, buffer)
        if top < 1:
            raise ValueError(f"top must be at least 1, got {top}")
        self.top = top

    def gives(self, miner: Set[str]) -> frozenset[str]:
        """See `TrainingLists.gives`."""
        return frozenset({"teacher", "halves"})

    def chosen(self, lesson: Lesson, rng: np.random.Generator) -> tuple[list[int], Scores]:
        """See `FromFiles.chosen`.

        Raises:
            DataError: the record has too few items, or some without a score.
        """
        scores = np.array(lesson.scores, dtype=np.float32)
        order = np.argsort(-scores, kind="stable")[: self.top].tolist()
        others = [place for place in range(len(scores)) if place not in order and not lesson.positive[place]]
        if len(others) < self.top or np.isnan(scores).any():
            raise DataError(
                f"query {lesson.query.id!r} has {len(scores)} items, {int(np.isfinite(scores).sum())} of them with a "
                f"score; {self.top} top ones and as many negatives (data.lists.top) need {2 * self.top} with one and "
                "some more for the relevant ones: teach more items a query (--top)"
            )
        return [*order, *others[: self.top]], np.append(scores[order], np.full(self.top, np.nan, dtype=np.float32))


def _files(path: Path) -> list[Path]:
    if not path.is_dir():
        return [path]
    found = sorted(one for one in path.iterdir() if one.name.endswith((".jsonl", ".jsonl.gz", ".parquet")))
    if not found:
        raise DataError("is a folder without files of records (.jsonl, .jsonl.gz, .parquet)", path)
    return found


class StreamLoader(DataLoader[Batch]):
    """Begins an epoch where the trainer stands; see `simzoo.datamodules.loading.ResumableLoader`."""

    def __init__(self, lessons: Lessons) -> None:
        super().__init__(lessons, batch_size=None, **lessons.loading.options)
        self.lessons = lessons

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]  # torch promises its own iterator class
        self.lessons.epoch, self.lessons.start = self.lessons.loading.place()
        yield from super().__iter__()


class Lessons(IterableDataset[Batch]):
    """A rank's shares of the joint batches. Of several workers each makes every so-manieth one, in the same order.

    Args:
        lists: the files and the settings.
        joining: what puts the lists of a batch together.
        loading: batch size, seed and rank.
        model: what tokenises.
        needs: what the loss needs.
    """

    def __init__(self, lists: FromFiles, joining: Joining, loading: Loading, model: Any, needs: Set[str]) -> None:
        super().__init__()
        self.lists = lists
        self.joining = joining
        self.loading = loading
        self.collate_queries, self.collate_items = model.collate_queries, model.collate_items
        self.needs = needs
        self.epoch = self.start = 0

    def __iter__(self) -> Iterator[Batch]:
        # The order does not depend on what is made of the records, so that those seen are passed over cheaply.
        rng = np.random.default_rng([self.loading.seed, self.epoch, 0])
        worker = get_worker_info()
        place, workers = (0, 1) if worker is None else (worker.id, worker.num_workers)
        for number, lessons in enumerate(self.batches(rng)):
            if number >= self.start and (number - self.start) % workers == place:
                yield self._share(lessons, number)

    def batches(self, rng: np.random.Generator) -> Iterator[list[Lesson]]:
        """The records of the joint batches: every rank reads all files, and makes tensors of its share."""
        batch = []
        for lesson in self._shuffled(rng):
            batch.append(lesson)
            if len(batch) == self.loading.joint_size:
                yield batch
                batch = []
        if batch:
            yield batch

    def _shuffled(self, rng: np.random.Generator) -> Iterator[Lesson]:
        """The records through the buffer."""
        buffer: list[Lesson] = []
        for lesson in self._read():
            if len(buffer) < self.lists.buffer:
                buffer.append(lesson)
                continue
            place = int(rng.integers(len(buffer)))
            yield buffer[place]
            buffer[place] = lesson
        for place in rng.permutation(len(buffer)):
            yield buffer[place]

    def _read(self) -> Iterator[Lesson]:
        return (lesson for path in self.lists.files for lesson in read_lessons(path, self.lists.positive_type))

    def _share(self, lessons: Sequence[Lesson], number: int) -> Batch:
        rng = np.random.default_rng([self.loading.seed, self.epoch, 0, number])
        chosen = [self.lists.chosen(lesson, rng) for lesson in lessons]
        if self.joining.across:
            return cut(self._batch(lessons, chosen), self.loading.share)
        places = self.loading.share.places(len(lessons))
        if own := lessons[places]:
            return self._batch(own, chosen[places])
        return uncounted(self._batch(lessons[:1], chosen[:1]))

    def _batch(self, lessons: Sequence[Lesson], chosen: Sequence[tuple[list[int], Scores]]) -> Batch:
        """The lists of lessons, of each the places of its chosen items and their scores."""
        rows: dict[str, int] = {}
        items: list[Item] = []
        drawn = []
        for lesson, (places, scores) in zip(lessons, chosen, strict=True):
            for place in places:
                item = lesson.items[place]
                if rows.setdefault(item.id, len(items)) == len(items):
                    items.append(item)
            own = np.array([rows[lesson.items[place].id] for place in places], dtype=np.int64)
            drawn.append(Drawn(own, own[[lesson.positive[place] for place in places]], scores))
        joined = self.joining.join(drawn, self.needs, None)
        queries = self.collate_queries([lesson.query for lesson in lessons])
        return as_batch(joined, drawn, queries, self.collate_items(items), [lesson.query.id for lesson in lessons])
