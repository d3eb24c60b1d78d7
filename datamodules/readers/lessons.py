"""Files of lessons: a query, its items, and what a teacher thinks of them; read one record at a time."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from simzoo.core.records import DataError, Item, Query
from simzoo.datamodules.readers.json_lines import Record, read_json_lines, shown

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


def read_lessons(path: Path, positive_type: str | None = None) -> Iterator[Lesson]:
    """The records of a file, one at a time.

    Raises:
        DataError: with file and line (of Parquet: row): a record without query, items or a positive; an item twice; a
            score that is not a number.
    """
    records = read_parquet(path) if path.suffix == ".parquet" else read_json_lines(path)
    for record in records:
        yield _lesson(record, positive_type)


def read_parquet(path: Path) -> Iterator[Record]:
    """The rows of a Parquet file, a block at a time; a record's line is its row.

    Raises:
        DataError: the file is missing or broken.
    """
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
    except DataError:
        raise
    except MemoryError as error:
        raise DataError(f"has {BLOCK:,} rows that do not fit in memory; its texts are too long", path) from error
    except (OSError, ValueError, OverflowError, pa.ArrowException) as error:
        raise DataError(f"is not a whole Parquet file ({error})", path) from error


def _lesson(record: Record, positive_type: str | None) -> Lesson:
    query, listed = record.fields.get("query"), record.fields.get("items")
    if not isinstance(query, dict) or not isinstance(listed, list) or not listed:
        raise record.error("expected the keys query, an object, and items, a list that is not empty")
    asked = Record(query, record.path, record.line)
    items, scores, kinds = [], [], []
    for fields in listed:
        if not isinstance(fields, dict):
            raise record.error(f"expected an item as an object, got {shown(fields)}")
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
            f"{', '.join(sorted({shown(kind) for kind in kinds})[:20])}"
        )
    mention = query.get("mention")
    if mention is not None and not (isinstance(mention, list) and list(map(type, mention)) == [int, int]):
        raise record.error(f"expected [start, end] under 'mention', got {shown(mention)}")
    try:
        span = None if mention is None else (mention[0], mention[1])
        return Lesson(Query(asked.identifier("id"), asked.text("content"), span), items, positive, scores)
    except DataError as error:
        raise record.error(str(error)) from error


def _score(item: Record) -> float:
    return math.nan if item.fields.get("score") is None else item.number("score")
