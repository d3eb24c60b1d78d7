"""How a query's vector is solved for: settings, and the systems of equations that they begin."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Protocol

import torch
from torch import Tensor

from simzoo.retrieval.searchers.least_squares import CUT, GrowingLeastSquares

__all__ = ["LeastNorm", "Ridge", "System"]

SOLVED = 8  # queries solved at once: with more, each d x d temporary is too large for malloc to use again


class System(Protocol):
    """Equations <u, v> = a of B queries, which grow in number."""

    def add(self, vectors: Tensor, scores: Tensor) -> None:
        """Adds n equations a query: vectors (B, n, d) and scores (B, n)."""

    def solve(self) -> Tensor:
        """u (B, d) float64."""


@dataclass(frozen=True)
class LeastNorm:
    """The least-squares solution of least norm, as of the pseudo-inverse.

    Attributes:
        cut: singular values below this share of the largest count as zero.
    """

    centred: ClassVar[bool] = False
    """Whether the dual encoder's vectors of the queries are looked at."""

    cut: float = CUT

    def __post_init__(self) -> None:
        if not 1e-6 <= self.cut < 1:
            raise ValueError(f"cut is a share of the largest singular value, in [1e-6, 1), got {self.cut}")

    def begin(self, own: Tensor, capacity: int) -> System:
        """A system without equations.

        Args:
            own: (B, d), of which only the shape is looked at.
            capacity: the most equations that will be added.
        """
        width = own.shape[1]
        return _Few([GrowingLeastSquares(len(part), width, capacity, self.cut) for part in torch.split(own, SOLVED)])


@dataclass(frozen=True)
class Ridge:
    """argmin ||V u - a||^2 + rho ||u - c||^2: u stays near a centre c where the scores say little.

    Attributes:
        strength: rho as a share of the mean squared norm of the item vectors of the first round.
        centred: c is the dual encoder's vector of the query, on whose scale the scores have to be; otherwise 0.
    """

    strength: float = 0.1
    centred: bool = True

    def __post_init__(self) -> None:
        if not self.strength > 0:
            raise ValueError(f"strength must be positive, got {self.strength}; without a penalty use LeastNorm")

    def begin(self, own: Tensor, capacity: int) -> System:
        """See `LeastNorm.begin`; ``own`` (B, d) are the centres."""
        centres = own if self.centred else torch.zeros_like(own)
        return _Few([_GrowingRidge(part, self.strength) for part in torch.split(centres, SOLVED)])


class _Few:
    """A few queries at a time."""

    def __init__(self, parts: Sequence[System]) -> None:
        self._parts = parts

    def add(self, vectors: Tensor, scores: Tensor) -> None:
        """See `System.add`."""
        for part, some, few in zip(self._parts, torch.split(vectors, SOLVED), torch.split(scores, SOLVED), strict=True):
            part.add(some, few)

    def solve(self) -> Tensor:
        """See `System.solve`."""
        return torch.cat([part.solve() for part in self._parts])


class _GrowingRidge:
    """Ridge regression around a centre: V^T V + rho I grows by the new rows.

    Args:
        centres: c (B, d) float64.
        strength: see `Ridge`.
    """

    def __init__(self, centres: Tensor, strength: float) -> None:
        self._centres = centres
        self._strength = strength
        self._gram: Tensor | None = None
        self._right = torch.zeros_like(centres)

    def add(self, vectors: Tensor, scores: Tensor) -> None:
        """See `System.add`."""
        vectors = vectors.double()
        if self._gram is None:
            # Where all vectors are zero any penalty leaves u at its centre.
            size = vectors.square().sum(dim=2).mean(dim=1)
            rho = self._strength * torch.where(size > 0, size, 1.0)
            self._gram = rho[:, None, None] * torch.eye(vectors.shape[2], dtype=torch.float64)
        rest = scores - (vectors @ self._centres[..., None])[..., 0]
        self._gram = torch.baddbmm(self._gram, vectors.mT, vectors)
        self._right += (rest[:, None] @ vectors)[:, 0]

    def solve(self) -> Tensor:
        """See `System.solve`."""
        assert self._gram is not None
        factor = torch.linalg.cholesky(self._gram)
        return self._centres + torch.cholesky_solve(self._right[..., None], factor)[..., 0]
