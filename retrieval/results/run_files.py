"""The output folder of an evaluation: metrics.json, run.trec, per_query.jsonl, report.html; written atomically.

metrics.json is one object:

| key | value |
|---|---|
| checkpoint | ``name`` and ``sha256`` of its weights; null and null without a similarity |
| data | ``name``, ``fingerprint`` (sha256 over records and judgements), ``notes``: what the reader counted, by reason |
| searcher | ``name`` of the class and its settings |
| anchors | where the queries that indexing learnt from come ``from``, and how many ``queries``; if there are some |
| queries, k, seed | how many queries were evaluated, results a query, seed of the sample of queries |
| truncated | how many texts were longer than the model takes |
| metrics | by name: ``mean``, ``low``, ``high`` (95 % bootstrap interval over queries), ``queries`` that count |
| cost | the same for ``calls`` (distinct pairs scored a query) and ``milliseconds`` (wall time a query) |
| search_seconds, index_seconds | by step, over all queries |
| index_calls | pairs scored by indexing |
| bytes | by name, what is kept to search: the representations of queries and items |
| command, commit, versions, threads, device, bf16 | how it was run; commit is null outside a repository |

A run on several data sets has such a folder for each of them, and one above whose ``metrics`` and ``cost`` are micro
averages, over all queries (ids are `folder/id`), with

| key | value |
|---|---|
| macro | ``metrics`` and ``cost``: means of the data sets' means |
| worlds | by folder: ``data``, its name; ``queries``, ``metrics``, ``cost`` |
| lacking | metrics without averages, and the data sets that lack them |

A number that is not finite is written as null, which JSON has, unlike NaN. metrics.json is written last: a folder that
has a new one is whole.
"""

from __future__ import annotations

import json
import platform
import re
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from math import isfinite
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote

import numpy as np
import torch
from numpy.typing import NDArray

from simzoo.core.files import MOST_SETTINGS, replacing
from simzoo.core.records import Collection, DataError
from simzoo.datamodules.readers.json_lines import raw_lines
from simzoo.retrieval.scorer import Rows, Scores
from simzoo.retrieval.searcher import Ranking

PACKAGES = ("transformers", "lightning", "faiss-cpu", "faiss-gpu", "bm25s", "ir-measures", "numpy")
AGAIN = "run the evaluation again"
MEAN = ("mean", "low", "high")
PARTS: dict[str, type | tuple[type, ...]] = {
    "checkpoint": dict,
    "data": dict,
    "searcher": dict,
    "queries": int,
    "metrics": dict,
    "cost": dict,
    "index_seconds": dict,
    "index_calls": int,
    "command": str,
    "commit": (str, type(None)),
    "versions": dict,
}
"""What every reader of metrics.json relies on."""


@dataclass(frozen=True)
class Run:
    """An output folder as it was read.

    Attributes:
        folder: where.
        described: metrics.json.
        columns: of per_query.jsonl, the ids under ``id``.
    """

    folder: Path
    described: dict[str, Any]
    columns: dict[str, list[Any]]


def write_text(path: Path, text: str) -> None:
    """Writes a file so that it is either the old one or whole, also after a power cut."""
    with replacing(path) as file:
        file.write(text.encode())


def write_metrics(folder: Path, metrics: Mapping[str, Any]) -> None:
    """metrics.json: everything that describes a run and what came out of it (the module's table)."""
    write_text(folder / "metrics.json", json.dumps(_finite(metrics), indent=2, allow_nan=False) + "\n")


def read_metrics(folder: Path) -> dict[str, Any]:
    """Reads metrics.json.

    Raises:
        DataError: it is missing, damaged, or no evaluation's.
    """
    path = folder / "metrics.json"
    found = _parsed(_read(path), path, 1)
    for name, kind in PARTS.items():
        if not isinstance(found, dict) or name not in found or not isinstance(found[name], kind):
            raise DataError(
                f"{name!r} is missing or of another kind: this is not the metrics.json that evaluate.py run writes; "
                f"name its output folder, or {AGAIN}",
                path,
            )
    for part, key in (("data", "name"), ("data", "fingerprint"), ("searcher", "name"), ("checkpoint", "sha256")):
        if key not in found[part]:
            raise DataError(f"{part!r} has no {key!r}; {AGAIN}", path)
    for name, value in (found["metrics"] | found["cost"]).items():
        if not isinstance(value, dict) or not all(type(value.get(key)) in (int, float) for key in MEAN):
            raise DataError(f"{name!r} is {value!r}, expected numbers {', '.join(MEAN)}; {AGAIN}", path)
    described: dict[str, Any] = found
    return described


