"""Exact score matrices: built in shards, resumable at any moment, kept as one file."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from simzoo.core.files import read_object, replacing
from simzoo.core.records import Collection, DataError, Query
from simzoo.core.shards import ALONE, Shards, Worker, writing
from simzoo.retrieval.scorer import Scorer

ScorerOf = Callable[[Sequence[Query]], Scorer]


@dataclass(frozen=True)
class ScoreMatrix:
    """Exact scores of some queries of a collection with all its items.

    Attributes:
        query_ids: Q ids.
        scores: (Q, N) float32, columns in the order of the collection's items.
        fingerprint: of the collection the scores belong to.
        checkpoint: sha256 of the weights that made them.
    """

    query_ids: tuple[str, ...]
    scores: NDArray[np.float32]
    fingerprint: str
    checkpoint: str

    def save(self, path: Path) -> None:
        """Writes one safetensors file, atomically."""
        described = {"query_ids": list(self.query_ids), "fingerprint": self.fingerprint, "checkpoint": self.checkpoint}
        with replacing(path) as file:
            file.write(save({"scores": np.ascontiguousarray(self.scores)}, {"matrix": json.dumps(described)}))

    @classmethod
    def load(cls, path: Path) -> ScoreMatrix:
        """Reads what `save` wrote.

        Raises:
            DataError: the file is missing, cut short, or no score matrix.
        """
        if not path.is_file():
            raise DataError("there is no such score matrix; make it with: python evaluate.py matrix", path)
        try:
            with safe_open(path, framework="numpy") as file:
                described = json.loads((file.metadata() or {})["matrix"])
                names = [described[key] for key in ("fingerprint", "checkpoint")]
                ids = tuple(described["query_ids"])
                held = file.get_slice("scores")
                if held.get_dtype() != "F32" or len(held.get_shape()) != 2 or held.get_shape()[0] != len(ids):
                    raise ValueError(f"{held.get_dtype()} scores of shape {held.get_shape()} for {len(ids)} queries")
                if not all(isinstance(name, str) for name in (*ids, *names)) or len(set(ids)) != len(ids):
                    raise ValueError("its names are no texts, or stand twice")
                scores = file.get_tensor("scores")
        except (SafetensorError, KeyError, TypeError, ValueError, RecursionError) as error:
            raise DataError(f"not a whole score matrix ({error}); make it again", path) from error
        if not np.isfinite(scores).all():
            raise DataError("holds scores that are not finite; make it again", path)
        return cls(ids, scores, *names)

    def of(self, collection: Collection) -> NDArray[np.int64]:
        """Rows of the collection's queries that the matrix holds, in its order.

        Raises:
            DataError: the collection is another one than the scores were made with.
        """
        if collection.fingerprint != self.fingerprint:
            raise DataError(
                f"the score matrix was made with other data than {collection.name!r} as it is now "
                f"(fingerprint {self.fingerprint[:12]}, now {collection.fingerprint[:12]}): same version and options?"
            )
        rows = {query.id: row for row, query in enumerate(collection.queries)}
        unknown = [name for name in self.query_ids if name not in rows]
        if unknown or self.scores.shape[1] != len(collection.items):
            raise DataError(
                f"the score matrix has {self.scores.shape[1]} items and {len(unknown)} queries that are not in "
                f"{collection.name!r}, which has {len(collection.items)} items: it is damaged; make it again"
            )
        return np.array([rows[name] for name in self.query_ids], dtype=np.int64)


def build_matrix(
    scorer_of: ScorerOf,
    collection: Collection,
    query_rows: NDArray[np.int64],
    checkpoint: str,
    folder: Path,
    query_block: int = 8,
    item_block: int = 2048,
    worker: Worker = ALONE,
) -> ScoreMatrix:
    """Scores every query of ``query_rows`` with every item, in shards under ``folder``, and reads them.

    Args and errors as for `score_shards`.
    """
    places = score_shards(scorer_of, collection, query_rows, checkpoint, folder, query_block, item_block, worker)
    scores = np.empty((len(query_rows), len(collection.items)), dtype=np.float32)
    for path, (queries, items) in places.items():
        place = scores[queries, items]
        place[:] = _shard(path, place.shape)
    ids = tuple(collection.queries[row].id for row in query_rows)
    return ScoreMatrix(ids, scores, collection.fingerprint, checkpoint)


def score_shards(
    scorer_of: ScorerOf,
    collection: Collection,
    query_rows: NDArray[np.int64],
    checkpoint: str,
    folder: Path,
    query_block: int = 8,
    item_block: int = 2048,
    worker: Worker = ALONE,
) -> dict[Path, tuple[slice, slice]]:
    """Scores every query of ``query_rows`` with every item, in shards under ``folder``.

    Each shard is written under another name and then renamed, so that a run that is killed at any moment goes on where
    it was and ends with the same bytes. Queries are encoded when a shard of theirs is missing.

    Args:
        scorer_of: a judge's `scorer`: over these queries and all items.
        collection: the queries and items.
        query_rows: of the queries.
        checkpoint: what makes the scores.
        folder: of the shards.
        query_block: queries a shard.
        item_block: items a shard.
        worker: which of several workers this process is, who score one shard each in turn.

    Returns:
        Of each shard the rows and columns of the matrix.

    Raises:
        DataError: ``folder`` holds shards of other data, another checkpoint or other blocks, or one that is damaged.
        InUse: another process makes them.
    """
    queries, num_items = [collection.queries[row] for row in query_rows], len(collection.items)
    manifest = {
        "query_ids": [query.id for query in queries],
        "fingerprint": collection.fingerprint,
        "checkpoint": checkpoint,
        "blocks": [query_block, item_block],
    }
    places = {
        folder / f"{q:06d}-{i:09d}.npy": (
            slice(q, min(q + query_block, len(queries))),
            slice(i, min(i + item_block, num_items)),
        )
        for q in range(0, len(queries), query_block)
        for i in range(0, num_items, item_block)
    }
    shards = Shards(folder, list(places), worker)
    scorer = lru_cache(1)(lambda start: scorer_of(queries[start : start + query_block]))

    def score(number: int) -> None:
        path = shards.paths[number]
        rows, columns = places[path]
        shard = scorer(rows.start).score_items(np.arange(columns.start, columns.stop))
        with replacing(path) as file:
            np.save(file, shard)

    with writing(folder, worker):
        _claim(folder, manifest)
        shards.make(score, f"scoring {len(queries):,} queries x {num_items:,} items")
        if worker.first:
            shards.check()
            shards.clean()
    return places


def _shard(path: Path, shape: tuple[int, ...]) -> NDArray[np.float32]:
    """A shard, mapped: a header that claims more than its file holds takes no memory."""
    try:
        shard: NDArray[np.float32] = np.load(path, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError) as error:
        raise DataError(f"is missing or damaged ({error}); remove it, and it is made again", path) from error
    if shard.dtype != np.float32 or shard.shape != shape or not np.isfinite(shard).all():
        raise DataError(
            f"holds {shard.dtype} of shape {shard.shape}, expected finite scores of shape {shape}; remove it, and it "
            "is made again",
            path,
        )
    return shard


def _claim(folder: Path, manifest: dict[str, Any]) -> None:
    path = folder / "manifest.json"
    if path.exists():
        found = read_object(path, "remove the folder and begin again")
        differing = [key for key in manifest if found.get(key) != manifest[key]]
        if differing:
            raise DataError(
                f"holds shards of another run ({', '.join(differing)} differ); choose another folder or remove it", path
            )
        return
    with replacing(path) as file:
        file.write(json.dumps(manifest).encode())
