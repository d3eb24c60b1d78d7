"""Ridge regression whose penalty each query's own scores choose."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

__all__ = ["Evidence"]

GRID = 10.0 ** torch.arange(-5.0, 3.01, 0.25, dtype=torch.float64)  # strengths that are compared
FLAT = 1e-12  # scores that differ from the centre's by less than this share have nothing to explain


class _System(Protocol):
    """See `solvers.System`."""

    def add(self, vectors: Tensor, scores: Tensor) -> None: ...

    def solve(self) -> Tensor: ...


@dataclass(frozen=True)
class Evidence:
    """Ridge around a centre, with the strength of largest marginal likelihood for each query and round.

    The model: u ~ N(c, tau^2 I) and scores V u + e with e ~ N(0, sigma^2). Then a - V c ~ N(0, tau^2 (V V^T + rho I))
    with rho = sigma^2 / tau^2; tau^2 is profiled out, and rho is the best of a grid, 10^-5 to 10^3 times the mean
    squared norm of the scored vectors. The posterior mean of u is the ridge's solution.

    Attributes:
        centred: c is the dual encoder's vector of the query, on whose scale the scores have to be; otherwise 0.
    """

    centred: bool = True

    def begin(self, own: Tensor, capacity: int) -> _System:
        """See `solvers.LeastNorm.begin`; ``own`` (B, d) are the centres."""
        return Evident(own if self.centred else torch.zeros_like(own), capacity)


class Evident:
    """Equations of B queries, and what they say of u.

    A round decomposes the smaller of V V^T and V^T V anew for each query.

    Args:
        centres: c (B, d) float64.
        capacity: the most equations that will be added.

    Attributes:
        strength: (B,) rho after `solve`.
        noise: (B,) sigma^2 after `solve`.
    """

    def __init__(self, centres: Tensor, capacity: int) -> None:
        self._centres = centres
        self._every = torch.empty(len(centres), capacity, centres.shape[1], dtype=torch.float64)
        self._rest = torch.empty(len(centres), capacity, dtype=torch.float64)
        self._size = 0
        self.strength = self.noise = torch.zeros(len(centres), dtype=torch.float64)

    def add(self, vectors: Tensor, scores: Tensor) -> None:
        """Adds n equations a query: vectors (B, n, d) and scores (B, n)."""
        before, self._size = self._size, self._size + scores.shape[1]
        fresh = self._every[:, before : self._size].copy_(vectors)
        self._rest[:, before : self._size] = scores - (fresh @ self._centres[..., None])[..., 0]

    def solve(self) -> Tensor:
        """u (B, d) float64."""
        v, rest = self._every[:, : self._size], self._rest[:, : self._size]
        few = self._size <= v.shape[2]
        values, basis = torch.linalg.eigh(v @ v.mT if few else v.mT @ v)
        values = values.clamp_min(0.0)
        right = (basis.mT @ (rest[..., None] if few else v.mT @ rest[..., None]))[..., 0]
        # Squares of the residual along each eigenvector of V V^T, and what no eigenvector of V^T V carries.
        squares = right.square() if few else torch.where(values > 0, right.square() / values, 0.0)
        beyond = (rest.square().sum(dim=1) - squares.sum(dim=1)).clamp_min(0.0)
        self.strength, scale = self._best(values, squares, beyond)
        self.noise = self.strength * scale
        solved = (basis @ (right / (values + self.strength[:, None]))[..., None])[..., 0]
        u: Tensor = self._centres + ((solved[:, None] @ v)[:, 0] if few else solved)
        return u

    def _best(self, values: Tensor, squares: Tensor, beyond: Tensor) -> tuple[Tensor, Tensor]:
        """rho and tau^2 (B,) of the largest marginal likelihood, from eigenvalues and squares (B, m)."""
        count, none = self._size, self._size - values.shape[1]
        size = self._every[:, :count].square().sum(dim=(1, 2)) / count
        rho = torch.where(size > 0, size, 1.0)[:, None] * GRID  # (B, G)
        spread = values[:, None] + rho[..., None]
        scale = ((squares[:, None] / spread).sum(dim=2) + beyond[:, None] / rho) / count
        # Where the centre explains all scores, any strength does.
        scale = scale.clamp_min(FLAT * scale.amax(dim=1, keepdim=True)).clamp_min(math.ulp(0.0))
        deviance = count * scale.log() + spread.log().sum(dim=2) + none * rho.log()
        best = deviance.argmin(dim=1, keepdim=True)
        return rho.gather(1, best)[:, 0], scale.gather(1, best)[:, 0]

    def variances(self, vectors: Tensor) -> Tensor:
        """Posterior variances (B, M) of <u, v> for vectors (B, M, d), after `solve`; a score has sigma^2 more."""
        v = self._every[:, : self._size]
        system = v.mT @ v
        system.diagonal(dim1=1, dim2=2).add_(self.strength[:, None])
        half = torch.linalg.solve_triangular(torch.linalg.cholesky(system), vectors.mT, upper=False)
        found: Tensor = self.noise[:, None] * half.square().sum(dim=1)
        return found
