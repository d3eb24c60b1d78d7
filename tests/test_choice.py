"""The screened choice of the next items against all products in double precision."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from simzoo.retrieval.searchers import choice
from simzoo.retrieval.searchers.choice import Pools, largest
from tests.test_searchers import problem, task_of

Floats = NDArray[np.float32]
KINDS = ["noise", "nearly equal", "copies", "all the same", "one long vector", "faint", "huge", "no direction"]


def case(kind: str, seed: int) -> tuple[NDArray[np.float64], Floats]:
    rng = np.random.default_rng(seed)
    u, vectors = rng.normal(size=(3, 24)), rng.normal(size=(700, 24))
    if kind == "nearly equal":  # products that differ less than single precision resolves
        vectors = vectors[:1] + 1e-6 * vectors
        u[:] -= (u @ vectors[0])[:, None] * vectors[0] / (vectors[0] @ vectors[0])
    if kind == "copies":
        vectors = vectors[rng.integers(40, size=700)]
    if kind == "all the same":
        vectors[:] = vectors[0]
    if kind == "one long vector":
        vectors[5] *= 1e6
    if kind == "no direction":
        u[1] = 0
    scale = {"faint": 1e-30, "huge": 1e30}.get(kind, 1.0)
    return u * scale, (vectors * (1e-15 if kind == "faint" else 1.0)).astype(np.float32)


def brute(u: NDArray[np.float64], vectors: Floats, closed: NDArray[np.bool_], size: int) -> NDArray[np.int64]:
    products = (u @ vectors.astype(np.float64).T).astype(np.float32)
    products[closed] = -np.inf
    return np.argsort(-products, axis=1, kind="stable")[:, :size]


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("block", "ties"), [(1 << 20, 1024), (600, 1024), (600, 5)])
def test_screening_loses_no_item(kind: str, seed: int, block: int, ties: int, monkeypatch: Any) -> None:
    """Single precision alone would take another item, wherever two products are nearly equal."""
    monkeypatch.setattr(choice, "PRODUCTS", block)
    monkeypatch.setattr(choice, "TIES", ties)
    u, vectors = case(kind, seed)
    rng = np.random.default_rng(seed)
    taken = np.array([rng.choice(700, 30, replace=False) for _ in u])
    gone = rng.random(700) < 0.1
    closed = np.tile(gone, (3, 1))
    np.put_along_axis(closed, taken, True, axis=1)
    longest = float(np.linalg.norm(vectors.astype(np.float64), axis=1).max())
    for size in (1, 17, 500):
        expected = brute(u, vectors, closed, size)
        found = largest(torch.from_numpy(u), vectors, longest, taken, size, gone)
        np.testing.assert_array_equal(found, expected)
        alone = largest(torch.from_numpy(u[:1]), vectors, longest, taken[:1], size, gone)
        np.testing.assert_array_equal(alone, expected[:1])


def test_single_precision_alone_would_lose_items() -> None:
    """That the test above tests something: its nearly equal products come in another order in single precision."""
    u, vectors = case("nearly equal", 0)
    products = u.astype(np.float32) @ vectors.T
    found = np.argsort(-products, axis=1, kind="stable")[:, :17]
    assert (found != brute(u, vectors, np.zeros((3, 700), dtype=bool), 17)).any()


@pytest.mark.parametrize("held", [1 << 27, 0])
def test_pools_are_looked_at_one_by_one(held: int, monkeypatch: Any) -> None:
    """An item of another query's pool, or one that was scored, would be taken in place of its own."""
    monkeypatch.setattr(choice, "GATHERED", held)
    matrix, stage = problem(3, 8, 300, 12, 0.3)
    stage.index(task_of(matrix, 8).corpus)
    rng = np.random.default_rng(0)
    found = np.array([rng.choice(300, 80, replace=False) for _ in range(8)])
    choose, items = Pools(stage.embedder, found), found[:, :10]
    closed = np.ones((8, 300), dtype=bool)
    np.put_along_axis(closed, found, False, axis=1)
    for _ in range(3):
        u = rng.normal(size=(8, 12))
        np.put_along_axis(closed, items, True, axis=1)
        best = choose(torch.from_numpy(u), items, 10, 10)
        np.testing.assert_array_equal(best, brute(u, stage.embedder.vectors, closed, 10))
        items = np.hstack([items, best])
