"""The scorer counts, caches and refuses; the score matrix survives being killed."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from simzoo.core.records import DataError, Item, Query
from simzoo.core.reps import take
from simzoo.models.cmc import CMC
from simzoo.models.cross_encoder import CrossEncoder
from simzoo.models.dual_encoder import DualEncoder
from simzoo.models.hypencoder import Hypencoder
from simzoo.models.similarity import LearnedSimilarity
from simzoo.retrieval import judge
from simzoo.retrieval.judge import CallableJudge, MatrixJudge, SimilarityJudge
from simzoo.retrieval.scorer import Scorer
from simzoo.retrieval.storage.score_matrix import ScoreMatrix, build_matrix
from tests.toy import toy_collection

MATRIX = np.random.default_rng(0).normal(size=(5, 9)).astype(np.float32)


def known(matrix: np.ndarray) -> Scorer:
    return MatrixJudge(matrix).scorer([Query(str(row), "x") for row in range(len(matrix))])


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 8)), max_size=40), st.integers(1, 5))
def test_counts_distinct_pairs(pairs: list[tuple[int, int]], parts: int) -> None:
    """A pair asked for twice, in one call or in two, is one call of the similarity."""
    seen: list[tuple[int, int]] = []

    def function(queries: np.ndarray, items: np.ndarray) -> np.ndarray:
        seen.extend(zip(queries.tolist(), items.tolist(), strict=True))
        return MATRIX[queries, items]

    scorer = Scorer(function, 5, 9)
    for part in np.array_split(np.array(pairs, dtype=np.int64).reshape(-1, 2), parts):
        np.testing.assert_array_equal(scorer(part[:, 0], part[:, 1]), MATRIX[part[:, 0], part[:, 1]])
    assert len(seen) == len(set(seen))
    assert set(seen) == set(pairs)
    assert scorer.calls.tolist() == [len({i for q, i in set(pairs) if q == row}) for row in range(5)]


def test_lists() -> None:
    """Padding is free and scores -inf."""
    scorer = known(MATRIX)
    lists = np.array([[0, -1, 3], [2, 2, -1]])
    scores = scorer.score_lists(np.array([1, 4]), lists)
    assert scores[0].tolist() == [MATRIX[1, 0], -np.inf, MATRIX[1, 3]]
    assert scores[1].tolist() == [MATRIX[4, 2], MATRIX[4, 2], -np.inf]
    assert scorer.calls.tolist() == [0, 2, 0, 0, 1]
    scorer.score_lists(np.array([1]), lists[:1])
    assert scorer.calls[1] == 2


def test_bad_input_is_named() -> None:
    """Negative rows would index from the end; NaN would win or lose every comparison, silently."""
    scorer = known(MATRIX)
    with pytest.raises(IndexError, match="item rows run from 0 to 8, got -1 to 3"):
        scorer(np.array([0, 0]), np.array([-1, 3]))
    with pytest.raises(IndexError, match="query rows run from 0 to 4"):
        scorer(np.array([5]), np.array([0]))
    with pytest.raises(ValueError, match="one length"):
        scorer(np.array([1, 2]), np.array([0]))
    broken = MATRIX.copy()
    broken[2, 3] = np.nan
    with pytest.raises(FloatingPointError, match="query row 2 and item row 3"):
        known(broken)(np.array([2, 2]), np.array([1, 3]))


@pytest.mark.parametrize("kind", [CrossEncoder, DualEncoder, Hypencoder])
def test_a_judge_scores_as_the_similarity_does(kind: type[LearnedSimilarity]) -> None:
    """Splitting a call into blocks and taking rows must give each pair its own score, by pairs and by whole lists."""
    collection = toy_collection()
    model = kind.tiny().eval()
    judge = SimilarityJudge.of(model, collection.items)
    with torch.inference_mode():
        expected = model.score(judge.encode(collection.queries), judge.items).numpy()
    near = {"atol": 2e-5, "rtol": 1e-5}
    for pairs in (65_536, 7):
        judge.pairs = pairs
        scorer = judge.scorer(collection.queries)
        rng = np.random.default_rng(0)
        q, i = rng.integers(24, size=50), rng.integers(40, size=50)
        np.testing.assert_allclose(scorer(q, i), expected[q, i], **near)
        some = np.array([3, 4, 5, 39, 0])
        np.testing.assert_allclose(judge.scorer(collection.queries).score_items(some), expected[:, some], **near)
        whole = judge.scorer(collection.queries)
        np.testing.assert_allclose(whole.score_all(), expected, **near)
        assert whole.calls.tolist() == [40] * 24
        rows, scores = judge.scorer(collection.queries).top(6, np.arange(0, 40, 3))
        np.testing.assert_allclose(scores, -np.sort(-expected[:, ::3], axis=1)[:, :6], **near)
        np.testing.assert_allclose(np.take_along_axis(expected, rows, axis=1), scores, **near)


def test_lists_are_scored_whole_and_are_one_call() -> None:
    """A similarity that compares candidates has no score for a pair: keeping or batching pairs would change scores."""
    model, collection = CMC.tiny().eval(), toy_collection()
    judge = SimilarityJudge.of(model, collection.items)
    queries = judge.encode(collection.queries)
    lists = np.array([[5, 3, 9, -1], [3, 0, 1, 2], [7, 7, 8, 6], [-1, -1, -1, -1]])
    asked = np.array([4, 0, 4, 1])
    for pairs in (65_536, 5):
        judge.pairs = pairs
        scorer = judge.scorer(collection.queries)
        found = scorer.score_lists(asked, lists)
        with torch.inference_mode():
            expected = model.score(take(queries, torch.from_numpy(asked)), judge.items, torch.from_numpy(lists)).numpy()
        np.testing.assert_allclose(found[:3], expected[:3], atol=2e-5, rtol=1e-5)
        assert np.isneginf(found[3]).all()
        assert scorer.calls[4] == 2 and scorer.calls[0] == 1 and scorer.calls.sum() == 3
    with torch.inference_mode():
        whole = model.score(queries, judge.items).numpy()
    np.testing.assert_allclose(judge.scorer(collection.queries).score_all(), whole, atol=2e-5, rtol=1e-5)
    with pytest.raises(TypeError, match="single pairs have no score"):
        scorer(np.array([0]), np.array([0]))
    with pytest.raises(IndexError, match="item rows run from 0 to 39"):
        scorer.score_lists(np.array([0]), np.array([[40]]))


def test_a_callable_sees_texts_in_chunks() -> None:
    """A user's own function gets (query text, title + text), never more pairs at once than it can take."""
    collection = toy_collection()
    seen: list[list[tuple[str, str]]] = []

    def function(pairs: list[tuple[str, str]]) -> list[float]:
        seen.append(pairs)
        return [float(len(item)) for _, item in pairs]

    judge = CallableJudge(function, collection.items, chunk=4)
    scorer = judge.scorer(collection.queries[2:4])
    item = collection.items[3]
    assert scorer(np.array([0]), np.array([3])).tolist() == [float(len(f"{item.title} {item.text}"))]
    assert seen == [[(collection.queries[2].text, f"{item.title} {item.text}")]]
    assert scorer.score_all().shape == (2, 40)
    assert max(map(len, seen)) == 4 and sum(map(len, seen)) == 81


