"""Minimum-norm least squares for many queries at once, grown round by round."""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor

CUT = 1e-5  # singular values below this share of the largest count as zero: the vectors are float32
PROBES = 8  # random vectors that estimate the trace of an inverse
SQUARED = 1e-4  # the square of a cut-off from here on is far above the rounding of double precision
SAFETY = 100.0
REGULAR = 1e11  # trace times trace of the inverse, up to which combinations of d rows are right to 1e-6
KEYS = 2  # inner products by which equal vectors are found
EQUAL = 1e-12


class GrowingLeastSquares:
    """u = argmin ||V_A u - a|| of least norm, for B queries whose sets A grow together (AXN §2.2, Eq. 4).

    While |A| is at most d, the Cholesky factor of the Gram matrix V_A V_A^T grows by the new rows. Up to half as many
    more are written as combinations of the first d (`_Surplus`); beyond that the d x d matrix V_A^T V_A grows. Items
    with equal vectors stand as one, with the mean of their scores, which has the same solution and keeps the Gram
    matrix regular. Where it is (nearly) singular all the same, that query alone is solved by singular values, without
    those below the cut-off, as numpy's ``lstsq(..., rcond=cut)`` does.

    Args:
        batch: B.
        width: d.
        capacity: the most equations that will be added.
        cut: singular values below this share of the largest count as zero; at least 1e-6.
    """

    def __init__(self, batch: int, width: int, capacity: int, cut: float = CUT) -> None:
        self.width = width
        self.cut = cut
        self._size = 0  # |A|
        self._all_vectors = torch.empty(batch, capacity, width, dtype=torch.float64)
        self._all_scores = torch.empty(batch, capacity, dtype=torch.float64)
        self._copies = torch.empty(batch, 0, dtype=torch.bool)  # whether an earlier item has the same vector
        self._sums = torch.empty(batch, 0, dtype=torch.float64)  # of the scores of all items with this vector
        self._counts = torch.empty(batch, 0, dtype=torch.float64)  # of these items, at the first of them
        self._keys = torch.empty(batch, KEYS, 0, dtype=torch.float64)
        self._factor = torch.empty(batch, 0, 0, dtype=torch.float64)
        self._surplus: _Surplus | None = None
        self._gram: Tensor | None = None
        self._trace = torch.zeros(batch, dtype=torch.float64)
        self._singular = torch.zeros(batch, dtype=torch.bool)

    @property
    def _vectors(self) -> Tensor:
        """V_A (B, |A|, d)."""
        return self._all_vectors[:, : self._size]

    @property
    def _scores(self) -> Tensor:
        """a (B, |A|)."""
        return self._all_scores[:, : self._size]

    def add(self, vectors: Tensor, scores: Tensor) -> None:
        """Adds n equations: vectors (B, n, d) and scores (B, n)."""
        before, self._size = self._size, self._size + scores.shape[1]
        self._all_vectors[:, before : self._size] = vectors
        self._all_scores[:, before : self._size] = scores
        # Of copies too: they make the largest singular value larger.
        self._trace += torch.linalg.vector_norm(self._vectors[:, before:], dim=(1, 2)).square()
        first = min(self._size, self.width)
        if before < first:
            self._grow_factor(before, first)
        if first < self._size:
            self._grow_more(max(before, first))

    def _grow_more(self, before: int) -> None:
        """Takes in the rows from ``before`` on, which is at least d."""
        fresh = self._vectors[:, before:]
        if self._size <= self.width + self.width // 2:
            if self._surplus is None:
                self._surplus = _Surplus(self._vectors[:, :before], self._scores[:, :before], self._factor)
            self._surplus.add(fresh, self._scores[:, before:])
        elif self._gram is None:
            self._surplus, self._gram = None, self._vectors.mT @ self._vectors
        else:
            self._gram.baddbmm_(fresh.mT, fresh)

    def _grow_factor(self, before: int, size: int) -> None:
        """L of [[K, C^T], [C, D]]: the new rows are C L^-T, and the factor of what they leave of D."""
        fresh = self._vectors[:, before:size]
        first = self._first_equal(fresh)
        copies = first != torch.arange(before, size)
        self._copies = torch.cat([self._copies, copies], dim=1)
        none = torch.zeros(first.shape, dtype=torch.float64)
        self._sums = torch.cat([self._sums, none], dim=1).scatter_add_(1, first, self._scores[:, before:size])
        self._counts = torch.cat([self._counts, none], dim=1).scatter_add_(1, first, torch.ones_like(none))
        distinct = fresh.masked_fill(copies[..., None], 0.0) if copies.any() else fresh
        rest = distinct @ distinct.mT
        # A copy is a row of zeros; 1 on its diagonal keeps the matrix regular, and its unknown is 0.
        rest.diagonal(dim1=1, dim2=2).add_(copies)
        factor = rest.new_empty(len(rest), size, size)  # what lies above the diagonal is never read
        if before:
            cross = (self._vectors[:, :before] @ distinct.mT).masked_fill_(self._copies[:, :before, None], 0.0)
            left = torch.linalg.solve_triangular(self._factor, cross, upper=False).mT
            rest.baddbmm_(left, left.mT, alpha=-1)
            factor[:, :before, :before] = self._factor
            factor[:, before:, :before] = left
        corner, info = torch.linalg.cholesky_ex(rest)
        failed = info != 0
        self._singular |= failed
        corner[failed] = torch.eye(corner.shape[1], dtype=torch.float64)
        factor[:, before:, before:] = corner
        self._factor = factor

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

    def solve(self) -> Tensor:
        """u (B, d) float64."""
        if self._size <= self.width:
            u, singular = self._solve_few()
        elif self._surplus is not None:
            u, singular = self._solve_more(self._surplus)
        else:
            assert self._gram is not None
            u, singular = self._solve_gram(self._gram, slice(None))
        if singular.any():
            u[singular] = self._solve_singular(singular)
        return u

    def _solve_few(self) -> tuple[Tensor, Tensor]:
        """u (B, d), and for which queries (B,) it is none: at most d equations."""
        right = self._sums / self._counts.clamp_min(1.0)
        solved, inverse_trace = _solved(self._factor, right)
        return self._combine(solved), self._singular | self._doubtful(inverse_trace, self._trace)

    def _solve_more(self, surplus: _Surplus) -> tuple[Tensor, Tensor]:
        """As `_solve_few`, with a few more equations than d; by the d x d matrix where those do not carry these."""
        u, inverse_trace, regular = surplus.solve()
        bad = ~regular | self._singular | self._copies.any(dim=1) | self._doubtful(inverse_trace, self._trace)
        singular = torch.zeros_like(bad)
        if bad.any():
            vectors = self._vectors[bad]
            u[bad], singular[bad] = self._solve_gram(vectors.mT @ vectors, bad)
        return u, singular

    def _solve_gram(self, gram: Tensor, which: Tensor | slice) -> tuple[Tensor, Tensor]:
        """As `_solve_few`, by V^T V (b, d, d) of some queries."""
        factor, info = torch.linalg.cholesky_ex(gram)
        singular = info != 0
        factor[singular] = torch.eye(self.width, dtype=torch.float64)
        right = (self._scores[which, None] @ self._vectors[which])[:, 0]
        solved, inverse_trace = _solved(factor, right)
        return solved, singular | self._doubtful(inverse_trace, self._trace[which])

    def _doubtful(self, inverse_trace: Tensor, trace: Tensor) -> Tensor:
        """Whether there may be a singular value near the cut-off."""
        return ~(SAFETY * self.cut**2 * inverse_trace * trace < 1)

    def _combine(self, coefficients: Tensor) -> Tensor:
        """V^T c (B, d) for c (B, n)."""
        return (coefficients[:, None] @ self._vectors)[:, 0]

    def _solve_singular(self, which: Tensor) -> Tensor:
        """The minimum-norm solution (b, d) of some queries, without the singular values below the cut-off.

        By the eigenvectors of the smaller Gram matrix; these are squares, so below `SQUARED` by V_A itself, which takes
        twice the time.
        """
        vectors, scores = self._vectors[which], self._scores[which][..., None]
        if self.cut < SQUARED:
            left, values, right = torch.linalg.svd(vectors, full_matrices=False)
            inverse = torch.where(values > self.cut * values[:, :1], 1 / values, 0.0)
            u: Tensor = (right.mT @ (inverse[..., None] * (left.mT @ scores)))[..., 0]
            return u
        wide = self._size <= self.width
        gram = vectors @ vectors.mT if wide else vectors.mT @ vectors if self._gram is None else self._gram[which]
        values, basis = torch.linalg.eigh(gram)
        inverse = torch.where(values > self.cut**2 * values[:, -1:], 1 / values, 0.0)
        solved = basis @ (inverse[..., None] * (basis.mT @ (scores if wide else vectors.mT @ scores)))
        u = (vectors.mT @ solved if wide else solved)[..., 0]
        return u


