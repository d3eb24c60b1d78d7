"""Neighbour graphs over item vectors: built in blocks, resumable, memory-mapped."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.lib.format import open_memmap
from numpy.typing import NDArray

from simzoo.core.extras import extra
from simzoo.core.files import replacing
from simzoo.core.progress import progress
from simzoo.core.records import DataError

Metric = Literal["l2", "inner_product"]
Neighbors = NDArray[np.int32]
BLOCK = 2048  # items whose neighbours are found at once


@dataclass
class GraphConfig:
    """How a neighbour graph is built.

    Attributes:
        degree: neighbours of an item; fewer where there are not so many other items.
        metric: what makes an item near; the paper has l2.
        folder: keeps the graph; it goes on where it was, and is not built again. None: in memory only.
    """

    degree: int = 100
    metric: Metric = "l2"
    folder: Path | None = None

    def __post_init__(self) -> None:
        if self.degree < 1:
            raise ValueError(f"degree is the number of an item's neighbours, at least 1; got {self.degree}")


def build_graph(vectors: NDArray[np.float32], config: GraphConfig) -> Neighbors:
    """The exact nearest neighbours of every item, itself not among them, nearest first.

    Args:
        vectors: (N, d).
        config: how, and where it is kept.

    Returns:
        (N, degree) int32 rows, memory-mapped where the graph has a folder.

    Raises:
        DataError: the folder holds a graph of other vectors or of another kind, or one that is damaged.
        ValueError: vectors that are not finite, or fewer than two.
    """
    vectors = np.ascontiguousarray(vectors, dtype=np.float32)
    if len(vectors) < 2:
        raise ValueError(f"a neighbour graph needs at least two items, got {len(vectors)}")
    bad = np.flatnonzero(~np.isfinite(vectors).all(axis=1))
    if bad.size:
        raise ValueError(f"{bad.size} items have vectors that are not finite; the first is row {bad[0]}")
    degree = min(config.degree, len(vectors) - 1)
    if config.folder is None:
        starts = range(0, len(vectors), BLOCK)
        search = _search(vectors, config.metric)
        parts = [_block(search, vectors, start, degree) for start in progress(starts, "building the graph")]
        return np.concatenate(parts)
    return _build_on_disk(vectors, config, config.folder, degree)


def load_graph(folder: Path, num_items: int) -> Neighbors:
    """A graph that was built, memory-mapped.

    Raises:
        DataError: it is missing, cut short, of another number of items, or names items that do not exist.
    """
    path = folder / "neighbors.npy"
    try:
        neighbors: Neighbors = np.load(path, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError) as error:
        raise DataError(f"is missing or damaged ({error}); remove the folder and build again", path) from error
    if neighbors.ndim != 2 or neighbors.dtype != np.int32 or len(neighbors) != num_items:
        raise DataError(
            f"holds {neighbors.dtype} of shape {neighbors.shape}, expected int32 neighbours of {num_items} items", path
        )
    low, high = int(neighbors.min()), int(neighbors.max())
    if low < 0 or high >= num_items:
        raise DataError(f"names the items {low} to {high}, but they run from 0 to {num_items - 1}", path)
    return neighbors


def _build_on_disk(vectors: NDArray[np.float32], config: GraphConfig, folder: Path, degree: int) -> Neighbors:
    identity = {
        "vectors": hashlib.sha256(vectors.tobytes()).hexdigest(),
        "degree": degree,
        "metric": config.metric,
        "block": BLOCK,
    }
    manifest = folder / "manifest.json"
    if manifest.exists():
        found = json.loads(manifest.read_text())
        differing = [key for key, value in identity.items() if found.get(key) != value]
        if differing:
            raise DataError(
                f"is a graph with other {' and '.join(differing)}; choose another folder or remove it", manifest
            )
    else:
        folder.mkdir(parents=True, exist_ok=True)
        with replacing(manifest) as file:
            file.write(json.dumps(identity).encode())
    whole = folder / "neighbors.npy"
    if not whole.exists():
        starts = range(0, len(vectors), BLOCK)
        paths = {start: folder / f"block-{start:010d}.npy" for start in starts}
        missing = [start for start in starts if not paths[start].exists()]
        search = _search(vectors, config.metric)
        for start in progress(missing, "building the graph"):
            with replacing(paths[start]) as file:
                np.save(file, _block(search, vectors, start, degree))
        unfinished = folder / "neighbors.tmp"
        joined = open_memmap(unfinished, mode="w+", dtype=np.int32, shape=(len(vectors), degree))
        for start, path in paths.items():
            joined[start : start + BLOCK] = np.load(path, allow_pickle=False)
        joined.flush()
        unfinished.rename(whole)
        for path in paths.values():
            path.unlink()
    return load_graph(folder, len(vectors))


def _search(vectors: NDArray[np.float32], metric: Metric) -> Any:
    faiss = extra("faiss", "cpu, gpu", "a neighbour graph")
    index = {"l2": faiss.IndexFlatL2, "inner_product": faiss.IndexFlatIP}[metric](vectors.shape[1])
    index.add(vectors)
    return index


def _block(index: Any, vectors: NDArray[np.float32], start: int, degree: int) -> Neighbors:
    asked = vectors[start : start + BLOCK]
    _, found = index.search(asked, degree + 1)
    # An item with copies of itself need not come first in its own list, nor be in it.
    own = found == np.arange(start, start + len(asked))[:, None]
    order = np.argsort(own, axis=1, kind="stable")[:, :degree]
    neighbors: Neighbors = np.take_along_axis(found, order, axis=1).astype(np.int32)
    return neighbors
