"""Vector indices by inner product: a scan of all vectors, and faiss' graphs and inverted files, on disk or in memory.

What is promised: scores are inner products of the vectors themselves, computed in double precision and rounded to
single, so that items with equal vectors tie; ties go to the lower row. At the k-th place this holds among the items
that were looked at: the scan and faiss are asked for 64 more than k, and for 16 times as many where those still tie
with the k-th. When more items than that tie (thousands of copies), which of them come last is left open, and nothing
scans all vectors to find out. `Flat` is exact otherwise; the others find what their settings let them.
"""

from __future__ import annotations

import json
import math
from abc import ABC, abstractmethod
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from simzoo.core.files import replacing
from simzoo.core.records import DataError
from simzoo.retrieval.first_stages.flat_scan import resident, scan
from simzoo.retrieval.storage.checksums import check, described

__all__ = ["HNSW", "IVF", "IVFPQ", "Auto", "FaissKind", "Flat", "IndexKind", "VectorIndex", "VectorSearch"]

try:
    import faiss as _faiss
except ImportError as error:
    raise ImportError("vector indices need faiss: install the extra cpu or gpu, pip install -e .[cpu]") from error

faiss: Any = _faiss  # its types know half of it

Floats = NDArray[np.float32]
Rows = NDArray[np.int64]
Removed = NDArray[np.bool_]

EXTRA = 64  # items looked at beyond the k-th, for ties
WIDER = 16  # times as many, where these tie with the k-th
BLOCK = 65_536  # vectors added at once
TRAINING = 64  # vectors a list that k-means sees
GATHERED = 1 << 23  # numbers gathered at once for scoring in double precision
GPU_MOST = 2048  # results that faiss gives on a GPU
SETTINGS, INDEX = "settings.json", "index.faiss"


class VectorSearch(Protocol):
    """What an index kind builds."""

    def search(self, queries: Floats, k: int) -> tuple[Rows, Floats]:
        """Rows (B, k) and inner products (B, k) of queries (B, d), best first; ties by lower row."""


class IndexKind(ABC):
    """How vectors are indexed."""

    @abstractmethod
    def build(self, vectors: Floats) -> VectorSearch:
        """An index of vectors (N, d)."""


