"""The growing solver against numpy's minimum-norm solution where matrices are nasty."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from simzoo.retrieval.searchers.least_squares import CUT, GrowingLeastSquares

Doubles = NDArray[np.float64]
WIDTH, EQUATIONS, STEPS = 40, 70, (0, 10, 25, 38, 40, 41, 55, 70)


def largest_difference(vectors: Doubles, scores: Doubles) -> float:
    """Relative to the largest entry, over all sizes at which the system is solved."""
    squares = GrowingLeastSquares(len(vectors), vectors.shape[2], vectors.shape[1])
    worst = 0.0
    for start, stop in pairwise(STEPS):
        squares.add(torch.from_numpy(vectors[:, start:stop]), torch.from_numpy(scores[:, start:stop]))
        for solved, v, a in zip(squares.solve().numpy(), vectors[:, :stop], scores[:, :stop], strict=True):
            expected = np.linalg.lstsq(v, a, rcond=CUT)[0]
            worst = max(worst, np.abs(solved - expected).max() / max(np.abs(expected).max(), 1e-30))
    return worst


def nasty(kind: str, seed: int) -> Doubles:
    rng = np.random.default_rng(seed)
    vectors = rng.normal(size=(3, EQUATIONS, WIDTH))
    if kind.startswith("spectrum"):
        left, _, right = np.linalg.svd(vectors, full_matrices=False)
        return (left * 10 ** -np.linspace(0, float(kind.split()[1]), WIDTH)) @ right
    if kind == "row scales":
        return vectors * 10 ** rng.uniform(-2, 2, size=(3, EQUATIONS, 1))
    if kind == "copies":
        vectors[:, rng.integers(EQUATIONS, size=30)] = vectors[:, rng.integers(EQUATIONS, size=30)]
    if kind == "all the same":
        vectors[:] = vectors[:, :1]
    if kind == "zeros":
        vectors *= rng.random((3, EQUATIONS, 1)) > 0.3
    if kind == "rank 12":
        vectors = vectors[:, :, :12] @ rng.normal(size=(12, WIDTH))
    if kind == "near copies":
        vectors[:, 1::3] = vectors[:, :-1:3] + 1e-7 * rng.normal(size=vectors[:, 1::3].shape)
    return vectors


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(
    "kind",
    [
        "spectrum 3",
        "spectrum 4.5",
        "spectrum 6",
        "spectrum 8",
        "row scales",
        "copies",
        "all the same",
        "zeros",
        "rank 12",
        "near copies",
    ],
)
def test_singular_systems_are_solved_like_numpys(kind: str, seed: int) -> None:
    """Pivots do not show every singular matrix: an unseen one gives query vectors that are wrong by factors."""
    scores = np.random.default_rng(seed + 100).normal(size=(3, EQUATIONS))
    assert largest_difference(nasty(kind, seed), scores) < 1e-4


@settings(max_examples=25)
@given(st.integers(0, 999))
def test_one_query_does_not_disturb_another(seed: int) -> None:
    """A singular query in the batch is solved apart; its neighbours' solutions must be what they are alone."""
    rng = np.random.default_rng(seed)
    vectors, scores = rng.normal(size=(2, EQUATIONS, WIDTH)), rng.normal(size=(2, EQUATIONS))
    vectors[1, 5:9] = 0
    alone, together = GrowingLeastSquares(1, WIDTH, EQUATIONS), GrowingLeastSquares(2, WIDTH, EQUATIONS)
    for start, stop in pairwise(STEPS):
        part, right = torch.from_numpy(vectors[:, start:stop]), torch.from_numpy(scores[:, start:stop])
        alone.add(part[:1], right[:1])
        together.add(part, right)
        # Relative: at 40 equations in 40 unknowns a random system may be ill-conditioned, and its solution large.
        a, b = alone.solve()[0], together.solve()[0]
        assert float((a - b).abs().max() / a.abs().max()) < 1e-6
