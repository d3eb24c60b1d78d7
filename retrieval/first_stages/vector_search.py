"""Search in an index of vectors by inner product.

What is promised: scores are inner products of the vectors themselves, computed in double precision and rounded to
single, so that items with equal vectors tie; ties go to the lower row. At the k-th place this holds among the items
that were looked at: the scan and faiss are asked for 64 more than k, and for 16 times as many where those still tie
with the k-th. When more items than that tie (thousands of copies), which of them come last is left open, and nothing
scans all vectors to find out. `Flat` is exact otherwise; the others find what their settings let them.
"""

from __future__ import annotations

import json
import math
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from simzoo.core.extras import extra
from simzoo.core.files import replacing
from simzoo.retrieval.first_stages.flat_scan import resident, scan
from simzoo.retrieval.storage.checksums import described

if TYPE_CHECKING:
    from simzoo.retrieval.first_stages.vector_index import FaissKind

Floats = NDArray[np.float32]
Rows = NDArray[np.int64]
Removed = NDArray[np.bool_]

EXTRA = 64  # items looked at beyond the k-th, for ties
WIDER = 16  # times as many, where these tie with the k-th
GATHERED = 1 << 23  # numbers gathered at once for scoring in double precision
GPU_MOST = 2048  # results that faiss gives on a GPU
OVER_LISTS = 1  # faiss' parallel_mode in which threads share the lists of a query
SETTINGS, INDEX = "settings.json", "index.faiss"


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
        found = self._candidates(queries, asked, removed)[0]
        short = (found >= 0).sum(axis=1) < k
        if short.any():
            found[short] = self._candidates(queries[short], asked, removed, everywhere=True)[0]
            short = (found >= 0).sum(axis=1) < k
        if short.any():
            found[short] = self._scan(queries[short], asked, removed)[0]
        scores, longest = self._scored(queries, found)
        order = np.lexsort((found, -scores), axis=1)
        scores = np.take_along_axis(scores, order, axis=1)
        rounding = 2 * math.sqrt(queries.shape[1]) * np.finfo(np.float32).eps * longest
        unsure = scores[:, k - 1] - scores[:, -1] <= rounding * np.linalg.norm(queries, axis=1)
        return np.take_along_axis(found, order[:, :k], axis=1), scores[:, :k], unsure

    def near(self, queries: Floats, k: int, removed: Removed | None = None) -> tuple[Rows, Floats]:
        """About the k nearest: what the index finds at once, by its own scores, in no certain order.

        It is what `search` scores anew, and costs less where k is large. Rows (B, m), m at most k, -1 for none, and
        scores (B, m), -inf there.
        """
        asked = np.ascontiguousarray(queries, dtype=np.float32)
        return self._candidates(asked, min(k, len(self.vectors)), removed)

    def _candidates(
        self, queries: Floats, asked: int, removed: Removed | None, everywhere: bool = False
    ) -> tuple[Rows, Floats]:
        """Rows (B, asked) in no certain order, -1 for none, and the index's own scores."""
        if self._index is None:
            return self._scan(queries, asked, removed)
        if removed is None and not everywhere and asked <= GPU_MOST and self._on_gpu():
            scores, rows = self._gpu[1].search(queries, asked, params=self.kind.parameters(self.vectors, asked))
        else:
            count = len(self.vectors) if everywhere else None
            parameters = self.kind.parameters(self.vectors, asked, count, self._selector(removed))
            if hasattr(self._index, "parallel_mode"):
                self._index.parallel_mode = OVER_LISTS if len(queries) == 1 else 0
            scores, rows = self._index.search(queries, asked, params=parameters)
        return np.asarray(rows), np.where(rows < 0, -np.inf, scores)

    def _scan(self, queries: Floats, asked: int, removed: Removed | None) -> tuple[Rows, Floats]:
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
            self._selected = removed, faiss().IDSelectorBitmap(bits)
        return self._selected[1]

    def _on_gpu(self) -> bool:
        if self._gpu is None:
            self._gpu = ()
            if self.kind.on_gpus and gpus():
                resources = faiss().StandardGpuResources()  # to be kept as long as the index
                self._gpu = resources, faiss().index_cpu_to_gpu(resources, 0, self._index)
        return bool(self._gpu)

    def add(self, vectors: Floats) -> None:
        """More vectors (M, d), in the rows behind the others. Lists and codes stay as they were trained."""
        if self._path is not None:  # what is mapped cannot grow
            self._index, self._path = faiss().read_index(str(self._path)), None
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


def faiss() -> Any:
    """The module.

    Raises:
        MissingExtraError: it is not installed.
    """
    return extra("faiss", "cpu, gpu", "a vector index other than Flat")


def gpus() -> int:
    """GPUs that faiss can use."""
    return int(getattr(faiss(), "get_num_gpus", int)())


def _write(index: Any, path: str) -> None:
    try:
        faiss().write_index(index, path)
    except RuntimeError as error:
        raise OSError(f"faiss could not write {path}: {error}") from error