class VectorIndex:
    """N vectors and what searches them.

    Args:
        vectors: (N, d), in memory or memory-mapped; they are read, not copied.
        kind: how they are indexed.
        index: what faiss built over them; None: they are scanned.
        path: of the file that ``index`` is mapped from.
    """

    def __init__(self, vectors: Floats, kind: FaissKind, index: Any = None, path: Path | None = None) -> None:
        self.vectors: Floats = np.asarray(vectors)
        self.kind = kind
        self._index = index
        self._path = path
        self._scanned: torch.Tensor | None = None
        self._gpu: Any = None
        self._selected: tuple[Removed, Any] | None = None

    @property
    def exact(self) -> bool:
        """Whether every vector is looked at."""
        return self._index is None

    def search(self, queries: Floats, k: int, removed: Removed | None = None) -> tuple[Rows, Floats]:
        """The items with the largest inner products.

        An inverted file or a graph that finds fewer than k for a query is searched again for it with all its lists or
        nodes; what a graph cannot reach comes from a scan.

        Args:
            queries: (B, d).
            k: results a query.
            removed: (N,) rows that are not to be found; the array is not changed afterwards.

        Returns:
            Rows (B, k), -1 where there are no more items, and their inner products (B, k), -inf there; best first, ties
            by lower row (see above).
        """
        queries = np.ascontiguousarray(queries, dtype=np.float32)
        there = len(self.vectors) - (0 if removed is None else int(np.count_nonzero(removed)))
        wanted = min(k, there)
        rows = np.full((len(queries), k), -1, dtype=np.int64)
        scores = np.full((len(queries), k), -np.inf, dtype=np.float32)
        if wanted and len(queries):
            asked = min(there, self.kind.asked(wanted) + EXTRA)
            rows[:, :wanted], scores[:, :wanted], unsure = self._best(queries, wanted, asked, removed)
            if unsure.any() and asked < there:
                again = self._best(queries[unsure], wanted, min(there, WIDER * asked), removed)
                rows[unsure, :wanted], scores[unsure, :wanted] = again[:2]
        return rows, scores

    def _best(
        self, queries: Floats, k: int, asked: int, removed: Removed | None
    ) -> tuple[Rows, Floats, NDArray[np.bool_]]:
        """The best k of the items that are looked at, and which queries may tie at the k-th place with others."""
        found = self._candidates(queries, asked, removed)
        short = (found >= 0).sum(axis=1) < k
        if short.any():
            found[short] = self._candidates(queries[short], asked, removed, everywhere=True)
            short = (found >= 0).sum(axis=1) < k
        if short.any():
            found[short] = self._scan(queries[short], asked, removed)
        scores, longest = self._scored(queries, found)
        order = np.lexsort((found, -scores), axis=1)
        scores = np.take_along_axis(scores, order, axis=1)
        rounding = 2 * math.sqrt(queries.shape[1]) * np.finfo(np.float32).eps * longest
        unsure = scores[:, k - 1] - scores[:, -1] <= rounding * np.linalg.norm(queries, axis=1)
        return np.take_along_axis(found, order[:, :k], axis=1), scores[:, :k], unsure

    def _candidates(self, queries: Floats, asked: int, removed: Removed | None, everywhere: bool = False) -> Rows:
        """Rows (B, asked) in no certain order, -1 for none."""
        if self._index is None:
            return self._scan(queries, asked, removed)
        if removed is None and not everywhere and asked <= GPU_MOST and self._on_gpu():
            return np.asarray(self._gpu[1].search(queries, asked, params=self.kind.parameters(self.vectors, asked))[1])
        count = len(self.vectors) if everywhere else None
        parameters = self.kind.parameters(self.vectors, asked, count, self._selector(removed))
        return np.asarray(self._index.search(queries, asked, params=parameters)[1])

    def _scan(self, queries: Floats, asked: int, removed: Removed | None) -> Rows:
        if self._scanned is None:
            self._scanned = resident(self.vectors)
        return scan(self._scanned, queries, asked, removed)

    def _scored(self, queries: Floats, rows: Rows) -> tuple[Floats, float]:
        """Inner products (B, m), and the longest vector's length."""
        scores, longest = np.empty(rows.shape, dtype=np.float32), 0.0
        size = max(1, GATHERED // (rows.shape[1] * self.vectors.shape[1]))
        for start in range(0, len(rows), size):
            part = slice(start, start + size)
            vectors = self.vectors[rows[part].clip(min=0)].astype(np.float64)
            longest = max(longest, float(np.sqrt(np.einsum("bmd,bmd->bm", vectors, vectors).max())))
            # einsum adds up each product alone: equal vectors give equal sums, wherever they stand.
            scores[part] = np.einsum("bd,bmd->bm", queries[part].astype(np.float64), vectors)
        scores[rows < 0] = -np.inf
        return scores, longest

    def _selector(self, removed: Removed | None) -> Any:
        if removed is None:
            return None
        if self._selected is None or self._selected[0] is not removed:
            bits = np.packbits(~removed, bitorder="little")
            self._selected = removed, faiss.IDSelectorBitmap(bits)
        return self._selected[1]

    def _on_gpu(self) -> bool:
        if self._gpu is None:
            self._gpu = ()
            if isinstance(self.kind, IVF | IVFPQ) and _gpus():
                resources = faiss.StandardGpuResources()  # to be kept as long as the index
                self._gpu = resources, faiss.index_cpu_to_gpu(resources, 0, self._index)
        return bool(self._gpu)

    def add(self, vectors: Floats) -> None:
        """More vectors (M, d), in the rows behind the others. Lists and codes stay as they were trained."""
        if self._path is not None:  # what is mapped cannot grow
            self._index, self._path = faiss.read_index(str(self._path)), None
        if self._index is not None:
            self._index.add(np.ascontiguousarray(vectors, dtype=np.float32))
        self.vectors = np.concatenate([self.vectors, vectors])
        self._gpu = self._selected = self._scanned = None

    def save(self, folder: Path) -> None:
        """Writes how the vectors are indexed and faiss' file; the vectors themselves are the caller's to keep.

        Raises:
            OSError: there is no room.
        """
        folder.mkdir(parents=True, exist_ok=True)
        if self._index is not None:
            with replacing(folder / INDEX) as file:
                _write(self._index, file.name)
        count, width = self.vectors.shape
        settings = {"class": type(self.kind).__name__, "arguments": asdict(self.kind), "count": count, "width": width}
        settings["file"] = None if self._index is None else described(folder / INDEX)
        with replacing(folder / SETTINGS) as file:
            file.write(json.dumps(settings).encode())


def open_index(folder: Path, vectors: Floats) -> VectorIndex:
    """What `VectorIndex.save` wrote, memory-mapped.

    Args:
        folder: where.
        vectors: (N, d), the same as when it was saved.

    Raises:
        DataError: a file is missing or damaged, or belongs to other vectors.
    """
    path = folder / INDEX
    try:
        settings = json.loads((folder / SETTINGS).read_text())
        kind = KINDS[settings["class"]](**settings["arguments"])
        if not isinstance(kind, Flat):
            check(path, settings["file"])
        index = None if isinstance(kind, Flat) else faiss.read_index(str(path), _MAPPED)
    except (OSError, ValueError, KeyError, TypeError, RuntimeError) as error:
        raise DataError(f"is no whole vector index ({error}); remove it and build again", folder) from error
    found = (settings["count"], settings["width"]) if index is None else (index.ntotal, index.d)
    if found != vectors.shape:
        raise DataError(f"is an index of vectors {found}, expected {vectors.shape}; remove it and build again", folder)
    return VectorIndex(vectors, kind, index, None if index is None else path)


@dataclass
class FaissKind(IndexKind):
    """How a faiss index is built."""

    @property
    def least(self) -> int:
        """Vectors that it takes to build one."""
        return 1

    @abstractmethod
    def empty(self, width: int, count: int) -> Any:
        """An untrained faiss index for ``count`` vectors of this width; None: they are scanned."""

    def build(self, vectors: Floats) -> VectorIndex:
        """Trains the index where it needs it, and adds the vectors (N, d) block by block."""
        index = self.empty(vectors.shape[1], len(vectors))
        if index is not None:
            if not index.is_trained:
                index.train(self.training(vectors))
            for start in range(0, len(vectors), BLOCK):
                index.add(np.ascontiguousarray(vectors[start : start + BLOCK], dtype=np.float32))
        return VectorIndex(vectors, self, index)

    def training(self, vectors: Floats) -> Floats:
        """The vectors that the index is trained on: not all, and the same ones each time."""
        return vectors

    def parameters(self, vectors: Floats, asked: int, reach: int | None = None, selector: Any = None) -> Any:
        """faiss' parameters of a search for ``asked`` items.

        Args:
            vectors: (N, d) of the index.
            asked: items.
            reach: lists or nodes that are looked at; None: as the settings say.
            selector: which rows may be found.
        """
        return None

    def asked(self, k: int) -> int:
        """How many items the index is asked for k."""
        return k


@dataclass
class Flat(FaissKind):
    """Exact search: every query is multiplied with all vectors, on a GPU where they fit one."""

    def empty(self, width: int, count: int) -> None:
        """See `FaissKind.empty`."""


@dataclass
class HNSW(FaissKind):
    """Hierarchical navigable small-world graph.

    Attributes:
        links: neighbours a node and layer.
        ef_construction: breadth of the search while building.
        ef_search: breadth of the search; at least k.
    """

    links: int = 32
    ef_construction: int = 200
    ef_search: int = 128

    def __post_init__(self) -> None:
        if self.links < 2 or self.ef_construction < 1 or self.ef_search < 1:
            raise ValueError(f"HNSW needs at least 2 links and breadths of at least 1, got {self}")

    def empty(self, width: int, count: int) -> Any:
        """See `FaissKind.empty`."""
        index = faiss.IndexHNSWFlat(width, self.links, faiss.METRIC_INNER_PRODUCT)
        index.hnsw.efConstruction = self.ef_construction
        return index

    def parameters(self, vectors: Floats, asked: int, reach: int | None = None, selector: Any = None) -> Any:
        """See `FaissKind.parameters`."""
        return faiss.SearchParametersHNSW(efSearch=reach or max(self.ef_search, asked), sel=selector)


@dataclass
class IVF(FaissKind):
    """Inverted lists around k-means centroids, with the vectors in half precision; what is found is scored in single.

    Attributes:
        lists: number of centroids, at most the number of vectors; None: 4 sqrt(N).
        probes: lists searched a query; None: 64.
    """

    lists: int | None = None
    probes: int | None = None

    def __post_init__(self) -> None:
        if min(self.lists or 1, self.probes or 1) < 1 or 0 in (self.lists, self.probes):
            raise ValueError(f"{type(self).__name__} needs at least one list and one probe, got {self}")

    def empty(self, width: int, count: int) -> Any:
        """See `FaissKind.empty`."""
        lists = self._lists(count)
        if lists > count:
            raise ValueError(f"{type(self).__name__} with {lists} lists needs at least as many vectors, got {count}")
        quantizer = faiss.IndexFlatIP(width)
        index = self._inverted(quantizer, width, lists)
        index.cp.min_points_per_centroid = 1  # few vectors a list are no mistake: what is found is scored anew
        index.cp.max_points_per_centroid = TRAINING
        if _gpus():
            index.clustering_index = faiss.index_cpu_to_all_gpus(faiss.IndexFlatIP(width))
        index.own_fields = True
        quantizer.this.disown()
        return index

    def _inverted(self, quantizer: Any, width: int, lists: int) -> Any:
        half = faiss.ScalarQuantizer.QT_fp16
        return faiss.IndexIVFScalarQuantizer(quantizer, width, lists, half, faiss.METRIC_INNER_PRODUCT, False)

    def training(self, vectors: Floats) -> Floats:
        """See `FaissKind.training`: 64 a list."""
        wanted = self._trained_on(self._lists(len(vectors)))
        if wanted >= len(vectors):
            return vectors
        rows = np.random.default_rng(0).choice(len(vectors), wanted, replace=False, shuffle=False)
        return np.ascontiguousarray(vectors[np.sort(rows)], dtype=np.float32)

    def _trained_on(self, lists: int) -> int:
        return TRAINING * lists

    def parameters(self, vectors: Floats, asked: int, reach: int | None = None, selector: Any = None) -> Any:
        """See `FaissKind.parameters`."""
        lists = self._lists(len(vectors))
        return faiss.SearchParametersIVF(nprobe=min(reach or self.probes or 64, lists), sel=selector)

    @property
    def least(self) -> int:
        """See `FaissKind.least`."""
        return self.lists or 1

    def _lists(self, count: int) -> int:
        return self.lists or max(1, min(count, round(4 * math.sqrt(count))))


@dataclass
class IVFPQ(IVF):
    """Inverted lists of product-quantised vectors; the best of them are scored by the vectors themselves.

    It holds ``code_bytes`` an item where `IVF` holds two bytes a dimension; the vectors are read for few items only.

    Attributes:
        lists: see `IVF`.
        probes: see `IVF`.
        code_bytes: of an item, a divisor of the width; None: the largest one that is at most a quarter of the width.
        refine: times k, how many of the best by their codes are scored by their vectors.
    """

    code_bytes: int | None = None
    refine: int = 10

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.refine < 1 or (self.code_bytes is not None and self.code_bytes < 1):
            raise ValueError(f"IVFPQ needs at least one byte a code and refine of at least 1, got {self}")

    def empty(self, width: int, count: int) -> Any:
        """See `FaissKind.empty`."""
        if count < 256:
            raise ValueError(f"IVFPQ learns 256 codes a byte and needs at least 256 vectors, got {count}")
        return super().empty(width, count)

    def _inverted(self, quantizer: Any, width: int, lists: int) -> Any:
        size = self.code_bytes or max(size for size in range(1, max(2, width // 4 + 1)) if width % size == 0)
        if width % size:
            raise ValueError(f"code_bytes = {size} does not divide the {width} dimensions of the vectors")
        return faiss.IndexIVFPQ(quantizer, width, lists, size, 8, faiss.METRIC_INNER_PRODUCT)

    def _trained_on(self, lists: int) -> int:
        return max(super()._trained_on(lists), 256 * TRAINING)

    def asked(self, k: int) -> int:
        """See `FaissKind.asked`."""
        return self.refine * k

    @property
    def least(self) -> int:
        """See `FaissKind.least`."""
        return max(256, super().least)


@dataclass
class Auto(IndexKind):
    """By size: a scan up to so many items, `IVF` with its defaults above.

    Attributes:
        exact_up_to: items that are scanned.
    """

    exact_up_to: int = 200_000

    def of(self, count: int) -> FaissKind:
        """The kind for so many vectors."""
        return Flat() if count <= self.exact_up_to else IVF()

    def build(self, vectors: Floats) -> VectorIndex:
        """See `IndexKind.build`."""
        return self.of(len(vectors)).build(vectors)


KINDS: dict[str, type[FaissKind]] = {kind.__name__: kind for kind in (Flat, HNSW, IVF, IVFPQ)}

# Newer versions map codes and links too; older ones the inverted lists alone.
_MAPPED = getattr(faiss, "IO_FLAG_MMAP_IFC", faiss.IO_FLAG_MMAP)


def _gpus() -> int:
    return int(getattr(faiss, "get_num_gpus", int)())


def _write(index: Any, path: str) -> None:
    try:
        faiss.write_index(index, path)
    except RuntimeError as error:
        raise OSError(f"faiss could not write {path}: {error}") from error
