"""What searchers and scorers are given by mistake is refused, and what is merely empty is not."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from simzoo.core.records import Query
from simzoo.core.reps import Reps
from simzoo.models.cross_encoder import CrossEncoder
from simzoo.retrieval.judge import MatrixJudge, SimilarityJudge
from simzoo.retrieval.scorer import SimilarityScorer
from simzoo.retrieval.searcher import Searcher
from simzoo.retrieval.searchers.exact import Exact, Rerank
from simzoo.retrieval.searchers.normalization import fit_normalization
from simzoo.retrieval.storage.encoding import encode_items
from tests.test_searchers import Vectors, problem, registered, task_of
from tests.toy import toy_collection

MATRIX = np.arange(12, dtype=np.float32).reshape(3, 4)
QUERIES = [Query(str(row), "x") for row in range(3)]


@pytest.mark.parametrize("kind", registered())
def test_no_queries_no_results(kind: type[Searcher]) -> None:
    """The last batch of a run may be empty; it must not end the run."""
    matrix, vectors = problem(0, 20, 40, 6, 0.1)
    task = task_of(matrix, 5)
    searcher = kind.tiny(vectors, 12)
    searcher.index(task.corpus)
    ranking = searcher.search([], 3)
    assert ranking.items.shape == ranking.scores.shape == (0, 3)
    assert not any(task.judge.asked[row] for row in range(5))


def test_search_before_index_says_so() -> None:
    """An attribute error from deep inside does not say what to do."""
    with pytest.raises(RuntimeError, match="call index"):
        Rerank().search(QUERIES, 3)
    with pytest.raises(RuntimeError, match="call index"):
        Rerank().first_stage.search(QUERIES, 3)


@pytest.mark.parametrize("k", [0, -1])
def test_k_is_at_least_one(k: int) -> None:
    """k = -1 as a slice would return all items but the last."""
    searcher = Exact()
    task = task_of(np.zeros((4, 6), dtype=np.float32), 2)
    searcher.index(task.corpus)
    with pytest.raises(ValueError, match=f"at least 1; got {k}"):
        searcher.search(task.queries, k)


def test_a_matrix_knows_its_own_queries() -> None:
    """Another query's scores in its place would look like scores."""
    with pytest.raises(KeyError, match="no query 'new'"):
        MatrixJudge(MATRIX).scorer([Query("new", "x")])
    with pytest.raises(ValueError, match="3 rows, but there are 2 query ids"):
        MatrixJudge(MATRIX, ["a", "b"])
    assert MatrixJudge(MATRIX, ["c", "b", "a"]).scorer([Query("a", "x")]).score_all().tolist() == [[8, 9, 10, 11]]


def test_lists_of_the_wrong_form_are_refused() -> None:
    """Only -1 is padding; fractions would be cut off and one query would stand for all lists."""
    scorer = MatrixJudge(MATRIX).scorer(QUERIES)
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
    items = encode_items(model, collection.items)
    with pytest.raises(ValueError, match="training mode"):
        SimilarityJudge(model.train(), items)


def test_a_scorer_needs_only_the_two_names() -> None:
    """A user's own similarity need not be a module with a device."""

    class Sum:
        pointwise = True

        def score_pairs(self, queries: Reps, items: Reps, query_rows: object, item_rows: object) -> object:
            return queries["v"][query_rows] + items["v"][item_rows]  # type: ignore[index,operator]

    scorer = SimilarityScorer(Sum(), {"v": torch.arange(3.0)}, {"v": 10 * torch.arange(4.0)})
    assert scorer(np.array([2, 0]), np.array([3, 1])).tolist() == [32, 10]
    assert scorer.score_all()[2].tolist() == [2, 12, 22, 32]


def test_constant_vectors_cannot_be_normalised_to() -> None:
    """beta = 0 and alpha = NaN would make every normalised score NaN."""
    matrix, _ = problem(0, 10, 30, 4, 0.1)
    nothing = Vectors(np.zeros((10, 4), dtype=np.float32), np.zeros((30, 4), dtype=np.float32))
    task = task_of(matrix, 4)
    nothing.index(task.corpus)
    with pytest.raises(ValueError, match="dual encoder gives the same score"):
        fit_normalization(task.corpus, nothing.embedder, nothing)
