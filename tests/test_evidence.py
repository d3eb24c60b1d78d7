"""The ridge of largest marginal likelihood against scipy's densities and the textbook's posterior."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.stats import multivariate_normal

from simzoo.retrieval.searchers.axn import AXN
from simzoo.retrieval.searchers.evidence import GRID, Evidence, Evident
from tests.test_searchers import problem, run, task_of


@pytest.mark.parametrize("centred", [True, False])
@pytest.mark.parametrize("noise", [0.01, 0.3, 3.0])
def test_the_strength_is_that_of_the_largest_likelihood(noise: float, centred: bool) -> None:
    """With a wrong sign or a lost term it is one end of the grid, and still some solution."""
    rng = np.random.default_rng(round(10 * noise))
    width, sizes = 12, (8, 5, 12)  # fewer equations than unknowns, one more, and twice as many
    vectors, centres = rng.normal(size=(2, sum(sizes), width)), rng.normal(size=(2, width))
    truth = centres * centred + 0.5 * rng.normal(size=(2, width))
    scores = np.einsum("bnd,bd->bn", vectors, truth) + noise * rng.normal(size=(2, sum(sizes)))
    system = Evidence(centred).begin(torch.from_numpy(centres), sum(sizes))
    assert isinstance(system, Evident)
    stop = 0
    for size in sizes:
        system.add(torch.from_numpy(vectors[:, stop : stop + size]), torch.from_numpy(scores[:, stop : stop + size]))
        stop += size
        solved, others = system.solve().numpy(), rng.normal(size=(2, 5, width))
        variances = system.variances(torch.from_numpy(others)).numpy()
        for row in range(2):
            v, centre = vectors[row, :stop], centres[row] * centred
            rest, rhos = scores[row, :stop] - v @ centre, GRID.numpy() * (v**2).sum() / stop
            densities = []
            for rho in rhos:
                shape = v @ v.T + rho * np.eye(stop)
                scale = rest @ np.linalg.solve(shape, rest) / stop
                densities.append(multivariate_normal(np.zeros(stop), scale * shape).logpdf(rest))
            rho = rhos[int(np.argmax(densities))]
            np.testing.assert_allclose(float(system.strength[row]), rho, rtol=1e-9)
            inverse = np.linalg.inv(v.T @ v + rho * np.eye(width))
            np.testing.assert_allclose(solved[row], centre + inverse @ v.T @ rest, atol=1e-8)
            scale = rest @ np.linalg.solve(v @ v.T + rho * np.eye(stop), rest) / stop
            expected = rho * scale * np.einsum("md,de,me->m", others[row], inverse, others[row])
            np.testing.assert_allclose(variances[row], expected, rtol=1e-8)


def test_scores_that_are_the_dual_encoders_leave_it_as_it_is() -> None:
    """Nothing to explain is a logarithm of 0: the query's vector must stay the centre, not become NaN."""
    matrix, vectors = problem(3, 20, 120, 16, 0.0)
    matrix[:] = vectors._queries @ vectors.items.T
    task = task_of(matrix, 10)
    run(AXN(vectors, budget=30, rounds=3, solver=Evidence()), task, 5)
    found, _ = vectors.search(task.queries, 30)
    assert [set(task.judge.asked[row]) for row in range(10)] == [set(items) for items in found.tolist()]
    constant = np.zeros_like(matrix)
    assert (run(AXN(vectors, budget=30, rounds=3, solver=Evidence(False)), task_of(constant, 10), 5).calls == 30).all()
