"""Searchers against brute force, against the plain form of their algorithms, and within their budgets."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from simzoo import retrieval
from simzoo.core.records import Item, Query
from simzoo.retrieval.corpus import Corpus
from simzoo.retrieval.embedder import Embedder
from simzoo.retrieval.first_stages.dense import Dense
from simzoo.retrieval.first_stages.offered import Random
from simzoo.retrieval.judge import MatrixJudge
from simzoo.retrieval.scorer import Scorer
from simzoo.retrieval.searcher import Ranking, Searcher
from simzoo.retrieval.searchers.axn import AXN
from simzoo.retrieval.searchers.cur import CUR
from simzoo.retrieval.searchers.exact import Exact, Rerank
from simzoo.retrieval.searchers.least_squares import GrowingLeastSquares
from simzoo.retrieval.searchers.normalization import fit_normalization

Floats = NDArray[np.float32]


class GivenVectors(Embedder):
    """Vectors of queries by their ids, which are rows."""

    def __init__(self, queries: Floats, items: Floats, index: Any) -> None:
        super().__init__(None, items, index, exact=True)
        self._queries = queries

    def encode(self, queries: Sequence[Query]) -> Floats:
        return self._queries[[int(query.id) for query in queries]]


class Vectors(Dense):
    """A dense first stage over given vectors."""

    def __init__(self, queries: Floats, items: Floats) -> None:
        super().__init__()
        self.items, self._queries = items, queries

    def prepare(self) -> None:
        items = self.items[: len(self.corpus)]
        self._embedder = GivenVectors(self._queries, items, self.ann.build(items))

    def grow(self, start: int) -> None:
        self.prepare()


class Known(MatrixJudge):
    """Known scores of queries, and of items in the place of queries: inner products of the matrix's columns."""

    def __init__(self, matrix: Floats) -> None:
        between = (matrix.T @ matrix / len(matrix)).astype(np.float32)
        names = [*map(str, range(len(matrix))), *(f"of-{item}" for item in range(matrix.shape[1]))]
        super().__init__(np.vstack([matrix, between]), names)


class Watched(Known):
    """Known scores, and the items that each query was scored with: twice, if they were scored twice."""

    def __init__(self, matrix: Floats) -> None:
        super().__init__(matrix)
        self.queries = len(matrix)
        self.asked: dict[int, list[int]] = {row: [] for row in range(len(self.matrix))}

    def scorer(self, queries: Sequence[Query]) -> Scorer:
        rows = np.array([self._rows[query.id] for query in queries])

        def score(query_rows: NDArray[np.int64], item_rows: NDArray[np.int64]) -> Floats:
            for row, item in zip(rows[query_rows].tolist(), item_rows.tolist(), strict=True):
                self.asked[row].append(item)
            return self.matrix[rows[query_rows], item_rows]  # type: ignore[no-any-return]

        return Scorer(score, len(queries), self.num_items)


@dataclass
class Task:
    """What is searched, and the queries that are."""

    corpus: Corpus
    queries: list[Query]
    judge: Watched


def task_of(matrix: Floats, evaluated: int, removed: NDArray[np.bool_] | None = None) -> Task:
    """The first ``evaluated`` queries are searched, the others are anchors."""
    queries = [Query(str(q), "x") for q in range(len(matrix))]
    items, judge = [Item(str(i), "x") for i in range(matrix.shape[1])], Watched(matrix)
    return Task(Corpus(items, judge, anchors=queries[evaluated:], removed=removed), queries[:evaluated], judge)


def problem(seed: int, queries: int, items: int, width: int, noise: float, copies: int = 0) -> tuple[Floats, Vectors]:
    """A nearly low-rank score matrix and the vectors it came from; ``copies`` items repeat others."""
    rng = np.random.default_rng(seed)
    q, v = rng.normal(size=(queries, width)), rng.normal(size=(items, width))
    v[rng.permutation(items)[:copies]] = v[0]
    matrix = q @ v.T + noise * rng.normal(size=(queries, items))
    shifted = q + 0.7 * rng.normal(size=q.shape)
    return matrix.astype(np.float32), Vectors(shifted.astype(np.float32), v.astype(np.float32))


