"""How the largest of many scores are found, by the mixtures' searchers: ties, rests, blocks."""

from __future__ import annotations

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from simzoo.retrieval.searchers.mol.index import Largest, largest, reaching


@given(st.integers(0, 99), st.integers(1, 9), st.sampled_from([9, 333]), st.sampled_from([4, 4000]))
def test_largest_breaks_ties_by_column(seed: int, k: int, number: int, values: int) -> None:
    """torch.topk keeps any of several equal scores, and another one on another machine."""
    scores = np.random.default_rng(seed).integers(0, values, (5, number)).astype(np.float32)
    plain = np.sort(np.argsort(-scores, axis=1, kind="stable")[:, :k], axis=1)
    np.testing.assert_array_equal(largest(torch.from_numpy(scores), k).numpy(), plain)
    for size in (5, 64, 200):  # fewer than k at once, too
        best = Largest(5, k, torch.device("cpu"))
        for start in range(0, number, size):
            best.add(torch.from_numpy(scores[:, start : start + size]), start)
        np.testing.assert_array_equal(best.columns.numpy(), plain)
        np.testing.assert_array_equal(best.values.numpy(), np.take_along_axis(scores, plain, axis=1))


@given(st.integers(0, 99), st.sampled_from([9, 64, 333]), st.sampled_from([4, 4000]))
def test_reaching_finds_all(seed: int, number: int, values: int) -> None:
    """A score in the rest behind the last whole group, or one that equals the threshold, taken or left out wrongly."""
    rng = np.random.default_rng(seed)
    scores = rng.integers(0, values, (5, number)).astype(np.float32)
    thresholds = rng.integers(values // 2, values, (5, 1)).astype(np.float32)
    found, columns = reaching(torch.from_numpy(scores), torch.from_numpy(thresholds))
    for row, some, places in zip(range(5), found.numpy(), columns.numpy(), strict=True):
        there = np.isfinite(some)
        assert places[there].tolist() == np.flatnonzero(scores[row] >= thresholds[row]).tolist()
        np.testing.assert_array_equal(some[there], scores[row, places[there]])
