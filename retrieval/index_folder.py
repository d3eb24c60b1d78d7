"""Items, their ids and their vectors in one folder: added, updated, removed and compacted, by one writer at a time."""

from __future__ import annotations

import os
import shutil
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simzoo.core.files import copy_folder, replacing, sync_folder
from simzoo.core.hub import check_links
from simzoo.core.locks import locked
from simzoo.core.records import DataError, Item
from simzoo.core.reps import Ragged
from simzoo.retrieval.first_stages.segmented_index import SegmentedIndex, kind_of, next_parts
from simzoo.retrieval.first_stages.vector_index import Auto, FaissKind, open_index
from simzoo.retrieval.index_extras import check_extras, ids_file, mentioned, part_folder
from simzoo.retrieval.storage.generation import GENERATION, Generation
from simzoo.retrieval.storage.segments import (
    Block,
    Columns,
    Growing,
    compacted,
    merged_from,
    records_digest,
    tidy,
)
from simzoo.retrieval.storage.texts import COLUMN, IdRun, TextStore, id_hashes, rows_of, text_column, without_texts

VECTORS = "vectors"
QUIET_SECONDS = 30.0  # between two lines about a long addition

Given = NDArray[np.float32] | None
Represent = Callable[[Sequence[Item], Given], Mapping[str, "NDArray[Any] | Ragged"]]
Rows = NDArray[np.int64]


@dataclass(frozen=True)
class Opened:
    """One generation of an index folder, mapped.

    Attributes:
        generation: which.
        columns: all that is kept of the items.
        items: N items, removed ones included.
        removed: (N,) tombstones; None: none.
        ids: hashes of the ids.
        vectors: the index over the column ``vectors``; None: there is none.
    """

    generation: Generation
    columns: Columns
    items: TextStore
    removed: NDArray[np.bool_] | None
    ids: Sequence[IdRun]
    vectors: SegmentedIndex | None

    def rows(self, ids: Sequence[str]) -> Rows:
        """(M,) rows of ids; -1 for those that are not there."""
        return rows_of(ids, self.ids, self.items, self.removed)

    @property
    def count(self) -> int:
        """Items that are there."""
        return self.generation.rows - (0 if self.removed is None else int(np.count_nonzero(self.removed)))