@pytest.mark.parametrize("whole", [False, True])
def test_what_was_scored_is_kept_when_the_function_raises(whole: bool) -> None:
    """A call costs money or minutes: pair 9,000 of 10,000 must not lose those before it."""
    collection = toy_collection()
    asked: list[tuple[str, str]] = []
    left = 5

    def function(pairs: list[tuple[str, str]]) -> list[float]:
        nonlocal left
        if not left:
            raise ConnectionError("too many requests")
        left -= 1
        asked.extend(pairs)
        return [float(len(query) * len(item)) for query, item in pairs]

    judge = CallableJudge(function, collection.items, chunk=10)
    queries, lists = collection.queries[:3], np.tile(np.arange(40), (3, 1))
    with pytest.raises(ConnectionError, match="too many requests"):
        judge.scorer(queries).lists(lists)
    left = 2
    with pytest.raises(ConnectionError, match="too many requests"):
        judge.scorer(queries[::-1]).score_all()
    assert len(asked) == 70
    left = 100
    scorer = judge.scorer(queries)
    found = scorer.score_all() if whole else scorer.lists(lists)
    texts = [f"{item.title} {item.text}" for item in collection.items]
    np.testing.assert_array_equal(found, [[len(query.text) * len(text) for text in texts] for query in queries])
    assert len(asked) == 120 and scorer.calls.tolist() == [40] * 3
    assert not judge._kept


