"""Pairs of a query and what answers it, from JSON lines, CSV, TSV, Parquet or a data set on the Hub."""

from __future__ import annotations

import csv
import hashlib
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from simzoo.core.records import Collection, DataError, Item, Query, has_surrogate
from simzoo.datamodules.readers.json_lines import Record, existing, raw_lines, read_json_lines, shown
from simzoo.datamodules.readers.lessons import read_parquet

LAYOUTS = (".jsonl", ".jsonl.gz", ".csv", ".tsv", ".parquet")


@dataclass(frozen=True)
class Columns:
    """Names of a file's columns.

    Attributes:
        query: the query's text.
        positive: a text that answers it, or a list of such texts.
        negatives: a text or a list of texts that do not; a file without the column has none.
        scores: a teacher's scores of the positives and then the negatives, as many as these are; a file without the
            column has none.
    """

    query: str = "query"
    positive: str = "positive"
    negatives: str = "negatives"
    scores: str = "scores"


@dataclass(frozen=True)
class Pair:
    """One row: a query, its relevant texts, others, and scores of both, NaN without any."""

    query: str
    positives: list[str]
    negatives: list[str]
    scores: list[float]


def read_pairs(path: Path, columns: Columns) -> Iterator[Pair]:
    """The rows of a file.

    Raises:
        DataError: with file and line (of Parquet: row): an unknown layout or column, an empty text, scores that are not
            as many as the texts.
    """
    if path.name.endswith((".jsonl", ".jsonl.gz")):
        records: Iterable[Record] = read_json_lines(path)
    elif path.suffix in (".csv", ".tsv"):
        records = _table(path)
    elif path.suffix == ".parquet":
        records = read_parquet(path)
    else:
        raise DataError(f"expected a file ending in {', '.join(LAYOUTS)}", path)
    return _pairs(records, columns)


def read_hub_pairs(name: str, config: str | None, split: str, columns: Columns) -> Iterator[Pair]:
    """The rows of a split of a data set on the Hub.

    Raises:
        DataError: it cannot be loaded; or as `read_pairs`, with the row.
    """
    datasets = import_module("datasets")  # takes a second or two, which files need not pay
    try:
        rows: Iterable[Mapping[str, Any]] = datasets.load_dataset(name, config, split=split)
    except (OSError, ValueError) as error:
        raise DataError(f"cannot load split {split!r} from the Hub: {error}", name) from error
    records = (Record(row, f"{name}/{split}", number) for number, row in enumerate(rows, start=1))
    return _pairs(records, columns)


def _table(path: Path) -> Iterator[Record]:
    """The rows of a CSV or TSV file with a header; its cells are text alone."""
    delimiter, path = "\t" if path.suffix == ".tsv" else ",", existing(path)
    # By our own lines, whose length has a bound.
    reader = csv.DictReader((line for _, line in raw_lines(path)), delimiter=delimiter, strict=True)
    try:
        columns = list(reader.fieldnames or ())
        if len(set(columns)) < len(columns):
            raise DataError(f"a name is there twice in the header {shown(columns)}", path, reader.line_num)
        line = begun_at = reader.line_num
        for fields in reader:
            line, begun = reader.line_num, line + 1
            if None in fields or None in fields.values():
                raise DataError(f"expected {len(columns)} cells, as the header has", path, begun)
            # A blank cell is how a table says that there is nothing.
            yield Record({key: value or None for key, value in fields.items()}, path, begun)
        if line == begun_at:
            raise DataError("has a header, but no rows", path)
    except csv.Error as error:
        raise DataError(f"broken table: {error}", path, reader.line_num + 1) from error


def _pairs(records: Iterable[Record], columns: Columns) -> Iterator[Pair]:
    for record in records:
        positives = _texts(record, columns.positive)
        negatives = _texts(record, columns.negatives) if record.fields.get(columns.negatives) is not None else []
        if not positives:
            raise record.error(f"expected at least one text under {columns.positive!r}")
        (query,) = _texts(record, columns.query, only_one=True)
        yield Pair(query, positives, negatives, _scores(record, columns, len(positives) + len(negatives)))


def _texts(record: Record, key: str, only_one: bool = False) -> list[str]:
    if key not in record.fields:
        known = ", ".join(map(repr, record.fields))
        raise record.error(f"expected a column {key!r}, got {known}; name the columns with data.source.columns")
    value = record.fields[key]
    texts = value if isinstance(value, list) and not only_one else [value]
    for text in texts:
        if not isinstance(text, str) or not text.strip() or has_surrogate(text):
            wanted = "a text" if only_one else "a text, or a list of texts,"
            raise record.error(f"expected {wanted} under {key!r}, got {shown(text)}")
    return texts


def _scores(record: Record, columns: Columns, count: int) -> list[float]:
    value = record.fields.get(columns.scores)
    if value is None:
        return [math.nan] * count
    values = value if isinstance(value, list) else [value]
    try:
        scores = [float(score) for score in values]
    except (TypeError, ValueError, OverflowError):  # the last of a whole number beyond the largest float
        scores = [math.nan]
    if len(scores) != count or not all(map(math.isfinite, scores)):
        raise record.error(
            f"expected {count} numbers under {columns.scores!r}, one for each positive and negative, got {shown(value)}"
        )
    return scores


def collections_of(name: str, pairs: Iterable[Pair], held_out: float, seed: int) -> tuple[Collection, Collection]:
    """The queries to train on and those that are held out, over the same items: every text once.

    Args:
        name: of the data.
        pairs: rows; those of one query are put together.
        held_out: share of the queries, chosen by the hash of their text, so that more rows do not move the others.
        seed: of the choice.

    Returns:
        Training and held-out queries, each with its judgements, and with its listed items and their scores as
        `Collection.candidates`.

    Raises:
        DataError: there is no row, or none is left to train on or to hold out.
    """
    rows: dict[str, int] = {}
    golds: dict[str, dict[int, int]] = {}
    listed: dict[str, dict[int, float]] = {}
    for pair in pairs:
        known, scored = golds.setdefault(pair.query, {}), listed.setdefault(pair.query, {})
        for place, text in enumerate([*pair.positives, *pair.negatives]):
            row = rows.setdefault(text, len(rows))
            if place < len(pair.positives):
                known[row] = 1
            scored.setdefault(row, pair.scores[place])
    if not golds:
        raise DataError("has no rows", name)
    items = [Item(f"i{row}", text) for text, row in rows.items()]
    queries = list(golds)
    scores = [list(listed[query].values()) for query in queries]
    whole = Collection(
        name,
        items,
        [Query(f"q{number}", query) for number, query in enumerate(queries)],
        [golds[query] for query in queries],
        candidates=[list(listed[query]) for query in queries],
        scores=scores if any(math.isfinite(score) for row in scores for score in row) else (),
    )
    apart = [_share(query, seed) < held_out for query in queries]
    if all(apart) or (held_out > 0 and not any(apart)):
        raise DataError(
            f"a validation share of {held_out} leaves {apart.count(False)} of {len(queries)} queries to train on and "
            f"{apart.count(True)} to validate with: change data.source.validation",
            name,
        )
    train, dev = ([row for row, out in enumerate(apart) if out == kind] for kind in (False, True))
    return whole.with_queries(train), whole.with_queries(dev)


def _share(query: str, seed: int) -> float:
    return int.from_bytes(hashlib.sha256(f"{seed}:{query}".encode()).digest()[:8]) / 2**64
