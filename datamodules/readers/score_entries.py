"""Sampled entries of a score matrix on disk: shards of pairs with their scores, and what they were made with."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load_file

from simzoo.core.records import DataError

MANIFEST = "manifest.json"
QUERIES = "queries.json"
FINISHED = "finished.json"
FORMAT = 1
AGAIN = "go on with the same: python evaluate.py sparse_matrix"


@dataclass(frozen=True)
class Entries:
    """The entries of a sampled score matrix by query: E pairs, 12 bytes each.

    Attributes:
        offsets: (Q + 1,) int64; the entries of query i are ``offsets[i]:offsets[i + 1]``.
        items: (E,) int32 rows of items, ascending within a query, each once.
        scores: (E,) float32, as the similarity gave them.
        query_ids: Q ids.
        fingerprint: of the collection that the pairs are of.
        num_items: N.
        alpha: of the normalisation s' = beta (s - alpha); 0 and 1 where none was asked for.
        beta: see ``alpha``.
    """

    offsets: NDArray[np.int64]
    items: NDArray[np.int32]
    scores: NDArray[np.float32]
    query_ids: tuple[str, ...]
    fingerprint: str
    num_items: int
    alpha: float
    beta: float

    @property
    def normalized(self) -> NDArray[np.float32]:
        """(E,) beta (s - alpha), on the dual encoder's scale (AXN, A.4)."""
        found: NDArray[np.float32] = (self.beta * (self.scores.astype(np.float64) - self.alpha)).astype(np.float32)
        return found


def shard_path(folder: Path, number: int) -> Path:
    """Where a shard is: ``query`` and ``item`` (P,) int32 rows, ``score`` (P,) float32, one safetensors file."""
    return folder / f"shard-{number:06d}.safetensors"


def read_shard(path: Path) -> dict[str, NDArray[Any]]:
    """One shard.

    Raises:
        DataError: it is missing or damaged.
    """
    try:
        found = load_file(path)
        if len({len(found[name]) for name in ("query", "item", "score")}) != 1:
            raise ValueError("its columns differ in length")
        return found
    except FileNotFoundError as error:
        raise DataError(f"is missing; {AGAIN}", path) from error
    except (SafetensorError, KeyError, ValueError) as error:
        raise DataError(f"is damaged ({error}); remove it and {AGAIN}", path) from error


def read_manifest(folder: Path) -> dict[str, Any]:
    """What the entries were made with.

    Raises:
        DataError: there are none, or they are of another version.
    """
    path = folder / MANIFEST
    if not path.is_file():
        raise DataError("holds no sampled scores; make them with: python evaluate.py sparse_matrix", folder)
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise DataError(f"is damaged ({error}); make the matrix again in another folder", path) from error
    if not isinstance(found, dict) or found.get("format") != FORMAT:
        raise DataError(f"is of another format than {FORMAT}, which this version reads", path)
    return found


def read_entries(folder: Path) -> Entries:
    """All entries of a finished matrix, sorted by query and item: 12 bytes an entry, twice that while they are sorted.

    Raises:
        DataError: it is not finished, or a shard is missing or damaged.
    """
    manifest = read_manifest(folder)
    if not (folder / FINISHED).is_file():
        raise DataError(f"is not finished; {AGAIN}", folder)
    finished = json.loads((folder / FINISHED).read_text(encoding="utf-8"))
    size = finished["entries"]
    query, item = np.empty(size, dtype=np.int32), np.empty(size, dtype=np.int32)
    score = np.empty(size, dtype=np.float32)
    start = 0
    for number in range(manifest["shards"]):
        shard = read_shard(shard_path(folder, number))
        stop = start + len(shard["score"])
        if stop > size:
            raise DataError(f"the shards hold more than {size:,} entries; was one replaced?", folder)
        query[start:stop], item[start:stop], score[start:stop] = shard["query"], shard["item"], shard["score"]
        start = stop
    if start != size:
        raise DataError(f"the shards hold {start:,} of {size:,} entries; was one replaced?", folder)
    query_ids = tuple(json.loads((folder / QUERIES).read_text(encoding="utf-8")))
    for name, rows, most in (("query", query, len(query_ids)), ("item", item, manifest["items"])):
        if size and not (rows.min() >= 0 and rows.max() < most):
            raise DataError(f"a shard names {name} rows beyond {most:,}; was one replaced?", folder)
    order = np.lexsort((item, query))
    offsets = np.concatenate([[0], np.cumsum(np.bincount(query, minlength=len(query_ids)))])
    return Entries(
        offsets.astype(np.int64),
        item[order],
        score[order],
        query_ids,
        manifest["fingerprint"],
        manifest["items"],
        finished["alpha"],
        finished["beta"],
    )