def run(searcher: Searcher, task: Task, k: int) -> Ranking:
    searcher.index(task.corpus)
    return searcher.search(task.queries, k)


def registered() -> list[type[Searcher]]:
    """Every searcher of the package retrieval that needs nothing but scores."""
    for module in pkgutil.walk_packages(retrieval.__path__, "simzoo.retrieval."):
        importlib.import_module(module.name)
    found, waiting = [], Searcher.__subclasses__()
    while waiting:
        kind = waiting.pop()
        waiting += kind.__subclasses__()
        ours = kind.__module__.startswith("simzoo.")  # other tests of this process make searchers, too
        if ours and not inspect.isabstract(kind) and not kind.needs_representations:
            found.append(kind)
    return sorted(found, key=lambda cls: cls.__name__)


def searchers(vectors: Vectors, budget: int) -> list[Searcher]:
    """Each of them, and two in other settings."""
    return [
        *(cls.tiny(vectors, budget) for cls in registered()),
        Rerank(Random(), budget),
        AXN(vectors, first_stage=Random(), budget=budget, rounds=4, weight=0.3, normalize=True),
    ]


def names(found: Sequence[Searcher]) -> list[str]:
    return [type(searcher).__name__ for searcher in found]


MATRIX, VECTORS = problem(11, 24, 60, 6, 0.4, copies=6)
EVERY = searchers(VECTORS, 13)
SCORING = [place for place, searcher in enumerate(EVERY) if searcher.calls_similarity]
PLACE = pytest.mark.parametrize("place", range(len(EVERY)), ids=names(EVERY))
SCORING_PLACE = pytest.mark.parametrize("place", SCORING, ids=names([EVERY[place] for place in SCORING]))
"""Places in what `searchers` gives, under the classes' names, so that ``-k YourClass`` runs all of a searcher's."""


@PLACE
@settings(max_examples=25)
@given(st.integers(0, 99), st.integers(2, 12), st.integers(0, 10), st.integers(6, 50))
def test_budgets_are_kept_and_rankings_are_exact(place: int, seed: int, width: int, copies: int, budget: int) -> None:
    """An overspent budget, an item returned twice or a score that is not the similarity's own: an unfair comparison.

    A budget above the number of items is that number.
    """
    matrix, vectors = problem(seed, 20, 40, width, 0.1, copies)
    searcher = searchers(vectors, budget)[place]
    task = task_of(matrix, 5)
    searcher.index(task.corpus)
    ranking = searcher.search(task.queries, 5)
    asked = [task.judge.asked[row] for row in range(5)]
    assert [len(set(items)) for items in asked] == [len(items) for items in asked] == ranking.calls.tolist()
    expected = min(searcher.budget or 40, 40) if searcher.calls_similarity else 0
    assert (ranking.calls == expected).all()
    for row in range(5):
        assert len(set(ranking.items[row])) == 5
        assert np.all(np.diff(ranking.scores[row]) <= 0)
        if searcher.calls_similarity:
            assert np.array_equal(ranking.scores[row], matrix[row, ranking.items[row]])


@SCORING_PLACE
def test_all_equal_exact_at_full_budget(place: int) -> None:
    """With every item scored, there is nothing left to get wrong."""
    matrix, vectors = problem(1, 20, 40, 6, 1.0, copies=5)
    exact = run(Exact(), task_of(matrix, 5), 40)
    np.testing.assert_array_equal(exact.scores, -np.sort(-matrix[:5], axis=1))
    ranking = run(searchers(vectors, 40)[place], task_of(matrix, 5), 40)
    np.testing.assert_array_equal(ranking.items, exact.items)
    np.testing.assert_array_equal(ranking.scores, exact.scores)


def test_one_round_is_rerank() -> None:
    """AXN with R = 1 must be retrieve-and-rerank, item by item (AXN §2.2)."""
    matrix, vectors = problem(2, 20, 60, 8, 0.5)
    first = run(AXN(vectors, budget=13, rounds=1), task_of(matrix, 20 - 12), 13)
    second = run(Rerank(vectors, 13), task_of(matrix, 20 - 12), 13)
    np.testing.assert_array_equal(first.items, second.items)
    np.testing.assert_array_equal(first.scores, second.scores)


