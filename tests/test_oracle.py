"""Oracle CUR against its formula."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.calls.oracle import anncur, compared, error, oracle, recall


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 999), st.integers(1, 10), st.integers(1, 10), st.booleans())
def test_both_middle_matrices_are_those_of_the_paper(seed: int, queries: int, items: int, copies: bool) -> None:
    """C U R by pseudo-inverses as they are written, also where rows or columns repeat; no other U is closer to M."""
    rng = np.random.default_rng(seed)
    scores = rng.normal(size=(12, 20))
    if copies:
        scores[3:6], scores[:, 4:9] = scores[3], scores[:, 4:5]
    rows, columns = rng.choice(12, queries, replace=False), rng.choice(20, items, replace=False)
    c, r = scores[:, columns], scores[rows]
    middle = np.linalg.pinv(c, rcond=1e-9) @ scores @ np.linalg.pinv(r, rcond=1e-9)
    best = oracle(scores, rows, columns, 1e-9)
    np.testing.assert_allclose(best, c @ middle @ r, atol=1e-5)
    plain = anncur(scores, rows, columns, 1e-9)
    np.testing.assert_allclose(plain, c @ np.linalg.pinv(scores[np.ix_(rows, columns)], rcond=1e-9) @ r, atol=1e-5)
    for other in (plain, c @ (middle + 0.1 * rng.normal(size=middle.shape)) @ r):
        assert error(scores, best) <= error(scores, other) + 1e-9


def test_the_oracle_does_not_suffer_where_anchors_are_as_many() -> None:
    """What ANNCUR's Figure 9 shows: k_q = k_i breaks the plain inverse on noisy scores, not the oracle."""
    rng = np.random.default_rng(0)
    scores = rng.normal(size=(60, 5)) @ rng.normal(size=(5, 200)) + 0.3 * rng.normal(size=(60, 200))
    (plain, plain_recall), (best, best_recall) = np.mean(
        [compared(scores, 30, 30, 1e-6, 10, 20, seed) for seed in range(5)], axis=0
    )
    assert best < 0.5 < plain and best_recall > plain_recall + 0.2


def test_recall_and_wishes_that_cannot_be_had() -> None:
    """Recall by hand, and anchors that leave no query to test."""
    exact, found = np.array([[4.0, 3, 2, 1], [1, 2, 3, 4]]), np.array([[0.0, 9, 8, 7], [0, 0, 1, 2]])
    assert recall(exact, found, 2, 2) == 0.75
    with pytest.raises(ValueError, match="12 anchor queries and 3 anchor items do not fit a matrix of 12 queries"):
        compared(np.ones((12, 5)), 12, 3, 1e-6, 1, 1, 0)
