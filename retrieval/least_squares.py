"""Minimum-norm least squares for many queries at once, grown round by round."""

from __future__ import annotations

import torch
from torch import Tensor

CUT = 1e-5  # singular values below this share of the largest count as zero: the vectors are float32


class GrowingLeastSquares:
    """u = argmin ||V_A u - a|| of least norm, for B queries whose sets A grow together.

    While |A| is at most d the m x m Gram matrix V_A V_A^T grows by the new rows; beyond that the d x d matrix
    V_A^T V_A does. Both are solved by Cholesky; where one is (nearly) singular, as with items of equal text, that query
    alone is solved by its eigenvectors, without those below `CUT`.

    Args:
        batch: B.
        width: d.
    """

    def __init__(self, batch: int, width: int) -> None:
        self.width = width
        self.vectors = torch.empty(batch, 0, width, dtype=torch.float64)
        self.scores = torch.empty(batch, 0, dtype=torch.float64)
        self._gram = torch.empty(batch, 0, 0, dtype=torch.float64)

    def add(self, vectors: Tensor, scores: Tensor) -> None:
        """Adds n equations: vectors (B, n, d) float64 and scores (B, n) float64."""
        before = self.vectors.shape[1]
        grown = torch.cat([self.vectors, vectors], dim=1)
        if grown.shape[1] <= self.width:
            size = grown.shape[1]
            gram = grown.new_empty(len(grown), size, size)
            gram[:, :before, :before] = self._gram
            gram[:, before:] = vectors @ grown.mT
            gram[:, :before, before:] = gram[:, before:, :before].mT
        elif before <= self.width:
            gram = grown.mT @ grown
        else:
            gram = self._gram + vectors.mT @ vectors
        self.vectors, self._gram = grown, gram
        self.scores = torch.cat([self.scores, scores], dim=1)

    def solve(self) -> Tensor:
        """u (B, d) float64."""
        wide = self.vectors.shape[1] <= self.width
        right = self.scores[..., None] if wide else self.vectors.mT @ self.scores[..., None]
        factor, info = torch.linalg.cholesky_ex(self._gram)
        diagonal = factor.diagonal(dim1=-2, dim2=-1)
        smallest, largest = diagonal.aminmax(dim=1)
        singular = (info != 0) | ~(smallest > 10 * CUT * largest)
        solved = torch.empty_like(right)
        good = ~singular
        if good.any():
            solved[good] = torch.cholesky_solve(right[good], factor[good])
        if singular.any():
            values, basis = torch.linalg.eigh(self._gram[singular])
            keep = values > CUT**2 * values[:, -1:]
            inverse = torch.where(keep, 1 / values, 0.0)
            solved[singular] = basis @ (inverse[..., None] * (basis.mT @ right[singular]))
        return (self.vectors.mT @ solved if wide else solved)[..., 0]
