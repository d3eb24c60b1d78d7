"""Minimum-norm least squares for many queries at once, grown round by round."""

from __future__ import annotations

import torch
from torch import Tensor

CUT = 1e-5  # singular values below this share of the largest count as zero: the vectors are float32
PROBES = 8  # random vectors that estimate the trace of an inverse
SAFETY = 100.0
KEYS = 2  # inner products by which equal vectors are found
EQUAL = 1e-12
PANEL = 96  # columns of a Gram matrix at once


class GrowingLeastSquares:
    """u = argmin ||V_A u - a|| of least norm, for B queries whose sets A grow together (AXN §2.2, Eq. 4).

    While |A| is at most d, the Cholesky factor of the Gram matrix V_A V_A^T grows by the new rows; beyond that the
    d x d matrix V_A^T V_A grows. Items with equal vectors stand as one, with the mean of their scores, which has the
    same solution and keeps the Gram matrix regular. Where it is (nearly) singular all the same, that query alone is
    solved by eigenvectors, without the singular values below `CUT`, as numpy's ``lstsq(..., rcond=CUT)`` does.

    Args:
        batch: B.
        width: d.
    """

    def __init__(self, batch: int, width: int) -> None:
        self.width = width
        # Blocks, one for each call of `add`: joining them would copy everything again in each round.
        self._blocks: list[Tensor] = []  # of vectors; 0 where an earlier item has the same vector
        self._sums = torch.empty(batch, 0, dtype=torch.float64)  # of the scores of all items with this vector
        self._weights = torch.empty(batch, 0, dtype=torch.float64)  # number of items with this vector
        self._keys = torch.empty(batch, KEYS, 0, dtype=torch.float64)
        self._factor = torch.empty(batch, 0, 0, dtype=torch.float64)
        self._gram = torch.empty(batch, 0, 0, dtype=torch.float64)  # what lies above the diagonal is never read
        self._trace = torch.zeros(batch, dtype=torch.float64)
        self._singular = torch.zeros(batch, dtype=torch.bool)

    def add(self, vectors: Tensor, scores: Tensor) -> None:
        """Adds n equations: vectors (B, n, d) float64 and scores (B, n) float64."""
        before, size = self._sums.shape[1], self._sums.shape[1] + scores.shape[1]
        first = self._first_equal(vectors)
        copies = first != torch.arange(before, size)
        distinct = vectors.masked_fill(copies[..., None], 0.0) if copies.any() else vectors
        none = torch.zeros_like(scores)
        self._sums = torch.cat([self._sums, none], dim=1).scatter_add_(1, first, scores)
        self._weights = torch.cat([self._weights, none], dim=1).scatter_add_(1, first, torch.ones_like(scores))
        if size <= self.width:
            self._grow_factor(distinct, copies, before)
        self._blocks.append(distinct)
        if before > self.width:
            self._grow_gram(vectors, vectors, keep=1.0)
        elif size > self.width:
            parts = self._weights[..., None].split_with_sizes(self._sizes(), dim=1)
            self._gram = vectors.new_empty(len(vectors), self.width, self.width)
            for number, (block, weights) in enumerate(zip(self._blocks, parts, strict=True)):
                self._grow_gram(block, block * weights, keep=float(number > 0))

    def _first_equal(self, vectors: Tensor) -> Tensor:
        """(B, n) position of the first vector that equals each new one: the same inner products with random vectors.

        Vectors that differ by less than `EQUAL` pass for equal too, rightly: their difference is far below `CUT`.
        """
        keys = (vectors @ _random(self.width, KEYS)).mT
        self._keys = torch.cat([self._keys, keys], dim=2)
        slack = EQUAL * self._keys.abs().amax(dim=2)[:, :, None]
        apart = self._keys[:, 0].sort(dim=1).values.diff(dim=1) > slack[:, 0]
        if apart.all():  # as nearly always
            size = self._keys.shape[2]
            return torch.arange(size - vectors.shape[1], size).expand(len(vectors), -1)
        equal = ((keys[..., :, None] - self._keys[..., None, :]).abs_() <= slack[..., None]).all(dim=1)
        return equal.to(torch.int8).argmax(dim=2)

    def _sizes(self) -> list[int]:
        return [block.shape[1] for block in self._blocks]

    def _grow_gram(self, left: Tensor, right: Tensor, keep: float) -> None:
        """Adds left^T right (B, d, d) to ``keep`` (0 or 1) times what is there, in the triangle that is read.

        Panels of columns from the diagonal down are little more than half of the work.
        """
        for start in range(0, self.width, PANEL):
            columns = slice(start, start + PANEL)
            self._gram[:, start:, columns].baddbmm_(left[..., start:].mT, right[..., columns], beta=keep)

    def _grow_factor(self, distinct: Tensor, copies: Tensor, before: int) -> None:
        """L of [[K, C^T], [C, D]]: the new rows are C L^-T, and the factor of what they leave of D."""
        rest = distinct @ distinct.mT
        self._trace += rest.diagonal(dim1=1, dim2=2).sum(dim=1)
        # A copy is a row of zeros; 1 on its diagonal keeps the matrix regular, and its unknown is 0.
        rest.diagonal(dim1=1, dim2=2).add_(copies)
        size = before + distinct.shape[1]
        factor = rest.new_empty(len(rest), size, size)  # what lies above the diagonal is never read
        if before:
            cross = torch.cat([block @ distinct.mT for block in self._blocks], dim=1)
            left = torch.linalg.solve_triangular(self._factor, cross, upper=False).mT
            rest.baddbmm_(left, left.mT, alpha=-1)
            factor[:, :before, :before] = self._factor
            factor[:, before:, :before] = left
        corner, info = torch.linalg.cholesky_ex(rest)
        failed = info != 0
        self._singular |= failed
        corner[failed] = torch.eye(distinct.shape[1], dtype=torch.float64)
        factor[:, before:, before:] = corner
        self._factor = factor

    def solve(self) -> Tensor:
        """u (B, d) float64."""
        wide = self._sums.shape[1] <= self.width
        if wide:
            factor, singular, trace = self._factor, self._singular, self._trace
            right = self._sums / self._weights.clamp_min(1.0)
        else:
            factor, info = torch.linalg.cholesky_ex(self._gram)
            singular = info != 0
            factor[singular] = torch.eye(self.width, dtype=torch.float64)
            right = self._combine(self._sums)
            trace = self._gram.diagonal(dim1=1, dim2=2).sum(dim=1)
        both = torch.cat([right[..., None], _random(right.shape[1], PROBES).expand(len(right), -1, -1)], dim=2)
        half = torch.linalg.solve_triangular(factor, both, upper=False)
        # E ||L^-1 w||^2 is the trace of the inverse, at least 1 / its smallest eigenvalue: never too optimistic but by
        # the luck of the draw, which SAFETY covers. The pivots alone would be: they only bound it from above.
        inverse_trace = half[..., 1:].square().sum(dim=(1, 2)) / PROBES
        singular = singular | ~(SAFETY * CUT**2 * inverse_trace * trace < 1)
        solved = torch.linalg.solve_triangular(factor.mT, half[..., :1], upper=True)[..., 0]
        u = self._combine(solved) if wide else solved
        if singular.any():
            u[singular] = self._solve_singular(singular)
        return u

    def _combine(self, coefficients: Tensor) -> Tensor:
        """V^T c (B, d) for c (B, n)."""
        parts = coefficients[..., None].split_with_sizes(self._sizes(), dim=1)
        u = torch.zeros(len(coefficients), self.width, 1, dtype=torch.float64)
        for block, part in zip(self._blocks, parts, strict=True):
            u.baddbmm_(block.mT, part)
        return u[..., 0]

    def _solve_singular(self, which: Tensor) -> Tensor:
        """The minimum-norm solution (b, d) of some queries, by eigenvectors of the smaller Gram matrix."""
        roots = self._weights[which].sqrt()
        weighted = torch.cat([block[which] for block in self._blocks], dim=1) * roots[..., None]
        scores = (self._sums[which] / roots.clamp_min(1.0))[..., None]
        wide = weighted.shape[1] <= self.width
        values, basis = torch.linalg.eigh(weighted @ weighted.mT if wide else weighted.mT @ weighted)
        right = scores if wide else weighted.mT @ scores
        kept = values > CUT**2 * values[:, -1:]
        inverse = torch.where(kept, 1 / values, 0.0)
        solved = basis @ (inverse[..., None] * (basis.mT @ right))
        u: Tensor = (weighted.mT @ solved if wide else solved)[..., 0]
        return u


def _random(rows: int, columns: int) -> Tensor:
    """(rows, columns) standard normal, the same in every call."""
    return torch.randn(rows, columns, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
