"""Search by linear models of the scores."""

from __future__ import annotations

import numpy as np
import pytest

from simzoo.retrieval.searchers.exact import Exact
from simzoo.retrieval.searchers.linear_search import LinearSearch
from tests.test_searchers import problem, run, task_of


def test_a_linear_similarity_is_found_at_once() -> None:
    """Scores that are linear in the vectors, plus an offset: one fit to more anchors than dimensions finds the best."""
    matrix, vectors = problem(3, 12, 400, 6, 0.0)
    matrix = matrix + 50  # a penalised offset would tilt the model
    exact = run(Exact(), task_of(matrix, 12), 10)
    found = run(LinearSearch(vectors, 40, 55, rounds=1, components=6, ridge=1e-6), task_of(matrix, 12), 10)
    np.testing.assert_array_equal(found.items, exact.items)
    assert (found.calls == 55).all()


def test_later_rounds_describe_the_best_items_better() -> None:
    """The reason for rounds: a function that bends is fitted where its best items are."""
    linear, vectors = problem(4, 30, 3000, 8, 0.0)
    bent = np.maximum(linear, 0) ** 3 / 10 + np.maximum(vectors.items @ np.ones(8, dtype=np.float32), 0)
    exact = run(Exact(), task_of(bent, 30), 10)
    hits = []
    for rounds in (1, 6):
        found = run(LinearSearch(vectors, 60, 180, rounds, components=8), task_of(bent, 30), 10)
        hits.append(sum(len(set(a) & set(b)) for a, b in zip(found.items, exact.items, strict=True)))
    assert hits[1] > hits[0] > 0


def test_batching_changes_nothing() -> None:
    """32 queries at once and one by one: a query's model must not see the others' scores."""
    matrix, vectors = problem(5, 20, 200, 6, 0.3)
    found = [
        run(LinearSearch(vectors, 20, 80, 3, components=4, query_batch=batch), task_of(matrix, 20), 5)
        for batch in (32, 1)
    ]
    np.testing.assert_array_equal(found[0].items, found[1].items)
    np.testing.assert_array_equal(found[0].scores, found[1].scores)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"anchors": 0}, "anchors must be at least 1"),
        ({"anchors": 30, "budget": 20}, "at most the budget of 20"),
        ({"anchors": 10, "budget": 12, "rounds": 3}, "each of 3 rounds"),
        ({"ridge": 0.0}, "ridge positive"),
    ],
)
def test_impossible_settings_are_refused(settings: dict[str, int], message: str) -> None:
    """Before any vector is read."""
    with pytest.raises(ValueError, match=message):
        LinearSearch(**settings)  # type: ignore[arg-type]