class _Surplus:
    """Equations beyond the first d: their rows are combinations T of the first d, V_more = T V_few.

    With p = V_few u, the predictions for the first d, ||p - a_few||^2 + ||T p - a_more||^2 is least at
    p = a_few + T^T (I + T T^T)^-1 (a_more - T a_few): a system as small as there are rows more.

    Args:
        vectors: V_few (B, d, d).
        scores: a_few (B, d).
        factor: L of V_few V_few^T (B, d, d); rows that are copies make what is solved here wrong.
    """

    def __init__(self, vectors: Tensor, scores: Tensor, factor: Tensor) -> None:
        self._few, self._few_scores, self._factor = vectors, scores, factor
        self._more = scores[:, :0]
        self._combinations = factor[:, :0]  # T
        self._probes: Tensor | None = None

    def add(self, vectors: Tensor, scores: Tensor) -> None:
        """Adds n equations: vectors (B, n, d) and scores (B, n)."""
        count, columns = scores.shape[1], vectors.mT
        if self._probes is None:
            random = _random(len(columns[0]), PROBES).expand(len(columns), -1, -1)
            columns = torch.cat([columns, random], dim=2)
        half = torch.linalg.solve_triangular(self._factor, self._few @ columns, upper=False)
        across = torch.linalg.solve_triangular(self._factor.mT, half, upper=True)  # V_few^-T
        if self._probes is None:
            # ||V_few^-T w||^2 of probes w is what the trace of the inverse of V_few^T V_few is estimated by.
            self._probes = across[..., count:]
            limit = self._probes.square().sum(dim=(1, 2)) / PROBES
            self._regular = limit * torch.linalg.vector_norm(self._few, dim=(1, 2)).square() < REGULAR
        self._combinations = torch.cat([self._combinations, across[..., :count].mT], dim=1)
        self._more = torch.cat([self._more, scores], dim=1)

    def solve(self) -> tuple[Tensor, Tensor, Tensor]:
        """u (B, d), the trace of the inverse of V^T V (B,), estimated, and for which queries (B,) they are right."""
        assert self._probes is not None
        t = self._combinations
        system = t @ t.mT
        system.diagonal(dim1=1, dim2=2).add_(1.0)
        factor, info = torch.linalg.cholesky_ex(system)
        rest = self._more - (t @ self._few_scores[..., None])[..., 0]
        both = torch.cat([rest[..., None], t @ self._probes], dim=2)
        half = torch.linalg.solve_triangular(factor, both, upper=False)
        solved = torch.linalg.solve_triangular(factor.mT, half[..., :1], upper=True)
        inverse_trace = (self._probes.square().sum(dim=(1, 2)) - half[..., 1:].square().sum(dim=(1, 2))) / PROBES
        predicted = self._few_scores[..., None] + t.mT @ solved
        half = torch.linalg.solve_triangular(self._factor, predicted, upper=False)
        coefficients = torch.linalg.solve_triangular(self._factor.mT, half, upper=True)
        return (coefficients.mT @ self._few)[:, 0], inverse_trace, self._regular & (info == 0)


def _solved(factor: Tensor, right: Tensor) -> tuple[Tensor, Tensor]:
    """Solutions (B, n) of L L^T x = right, and the traces of the inverses (B,), estimated.

    E ||L^-1 w||^2 is the trace of the inverse, at least 1 / its smallest eigenvalue: never too optimistic but by the
    luck of the draw, which SAFETY covers. The pivots alone would be: they only bound it from above.
    """
    both = torch.cat([right[..., None], _random(right.shape[1], PROBES).expand(len(right), -1, -1)], dim=2)
    half = torch.linalg.solve_triangular(factor, both, upper=False)
    solved = torch.linalg.solve_triangular(factor.mT, half[..., :1], upper=True)[..., 0]
    return solved, half[..., 1:].square().sum(dim=(1, 2)) / PROBES


@cache
def _random(rows: int, columns: int) -> Tensor:
    """(rows, columns) standard normal, the same in every call."""
    return torch.randn(rows, columns, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
