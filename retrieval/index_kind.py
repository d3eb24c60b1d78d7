"""What a vector index is to those who search it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray

from simzoo.retrieval.topk import Rows, Scores

__all__ = ["IndexKind", "VectorSearch"]

Floats = NDArray[np.float32]


class VectorSearch(Protocol):
    """A built vector index."""

    def search(self, queries: Floats, k: int) -> tuple[Rows, Scores]:
        """Rows (B, k) and inner products (B, k) of queries (B, d), best first; ties by lower row."""


class IndexKind(ABC):
    """How vectors are indexed."""

    calls_out: ClassVar[bool] = False
    """Whether it talks to a server; a settings file, which may come from elsewhere, does not name such a one."""

    @abstractmethod
    def build(self, vectors: Floats) -> VectorSearch:
        """An index of vectors (N, d)."""
