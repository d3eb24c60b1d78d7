"""All vectors against a few queries, without a copy of them."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

Floats = NDArray[np.float32]
Rows = NDArray[np.int64]

PRODUCTS = 1 << 22  # held at once


def resident(vectors: Floats) -> torch.Tensor:
    """The vectors (N, d) where they are scanned: on the GPU if half of its free memory holds them; else as they lie."""
    every = torch.from_numpy(writeable(vectors))
    if torch.cuda.is_available() and 2 * vectors.nbytes < torch.cuda.mem_get_info()[0]:
        return every.cuda()
    return every


def scan(every: torch.Tensor, queries: Floats, k: int, removed: NDArray[np.bool_] | None = None) -> tuple[Rows, Floats]:
    """Rows (B, k) of the largest inner products in single precision, in no certain order, and these; -1 for none.

    Reads all vectors once, in blocks, and holds 16 MB of products. It is as fast as faiss' flat index, which holds a
    copy of the vectors in memory; this reads them where they lie.

    Args:
        every: (N, d), in memory, memory-mapped or on a GPU.
        queries: (B, d).
        k: at most N.
        removed: (N,) rows that are not to be found.
    """
    asked = torch.from_numpy(np.ascontiguousarray(queries)).to(every.device)
    size = max(k, PRODUCTS // max(1, len(queries)))
    best = asked.new_empty(len(queries), 0)
    rows = torch.empty(len(queries), 0, dtype=torch.int64, device=every.device)
    for start in range(0, len(every), size):
        block = every[start : start + size]
        scores = asked @ block.T if len(asked) > 1 else (block @ asked[0])[None]
        if removed is not None:
            gone = torch.from_numpy(np.flatnonzero(removed[start : start + size]))
            scores[:, gone.to(every.device)] = -torch.inf
        found, columns = scores.topk(min(k, len(block)), dim=1, sorted=False)
        best, rows = torch.cat([best, found], dim=1), torch.cat([rows, columns + start], dim=1)
        if best.shape[1] > k:
            best, places = best.topk(k, dim=1, sorted=False)
            rows = rows.gather(1, places)
    return rows.masked_fill(best == -torch.inf, -1).cpu().numpy(), best.cpu().numpy()


def writeable(vectors: Floats) -> Floats:
    """The same memory, so that torch does not warn that it might be written to: nothing here does."""
    return vectors if vectors.flags.writeable else np.asarray(_Memory(vectors))


class _Memory:
    def __init__(self, array: Floats) -> None:
        self.array = array
        self.__array_interface__: dict[str, Any] = array.__array_interface__ | {
            "data": (array.__array_interface__["data"][0], False)
        }
