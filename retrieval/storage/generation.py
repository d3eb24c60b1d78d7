"""What an index folder holds now: one small file, replaced atomically."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from simzoo.core.files import replacing
from simzoo.core.records import DataError

GENERATION = "generation.json"
FORMAT = 1


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
            found = json.loads(path.read_text())
            if found.pop("format") != FORMAT:
                raise DataError("was written by another version of simzoo; build the index anew", path)
            columns = {
                name: Column(c["dtype"], tuple(c["width"]), c["fields"]) for name, c in found.pop("columns").items()
            }
            segments = tuple(Segment(**segment) for segment in found.pop("segments"))
            return cls(columns=columns, segments=segments, **found)
        except FileNotFoundError:
            return cls()
        except (KeyError, TypeError, AttributeError, json.JSONDecodeError) as error:
            raise DataError(f"is damaged ({error!r}); restore the folder from a copy or build anew", path) from error

    def write(self, folder: Path) -> None:
        """Makes it the one on disk."""
        with replacing(folder / GENERATION) as file:
            file.write(json.dumps({"format": FORMAT, **asdict(self)}).encode())
