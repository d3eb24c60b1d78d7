"""The items of the largest inner products: screened in single precision with a proven margin, decided in double."""

from __future__ import annotations

import math
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from simzoo.retrieval.embedder import Embedder, longest_of
from simzoo.retrieval.first_stages.flat_scan import writeable
from simzoo.retrieval.topk import Rows, Running, top_order

Floats = NDArray[np.float32]
Removed = NDArray[np.bool_] | None
ROUNDING = 2.0**-24  # of single precision, relative
TINY = 2.0**-126  # what single precision may take for zero
PRODUCTS = 1 << 20  # held at once while all vectors are read
STRIPES = 64  # at most so many products, of which only the largest is looked at first
TIES = 1024  # items beyond those wanted that may be left to decide on; more of them tie
BLOCK = 1024  # items whose vectors are cast to float64 at once: they stay in the processor's cache
GATHERED = 1 << 27  # numbers of the pools' vectors that are held; of larger ones they are read anew each round


class Choice(Protocol):
    """What says which items are scored next."""

    def __call__(self, u: Tensor, items: Rows, fresh: int, size: int) -> Rows:
        """(B, size) items with the largest <u, v>, ties by lower row, that are not scored.

        Args:
            u: (B, d) float64.
            items: (B, n) that are scored, each once.
            fresh: how many of them, the last ones, are new since the call before.
            size: at most as many as there are left.
        """


class AllItems:
    """`Choice` among all items: by the vector index where it is approximate, else by a scan."""

    def __init__(self, embedder: Embedder, gone: Removed) -> None:
        self._embedder = embedder
        self._gone = gone

    def __call__(self, u: Tensor, items: Rows, fresh: int, size: int) -> Rows:
        """See `Choice`."""
        if self._embedder.exact:
            return self._scanned(u, items, size)
        found, _ = self._embedder.search(u.float().numpy(), size, exclude=items, removed=self._gone)
        short = np.flatnonzero((found < 0).any(axis=1))  # the index did not look far enough
        if short.size:
            found[short] = self._scanned(u[short], items[short], size)
        return found

    def _scanned(self, u: Tensor, items: Rows, size: int) -> Rows:
        return largest(u, self._embedder.vectors, self._embedder.longest, items, size, self._gone)


class Pools:
    """`Choice` among the items that a first stage found for each query, (B, P).

    Their vectors are held, as far as `GATHERED` goes.
    """

    def __init__(self, embedder: Embedder, found: Rows) -> None:
        self._embedder = embedder
        self._rows = np.sort(found, axis=1)
        self._places: list[Rows] = [np.empty(0, dtype=np.int64) for _ in found]
        hold = found.size * embedder.vectors.shape[1] <= GATHERED
        self._held: list[Floats | None] = []
        self._longest: list[float] = []
        for rows in self._rows:
            vectors = embedder.take(rows)
            self._held.append(vectors if hold else None)
            self._longest.append(longest_of(vectors))

    def __call__(self, u: Tensor, items: Rows, fresh: int, size: int) -> Rows:
        """See `Choice`."""
        chosen = np.empty((len(u), size), dtype=np.int64)
        for query, rows in enumerate(self._rows):
            new = np.searchsorted(rows, items[query, -fresh:])
            self._places[query] = np.concatenate([self._places[query], new])
            held, taken = self._held[query], self._places[query][None]
            vectors = self._embedder.take(rows) if held is None else held
            chosen[query] = rows[largest(u[query : query + 1], vectors, self._longest[query], taken, size)[0]]
        return chosen


def largest(u: Tensor, vectors: Floats, longest: float, taken: Rows, size: int, gone: Removed = None) -> Rows:
    """(B, size) rows of the largest <u, v>, computed in float64 and rounded to float32; ties go to the lower row.

    Products in single precision are off by at most (d + 4) 2^-24 |u| |v| (Higham, Accuracy and Stability, 3.5, with
    the roundings of u and of the result). What they leave within twice that of the size-th largest is computed in
    double precision; all of it, where more than `TIES` items tie.

    Args:
        u: (B, d) float64.
        vectors: (N, d), in memory or memory-mapped.
        longest: the largest norm among them.
        taken: (B, n) rows that are not wanted, each of a query's once.
        size: how many are wanted, at most as many as there are left.
        gone: (N,) rows that are wanted for no query.
    """
    margin = 1.01 * (u.shape[1] + 4) * (ROUNDING * longest + TINY)
    if not math.isfinite(margin):
        return _exactly(u, vectors, taken, size, gone)
    norms = u.norm(dim=1, keepdim=True)
    unit = torch.where(norms > 0, u / norms, 0.0).float()
    slack = 2 * (margin + TINY / norms).float()  # faint products are rounded to multiples of the least number
    products, rows, tied = _screened(unit, vectors, slack, taken, size, gone)
    near: Tensor = torch.from_numpy(vectors[rows.numpy()]).double()
    exact = torch.bmm(near, u[..., None])[..., 0].float().masked_fill_(products == -torch.inf, -torch.inf).numpy()
    found = rows.numpy()
    best = np.take_along_axis(found, top_order(exact, found, size), axis=1)
    if tied.size:
        best[tied] = _exactly(u[tied], vectors, taken[tied], size, gone)
    return best