class Killed(Exception):
    pass


def by_id(function: Callable[[np.ndarray, np.ndarray], np.ndarray]) -> Callable[[Sequence[Query]], Scorer]:
    """Scorers over a function of the rows of the toy collection, whose ids are q0, q1, ..."""

    def scorer(queries: Sequence[Query]) -> Scorer:
        rows = np.array([int(query.id[1:]) for query in queries])
        return Scorer(lambda query_rows, item_rows: function(rows[query_rows], item_rows), len(rows), 40)

    return scorer


def test_matrix_goes_on_where_it_was_killed(tmp_path: Path) -> None:
    """A build that dies at any shard must end with the same bytes, without scoring a finished shard again."""
    collection = toy_collection()
    truth = np.random.default_rng(1).normal(size=(24, 40)).astype(np.float32)
    left = 3

    def dying(queries: np.ndarray, items: np.ndarray) -> np.ndarray:
        nonlocal left
        if not left:
            raise Killed
        left -= 1
        return truth[queries, items]

    rows = np.array([3, 1, 7, 20, 5])
    settings = {"checkpoint": "abc", "query_block": 2, "item_block": 16}
    with pytest.raises(Killed):
        build_matrix(by_id(dying), collection, rows, folder=tmp_path / "a", **settings)
    (tmp_path / "a" / "000002-000000000.123.tmp").write_bytes(b"half a shard")
    scored = 0

    def counting(queries: np.ndarray, items: np.ndarray) -> np.ndarray:
        nonlocal scored
        scored += len(queries)
        return truth[queries, items]

    resumed = build_matrix(by_id(counting), collection, rows, folder=tmp_path / "a", **settings)
    assert scored == 5 * 40 - 2 * 40
    whole = build_matrix(by_id(counting), collection, rows, folder=tmp_path / "b", **settings)
    np.testing.assert_array_equal(resumed.scores, truth[rows])
    resumed.save(tmp_path / "a.safetensors")
    whole.save(tmp_path / "b.safetensors")
    assert (tmp_path / "a.safetensors").read_bytes() == (tmp_path / "b.safetensors").read_bytes()
    loaded = ScoreMatrix.load(tmp_path / "a.safetensors")
    assert loaded.of(collection).tolist() == rows.tolist()


def test_matrices_of_other_data_are_refused(tmp_path: Path) -> None:
    """Scores of another world, checkpoint or version look like scores."""
    collection, other = toy_collection(), toy_collection(seed=1)
    scorer = MatrixJudge(np.zeros((24, 40)), [query.id for query in collection.queries]).scorer
    matrix = build_matrix(scorer, collection, np.arange(3), "abc", tmp_path / "a")
    with pytest.raises(DataError, match="checkpoint differ"):
        build_matrix(scorer, collection, np.arange(3), "def", tmp_path / "a")
    with pytest.raises(DataError, match="other data"):
        matrix.of(other)
    matrix.save(tmp_path / "m.safetensors")
    whole = (tmp_path / "m.safetensors").read_bytes()
    (tmp_path / "cut.safetensors").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(DataError, match=r"cut\.safetensors: not a whole score matrix"):
        ScoreMatrix.load(tmp_path / "cut.safetensors")
    with pytest.raises(DataError, match="no such score matrix"):
        ScoreMatrix.load(tmp_path / "none.safetensors")
    assert json.loads((tmp_path / "a" / "manifest.json").read_text())["checkpoint"] == "abc"


def test_what_failed_searches_have_scored_is_kept_of_the_last_ones_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """A similarity that fails for a night would fill the memory of a server with the scores of that night's queries."""
    monkeypatch.setattr(judge, "MOST_KEPT", 3)
    items = [Item("good", "boat"), Item("bad", "x")]
    asked = judge.CallableJudge(lambda pairs: [float("nan") if text == "x" else 1.0 for _, text in pairs], items)
    for number in range(9):
        with pytest.raises(FloatingPointError):
            asked.scorer([Query("q", f"boat {number}")]).lists(np.arange(2)[None])
    assert [query.text for query in asked._kept] == ["boat 6", "boat 7", "boat 8"]
