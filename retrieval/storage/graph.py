"""Neighbour graphs over item vectors: built in blocks, resumable, memory-mapped."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.lib.format import write_array_header_2_0
from numpy.typing import NDArray

from simzoo.core.extras import extra
from simzoo.core.files import read_object, remove_scratch, replacing, reserve
from simzoo.core.locks import InUse, left_over, locked
from simzoo.core.progress import progress
from simzoo.core.records import DataError
from simzoo.core.shards import ALONE, Shards, Worker, writing
from simzoo.retrieval.storage.checksums import check, described

__all__ = ["GraphConfig", "build_graph", "load_graph"]

Metric = Literal["l2", "inner_product"]
Neighbors = NDArray[np.int32]
BLOCK = 2048  # items whose neighbours are found at once
SUMS = "checksums.json"  # its being there says that the graph is finished


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


def build_graph(vectors: NDArray[np.float32], config: GraphConfig, worker: Worker = ALONE) -> Neighbors:
    """The exact nearest neighbours of every item, itself not among them, nearest first.

    Args:
        vectors: (N, d).
        config: how, and where it is kept.
        worker: which of several workers this process is, who build blocks of it in turn; they need a folder.

    Returns:
        (N, degree) int32 rows, memory-mapped where the graph has a folder.

    Raises:
        DataError: the folder holds a graph of other vectors or of another kind, or one that is damaged.
        InUse: another process builds it.
        OSError: no room is left; the blocks that were built are kept.
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
    return _build_on_disk(vectors, config, config.folder, degree, worker)


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
    if not neighbors.size:
        raise DataError("holds no neighbours; remove the folder and build again", path)
    low, high = int(neighbors.min()), int(neighbors.max())
    if low < 0 or high >= num_items:
        raise DataError(f"names the items {low} to {high}, but they run from 0 to {num_items - 1}", path)
    if not (folder / SUMS).exists():
        raise DataError("the graph is not finished; build it again, it goes on where it was", folder)
    check(path, read_object(folder / SUMS, "remove the folder and build again"))
    return neighbors


def _build_on_disk(
    vectors: NDArray[np.float32], config: GraphConfig, folder: Path, degree: int, worker: Worker
) -> Neighbors:
    identity = {
        "vectors": hashlib.sha256(vectors.data).hexdigest(),
        "degree": degree,
        "metric": config.metric,
        "block": BLOCK,
    }
    starts = range(0, len(vectors), BLOCK)
    paths = [folder / f"block-{start:010d}.npy" for start in starts]
    if (folder / SUMS).exists():
        _claim(folder, identity)
        with suppress(InUse, PermissionError):  # whoever has it cleans up; who may not write need not
            _clean(folder, paths)
        return load_graph(folder, len(vectors))
    with writing(folder, worker):
        _claim(folder, identity)
        if not (folder / SUMS).exists():
            shards = Shards(folder, paths, worker, folder / SUMS)
            search = _search(vectors, config.metric)

            def block(number: int) -> None:
                with replacing(paths[number]) as file:
                    np.save(file, _block(search, vectors, starts[number], degree))

            shards.make(block, "building the graph")
            shards.finish(lambda: _join(folder, paths, (len(vectors), degree)))
            if worker.first:
                shards.clean()
    if worker.first:
        _clean(folder, paths)
    return load_graph(folder, len(vectors))


def _claim(folder: Path, identity: dict[str, Any]) -> None:
    manifest = folder / "manifest.json"
    if manifest.exists():
        found = read_object(manifest, "remove the folder and build again")
        differing = [key for key, value in identity.items() if found.get(key) != value]
        if differing:
            raise DataError(
                f"is a graph with other {' and '.join(differing)}; choose another folder or remove it", manifest
            )
    else:
        with replacing(manifest) as file:
            file.write(json.dumps(identity).encode())


def _join(folder: Path, blocks: Sequence[Path], shape: tuple[int, int]) -> None:
    # Written, not mapped: a full disk is an error of write(), but a bus error of a mapped page.
    with replacing(folder / "neighbors.npy") as file:
        header = {"descr": np.dtype(np.int32).str, "fortran_order": False, "shape": shape}
        write_array_header_2_0(file, header)
        reserve(file, file.tell() + 4 * shape[0] * shape[1])
        for path in blocks:
            file.write(np.load(path, allow_pickle=False).data)
    with replacing(folder / SUMS) as file:
        file.write(json.dumps(described(folder / "neighbors.npy")).encode())


def _clean(folder: Path, blocks: Iterable[Path]) -> None:
    """Removes blocks that were joined, which a kill may have left, and half-written files."""
    leftovers = [path for path in blocks if path.exists()]
    if leftovers or left_over(folder):
        with locked(folder):
            for path in leftovers:
                path.unlink(missing_ok=True)
            remove_scratch(folder)


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
