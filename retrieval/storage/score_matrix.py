"""Exact score matrices: built in shards, resumable at any moment, kept as one file."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from simzoo.core.files import read_object, remove_scratch, replacing
from simzoo.core.locks import locked
from simzoo.core.progress import progress
from simzoo.core.records import Collection, DataError, Query
from simzoo.retrieval.scorer import Scorer


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
    scorer_of: Callable[[Sequence[Query]], Scorer],
    collection: Collection,
    query_rows: NDArray[np.int64],
    checkpoint: str,
    folder: Path,
    query_block: int = 8,
    item_block: int = 2048,
) -> ScoreMatrix:
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

    Raises:
        DataError: ``folder`` holds shards of other data, another checkpoint or other blocks, or one that is damaged.
        InUse: another process makes them.
    """
    query_ids = [collection.queries[row].id for row in query_rows]
    manifest = {
        "query_ids": query_ids,
        "fingerprint": collection.fingerprint,
        "checkpoint": checkpoint,
        "blocks": [query_block, item_block],
    }
    with locked(folder):
        _claim(folder, manifest)
        remove_scratch(folder)
        scores = _scored(scorer_of, collection, query_rows, folder, query_block, item_block)
    return ScoreMatrix(tuple(query_ids), scores, collection.fingerprint, checkpoint)


def _scored(
    scorer_of: Callable[[Sequence[Query]], Scorer],
    collection: Collection,
    query_rows: NDArray[np.int64],
    folder: Path,
    query_block: int,
    item_block: int,
) -> NDArray[np.float32]:
    """All scores, of which the shards that are missing are made."""
    num_items = len(collection.items)
    blocks = [(q, i) for q in range(0, len(query_rows), query_block) for i in range(0, num_items, item_block)]
    scorer, begun = None, -1  # over the queries from this place on
    for q, i in progress(blocks, f"scoring {len(query_rows):,} queries x {num_items:,} items"):
        path = folder / f"{q:06d}-{i:09d}.npy"
        if path.exists():
            continue
        if scorer is None or begun != q:
            scorer, begun = scorer_of([collection.queries[row] for row in query_rows[q : q + query_block]]), q
        shard = scorer.score_items(np.arange(i, min(i + item_block, num_items)))
        with replacing(path) as file:
            np.save(file, shard)
    scores = np.empty((len(query_rows), num_items), dtype=np.float32)
    for q, i in blocks:
        place = scores[q : q + query_block, i : i + item_block]
        place[:] = _shard(folder / f"{q:06d}-{i:09d}.npy", place.shape)
    return scores


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
