"""Kinds of vector indices by inner product: a scan of all vectors, and faiss' graphs and inverted files.

What a search in one promises: `vector_search`. faiss is imported where one of its indices is built or opened.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from simzoo.core.files import read_object
from simzoo.core.progress import progress
from simzoo.core.records import DataError
from simzoo.retrieval.first_stages.clusters import TRAINING, Clusters
from simzoo.retrieval.first_stages.vector_search import (
    INDEX,
    SETTINGS,
    Floats,
    VectorIndex,
    faiss,
)
from simzoo.retrieval.index_kind import IndexKind as IndexKind
from simzoo.retrieval.storage.checksums import check

__all__ = ["HNSW", "IVF", "IVFPQ", "Auto", "FaissKind", "Flat"]
BLOCK = 65_536  # vectors added at once
CODES = 256 * TRAINING  # vectors that product quantisation learns its codes from


@dataclass
class FaissKind(IndexKind):
    """How a faiss index is built."""

    on_gpus: ClassVar[bool] = False
    """Whether faiss searches it on a GPU where there is one."""

    @property
    def least(self) -> int:
        """Vectors that it takes to build one."""
        return 1

    @abstractmethod
    def empty(self, width: int, count: int) -> Any:
        """An untrained faiss index for ``count`` vectors of this width; None: they are scanned."""

    def build(self, vectors: Floats) -> VectorIndex:
        """An index of vectors (N, d), which are read block by block; long work says how far it is."""
        index = self.empty(vectors.shape[1], len(vectors))
        if index is not None:
            self.fill(index, vectors)
        return VectorIndex(vectors, self, index)

    def fill(self, index: Any, vectors: Floats) -> None:
        """Adds the vectors (N, d) to an empty index."""
        for block in _blocks(vectors):
            index.add(block)

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
        index = faiss().IndexHNSWFlat(width, self.links, faiss().METRIC_INNER_PRODUCT)
        index.hnsw.efConstruction = self.ef_construction
        return index

    def parameters(self, vectors: Floats, asked: int, reach: int | None = None, selector: Any = None) -> Any:
        """See `FaissKind.parameters`."""
        return faiss().SearchParametersHNSW(efSearch=reach or max(self.ef_search, asked), sel=selector)


@dataclass
class IVF(FaissKind):
    """Inverted lists around k-means centroids, with the vectors in half precision; what is found is scored in single.

    Attributes:
        lists: number of centroids, at most the number of vectors; None: 4 sqrt(N).
        probes: lists searched a query; None: 64.
    """

    on_gpus: ClassVar[bool] = True

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
        quantizer = faiss().IndexFlatIP(width)
        index = self._inverted(quantizer, width, lists)
        index.own_fields = True
        quantizer.this.disown()
        return index

    def _inverted(self, quantizer: Any, width: int, lists: int) -> Any:
        half = faiss().ScalarQuantizer.QT_fp16
        return faiss().IndexIVFScalarQuantizer(quantizer, width, lists, half, faiss().METRIC_INNER_PRODUCT, False)

    def fill(self, index: Any, vectors: Floats) -> None:
        """See `FaissKind.fill`. The lists come from `Clusters`: faiss' own k-means compares everything with all."""
        clusters = Clusters.of(_sample(vectors, TRAINING * index.nlist), index.nlist)
        index.quantizer.add(clusters.centroids)
        index.train(_sample(vectors, CODES))
        for block in _blocks(vectors):
            lists = clusters.assign(block)
            index.add_core(len(block), faiss().swig_ptr(block), None, faiss().swig_ptr(lists))

    def parameters(self, vectors: Floats, asked: int, reach: int | None = None, selector: Any = None) -> Any:
        """See `FaissKind.parameters`."""
        lists = self._lists(len(vectors))
        return faiss().SearchParametersIVF(nprobe=min(reach or self.probes or 64, lists), sel=selector)

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
        return faiss().IndexIVFPQ(quantizer, width, lists, size, 8, faiss().METRIC_INNER_PRODUCT)

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
        settings = read_object(folder / SETTINGS, "remove it and build again")
        kind = KINDS[settings["class"]](**settings["arguments"])
        if not isinstance(kind, Flat):
            check(path, settings["file"])
        index = None if isinstance(kind, Flat) else _mapped(path)
        if index is not None:
            _check_index(index, kind)
    except (OSError, ValueError, KeyError, TypeError, RuntimeError, MemoryError) as error:
        raise DataError(f"is no whole vector index ({error}); remove it and build again", folder) from error
    found = (settings["count"], settings["width"]) if index is None else (index.ntotal, index.d)
    if found != vectors.shape:
        raise DataError(f"is an index of vectors {found}, expected {vectors.shape}; remove it and build again", folder)
    return VectorIndex(vectors, kind, index, None if index is None else path)


def _check_index(index: Any, kind: FaissKind) -> None:
    """Refuses what faiss read if its settings do not say so: its file may be anybody's.

    Raises:
        ValueError: it is another kind of index.
    """
    expected = {HNSW: "IndexHNSWFlat", IVF: "IndexIVFScalarQuantizer", IVFPQ: "IndexIVFPQ"}[type(kind)]
    found = type(index).__name__
    if found != expected or index.metric_type != faiss().METRIC_INNER_PRODUCT or not index.is_trained:
        raise ValueError(f"{INDEX} holds a {found}, expected a trained {expected} of inner products")


def _mapped(path: Path) -> Any:
    # Newer versions map codes and links too; older ones the inverted lists alone.
    flags = getattr(faiss(), "IO_FLAG_MMAP_IFC", faiss().IO_FLAG_MMAP)
    return faiss().read_index(str(path), flags)


def _blocks(vectors: Floats) -> Iterator[Floats]:
    for start in progress(range(0, len(vectors), BLOCK), "vectors into the index, in blocks"):
        yield np.ascontiguousarray(vectors[start : start + BLOCK], dtype=np.float32)


def _sample(vectors: Floats, count: int) -> Floats:
    """At most so many of the vectors, the same ones each time."""
    if count >= len(vectors):
        return vectors
    rows = np.random.default_rng(0).choice(len(vectors), count, replace=False, shuffle=False)
    return np.ascontiguousarray(vectors[np.sort(rows)], dtype=np.float32)
