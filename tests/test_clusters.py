"""The k-means of inverted files: as good as faiss' own, and the lists that vectors are put into."""

from __future__ import annotations

import faiss
import numpy as np
import pytest
from numpy.typing import NDArray

from simzoo.retrieval.first_stages.clusters import Clusters

RNG = np.random.default_rng(0)
CENTRES = RNG.normal(size=(150, 16))


def drawn(count: int) -> NDArray[np.float32]:
    vectors = CENTRES[RNG.integers(150, size=count)] + 0.5 * RNG.normal(size=(count, 16))
    return (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)


@pytest.mark.parametrize("count", [40, 400])
def test_centroids_are_as_near_as_those_of_faiss(count: int) -> None:
    """Groups that cut clusters in two would cost recall, and no error would say so."""
    vectors, others = drawn(8000), drawn(2000)
    found = Clusters.of(vectors, count).centroids
    assert found.shape == (count, 16)
    np.testing.assert_allclose(np.linalg.norm(found, axis=1), 1, atol=1e-5)
    theirs = faiss.Kmeans(16, count, niter=10, spherical=True, min_points_per_centroid=1)
    theirs.train(vectors)
    mine = (others @ found.T).max(axis=1).mean()
    assert mine > (others @ theirs.centroids.T).max(axis=1).mean() - 0.01


@pytest.mark.parametrize("count", [40, 400])
def test_vectors_go_to_the_nearest_centroid(count: int) -> None:
    """An item in a list that no query probes for it is lost."""
    vectors = drawn(5000)
    clusters = Clusters.of(vectors, count)
    products = vectors @ clusters.centroids.T
    lists = clusters.assign(vectors)
    assert (lists == products.argmax(axis=1)).mean() > (0.999 if count == 40 else 0.97)
    assert (products.max(axis=1) - products[np.arange(5000), lists]).mean() < 1e-3
    assert clusters.assign(vectors[:0]).shape == (0,)


def test_copies_and_zeros_are_no_mistake() -> None:
    """Fewer different vectors than lists: some lists stay empty, and none has a centroid that is no number."""
    vectors = np.repeat(np.vstack([drawn(3), np.zeros((1, 16), dtype=np.float32)]), 200, axis=0)
    clusters = Clusters.of(vectors, 500)
    assert clusters.centroids.shape == (500, 16) and np.isfinite(clusters.centroids).all()
    lists = clusters.assign(vectors)
    assert len(set(lists[:600].tolist())) <= 3 and lists.min() >= 0 and lists.max() < 500