class IndexFolder:
    """The folder.

    Args:
        folder: where; made by the first addition.
        kind: how vectors are indexed.
    """

    def __init__(self, folder: Path, kind: Auto | FaissKind) -> None:
        self.folder = folder
        self.kind = kind

    def read(self) -> Opened:
        """The newest generation.

        Raises:
            DataError: a file is missing, cut short or not what was written.
        """
        if self.folder.is_dir():
            check_links(self.folder)
        for _ in range(10):
            generation = Generation.read(self.folder)
            try:
                return self._opened(generation)
            except (DataError, OSError):
                # A compaction may have replaced it since its number was read.
                if Generation.read(self.folder).number == generation.number:
                    raise
        raise DataError("changes faster than it can be opened", self.folder)

    def _opened(self, generation: Generation) -> Opened:
        check_extras(self.folder / GENERATION, generation)
        columns = Columns(self.folder, generation)
        extras = generation.extras
        items = TextStore(np.empty(0, dtype=np.uint8), np.zeros(1, dtype=np.int64))
        vectors = None
        if generation.rows:
            items = TextStore(columns.values(COLUMN), columns.offsets(COLUMN))
            if VECTORS in generation.columns:
                every = columns.values(VECTORS)
                parts = [
                    (start, open_index(columns.folder / part_folder(start, stop), every[start:stop]))
                    for start, stop in extras.get("parts", ())
                ]
                vectors = SegmentedIndex(every, parts)
        ids = [IdRun.open(columns.folder / ids_file(*run), run[1] - run[0]) for run in extras.get("ids", ())]
        return Opened(generation, columns, items, columns.removed(), ids, vectors)

    # -- writing -------------------------------------------------------------------------------------------------------

    @contextmanager
    def writing(self) -> Iterator[Opened]:
        """The newest generation, for the one who may write another; what nothing names is removed before and after."""
        with locked(self.folder):
            opened = self.read()
            tidy(self.folder, opened.generation, mentioned(opened.generation))
            yield opened
            generation = Generation.read(self.folder)
            tidy(self.folder, generation, mentioned(generation))

    def add(self, blocks: Iterable[tuple[Sequence[Item], Given]], represent: Represent, update: bool = False) -> None:
        """Adds items block by block; all of them count at the end, or none.

        A process that was killed and adds the same blocks again goes on behind those that it had finished.

        Args:
            blocks: of items, and their vectors (M, d) where they are at hand.
            represent: the columns of a block besides its texts.
            update: the ids have to be there, and what they stood for is removed; otherwise they have to be new.

        Raises:
            DataError: an id that is there already, or is not; or stands twice.
            InUse: another process writes to the folder.
            OSError: there is no room.
        """
        with self.writing() as opened:
            growing = Growing(self.folder, opened.generation)
            try:
                ids = _Ids(opened, growing, update)
                told = _Progress()
                for block, vectors in blocks:
                    ids.take(block)
                    digest = records_digest(block, vectors)
                    if not growing.resumed(digest, len(block)):
                        columns = {COLUMN: text_column(block), **represent(block, vectors)}
                        growing.append(columns, digest, len(block))
                    told(growing.rows - opened.generation.rows)
                if growing.rows > opened.generation.rows:
                    if update:
                        growing.remove(ids.replaced)
                    self._commit(growing, ids.run())
            finally:
                growing.close()

    def remove(self, ids: Sequence[str]) -> None:
        """Tombstones; nothing else is written.

        Raises:
            DataError: an id that is not there; then none is removed.
            InUse: another process writes to the folder.
        """
        with self.writing() as opened:
            rows = np.unique(_there(opened, ids))
            growing = Growing(self.folder, opened.generation)
            try:
                if len(rows):
                    growing.remove(rows.tolist())
                    growing.finished(opened.generation.extras).write(self.folder)
            finally:
                growing.close()

    def compact(self) -> None:
        """Copies what is there into new files, without what was removed, under one index."""
        with self.writing() as opened:
            parts = opened.generation.extras.get("parts", [])
            if opened.removed is None and len(opened.generation.segments) <= 1 and len(parts) <= 1:
                return
            self._compact(opened)

    def extract(self, source: Opened, texts: bool = True) -> None:
        """Copies what is there in another index, and nothing of what was removed, into this folder, which is empty.

        Args:
            source: a generation of the other index.
            texts: with the items' texts; otherwise with their hashes.
        """
        self._compact(source, dict if texts else _withheld)

    def _compact(self, source: Opened, change: Callable[[Block], Block] = dict) -> None:
        gone = source.removed if source.removed is not None else np.zeros(source.generation.rows, dtype=bool)
        kept = np.flatnonzero(~gone)
        hashes = np.empty(source.generation.rows, dtype=np.uint64)
        for run in source.ids:
            hashes[run.rows_below(len(hashes))] = run.hashes
        copy = compacted(self.folder, source.columns, kept, change)
        try:
            self._commit(copy, IdRun.of([hashes[kept]], [np.arange(len(kept))]))
        finally:
            copy.close()

    def keep(self, opened: Opened, settings: str, state: Mapping[str, NDArray[Any]]) -> None:
        """Keeps what a searcher has made of a generation, for whoever opens the folder next.

        Args:
            opened: what it was made of; if another one is there by now, nothing is kept.
            settings: digest of all that it depends on besides the items.
            state: arrays by name.

        Raises:
            InUse: another process writes to the folder.
            OSError: no room, or no right to write.
        """
        with self.writing() as now:
            number = now.generation.number + 1
            if not same_items(now, opened):
                return
            name = f"search-{number:06d}"
            for array, values in state.items():
                with replacing(self.folder / now.generation.data / name / f"{array}.npy") as file:
                    np.save(file, values)
            made = {"folder": name, "settings": settings, "rows": now.generation.rows, "arrays": sorted(state)}
            extras = {**now.generation.extras, "search": made}
            replace(now.generation, number=number, extras=extras).write(self.folder)

    def kept(self, opened: Opened, settings: str) -> tuple[dict[str, NDArray[Any]], int] | None:
        """What `keep` kept for the same settings, mapped, and of how many rows; None: nothing that can be used."""
        made = opened.generation.extras.get("search")
        if made is None or made["settings"] != settings:
            return None
        folder = opened.columns.folder / made["folder"]
        try:
            arrays = {name: np.load(folder / f"{name}.npy", mmap_mode="r") for name in made["arrays"]}
        except (OSError, ValueError):
            return None  # it can be made again
        return arrays, made["rows"]

    def copy(self, target: Path) -> None:
        """Copies everything in the folder to another place, where it appears as a whole.

        Raises:
            InUse: another process writes to the folder.
        """
        scratch = target.with_name(f"{target.name}.{os.getpid()}.tmp")
        shutil.rmtree(scratch, ignore_errors=True)
        with locked(self.folder):
            try:
                copy_folder(self.folder, scratch, "writer.lock", "*.tmp")
                for path in [*scratch.rglob("*"), scratch]:
                    sync_folder(path)
                os.replace(scratch, target)
            finally:
                shutil.rmtree(scratch, ignore_errors=True)
        sync_folder(target.parent)

    def _commit(self, growing: Growing, new: IdRun) -> None:
        """Ids and vectors of the new rows, then the next generation."""
        base, folder = growing.base, growing.folder
        runs = [tuple(run) for run in base.extras.get("ids", ())]
        first = merged_from(runs, growing.rows)
        merged = [IdRun.open(folder / ids_file(*run), run[1] - run[0]) for run in runs if run[0] >= first]
        if growing.rows > first:
            every = [*merged, new]
            run = IdRun.of([part.hashes for part in every], [part.rows for part in every])
            run.write(folder / ids_file(first, growing.rows))
            runs = [*(run for run in runs if run[0] < first), (first, growing.rows)]
        parts = [tuple(part) for part in base.extras.get("parts", ())]
        if VECTORS in growing.columns:
            parts, build = next_parts(parts, growing.rows, self.kind)
            if build is not None:
                vectors = growing.view().values(VECTORS)[build[0] : build[1]]
                kind_of(self.kind, growing.rows).build(vectors).save(folder / part_folder(*build))
                parts.append(build)
        extras: dict[str, Any] = {"ids": runs, "parts": parts}
        if "search" in base.extras:
            extras["search"] = base.extras["search"]
        growing.finished(extras).write(self.folder)


