"""One evaluation: what is measured over which results."""

from __future__ import annotations

import numpy as np
import pytest

from simzoo.core.records import Collection, History, Item, Query
from simzoo.retrieval.evaluation import evaluate
from simzoo.retrieval.first_stages.offered import Random
from simzoo.retrieval.scorer import Rows, Scorer
from simzoo.retrieval.searcher import SearchTask
from simzoo.retrieval.searchers.exact import Exact, Rerank

NO_ROWS = np.empty(0, dtype=np.int64)


def collection_of(texts: list[str], queries: list[Query], gold: list[int]) -> Collection:
    items = [Item(f"d{n}", text) for n, text in enumerate(texts)]
    return Collection("small", items, queries, [{row: 1} for row in gold])


def task_of(collection: Collection, scores: Rows) -> SearchTask:
    scorer = Scorer.from_matrix(scores.astype(np.float32))
    return SearchTask(collection, scorer, np.arange(len(collection.queries)), NO_ROWS)


def test_a_query_that_is_an_item_does_not_find_itself() -> None:
    """In ArguAna the query stands in the corpus: as a result it would push every answer down by one."""
    queries = [Query("d0", "an argument"), Query("q", "another text")]
    collection = collection_of(["an argument", "its counter", "a third", "a fourth"], queries, [1, 2])
    scores = np.array([[9, 8, 1, 0], [1, 2, 9, 3]])
    found = evaluate(task_of(collection, scores), Exact(), 2, ["RR@2"], exact=scores.astype(np.float32))
    np.testing.assert_array_equal(found.ranking.items, [[1, 2], [2, 3]])
    np.testing.assert_array_equal(found.values["accuracy"], [1, 1])
    np.testing.assert_array_equal(found.values["Top-1-Recall"], [1, 1])  # of the search, which did find it


def test_a_user_is_not_given_what_was_seen() -> None:
    """Seen items score highest with any model that knows the user: they would stand where the answer belongs."""
    items = [Item(f"i{n}", "") for n in range(6)]
    users = [History.of("a", ["i5", "i4", "i3"]), History.of("b", ["i0", "i0"]), History.of("c", ["i1", "i2", "i1"])]
    collection = Collection("small", items, users, [{2: 1}, {4: 1}, {1: 1}])
    scores = np.array([[0, 1, 2, 7, 8, 9], [9, 1, 2, 3, 4, 5], [3, 4, 9, 1, 2, 0]])
    found = evaluate(task_of(collection, scores), Exact(), 2, ["R@1", "R@2", "RR@2"])
    # The last user's next item was seen before, and is looked for nevertheless.
    np.testing.assert_array_equal(found.ranking.items, [[2, 1], [5, 4], [1, 0]])
    np.testing.assert_array_equal(found.values["R@1"], [1, 0, 1])
    np.testing.assert_array_equal(found.values["RR@2"], [1, 0.5, 1])
    whole = evaluate(task_of(collection, scores), Exact(), 6, ["R@2"])
    np.testing.assert_array_equal(whole.ranking.items, [[2, 1, 0], [5, 4, 3], [1, 0, 4]])
    few = evaluate(task_of(collection, scores), Rerank(Random(), budget=6), 2, ["R@2"])
    np.testing.assert_array_equal(few.ranking.items, found.ranking.items)


def test_normalised_accuracy_looks_at_all_candidates() -> None:
    """A gold item that was scored but is not among the k results counts as wrong, not as never retrieved."""
    queries = [Query("q0", "a"), Query("q1", "b")]
    collection = collection_of([str(n) for n in range(6)], queries, [0, 1])
    scores = np.array([[1, 5, 4, 3, 2, 0], [1, 5, 4, 3, 2, 0]])
    found = evaluate(task_of(collection, scores), Rerank(Random(), budget=6), 2, ["R@2"])
    np.testing.assert_array_equal(found.values["accuracy (normalised)"], [0, 1])
    assert found.ranking.items.shape == (2, 2)
    assert "accuracy (normalised)" not in evaluate(task_of(collection, scores), Exact(), 2, ["R@2"]).values


def test_own_items_leave_one_result_less_of_a_full_budget() -> None:
    """Every query must have the same number of results, none of them itself."""
    queries = [Query("d0", "an argument"), Query("q", "b")]
    collection = collection_of(["an argument", "x", "y"], queries, [1, 2])
    scores = np.array([[9, 8, 1], [1, 2, 9]])
    found = evaluate(task_of(collection, scores), Rerank(Random(), budget=3), 3, ["RR@2"])
    np.testing.assert_array_equal(found.ranking.items, [[1, 2], [2, 1]])
    assert found.values["calls"].tolist() == pytest.approx([3, 3])
