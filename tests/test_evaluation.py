"""One evaluation: what is measured over which results."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from simzoo.core.records import Collection, History, Item, Query
from simzoo.core.reps import Reps
from simzoo.models.dual_encoder import DualEncoder
from simzoo.models.hypencoder import Hypencoder
from simzoo.retrieval.corpus import Corpus
from simzoo.retrieval.evaluation import Evaluation, evaluate
from simzoo.retrieval.first_stages.dense import Dense
from simzoo.retrieval.first_stages.offered import Random
from simzoo.retrieval.judge import MatrixJudge, SimilarityJudge
from simzoo.retrieval.searcher import Searcher
from simzoo.retrieval.searchers.exact import Exact, Rerank, Retrieve
from tests.toy import toy_collection


def collection_of(texts: list[str], queries: list[Query], gold: list[int]) -> Collection:
    items = [Item(f"d{n}", text) for n, text in enumerate(texts)]
    return Collection("small", items, queries, [{row: 1} for row in gold])


def evaluated(
    collection: Collection,
    scores: NDArray[np.int64],
    searcher: Searcher,
    k: int,
    metrics: list[str],
    recall: bool = False,
) -> Evaluation:
    matrix = scores.astype(np.float32)
    judge = MatrixJudge(matrix, [query.id for query in collection.queries])
    rows = np.arange(len(collection.queries))
    return evaluate(searcher, Corpus.of(collection, judge), collection, rows, k, metrics, matrix if recall else None)


def test_a_query_that_is_an_item_does_not_find_itself() -> None:
    """In ArguAna the query stands in the corpus: as a result it would push every answer down by one."""
    queries = [Query("d0", "an argument"), Query("q", "another text")]
    collection = collection_of(["an argument", "its counter", "a third", "a fourth"], queries, [1, 2])
    collection = replace(collection, own={0: 0})
    scores = np.array([[9, 8, 1, 0], [1, 2, 9, 3]])
    found = evaluated(collection, scores, Exact(), 2, ["RR@2"], recall=True)
    np.testing.assert_array_equal(found.ranking.items, [[1, 2], [2, 3]])
    np.testing.assert_array_equal(found.values["accuracy"], [1, 1])
    np.testing.assert_array_equal(found.values["Top-1-Recall"], [1, 1])  # of the search, which did find it


def test_a_user_is_not_given_what_was_seen() -> None:
    """Seen items score highest with any model that knows the user: they would stand where the answer belongs."""
    items = [Item(f"i{n}", "") for n in range(6)]
    users = [History.of("a", ["i5", "i4", "i3"]), History.of("b", ["i0", "i0"]), History.of("c", ["i1", "i2", "i1"])]
    collection = Collection("small", items, users, [{2: 1}, {4: 1}, {1: 1}])
    scores = np.array([[0, 1, 2, 7, 8, 9], [9, 1, 2, 3, 4, 5], [3, 4, 9, 1, 2, 0]])
    found = evaluated(collection, scores, Exact(), 2, ["R@1", "R@2", "RR@2"])
    # The last user's next item was seen before, and is looked for nevertheless.
    np.testing.assert_array_equal(found.ranking.items, [[2, 1], [5, 4], [1, 0]])
    np.testing.assert_array_equal(found.values["R@1"], [1, 0, 1])
    np.testing.assert_array_equal(found.values["RR@2"], [1, 0.5, 1])
    whole = evaluated(collection, scores, Exact(), 6, ["R@2"])
    np.testing.assert_array_equal(whole.ranking.items, [[2, 1, 0], [5, 4, 3], [1, 0, 4]])
    few = evaluated(collection, scores, Rerank(Random(), budget=6), 2, ["R@2"])
    np.testing.assert_array_equal(few.ranking.items, found.ranking.items)


def test_normalised_accuracy_looks_at_all_candidates() -> None:
    """A gold item that was scored but is not among the k results counts as wrong, not as never retrieved."""
    queries = [Query("q0", "a"), Query("q1", "b")]
    collection = collection_of([str(n) for n in range(6)], queries, [0, 1])
    scores = np.array([[1, 5, 4, 3, 2, 0], [1, 5, 4, 3, 2, 0]])
    found = evaluated(collection, scores, Rerank(Random(), budget=6), 2, ["R@2"])
    np.testing.assert_array_equal(found.values["accuracy (normalised)"], [0, 1])
    assert found.ranking.items.shape == (2, 2)
    assert "accuracy (normalised)" not in evaluated(collection, scores, Exact(), 2, ["R@2"]).values


def test_own_items_leave_one_result_less_of_a_full_budget() -> None:
    """Every query must have the same number of results, none of them itself."""
    queries = [Query("d0", "an argument"), Query("q", "b")]
    collection = replace(collection_of(["an argument", "x", "y"], queries, [1, 2]), own={0: 0})
    scores = np.array([[9, 8, 1], [1, 2, 9]])
    found = evaluated(collection, scores, Rerank(Random(), budget=3), 3, ["RR@2"])
    np.testing.assert_array_equal(found.ranking.items, [[1, 2], [2, 1]])
    assert found.values["calls"].tolist() == pytest.approx([3, 3])


def test_anchors_are_other_queries() -> None:
    """Scores of the evaluated queries with all items would be known beforehand."""
    collection = collection_of(["x", "y", "z"], [Query("a", "a"), Query("b", "b")], [0, 1])
    corpus = Corpus.of(collection, MatrixJudge(np.zeros((2, 3)), ["a", "b"]), anchors=collection.queries[1:])
    with pytest.raises(ValueError, match="1 queries are evaluated and anchors at once"):
        evaluate(Exact(), corpus, collection, np.arange(2), 2, ["RR@2"])
    with pytest.raises(IndexError, match="evaluated query rows run from 0 to 1"):
        evaluate(Exact(), corpus, collection, np.arange(3), 2, ["RR@2"])
    with pytest.raises(ValueError, match="the corpus has 2 items, but small has 3"):
        evaluate(Exact(), Corpus(collection.items[:2]), collection, np.arange(2), 2, ["RR@2"])
    assert evaluate(Exact(), corpus, collection, np.arange(1), 2, ["RR@2"]).values["RR@2"].tolist() == [1]


def test_only_evaluated_queries_are_encoded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a q-net for every query of a collection, most of them never asked, a run needed twelve times the memory."""
    model, collection = Hypencoder.tiny().eval(), toy_collection()
    seen: list[str] = []
    collate = model.collate_queries

    def watched(queries: Sequence[Query]) -> Reps:
        seen.extend(query.id for query in queries)
        return collate(queries)

    monkeypatch.setattr(model, "collate_queries", watched)
    judge = SimilarityJudge.of(model, collection.items)
    rows = np.array([3, 17, 5])
    found = evaluate(Rerank(Random(), 9), Corpus.of(collection, judge), collection, rows, 3, ["RR@3"])
    assert seen == ["q3", "q17", "q5"]
    one = sum(part.nbytes for part in judge.encode(collection.queries[:1]).values())
    items = sum(part.nbytes for part in judge.items.values())
    assert found.summary["bytes"] == {"representations": items + 3 * one, "queries": 3 * one, "first stages": 0}


def test_what_any_model_truncates_is_counted() -> None:
    """A first stage that reads the first words of each text explains a poor recall that nobody understands."""
    whole = toy_collection()
    items = [Item(item.id, "boat " * 600) if row < 5 else item for row, item in enumerate(whole.items)]
    collection = Collection("long", items, whole.queries, whole.judgements)

    def truncated(searcher: Searcher) -> int:
        judge = SimilarityJudge.of(DualEncoder.tiny().eval(), items)
        found = evaluate(searcher, Corpus.of(collection, judge), collection, np.arange(24), 3, ["RR@3"])
        return int(found.summary["truncated"])

    alone = truncated(Rerank(Random(), 9))
    assert 5 <= alone < 40  # the long items, and queries that are longer than the tiny model takes
    assert truncated(Rerank(Dense.of(DualEncoder.tiny().eval()), 9)) == 2 * alone
    assert truncated(Retrieve(Dense.of(DualEncoder.tiny().eval()))) == alone