def write_per_query(folder: Path, ids: Sequence[str], columns: Mapping[str, Sequence[float]]) -> None:
    """per_query.jsonl: one line a query with its id and every value; null where a query does not count.

    Raises:
        ValueError: a column has not one value for each id.
    """
    for name, column in columns.items():
        if len(column) != len(ids):
            raise ValueError(f"{name!r} has {len(column)} values for {len(ids)} queries")
    lines = (
        json.dumps({"id": name, **{key: _finite(column[i]) for key, column in columns.items()}})
        for i, name in enumerate(ids)
    )
    write_text(folder / "per_query.jsonl", "".join(line + "\n" for line in lines))


def read_per_query(folder: Path) -> dict[str, list[Any]]:
    """Columns of per_query.jsonl, with the ids under ``id``.

    Raises:
        DataError: the file is missing or empty, a line of it is damaged, or a query stands in it twice.
    """
    path = folder / "per_query.jsonl"
    columns: dict[str, list[Any]] = {}
    lines: dict[str, int] = {}
    for number, whole in raw_lines(_existing(path)):
        line = whole.rstrip("\r\n")
        if not line:
            continue
        row = _parsed(line, path, number)
        if not isinstance(row, dict) or not isinstance(row.get("id"), str):
            raise DataError(f"expected an object with an id, got {line[:60]!r}; {AGAIN}", path, number)
        if columns and row.keys() != columns.keys():
            raise DataError(f"has the values {sorted(row)}, expected {sorted(columns)}; {AGAIN}", path, number)
        for key, value in row.items():
            if key != "id" and value is not None and type(value) not in (int, float):
                raise DataError(f"{key!r} is {value!r}, expected a number or null; {AGAIN}", path, number)
            columns.setdefault(key, []).append(value)
        if lines.setdefault(row["id"], number) != number:
            raise DataError(f"query {row['id']!r} stands in line {lines[row['id']]} already; {AGAIN}", path, number)
    if not columns:
        raise DataError(f"holds no queries; {AGAIN}", path)
    return columns


def read_run(folder: Path) -> Run:
    """Reads metrics.json and per_query.jsonl and checks that they are of one evaluation.

    Raises:
        DataError: one is missing or damaged, or the values per query do not add up to the means.
    """
    described, columns = read_metrics(folder), read_per_query(folder)
    path = folder / "per_query.jsonl"
    if len(columns["id"]) != described["queries"]:
        raise DataError(
            f"holds {len(columns['id'])} queries, but metrics.json is of {described['queries']}: it was cut, or is of "
            f"another run; {AGAIN}",
            path,
        )
    for name, summary in described["metrics"].items():
        values = [value for value in columns.get(name, ()) if value is not None]
        if not values or not np.isclose(np.mean(values), summary["mean"], rtol=1e-6, atol=1e-9):
            raise DataError(
                f"the values of {name!r} do not have the mean that metrics.json gives: the files are of two runs; "
                f"{AGAIN}",
                path,
            )
    return Run(folder, described, columns)


def write_trec(folder: Path, collection: Collection, query_rows: Rows, ranking: Ranking, tag: str) -> None:
    """run.trec: query id, Q0, item id, rank from 1, score, tag.

    Programs that read runs sort by score, not by rank, and break ties in their own way. So a score that does not fall
    is written as the next smaller float32, with the nine digits that tell any two of them apart: the order is ours
    everywhere. Minus infinity becomes -1e38, and blanks, which a column cannot hold, are percent-encoded; so are
    percent signs in ids that have a blank or look encoded already, so that no two ids become one.
    """
    below = falling(ranking.scores)
    tag = _column(tag)
    item_ids = [_column(item.id) for item in collection.items]
    lines = []
    for row, items, scores in zip(query_rows.tolist(), ranking.items.tolist(), below.tolist(), strict=True):
        query = _column(collection.queries[row].id)
        for rank, (item, score) in enumerate(zip(items, scores, strict=True), start=1):
            if item < 0:  # the query has no more results
                break
            lines.append(f"{query} Q0 {item_ids[item]} {rank} {score:.9g} {tag}\n")
    write_text(folder / "run.trec", "".join(lines))


