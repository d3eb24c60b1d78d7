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
from simzoo.retrieval.searchers.solvers import Ridge

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


KINDS = ["spectrum 3", "spectrum 4.5", "spectrum 8", "row scales", "copies", "all the same", "zeros", "rank 12"]


@settings(max_examples=40, deadline=None)
@given(
    st.sampled_from([*KINDS, "near copies", "constant rows"]),
    st.integers(0, 999),
    st.sampled_from([1e-2, 1e-3, CUT, 1e-6]),
)
def test_predictions_are_those_of_the_pseudo_inverse(kind: str, seed: int, cut: float) -> None:
    """A search ranks by predictions: they have to be those of the stated cut-off, of scored items and of all others."""
    rng = np.random.default_rng(seed)
    vectors = nasty(kind, seed)
    if kind == "constant rows":
        vectors = np.broadcast_to(rng.normal(size=(3, EQUATIONS, 1)), vectors.shape).copy()
    scores, others = rng.normal(size=(3, EQUATIONS)), nasty(kind, seed + 1)
    squares = GrowingLeastSquares(3, WIDTH, EQUATIONS, cut)
    for start, stop in pairwise(STEPS):
        squares.add(torch.from_numpy(vectors[:, start:stop]), torch.from_numpy(scores[:, start:stop]))
        for solved, v, a, more in zip(
            squares.solve().numpy(), vectors[:, :stop], scores[:, :stop], others, strict=True
        ):
            values = np.linalg.svd(v, compute_uv=False)
            if np.any(np.abs(values / (cut * values[0]) - 1) < 1e-3):
                continue  # at the cut-off itself the pseudo-inverse jumps
            every = np.vstack([v, more])
            expected = every @ (np.linalg.pinv(v, rcond=cut) @ a)
            np.testing.assert_allclose(every @ solved, expected, rtol=0, atol=1e-5 * max(1, np.abs(expected).max()))


def test_copies_count_at_the_cut_off() -> None:
    """250 equal items make the largest singular value 16 times larger: what then is below the cut-off has to go."""
    vectors = np.zeros((1, 251, 300))
    vectors[0, :250, 0], vectors[0, 250, 1] = 1, 1.05e-4
    squares = GrowingLeastSquares(1, 300, 251)
    squares.add(torch.from_numpy(vectors), torch.ones(1, 251, dtype=torch.float64))
    np.testing.assert_allclose(squares.solve().numpy()[0, :3], [1, 0, 0], atol=1e-9)


@settings(max_examples=25, deadline=None)
@given(st.sampled_from([*KINDS, "near copies"]), st.integers(0, 999), st.sampled_from([1e-3, 0.1, 10.0]))
def test_ridge_is_least_squares_with_more_equations(kind: str, seed: int, strength: float) -> None:
    """The penalty written as d equations sqrt(rho) u = sqrt(rho) c, solved by numpy; rho must not move with rounds."""
    rng, vectors = np.random.default_rng(seed), nasty(kind, seed)
    scores, centres = rng.normal(size=(3, EQUATIONS)), rng.normal(size=(3, WIDTH))
    for centred in (True, False):
        system = Ridge(strength, centred).begin(torch.from_numpy(centres), EQUATIONS)
        for start, stop in pairwise(STEPS):
            system.add(torch.from_numpy(vectors[:, start:stop]), torch.from_numpy(scores[:, start:stop]))
            solved = system.solve().numpy()
            for u, v, a, c in zip(solved, vectors[:, :stop], scores[:, :stop], centres * centred, strict=True):
                rho = strength * (v[: STEPS[1]] ** 2).sum(axis=1).mean()
                more = np.sqrt(rho) * np.eye(WIDTH)
                expected = np.linalg.lstsq(np.vstack([v, more]), np.append(a, np.sqrt(rho) * c), rcond=None)[0]
                np.testing.assert_allclose(v @ u, v @ expected, atol=1e-6 * max(1, np.abs(expected).max()))