def _screened(
    unit: Tensor, vectors: Floats, slack: Tensor, taken: Rows, size: int, gone: Removed
) -> tuple[Tensor, Tensor, Rows]:
    """Products (B, m) and rows (B, m) that hold all within ``slack`` (B, 1) of the size-th largest.

    The third are the queries of which these are too many.

    The products of a block are looked at by stripes, of which only those are opened whose largest can matter.
    """
    step = max(STRIPES, PRODUCTS // len(unit) // STRIPES * STRIPES)
    height = max(4, min(STRIPES, min(step, len(vectors)) // (16 * size)))
    best, rows = torch.empty(len(unit), 0), torch.empty(len(unit), 0, dtype=torch.int64)
    tied = np.zeros(len(unit), dtype=bool)
    offsets = torch.arange(height)[:, None]
    for first in range(0, len(vectors), step):
        block = torch.from_numpy(writeable(vectors[first : first + step]))
        products = _products(unit, block, height)
        query, place = np.nonzero((taken >= first) & (taken < first + step))
        products[query, taken[query, place] - first] = -torch.inf
        if gone is not None:
            products[:, np.flatnonzero(gone[first : first + step])] = -torch.inf
        width = products.shape[1] // height
        tops = products.view(len(unit), height, width).amax(dim=1)
        edge = torch.cat([best, tops], dim=1)
        edge = edge.topk(min(size, edge.shape[1]), dim=1).values[:, -1:] - slack
        opened = int(((tops >= edge) & (tops > -torch.inf)).sum(dim=1).max())
        if not opened:
            continue
        stripes = tops.topk(opened, dim=1, sorted=False).indices
        columns = (stripes[:, None] + offsets * width).flatten(1)
        best = torch.cat([best, products.gather(1, columns)], dim=1)
        rows = torch.cat([rows, columns + first], dim=1)
        edge = best.topk(min(size, best.shape[1]), dim=1).values[:, -1:] - slack
        counts = ((best >= edge) & (best > -torch.inf)).sum(dim=1)
        tied |= (counts > size + TIES).numpy()
        kept = max(size, int(counts.clamp(max=size + TIES).max()))
        best, places = best.topk(min(kept, best.shape[1]), dim=1, sorted=False)
        rows = rows.gather(1, places)
    return best, rows.clamp(max=len(vectors) - 1), np.flatnonzero(tied)


def _products(unit: Tensor, block: Tensor, height: int) -> Tensor:
    """<u, v> (B, M) in single precision, M filled up to a multiple of ``height`` with -inf."""
    missing = -len(block) % height
    found = unit @ block.T if len(unit) > 1 else (block @ unit[0])[None]
    return torch.nn.functional.pad(found, (0, missing), value=-torch.inf) if missing else found


def _exactly(u: Tensor, vectors: Floats, taken: Rows, size: int, gone: Removed) -> Rows:
    """As `largest`, from all products in double precision."""
    best = Running(len(u), size)
    for first in range(0, len(vectors), 64 * BLOCK):
        last = min(first + 64 * BLOCK, len(vectors))
        products = np.empty((len(u), last - first), dtype=np.float32)
        for start in range(first, last, BLOCK):
            stop = min(start + BLOCK, last)
            wide = torch.from_numpy(vectors[start:stop].astype(np.float64))
            products[:, start - first : stop - first] = (u @ wide.T).float().numpy()
        query, place = np.nonzero((taken >= first) & (taken < last))
        products[query, taken[query, place] - first] = -np.inf
        if gone is not None:
            products[:, gone[first:last]] = -np.inf
        best.add(products, np.arange(first, last))
    return best.rows