class _Ids:
    """The ids of what is being added: new ones or old ones, each once."""

    def __init__(self, opened: Opened, growing: Growing, update: bool) -> None:
        self._opened = opened
        self._growing = growing
        self._update = update
        self._row = opened.generation.rows
        self._runs: list[IdRun] = []
        self.replaced: list[int] = []

    def take(self, block: Sequence[Item]) -> None:
        """Checks a block and remembers it, before it is represented."""
        names = [item.id for item in block]
        there = self._opened.rows(names)
        wrong = np.flatnonzero((there < 0) if self._update else (there >= 0))
        if wrong.size:
            name = names[wrong[0]]
            if self._update:
                raise DataError(f"there is no item {name!r} to update; add it", self._opened.columns.folder.parent)
            raise DataError(f"item {name!r} is there already; update it", self._opened.columns.folder.parent)
        hashes = id_hashes(names)
        run = IdRun.of([hashes], [np.arange(self._row, self._row + len(block))])
        twice = self._earlier(names, hashes, run)
        if twice is not None:
            raise DataError(f"item {twice!r} is given twice; ids must differ", self._opened.columns.folder.parent)
        self.replaced += there.tolist() if self._update else []
        self._row += len(block)
        self._runs.append(run)
        while len(self._runs) > 1 and len(self._runs[-2].rows) <= 2 * len(self._runs[-1].rows):
            last = [self._runs.pop(), self._runs.pop()]
            self._runs.append(IdRun.of([part.hashes for part in last], [part.rows for part in last]))

    def _earlier(self, names: Sequence[str], hashes: NDArray[np.uint64], run: IdRun) -> str | None:
        if (run.hashes[1:] == run.hashes[:-1]).any():
            seen: set[str] = set()
            for name in names:
                if name in seen:
                    return name
                seen.add(name)
        for earlier in self._runs:
            places, rows = earlier.find(hashes)
            if len(places):  # nearly always the same id
                columns = self._growing.view()
                texts = TextStore(columns.values(COLUMN), columns.offsets(COLUMN))
                for place, row in zip(places.tolist(), rows.tolist(), strict=True):
                    name = names[int(place)]
                    if texts.id(row) == name:
                        return name
        return None

    def run(self) -> IdRun:
        """All of them."""
        return IdRun.of([run.hashes for run in self._runs], [run.rows for run in self._runs])


class _Progress:
    """A line about a long addition every half minute, on standard error."""

    def __init__(self) -> None:
        self._start = self._last = time.monotonic()

    def __call__(self, done: int) -> None:
        now = time.monotonic()
        if now - self._last >= QUIET_SECONDS:
            self._last = now
            print(f"added {done:,} items, {done / (now - self._start):,.0f} a second", file=sys.stderr, flush=True)


def _there(opened: Opened, ids: Sequence[str]) -> Rows:
    rows = opened.rows(ids)
    missing = np.flatnonzero(rows < 0)
    if missing.size:
        others = f" (nor {missing.size - 1} more of {len(ids)})" if missing.size > 1 else ""
        raise DataError(
            f"there is no item {ids[missing[0]]!r}{others}; none was removed",
            opened.columns.folder.parent,
        )
    return rows


def same_items(one: Opened, other: Opened) -> bool:
    """Whether two generations differ in nothing but what was made of their items."""
    return replace(one.generation, number=0, extras={}) == replace(other.generation, number=0, extras={})


def _withheld(block: Block) -> Block:
    texts = block[COLUMN]
    assert isinstance(texts, Ragged)
    return {**block, COLUMN: without_texts(texts)}
