"""Runs and judgements as TREC has them, from any program; trec_eval's rules say what they mean.

A run has six columns between blanks: query, Q0, item, rank, score, tag. Judgements have four: query, 0, item, grade;
or, below BEIR's header, three between tabs.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from simzoo.core.records import DataError
from simzoo.datamodules.readers.beir_files import COLUMNS, GRADE_BITS, read_qrels
from simzoo.datamodules.readers.json_lines import existing, numbered_lines, whole_number

__all__ = ["TrecRun", "read_judgements", "read_run"]

DIGITS = 40  # of the longest score that is looked at


@dataclass(frozen=True)
class TrecRun:
    """A run.

    Attributes:
        results: score and rank by query and item; trec_eval does not look at the rank.
        tag: the first line's: what the run calls itself.
    """

    results: dict[str, dict[str, tuple[float, int]]]
    tag: str


def read_run(path: Path) -> TrecRun:
    """Reads a run, plain or gzipped.

    Raises:
        DataError: it is missing or empty; or, with file and line, a line has other columns, a rank that is no whole
            number, a score that is no finite number, or an item that its query has already.
    """
    results: dict[str, dict[str, tuple[float, int]]] = {}
    name = ""
    path = existing(path)
    for number, line in numbered_lines(path):
        columns = line.split()
        if len(columns) != 6:
            raise DataError(
                f"expected 6 columns, `query Q0 item rank score tag`, got {len(columns)}: {line[:80]!r}", path, number
            )
        query, _, item, rank, score, tag = columns
        place = whole_number(rank)
        if place is None:
            raise DataError(f"expected a whole number as rank, got {rank[:80]!r}", path, number)
        if item in results.setdefault(query, {}):
            raise DataError(f"query {query!r} has item {item!r} already; a run has each item once", path, number)
        results[query][item] = _score(score, path, number), place
        name = name or tag
    return TrecRun(results, name)


def _score(text: str, path: Path, number: int) -> float:
    try:
        value = float(text) if len(text) <= DIGITS else math.nan
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise DataError(f"expected a finite number as score, got {text[:80]!r}", path, number)
    return value


def read_judgements(path: Path) -> dict[str, dict[str, int]]:
    """Grades by query and item: TREC's four columns, or BEIR's three below its header; plain or gzipped.

    Raises:
        DataError: the file is missing or empty; or, with file and line, a line has other columns, a grade that is no
            whole number, or an item that its query has already with another grade.
    """
    path = existing(path)
    _, first = next(numbered_lines(path))
    beir = tuple(field.strip() for field in first.split("\t")) == COLUMNS
    judged: dict[str, dict[str, int]] = {}
    for number, query, item, grade in _of_beir(path) if beir else _of_trec(path):
        before = judged.setdefault(query, {}).setdefault(item, grade)
        if before != grade:
            raise DataError(
                f"item {item!r} has grade {grade} for query {query!r}, but had {before} before", path, number
            )
    if not judged:
        raise DataError("has a header, but no judgements", path)
    return judged


def _of_beir(path: Path) -> Iterator[tuple[int, str, str, int]]:
    for record in read_qrels(path):
        grade = record.integer("score", GRADE_BITS)
        yield record.line, record.identifier("query-id"), record.identifier("corpus-id"), grade


def _of_trec(path: Path) -> Iterator[tuple[int, str, str, int]]:
    for number, line in numbered_lines(path):
        columns = line.split()
        grade = whole_number(columns[3], GRADE_BITS) if len(columns) == 4 else None
        if grade is None:
            header = f"; three columns need the header {' '.join(COLUMNS)}" if len(columns) == 3 else ""
            raise DataError(
                f"expected `query 0 item grade`, the grade a whole number of at most {GRADE_BITS} bits, got "
                f"{line[:80]!r}{header}",
                path,
                number,
            )
        yield number, columns[0], columns[2], grade
