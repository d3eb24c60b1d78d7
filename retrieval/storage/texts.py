"""Texts on disk, as a sequence of items; and the rows of ids, without a dictionary of them."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, overload

import numpy as np
import torch
from numpy.typing import NDArray

from simzoo.core.files import replacing
from simzoo.core.records import DataError, Item
from simzoo.core.reps import Ragged

COLUMN = "texts"
FIELDS = 3  # id, title, text
WITHHELD = b"\xff"  # no UTF-8 has this byte: in a text's place, before the sha256 of the title and the text
WITHHELD_BYTES = len(WITHHELD) + hashlib.sha256().digest_size

Rows = NDArray[np.int64]
Hashes = NDArray[np.uint64]


def text_column(items: Sequence[Item]) -> Ragged:
    """Id, title and text of each item as UTF-8, end to end: (3 M + 1,) offsets."""
    parts = [part.encode() for item in items for part in (item.id, item.title, item.text)]
    lengths = torch.tensor([0, *map(len, parts)], dtype=torch.int64)
    values = np.frombuffer(b"".join(parts), dtype=np.uint8).copy()
    return Ragged(torch.from_numpy(values), lengths.cumsum(0))


def without_texts(column: Ragged) -> Ragged:
    """A column of `text_column` with the ids and, in place of titles and texts, their hashes."""
    store = TextStore(column.values.numpy(), column.offsets.numpy())
    parts = [part for row in range(len(store)) for part in (store.id(row).encode(), b"", WITHHELD + store.sha256(row))]
    lengths = torch.tensor([0, *map(len, parts)], dtype=torch.int64)
    return Ragged(torch.from_numpy(np.frombuffer(b"".join(parts), dtype=np.uint8).copy()), lengths.cumsum(0))


class TextStore(Sequence[Item]):
    """N items in a mapped file; one is decoded when it is asked for.

    Of an item whose text was withheld when its index was published there is the id and a hash. Asking for such an item
    is refused, so that no searcher takes an empty text for its text; `shown` is for results.

    Args:
        values: the bytes of `text_column`.
        offsets: (3 N + 1,).
    """

    def __init__(self, values: NDArray[np.uint8], offsets: NDArray[np.int64]) -> None:
        self._values = values
        self._offsets = offsets

    def __len__(self) -> int:
        return max(0, len(self._offsets) - 1) // FIELDS

    @overload
    def __getitem__(self, row: int) -> Item: ...
    @overload
    def __getitem__(self, row: slice) -> list[Item]: ...
    def __getitem__(self, row: int | slice) -> Item | list[Item]:
        if isinstance(row, slice):
            return [self[one] for one in range(*row.indices(len(self)))]
        row = range(len(self))[row]
        if self._withheld(row):
            raise DataError(
                f"the text of item {self.id(row)!r} is not in this index, which was published without texts; a "
                "similarity and a first stage that read texts cannot search it"
            )
        name, title, text = (self._bytes(row, field).decode() for field in range(FIELDS))
        return Item(name, text, title)

    def __iter__(self) -> Iterator[Item]:
        return (self[row] for row in range(len(self)))

    def id(self, row: int) -> str:
        """The id of the item at a row; cheaper than the item."""
        return self._bytes(row, 0).decode()

    def shown(self, row: int) -> Item:
        """The item at a row, without a text where that was withheld."""
        return Item(self.id(row), "") if self._withheld(row) else self[row]

    def sha256(self, row: int) -> bytes:
        """Of title and text, with a zero byte in between."""
        if self._withheld(row):
            return self._bytes(row, 2).removeprefix(WITHHELD)
        return hashlib.sha256(self._bytes(row, 1) + b"\0" + self._bytes(row, 2)).digest()

    def _withheld(self, row: int) -> bool:
        text = self._bytes(row, 2)
        return len(text) == WITHHELD_BYTES and text.startswith(WITHHELD)

    def _bytes(self, row: int, field: int) -> bytes:
        start, stop = self._offsets[FIELDS * row + field : FIELDS * row + field + 2].tolist()
        return self._values[start:stop].tobytes()


def id_hashes(ids: Sequence[str]) -> Hashes:
    """(M,) the first 64 bits of BLAKE2b of each id."""
    digests = b"".join(hashlib.blake2b(name.encode("utf-8", "surrogatepass"), digest_size=8).digest() for name in ids)
    return np.frombuffer(digests, dtype="<u8")


@dataclass(frozen=True)
class IdRun:
    """Hashes of the ids of some rows, ascending, and the rows.

    Attributes:
        hashes: (M,).
        rows: (M,).
    """

    hashes: Hashes
    rows: Rows

    @classmethod
    def of(cls, hashes: Sequence[Hashes], rows: Sequence[Rows]) -> IdRun:
        """From unsorted parts."""
        every = np.concatenate([np.empty(0, dtype=np.uint64), *hashes])
        order = np.argsort(every, kind="stable")
        return cls(every[order], np.concatenate([np.empty(0, dtype=np.int64), *rows])[order])

    @classmethod
    def open(cls, path: Path, count: int) -> IdRun:
        """What `write` wrote for ``count`` rows, mapped.

        Raises:
            DataError: the file is missing or has another size.
        """
        size = path.stat().st_size if path.exists() else -1
        if size != 16 * count:
            raise DataError(f"is missing or cut short: {16 * count:,} bytes are needed, {max(size, 0):,} there", path)
        if not count:
            return cls.of([], [])
        words: Any = np.memmap(path, dtype="<u8", mode="r")
        return cls(words[:count], words[count:].view(np.int64))

    def write(self, path: Path) -> None:
        """Two arrays end to end."""
        with replacing(path) as file:
            file.write(np.ascontiguousarray(self.hashes).data)
            file.write(np.ascontiguousarray(self.rows).data)

    def rows_below(self, count: int) -> Rows:
        """The rows.

        Raises:
            DataError: one of them is none of ``count``.
        """
        return _checked(self.rows, count)

    def find(self, hashes: Hashes) -> tuple[Rows, Rows]:
        """Every (place in ``hashes``, row) whose hashes are equal."""
        first = np.searchsorted(self.hashes, hashes, side="left")
        counts = np.searchsorted(self.hashes, hashes, side="right") - first
        places = np.repeat(np.arange(len(hashes)), counts)
        steps = np.arange(len(places)) - np.repeat(np.cumsum(counts) - counts, counts)
        return places, np.asarray(self.rows[np.repeat(first, counts) + steps])


def _checked(rows: Rows, count: int) -> Rows:
    if rows.size and not (rows.min() >= 0 and rows.max() < count):
        raise DataError(
            f"the ids of the index name the rows {rows.min()} to {rows.max()}, but they run from 0 to {count - 1}; "
            "restore its folder from a copy or build anew"
        )
    return rows


def rows_of(ids: Sequence[str], runs: Sequence[IdRun], texts: TextStore, gone: NDArray[np.bool_] | None) -> Rows:
    """(M,) the row of each id that is there; -1: there is none.

    Args:
        ids: M.
        runs: of all rows.
        texts: for the ids themselves: two may have the same hash.
        gone: (N,) rows that are no longer there.
    """
    found = np.full(len(ids), -1, dtype=np.int64)
    hashes = id_hashes(ids)
    for run in runs:
        places, rows = run.find(hashes)
        for place, row in zip(places.tolist(), _checked(rows, len(texts)).tolist(), strict=True):
            if (gone is None or not gone[row]) and texts.id(row) == ids[place]:
                found[place] = row
    return found
