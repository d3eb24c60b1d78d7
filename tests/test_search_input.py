"""What searchers and scorers are given by mistake is refused, and what is merely empty is not."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from simzoo.core.reps import Reps
from simzoo.models.cross_encoder import CrossEncoder
from simzoo.retrieval.scorer import Scorer
from simzoo.retrieval.searcher import Searcher, SearchTask
from simzoo.retrieval.searchers.exact import Exact, Rerank
from simzoo.retrieval.searchers.normalization import fit_normalization
from simzoo.retrieval.storage.encoding import encode_items, encode_queries
from tests.test_searchers import Vectors, problem, registered, task_of
from tests.toy import toy_collection

MATRIX = np.arange(12, dtype=np.float32).reshape(3, 4)


@pytest.mark.parametrize("kind", registered())
def test_no_queries_no_results(kind: type[Searcher]) -> None:
    """The last batch of a run may be empty; it must not end the run."""
    matrix, vectors = problem(0, 20, 40, 6, 0.1)
    task = task_of(matrix, 5)
    searcher = kind.tiny(vectors, 12)
    searcher.index(task)
    ranking = searcher.search(np.empty(0, dtype=np.int64), 3)
    assert ranking.items.shape == ranking.scores.shape == (0, 3)
    assert task.scorer.calls[:5].tolist() == [0] * 5


def test_search_before_index_says_so() -> None:
    """An attribute error from deep inside does not say what to do."""
    with pytest.raises(RuntimeError, match="call index"):
        Rerank().search(np.arange(2), 3)


@pytest.mark.parametrize("k", [0, -1])
def test_k_is_at_least_one(k: int) -> None:
    """k = -1 as a slice would return all items but the last."""
    searcher = Exact()
    searcher.index(task_of(np.zeros((4, 6), dtype=np.float32), 2))
    with pytest.raises(ValueError, match=f"at least 1; got {k}"):
        searcher.search(np.arange(2), k)


def test_a_task_fits_its_scorer() -> None:
    """A scorer over another collection gives scores, but of other pairs."""
    task = task_of(MATRIX, 2)
    with pytest.raises(ValueError, match="has 3 and 4"):
        SearchTask(task.collection, Scorer.from_matrix(MATRIX[:, :3]), task.query_rows, task.anchor_rows)
    with pytest.raises(IndexError, match="evaluated query rows run from 0 to 2, got 0 to 3"):
        SearchTask(task.collection, task.scorer, np.arange(4), task.anchor_rows)


def test_lists_of_the_wrong_form_are_refused() -> None:
    """Only -1 is padding; fractions would be cut off and one query would stand for all lists."""
    scorer = Scorer.from_matrix(MATRIX)
    with pytest.raises(IndexError, match="got -5 to 1"):
        scorer.score_lists(np.array([0]), np.array([[1, -5]]))
    with pytest.raises(TypeError, match="query rows are integers, got float64"):
        scorer(np.array([0.9]), np.array([1]))
    with pytest.raises(ValueError, match="expected B queries"):
        scorer.score_lists(np.array([0]), np.array([[1], [2]]))
    assert scorer.calls.sum() == 0


def test_a_similarity_in_training_mode_is_refused() -> None:
    """Dropout makes every score a draw; the cache then keeps the first one."""
    collection = toy_collection()
    model = CrossEncoder.tiny().eval()
    reps = encode_queries(model, collection.queries), encode_items(model, collection.items)
    with pytest.raises(ValueError, match="training mode"):
        Scorer.from_similarity(model.train(), *reps)


def test_a_scorer_needs_only_the_two_names() -> None:
    """A user's own similarity need not be a module with a device."""

    class Sum:
        pointwise = True

        def score_pairs(self, queries: Reps, items: Reps, query_rows: object, item_rows: object) -> object:
            return queries["v"][query_rows] + items["v"][item_rows]  # type: ignore[index,operator]

    scorer = Scorer.from_similarity(Sum(), {"v": torch.arange(3.0)}, {"v": 10 * torch.arange(4.0)})
    assert scorer(np.array([2, 0]), np.array([3, 1])).tolist() == [32, 10]


def test_constant_vectors_cannot_be_normalised_to() -> None:
    """beta = 0 and alpha = NaN would make every normalised score NaN."""
    matrix, _ = problem(0, 10, 30, 4, 0.1)
    nothing = Vectors(np.zeros((10, 4), dtype=np.float32), np.zeros((30, 4), dtype=np.float32))
    task = task_of(matrix, 4)
    nothing.index(task.collection)
    with pytest.raises(ValueError, match="dual encoder gives the same score"):
        fit_normalization(task, nothing, nothing)