def read_trec(path: Path) -> dict[str, list[tuple[str, float]]]:
    """A run in TREC's layout: by query id, (item id, score) in the order of the ranks; ids as before `write_trec`.

    `ir_measures.read_trec_run` reads the same files, with ids as they stand there; a damaged line it does not name.

    Raises:
        DataError: the file is missing or empty, or a line does not have six columns with a rank and a score.
    """
    found: dict[str, list[tuple[int, str, float]]] = {}
    for number, line in raw_lines(_existing(path)):
        if not line.strip():
            continue
        columns = line.split()
        try:
            query, _, item, rank, score, _ = columns
            found.setdefault(decoded(query), []).append((int(rank), decoded(item), float(score)))
        except ValueError as error:
            raise DataError(
                f"expected `query Q0 item rank score tag`, got {line.rstrip()[:80]!r}; {AGAIN}", path, number
            ) from error
    if not found:
        raise DataError(f"holds no results; {AGAIN}", path)
    return {query: [(item, score) for _, item, score in sorted(rows)] for query, rows in found.items()}


def versions() -> dict[str, str]:
    """Python and the packages that a figure may depend on."""
    # The version of torch's package does not say which build it is.
    found = {"python": platform.python_version(), "torch": str(torch.__version__)}
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def commit() -> str | None:
    """The commit of the code that runs, with a mark if files were changed; None outside a repository."""
    folder = Path(__file__).resolve().parents[2]
    try:
        described = subprocess.run(
            ["git", "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"],
            cwd=folder,
            capture_output=True,
            text=True,
            check=True,
        )
    except (OSError, subprocess.CalledProcessError):
        return None
    return described.stdout.strip()


def _existing(path: Path) -> Path:
    if not path.is_file():
        raise DataError("is missing; is this the output folder of evaluate.py run?", path)
    return path


def _read(path: Path) -> str:
    if (size := _existing(path).stat().st_size) > MOST_SETTINGS:
        raise DataError(f"has {size:,} bytes, expected at most {MOST_SETTINGS:,}; {AGAIN}", path)
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise DataError(f"is not UTF-8 text (byte {error.start}); {AGAIN}", path) from error


def _parsed(text: str, path: Path, line: int) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise DataError(f"broken JSON ({error.msg}); {AGAIN}", path, line + error.lineno - 1) from error
    except (ValueError, RecursionError) as error:  # a number of thousands of digits, a list in a list in a list ...
        raise DataError(f"JSON that cannot be read ({type(error).__name__}); {AGAIN}", path, line) from error


def _finite(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _finite(part) for key, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(part) for part in value]
    return None if isinstance(value, float) and not isfinite(value) else value


def falling(scores: Scores) -> NDArray[np.float32]:
    """Scores (B, k) of rankings, each smaller than the one before: programs that sort by them keep our order."""
    found = np.maximum(scores, np.float32(-1e38))
    for place in range(1, found.shape[1]):
        found[:, place] = np.minimum(found[:, place], np.nextafter(found[:, place - 1], np.float32(-np.inf)))
    return found


_BLANKS = "".join(filter(str.isspace, map(chr, range(0x3001))))  # U+3000 is the last of them
_CODE = re.compile("|".join(quote(character) for character in (*_BLANKS, "%")))


def _column(name: str) -> str:
    if not _CODE.search(name) and not any(map(str.isspace, name)):
        return name
    return re.sub(r"[\s%]", lambda blank: quote(blank[0]), name)


def decoded(column: str) -> str:
    """The name that `_column` made a column of."""
    return _CODE.sub(lambda code: unquote(code[0]), column)
