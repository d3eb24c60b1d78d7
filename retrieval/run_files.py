"""The output folder of an evaluation: metrics.json, run.trec, per_query.jsonl, report.html; written atomically."""

from __future__ import annotations

import json
import os
import platform
import subprocess
from collections.abc import Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from math import isfinite
from pathlib import Path
from typing import Any

from datamodules.records import Collection, DataError
from retrieval.scorer import Rows
from retrieval.searcher import Ranking

PACKAGES = ("torch", "transformers", "lightning", "faiss-cpu", "faiss-gpu", "bm25s", "ir-measures", "numpy")


def write_text(path: Path, text: str) -> None:
    """Writes a file so that it is either the old one or whole."""
    path.parent.mkdir(parents=True, exist_ok=True)
    scratch = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    with scratch.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    os.replace(scratch, path)


def write_metrics(folder: Path, metrics: Mapping[str, Any]) -> None:
    """metrics.json: everything that describes a run and what came out of it."""
    write_text(folder / "metrics.json", json.dumps(metrics, indent=2) + "\n")


def read_metrics(folder: Path) -> dict[str, Any]:
    """Reads metrics.json.

    Raises:
        DataError: it is missing or damaged.
    """
    path = folder / "metrics.json"
    if not path.is_file():
        raise DataError("is missing; is this the output folder of evaluate.py run?", path)
    try:
        found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except json.JSONDecodeError as error:
        raise DataError(f"broken JSON ({error.msg}); run the evaluation again", path, error.lineno) from error
    return found


def write_per_query(folder: Path, ids: Sequence[str], columns: Mapping[str, Sequence[float]]) -> None:
    """per_query.jsonl: one line a query with its id and every value; null where a query does not count."""
    lines = (
        json.dumps({"id": name, **{key: column[i] if isfinite(column[i]) else None for key, column in columns.items()}})
        for i, name in enumerate(ids)
    )
    write_text(folder / "per_query.jsonl", "".join(line + "\n" for line in lines))


def read_per_query(folder: Path) -> dict[str, list[Any]]:
    """Columns of per_query.jsonl, with the ids under ``id``.

    Raises:
        DataError: the file is missing, or a line of it is damaged.
    """
    path = folder / "per_query.jsonl"
    if not path.is_file():
        raise DataError("is missing; is this the output folder of evaluate.py run?", path)
    columns: dict[str, list[Any]] = {}
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        try:
            row = json.loads(line)
        except json.JSONDecodeError as error:
            raise DataError(f"broken JSON ({error.msg}); run the evaluation again", path, number) from error
        if columns and row.keys() != columns.keys():
            raise DataError(f"has the values {sorted(row)}, expected {sorted(columns)}", path, number)
        for key, value in row.items():
            columns.setdefault(key, []).append(value)
    if "id" not in columns:
        raise DataError("holds no queries; run the evaluation again", path)
    return columns


def write_trec(folder: Path, collection: Collection, query_rows: Rows, ranking: Ranking, tag: str) -> None:
    """run.trec: query id, Q0, item id, rank from 1, score, tag."""
    lines = []
    for row, items, scores in zip(query_rows.tolist(), ranking.items.tolist(), ranking.scores.tolist(), strict=True):
        for rank, (item, score) in enumerate(zip(items, scores, strict=True), start=1):
            lines.append(f"{collection.queries[row].id} Q0 {collection.items[item].id} {rank} {score:.6f} {tag}\n")
    write_text(folder / "run.trec", "".join(lines))


def versions() -> dict[str, str]:
    """Python and the packages that a figure may depend on."""
    found = {"python": platform.python_version()}
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def commit() -> str | None:
    """The commit of the code that runs, with a mark if files were changed; None outside a repository."""
    folder = Path(__file__).parents[1]
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
