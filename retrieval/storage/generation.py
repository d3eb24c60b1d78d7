"""What an index folder holds now: one small file, replaced atomically."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from simzoo.core.files import read_object, replacing
from simzoo.core.records import DataError

GENERATION = "generation.json"
FORMAT = 1
REMOVED = "removed"


@dataclass(frozen=True)
class Column:
    """What a column holds.

    Attributes:
        dtype: of a value.
        width: shape of a value.
        fields: sequences a row, where rows are ragged; 0: one value a row.
    """

    dtype: str
    width: tuple[int, ...] = ()
    fields: int = 0

    @property
    def value_bytes(self) -> int:
        """Bytes of one value."""
        return int(np.dtype(self.dtype).itemsize) * math.prod(self.width)


@dataclass(frozen=True)
class Segment:
    """Rows that were added together, or merged since.

    Attributes:
        start: first row.
        stop: behind the last row.
        begins: byte at which each file's part of it begins.
        ends: byte behind it.
        samples: `checksums.sample_sha256` of each part, which opening compares.
        sums: sha256 of each part, which `Columns.verify` compares.
    """

    start: int
    stop: int
    begins: Mapping[str, int]
    ends: Mapping[str, int]
    samples: Mapping[str, str]
    sums: Mapping[str, str]


@dataclass(frozen=True)
class Generation:
    """What is in the folder now.

    Attributes:
        number: counts the changes.
        data: folder of the columns.
        rows: N, removed ones included.
        columns: by name.
        lengths: bytes of each file that count.
        segments: in the order of their rows.
        extras: other files and folders that belong to it, in ``data``: their owner's business.
    """

    number: int = 0
    data: str = "data-000001"
    rows: int = 0
    columns: Mapping[str, Column] = field(default_factory=dict)
    lengths: Mapping[str, int] = field(default_factory=dict)
    segments: tuple[Segment, ...] = ()
    extras: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def read(cls, folder: Path) -> Generation:
        """The one on disk; the empty one, where there is none yet.

        Raises:
            DataError: the file is damaged, or of another version.
        """
        path = folder / GENERATION
        try:
            found = read_object(path, "restore the folder from a copy or build anew")
            if found.pop("format") != FORMAT:
                raise DataError("was written by another version of simzoo; build the index anew", path)
            columns = {
                name: Column(c["dtype"], tuple(c["width"]), c["fields"]) for name, c in found.pop("columns").items()
            }
            segments = tuple(Segment(**segment) for segment in found.pop("segments"))
            read = cls(columns=columns, segments=segments, **found)
            read._check()
        except FileNotFoundError:
            return cls()
        except DataError:
            raise
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            raise DataError(f"is damaged ({error!r}); restore the folder from a copy or build anew", path) from error
        return read

    def _check(self) -> None:
        """Refuses names of other places, and lengths that do not make up the rows: both may come from a stranger.

        Raises:
            ValueError: says which.
        """
        if not re.fullmatch(r"data-\d+", self.data):
            raise ValueError(f"data {self.data!r} is no folder of an index")
        expected = {}
        for name, column in self.columns.items():
            if column.value_bytes < 1 or column.fields < 0 or min(column.width, default=1) < 1:
                raise ValueError(f"column {name!r} is of no possible kind")
            if column.fields:
                expected[f"{name}.offsets"] = 8 * (column.fields * self.rows + 1)
            else:
                expected[name] = column.value_bytes * self.rows
        names = {REMOVED, *self.columns, *expected}
        wrong = [name for name, length in self.lengths.items() if name not in names or length < 0]
        wrong += [name for name, length in expected.items() if self.lengths.get(name) != length]
        if wrong or self.rows < 0 or any(not re.fullmatch(r"\w[\w.-]*", name) for name in self.columns):
            raise ValueError(f"{self.rows} rows do not fit the lengths of {sorted(map(str, wrong))[:3]}")
        for segment in self.segments:
            if not self.lengths.keys() >= segment.ends.keys() >= {*segment.begins, *segment.samples, *segment.sums}:
                raise ValueError(f"the checksums of rows {segment.start} to {segment.stop - 1} are of other files")

    def write(self, folder: Path) -> None:
        """Makes it the one on disk."""
        with replacing(folder / GENERATION) as file:
            file.write(json.dumps({"format": FORMAT, **asdict(self)}).encode())
