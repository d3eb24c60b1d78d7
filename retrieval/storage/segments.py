"""A folder of columns that only grow, of which a `Generation` says how much counts.

Every column is one file (a ragged one is two) to whose end rows are appended. ``generation.json`` names the lengths and
is replaced atomically; what lies behind a length is not there. So a process that is killed at any moment leaves the old
generation or the new one, adding costs what is added, and readers keep what they have mapped: nothing that a generation
names is ever changed. Removed rows are tombstones in a column of their own, until `compacted` copies the others.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import torch
from numpy.typing import NDArray

from simzoo.core.files import remove_scratch, sync_folder
from simzoo.core.records import DataError
from simzoo.core.reps import Ragged
from simzoo.retrieval.storage.checksums import sample_sha256, whole_sha256
from simzoo.retrieval.storage.generation import REMOVED, Column, Generation, Segment

LOG = "adding.log"
LOGGED = {"base", "digest", "lengths", "columns"}
BLOCK = 16_384  # rows copied at once by a compaction

Array = NDArray[Any]
Block = Mapping[str, "Array | Ragged"]
"""Rows to be appended: (M, ...) arrays and ragged columns, by name."""


class Columns:
    """The columns of one generation, memory-mapped.

    Args:
        folder: of the generation.
        generation: which.

    Raises:
        DataError: a file is missing, cut short or not what was written.
    """

    def __init__(self, folder: Path, generation: Generation) -> None:
        self.folder = folder / generation.data
        self.generation = generation
        for name, length in generation.lengths.items():
            path = self.folder / name
            size = path.stat().st_size if path.exists() else -1
            if size < length:
                raise DataError(f"is missing or cut short: {length:,} bytes are needed, {max(size, 0):,} there", path)
        # All at once: a compaction may remove the files, but not what is mapped.
        self._mapped: dict[str, Array] = {}
        for name, column in generation.columns.items():
            self._mapped[name] = self._map(name, column.dtype, column.width)
            if column.fields:
                self._mapped[f"{name}.offsets"] = self._map(f"{name}.offsets", "int64", ())
        self._gone = self._map(REMOVED, "int64", ())
        self._check(sample_sha256, "samples")

    def verify(self) -> None:
        """Compares every byte, which takes as long as reading it.

        Raises:
            DataError: a part is not what was written.
        """
        self._check(whole_sha256, "sums")

    def _check(self, digest: Callable[[Path, int, int], str], kind: str) -> None:
        for segment in self.generation.segments:
            for name, expected in getattr(segment, kind).items():
                if digest(self.folder / name, segment.begins[name], segment.ends[name]) != expected:
                    raise DataError(
                        f"is not what was written (checksum of rows {segment.start} to {segment.stop - 1}); restore it "
                        "from a copy or build anew",
                        self.folder / name,
                    )

    def values(self, name: str) -> Array:
        """(N, ...) one value a row, or all values of a ragged column; mapped, and a private copy if written to."""
        return self._mapped[name]

    def offsets(self, name: str) -> NDArray[np.int64]:
        """(fields N + 1,) where the sequences of a ragged column begin."""
        return self._mapped[f"{name}.offsets"]

    def part(self, name: str) -> torch.Tensor | Ragged:
        """The column as a part of a representation."""
        values = torch.from_numpy(self.values(name))
        if not self.generation.columns[name].fields:
            return values
        return Ragged(values, torch.from_numpy(self.offsets(name)))

    def removed(self) -> NDArray[np.bool_] | None:
        """(N,) rows that are tombstones; None: none."""
        if not self.generation.lengths.get(REMOVED):
            return None
        gone = np.zeros(self.generation.rows, dtype=bool)
        rows = self._gone
        if rows.min() < 0 or rows.max() >= len(gone):
            raise DataError(f"names rows {rows.min()} to {rows.max()} of {len(gone)}", self.folder / REMOVED)
        gone[rows] = True
        return gone

    def _map(self, name: str, dtype: str, width: tuple[int, ...]) -> Array:
        size = int(np.dtype(dtype).itemsize) * math.prod(width)
        shape = (self.generation.lengths.get(name, 0) // size, *width)
        if not math.prod(shape):
            return np.empty(shape, dtype=dtype)
        # "c": torch wants memory that may be written to; nothing writes, and the file would not change.
        return np.asarray(np.memmap(self.folder / name, dtype=dtype, mode="c", shape=shape))


class Growing:
    """Rows being appended behind a generation; for who holds the folder's lock.

    Every block is logged when it is on disk. A process that adds the same blocks again after a kill finds them by their
    digests and goes on behind them.

    Args:
        folder: of the generation.
        base: what is there.
    """

    def __init__(self, folder: Path, base: Generation) -> None:
        self.folder = folder / base.data
        self.folder.mkdir(parents=True, exist_ok=True)
        self.base = base
        self.rows = base.rows
        self.columns = dict(base.columns)
        self.lengths = dict(base.lengths)
        self._done = _logged(self.folder / LOG, base.number)
        self._open = ExitStack()
        self._files: dict[str, BinaryIO] = {}
        self._log: BinaryIO | None = None

    def resumed(self, digest: str, rows: int) -> bool:
        """Whether the next block is on disk already, from an attempt that was killed."""
        if self._files or not self._done or self._done[0]["digest"] != digest:
            self._done = []
            return False
        entry = self._done.pop(0)
        self.rows += rows
        self.lengths = entry["lengths"]
        self.columns = {name: Column(c[0], tuple(c[1]), c[2]) for name, c in entry["columns"].items()}
        self._end = entry["end"]
        return True

    _end = 0  # of the part of the log that counts

    def append(self, block: Block, digest: str, rows: int) -> None:
        """Puts M rows on disk.

        Raises:
            ValueError: the columns are not those of the rows before.
            OSError: there is no room; what is there already stays.
        """
        found = {name: _column(part, rows) for name, part in block.items()}
        if self.rows and found != self.columns:
            differing = sorted(n for n in found | self.columns if found.get(n) != self.columns.get(n))
            raise ValueError(f"the columns {differing} differ from those of the rows before: was another model used?")
        self.columns = found
        for name, part in block.items():
            if isinstance(part, Ragged):
                self._append_ragged(name, part)
            else:
                self._write(name, np.ascontiguousarray(part))
        for file in self._files.values():
            file.flush()
            os.fsync(file.fileno())
        self.rows += rows
        columns = {name: [c.dtype, c.width, c.fields] for name, c in self.columns.items()}
        entry = {"base": self.base.number, "digest": digest, "lengths": self.lengths, "columns": columns}
        if self._log is None:
            self._log = self._opened(LOG, self._end)
        self._log.write(json.dumps(entry).encode() + b"\n")
        self._log.flush()
        os.fsync(self._log.fileno())

    def _append_ragged(self, name: str, part: Ragged) -> None:
        offsets = part.offsets.numpy()
        size = self.columns[name].value_bytes
        first = self.lengths.get(name, 0) // size
        if not self.lengths.get(f"{name}.offsets"):
            self._write(f"{name}.offsets", np.zeros(1, dtype=np.int64))
        self._write(f"{name}.offsets", offsets[1:] - offsets[0] + first)
        self._write(name, np.ascontiguousarray(part.values[int(offsets[0]) : int(offsets[-1])].numpy()))

    def remove(self, rows: Sequence[int]) -> None:
        """Tombstones, which count with the next generation."""
        self._write(REMOVED, np.asarray(rows, dtype=np.int64))

    def _write(self, name: str, array: Array) -> None:
        if name not in self._files:
            self._files[name] = self._opened(name, self.lengths.get(name, 0))
        self._files[name].write(array.data if array.size else b"")
        self.lengths[name] = self.lengths.get(name, 0) + array.nbytes

    def _opened(self, name: str, length: int) -> BinaryIO:
        """At its end, which is where the generation ends: what a killed process wrote behind it goes."""
        file = self._open.enter_context(_appending(self.folder / name))
        file.truncate(length)
        file.seek(length)
        return file

    def finished(self, extras: Mapping[str, Any]) -> Generation:
        """The next generation; not on disk before `Generation.write`."""
        for file in self._files.values():
            file.flush()
            os.fsync(file.fileno())
        sync_folder(self.folder)
        segments = list(self.base.segments)
        if self.rows > self.base.rows:
            first = merged_from([(s.start, s.stop) for s in segments], self.rows)
            kept = [s for s in segments if s.start < first]
            begins = kept[-1].ends if kept else {}
            segments = [*kept, self._segment(first, begins)]
        number = self.base.number + 1
        return replace(
            self.base, number=number, rows=self.rows, columns=self.columns, lengths=self.lengths,
            segments=tuple(segments), extras=extras,
        )  # fmt: skip

    def _segment(self, start: int, begins: Mapping[str, int]) -> Segment:
        ends = {name: length for name, length in self.lengths.items() if name != REMOVED}
        starts = {name: begins.get(name, 0) for name in ends}
        samples = {name: sample_sha256(self.folder / name, starts[name], ends[name]) for name in ends}
        sums = {name: whole_sha256(self.folder / name, starts[name], ends[name]) for name in ends}
        return Segment(start, self.rows, starts, ends, samples, sums)

    def view(self) -> Columns:
        """What was appended so far."""
        return Columns(
            self.folder.parent,
            replace(self.base, rows=self.rows, columns=self.columns, lengths=dict(self.lengths), segments=()),
        )

    def close(self) -> None:
        """Closes the files."""
        self._open.close()


def _appending(path: Path) -> BinaryIO:
    return path.open("r+b" if path.exists() else "w+b")


def _column(part: Array | Ragged, rows: int) -> Column:
    if isinstance(part, Ragged):
        values = part.values.numpy()
        return Column(values.dtype.str, values.shape[1:], len(part) // rows)
    return Column(part.dtype.str, part.shape[1:])


def _logged(path: Path, number: int) -> list[dict[str, Any]]:
    """The blocks that an earlier attempt behind generation ``number`` has put on disk."""
    found: list[dict[str, Any]] = []
    for line in path.read_bytes().splitlines(keepends=True) if path.exists() else ():
        try:
            entry = json.loads(line) if line.endswith(b"\n") else {}
        except (ValueError, RecursionError):
            entry = {}  # half a line
        if not isinstance(entry, dict) or not entry.keys() >= LOGGED or entry["base"] != number:
            break
        entry["end"] = (found[-1]["end"] if found else 0) + len(line)
        found.append(entry)
    return found


def compacted(
    folder: Path, columns: Columns, kept: NDArray[np.int64], change: Callable[[Block], Block] = dict
) -> Growing:
    """The rows ``kept`` of a generation, copied into a folder of their own as the rows of the next one.

    Args:
        folder: in which that folder is made.
        columns: of the generation.
        kept: rows.
        change: of each block before it is written.
    """
    old = columns.generation
    empty = Generation(number=old.number, data=f"data-{old.number + 1:06d}")
    shutil.rmtree(folder / empty.data, ignore_errors=True)  # of a compaction that was killed
    copy = Growing(folder, empty)
    for start in range(0, len(kept), BLOCK):
        rows = kept[start : start + BLOCK]
        block: dict[str, Array | Ragged] = {}
        for name, column in old.columns.items():
            part = columns.part(name)
            if isinstance(part, Ragged):
                fields = (rows[:, None] * column.fields + np.arange(column.fields)).reshape(-1)
                block[name] = part.take(torch.from_numpy(fields))
            else:
                block[name] = part.numpy()[rows]
        copy.append(change(block), "", len(rows))
    return copy


def merged_from(runs: Sequence[tuple[int, int]], stop: int) -> int:
    """The first row of the run that ends at ``stop``, if runs that are not twice as long as it are merged into it.

    So there are never more than about log2(N) runs, and each row is written log2(N) times at most.
    """
    start = runs[-1][1] if runs else 0
    for first, last in reversed(runs):
        if last - first > 2 * (stop - start):
            break
        start = first
    return start


def tidy(folder: Path, generation: Generation, mentioned: Iterable[str]) -> None:
    """Removes what nothing names: leftovers of kills, and what the last change replaced; under the lock.

    What a killed process had added and logged stays, for the one that goes on.

    Args:
        folder: of the generation.
        generation: what is there.
        mentioned: names of the other files and folders in its data folder that belong to it.
    """
    data = folder / generation.data
    staged = _logged(data / LOG, generation.number)
    keep = {*generation.lengths, *mentioned, *(staged[-1]["lengths"] if staged else ()), *([LOG] if staged else ())}
    leftovers = [path for path in folder.glob("data-*") if path.name != generation.data]
    leftovers += [path for path in (data.iterdir() if data.exists() else ()) if path.name not in keep]
    for path in leftovers:
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)
    remove_scratch(folder)


def records_digest(records: Sequence[Any], vectors: Array | None = None) -> str:
    """sha256 of all that a block of records says, and of the vectors that came with it."""
    digest = hashlib.sha256("\x1e".join(map(repr, records)).encode("utf-8", "surrogatepass"))
    if vectors is not None:
        digest.update(np.ascontiguousarray(vectors).data)
    return digest.hexdigest()