def plain_axn(matrix: Floats, vectors: Vectors, row: int, budget: int, rounds: int, weight: float) -> list[int]:
    """Algorithm 1 as it is written: one query, one numpy least squares a round."""
    sizes = [budget // rounds + (r < budget % rounds) for r in range(rounds)]
    scored: list[int] = []
    approximate = vectors.items.astype(np.float64) @ vectors._queries[row].astype(np.float64)
    for size in sizes:
        open_items = [i for i in np.argsort(-approximate, kind="stable").tolist() if i not in scored]
        scored += open_items[:size]
        v = vectors.items[scored].astype(np.float64)
        u = np.linalg.lstsq(v, matrix[row, scored].astype(np.float64), rcond=1e-6)[0]
        u = (1 - weight) * u + weight * vectors._queries[row]
        approximate = vectors.items.astype(np.float64) @ u
    return scored


@pytest.mark.parametrize("weight", [0.0, 0.4])
@pytest.mark.parametrize(("width", "budget", "copies"), [(32, 24, 0), (8, 40, 0), (16, 30, 0), (16, 30, 12)])
def test_batched_axn_is_algorithm_1(weight: float, width: int, budget: int, copies: int) -> None:
    """Growing Gram matrices and batched Cholesky must choose the items that plain least squares chooses.

    The cases have fewer, more, and first fewer then more equations than unknowns, and items with equal vectors.
    """
    matrix, vectors = problem(3, 20, 120, width, 0.3, copies)
    task = task_of(matrix, 10)
    searcher = AXN(vectors, budget=budget, rounds=5, weight=weight, query_batch=4)
    run(searcher, task, 5)
    for row in range(10):
        mine = set(task.judge.asked[row])
        plain = set(plain_axn(matrix, vectors, row, budget, 5, weight))
        if copies:
            # Copies are equally good: which of them is taken is rounding.
            key: Callable[[int], Any] = lambda i: vectors.items[i].tobytes()  # noqa: E731
            assert sorted(map(key, mine)) == sorted(map(key, plain))
        else:
            assert mine == plain


@given(st.integers(0, 50), st.integers(1, 8), st.integers(0, 4))
def test_growing_least_squares(seed: int, width: int, copies: int) -> None:
    """Every size of the growing system against numpy's minimum-norm solution, singular ones too."""
    rng = np.random.default_rng(seed)
    squares = GrowingLeastSquares(3, width, 15)
    vectors, scores = rng.normal(size=(3, 15, width)), rng.normal(size=(3, 15))
    vectors[:, 1 : 1 + copies] = vectors[:, :1]
    for start, stop in ((0, 2), (2, 3), (3, 9), (9, 15)):
        squares.add(torch.from_numpy(vectors[:, start:stop]), torch.from_numpy(scores[:, start:stop]))
        solved = squares.solve().numpy()
        for i in range(3):
            expected = np.linalg.lstsq(vectors[i, :stop], scores[i, :stop], rcond=1e-5)[0]
            np.testing.assert_allclose(solved[i], expected, atol=1e-6, rtol=1e-6)


def test_axn_beats_rerank_where_the_vectors_span_the_scores() -> None:
    """The reason to use it: with the right item space, scored items tell about the others."""
    matrix, vectors = problem(4, 40, 400, 8, 0.05)
    exact = run(Exact(), task_of(matrix, 20), 10)
    recall = []
    for searcher in (Rerank(vectors, 40), AXN(vectors, budget=40, rounds=4)):
        found = run(searcher, task_of(matrix, 20), 10)
        recall.append(np.mean([len(set(a) & set(b)) for a, b in zip(found.items, exact.items, strict=True)]) / 10)
    assert recall[1] > recall[0] + 0.1


def test_pool_restricts_the_search() -> None:
    """With a pool, no item outside the first stage's top may be scored."""
    matrix, vectors = problem(5, 20, 80, 6, 0.3)
    task = task_of(matrix, 4)
    run(AXN(vectors, budget=12, rounds=3, pool=20), task, 3)
    allowed, _ = vectors.search(task.queries, 20)
    for row in range(4):
        assert set(task.judge.asked[row]) <= set(allowed[row])


def test_cur_recovers_a_low_rank_matrix() -> None:
    """On a matrix of rank 4, CUR's approximation is exact: its top items must be the true ones, with few calls."""
    matrix, _ = problem(6, 40, 200, 4, 0.0)
    task = task_of(matrix, 20)
    found = run(CUR(20, anchor_queries=15, anchor_items=10, rcond=1e-4), task, 10)
    exact = run(Exact(), task_of(matrix, 20), 10)
    np.testing.assert_array_equal(found.items, exact.items)
    assert sum(len(task.judge.asked[row]) for row in range(20, 40)) == 15 * 200


def test_cur_looks_at_its_pool_alone() -> None:
    """Of millions of items a pool is looked at: of all items it changes nothing, a small one gives nothing else."""
    matrix, vectors = problem(6, 40, 200, 4, 0.1)

    def cur(**pool: Any) -> CUR:
        return CUR(20, anchor_queries=15, anchor_items=10, **pool)

    whole = run(cur(), task_of(matrix, 20), 10)
    task = task_of(matrix, 20)
    found = run(cur(first_stage=vectors, pool=200), task, 10)
    np.testing.assert_array_equal(found.items, whole.items)
    task = task_of(matrix, 20)
    searcher = cur(first_stage=vectors, pool=25)
    run(searcher, task, 10)
    allowed, _ = vectors.search(task.queries, 25)
    for row in range(20):
        assert set(task.judge.asked[row]) <= {*allowed[row].tolist(), *searcher.anchor_rows.tolist()}
        assert len(task.judge.asked[row]) == 20
    with pytest.raises(ValueError, match="a pool needs a first stage, or "):
        run(cur(pool=25), task_of(matrix, 20), 10)
    with pytest.raises(ValueError, match="a pool of 19 items cannot fill a budget of 20"):
        cur(pool=19)


def test_cur_by_hand() -> None:
    """E_I = pinv(C_anc) R_anc and e_q E_I on numbers that can be followed with a pencil."""
    matrix = np.array([[3, 2, 1, 0], [1, 0, 5, 2], [2, 0, 10, 4]], dtype=np.float32)
    task = task_of(matrix, 1)
    searcher = CUR(2, anchor_queries=2, anchor_items=1, seed=0)
    searcher.index(task.corpus)
    column = int(searcher.anchor_rows[0])
    c, r = matrix[1:, [column]].astype(float), matrix[1:].astype(float)
    expected = (c.T / (c**2).sum() if (c**2).sum() else np.zeros((1, 2))) @ r
    np.testing.assert_allclose(searcher.item_embeddings.T, expected, atol=1e-6)


def test_normalization_matches_mean_and_deviation() -> None:
    """s' on the dual encoder's scale: a wrong sign or a swapped factor would leave AXN mixing apples and pears."""
    matrix, vectors = problem(7, 30, 60, 6, 0.2)
    task = task_of(10 * matrix + 300, 10)
    vectors.index(task.corpus)
    fitted, asked = fit_normalization(task.corpus, vectors.embedder, vectors)
    items, dense = vectors.search(task.corpus.anchors, 50)
    assert asked.calls.tolist() == [50] * 20
    scores = fitted(task.judge.scorer(task.corpus.anchors).lists(items))
    assert scores.mean() == pytest.approx(dense.mean(), abs=1e-4)
    assert scores.std() == pytest.approx(dense.std(), abs=1e-4)
    assert fitted.beta > 0


def test_bad_budgets_are_refused() -> None:
    """Each impossible wish gets the reason, not a traceback from deep inside."""
    matrix, vectors = problem(8, 10, 30, 4, 0.1)
    task = task_of(matrix, 4)
    with pytest.raises(ValueError, match="k = 11 results need a budget of at least 11"):
        run(Rerank(vectors, 10), task, 11)
    with pytest.raises(ValueError, match="each of 5 rounds"):
        AXN(vectors, budget=4, rounds=5)
    with pytest.raises(ValueError, match=r"\[0, 1\], got 2"):
        AXN(vectors, weight=2)
    with pytest.raises(ValueError, match="pool of 5"):
        AXN(vectors, budget=10, pool=5)
    with pytest.raises(ValueError, match="leave nothing"):
        CUR(10, anchor_items=10)
    with pytest.raises(ValueError, match="has 6 queries that"):
        run(CUR(10, anchor_queries=7, anchor_items=3), task, 3)
    with pytest.raises(ValueError, match="not evaluated"):
        run(AXN(vectors, budget=10, normalize=True), task_of(matrix, 10), 3)
    with pytest.warns(UserWarning, match="ill-conditioned"):
        CUR(30, anchor_queries=10, anchor_items=10)


# -- what every searcher keeps -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("searcher", EVERY, ids=names(EVERY))
def test_one_query_is_as_many(searcher: Searcher) -> None:
    """A result that depends on who asks at the same time cannot be looked into, nor made again."""
    task = task_of(MATRIX, 12)
    whole = run(searcher, task, 7)
    searcher.query_batch = 5
    parts = [searcher.search(task.queries, 7), *(searcher.search([query], 7) for query in task.queries)]
    alone = Ranking.joined(parts[1:], {})
    for name in ("items", "scores", "calls"):
        np.testing.assert_array_equal(getattr(whole, name), getattr(parts[0], name))
        np.testing.assert_array_equal(getattr(whole, name), getattr(alone, name))


class Ragged(Vectors):
    """Finds nothing for the first query, one item for the second, and so on."""

    def find(self, queries: Sequence[Query], k: int) -> tuple[NDArray[np.int64], Floats]:
        rows, scores = super().find(queries, k)
        there = np.arange(k) < np.array([[int(query.id)] for query in queries])
        return np.where(there, rows, -1), np.where(there, scores, -np.inf).astype(np.float32)


RAGGED = searchers(Ragged(VECTORS._queries, VECTORS.items), 13)


@pytest.mark.parametrize("searcher", RAGGED, ids=names(RAGGED))
def test_too_few_candidates_are_few_results(searcher: Searcher) -> None:
    """Row -1 would be the last item: it must neither be scored nor stand before an item, and no item stands twice."""
    task = task_of(MATRIX, 12)
    found = run(searcher, task, 7)
    assert found.items.shape == (12, 7)
    np.testing.assert_array_equal(found.items == -1, np.isneginf(found.scores))
    for row, items in enumerate(found.items.tolist()):
        real = [item for item in items if item >= 0]
        assert items == real + [-1] * (7 - len(real)) and len(set(real)) == len(real)
        assert len(task.judge.asked[row]) == len(set(task.judge.asked[row])) == found.calls[row] <= 60
        if searcher.calls_similarity:
            assert set(real) <= set(task.judge.asked[row])
            np.testing.assert_array_equal(found.scores[row, : len(real)], MATRIX[row, real])


@PLACE
@pytest.mark.parametrize("size", [1, 3])
def test_few_items_are_few_results(place: int, size: int) -> None:
    """An index begins small: with fewer items than k, neighbours or anchors, all of them are found."""
    items = [Item(str(row), "x") for row in range(size)]
    queries = [Query(str(row), "x") for row in range(24)]
    searcher = searchers(Vectors(VECTORS._queries, VECTORS.items[:size]), 13)[place]
    searcher.index(Corpus(items, Known(MATRIX[:, :size]), anchors=queries[12:]))
    found = searcher.search(queries[:12], 5)
    assert np.array_equal(np.sort(found.items[:, :size], axis=1), np.tile(np.arange(size), (12, 1)))
    assert (found.items[:, size:] == -1).all() and np.isneginf(found.scores[:, size:]).all()


@pytest.mark.parametrize("searcher", EVERY, ids=names(EVERY))
def test_removed_items_are_neither_found_nor_scored(searcher: Searcher) -> None:
    """What a user deleted must not come back, not even as a text that is sent to an API."""
    removed = np.random.default_rng(0).random(60) < 0.4
    gone = set(np.flatnonzero(removed).tolist())
    task = task_of(MATRIX, 12, removed)
    found = run(searcher, task, 7)
    assert not gone & set(found.items.flatten().tolist())
    assert not gone & {item for items in task.judge.asked.values() for item in items}
    assert not any(task.judge.asked[task.judge.queries + row] for row in gone)
    nothing = task_of(MATRIX, 12, np.ones(60, dtype=bool))
    searcher.index(nothing.corpus)
    assert (searcher.search(task.queries, 3).items == -1).all()
    searcher.extend(replace(nothing.corpus, removed=None), 60)
    np.testing.assert_array_equal(searcher.search(task.queries, 7).items, run(searcher, task_of(MATRIX, 12), 7).items)


@SCORING_PLACE
def test_removed_items_leave_exact_search_of_the_others(place: int) -> None:
    """With every item scored, what is left is what exact search of a corpus without them finds."""
    removed = np.random.default_rng(1).random(60) < 0.3
    live = np.flatnonzero(~removed)
    exact = run(Exact(), task_of(MATRIX[:, live], 12), len(live))
    found = run(searchers(VECTORS, 60)[place], task_of(MATRIX, 12, removed), len(live))
    np.testing.assert_array_equal(found.items, live[exact.items])
    np.testing.assert_array_equal(found.scores, exact.scores)


KEEPS_ITS_ANCHORS = ("CUR", "FixedItem", "ItemCUR", "LinearSearch")  # an index over everything at once draws others


GROWN = [
    (place, budget)
    for budget in (13, 60)
    for place, searcher in enumerate(EVERY)
    if (budget == 60 or type(searcher).__name__ not in KEEPS_ITS_ANCHORS) and not getattr(searcher, "normalize", False)
]


@pytest.mark.parametrize(("place", "budget"), GROWN, ids=[f"{names(EVERY)[place]}-{budget}" for place, budget in GROWN])
def test_a_grown_index_is_one_built_at_once(place: int, budget: int) -> None:
    """Items that were added later would be found less often than others, and nothing would say so."""
    whole = task_of(MATRIX, 12)
    few = Corpus(list(whole.corpus.items[:37]), Known(MATRIX[:, :37]), anchors=whole.corpus.anchors)
    at_once, grown = searchers(VECTORS, budget)[place], searchers(VECTORS, budget)[place]
    expected = run(at_once, whole, 7)
    grown.index(few)
    grown.extend(whole.corpus, 37)
    found = grown.search(whole.queries, 7)
    np.testing.assert_array_equal(found.items, expected.items)
    np.testing.assert_array_equal(found.scores, expected.scores)
    with pytest.raises(ValueError, match="has indexed 60 items"):
        grown.extend(whole.corpus, 37)


def test_growing_costs_what_is_added() -> None:
    """CUR's anchors scored with all items again, for every new item, would be the whole index for each."""
    whole = task_of(MATRIX, 12)
    grown = CUR(13, anchor_queries=8, anchor_items=6)
    grown.index(Corpus(whole.corpus.items[:50], MatrixJudge(MATRIX[:, :50]), anchors=whole.corpus.anchors))
    assert grown.index_calls == 8 * 50
    grown.extend(whole.corpus, 50)
    assert grown.index_calls == 8 * 10 == sum(map(len, whole.judge.asked.values()))
    assert {item for items in whole.judge.asked.values() for item in items} == set(range(50, 60))


def test_what_does_not_fit_the_corpus_is_refused() -> None:
    """A judge over other items gives scores, but of other pairs."""
    items = [Item(str(row), "x") for row in range(3)]
    with pytest.raises(ValueError, match="judge is over 60 items, but the corpus has 3"):
        Corpus(items, MatrixJudge(MATRIX))
    with pytest.raises(ValueError, match=r"expected \(3,\) bool, got \(2,\)"):
        Corpus(items, removed=np.zeros(2, dtype=bool))
    with pytest.raises(ValueError, match="Exact needs a similarity"):
        Exact().index(Corpus(items))
    with pytest.raises(ValueError, match="name a checkpoint, or give the corpus an embedder"):
        AXN(budget=3, rounds=1).index(Corpus(items, MatrixJudge(MATRIX[:, :3])))
