"""Every searcher where the similarity, the items or the queries are bad: a clear error, or the right answer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from simzoo.core.records import Item, Query
from simzoo.retrieval.corpus import Corpus
from simzoo.retrieval.first_stages.lexical import BM25
from simzoo.retrieval.judge import CallableJudge, Judge
from simzoo.retrieval.scorer import Scorer
from simzoo.retrieval.searcher import Searcher
from simzoo.retrieval.searchers.adacur import AdaCUR
from simzoo.retrieval.searchers.axn import AXN
from simzoo.retrieval.searchers.cur import CUR
from simzoo.retrieval.searchers.exact import Exact
from simzoo.retrieval.searchers.fixed_item import FixedItem
from simzoo.retrieval.searchers.item_cur import ItemCUR
from simzoo.retrieval.searchers.tour import TourCE, TourMSE
from tests.test_searchers import MATRIX, VECTORS, Floats, Known, Vectors, names, run, searchers, task_of

EVERY = [searcher for searcher in searchers(VECTORS, 60) if searcher.calls_similarity]
ONE = pytest.mark.parametrize("searcher", EVERY, ids=names(EVERY))


def corpus_of(matrix: Floats, judge: Judge | None = None) -> Corpus:
    """60 items, and anchors."""
    items = [Item(f"{row}", "x") for row in range(matrix.shape[1])]
    return Corpus(items, judge or Known(matrix), anchors=[Query(f"{row}", "x") for row in range(12, 24)])


QUERIES = [Query(f"{row}", "x") for row in range(12)]


@ONE
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_score_that_is_not_finite_is_named(searcher: Searcher, bad: float) -> None:
    """A NaN in a sort puts items anywhere; of a row of a batch of queries nobody knows whose it is."""
    matrix = MATRIX.copy()
    searcher.index(corpus_of(matrix))
    searcher.corpus.judge.matrix[7, 31] = bad  # type: ignore[union-attr]
    with pytest.raises(FloatingPointError, match=rf"the first is {bad} .*: query '7', item '31'"):
        searcher.search(QUERIES[2:], 5)


@pytest.mark.parametrize("searcher", EVERY, ids=names(EVERY))
def test_a_bad_score_of_an_anchor_is_named(searcher: Searcher) -> None:
    """Offline as well: one NaN among the anchors' scores would spoil every item's embedding."""
    matrix = MATRIX.copy()
    matrix[12:] = np.nan
    judge = Known(np.nan_to_num(matrix))
    judge.matrix[12:] = np.nan  # of the anchors, and of items in the place of queries
    if isinstance(searcher, CUR | AdaCUR | FixedItem) or getattr(searcher, "normalize", False):
        with pytest.raises(FloatingPointError, match=r"scores are not finite.*: query '(of-)?\d+', item '\d+'"):
            searcher.index(corpus_of(matrix, judge))
    else:  # it asks for nothing offline
        searcher.index(corpus_of(matrix, judge))
        exact = run(Exact(), task_of(MATRIX, 12), 5)
        np.testing.assert_array_equal(searcher.search(QUERIES, 5).items, exact.items)


class Short(Known):
    """Gives one score too few."""

    def scorer(self, queries: Sequence[Query]) -> Scorer:
        return Scorer(lambda query_rows, item_rows: np.zeros(len(item_rows) - 1), len(queries), self.num_items)


@ONE
def test_a_scorer_of_another_shape_is_refused(searcher: Searcher) -> None:
    """Scores one place off are scores of other items."""

    def found() -> None:
        searcher.index(corpus_of(MATRIX, Short(MATRIX)))
        searcher.search(QUERIES, 5)

    with pytest.raises(ValueError, match=r"gave scores of shape \(\d+,\) for \d+ pairs"):
        found()


@ONE
def test_a_scorer_that_raises_is_not_asked_again_for_what_it_gave(searcher: Searcher) -> None:
    """Calls cost money: the same queries asked again go on where they were."""
    paid: list[tuple[str, str]] = []
    broken = [False]

    def function(pairs: list[tuple[str, str]]) -> list[float]:
        if broken[0] and len(paid) > 100:
            raise ConnectionError("gone")
        paid.extend(pairs)
        return [float(MATRIX[hash_of(query), hash_of(item)]) for query, item in pairs]

    def hash_of(text: str) -> int:
        return int(text.split()[-1]) % 24

    items = [Item(f"{row}", f"{row}") for row in range(60)]
    judge = CallableJudge(function, items, chunk=16)
    anchors = [Query(f"{row}", f"anchor {row}") for row in range(12, 24)]
    asked = [Query(f"{row}", f"query {row}") for row in range(12)]
    searcher.index(Corpus(items, judge, anchors=anchors))
    paid.clear()
    broken[0] = True
    with pytest.raises(ConnectionError):
        searcher.search(asked, 5)
    broken[0] = False
    found = searcher.search(asked, 5)
    assert len(paid) == len(set(paid)) == found.calls.sum() == 12 * 60


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_score_that_is_not_finite_costs_its_own_pair_alone(bad: float) -> None:
    """The finite scores of its chunk were thrown away, and paid for again."""
    paid: list[tuple[str, str]] = []
    broken = [("query 3", "7"), ("query 3", "9")]

    def function(pairs: list[tuple[str, str]]) -> list[float]:
        paid.extend(pairs)
        return [bad if pair in broken else float(MATRIX[int(pair[0].split()[-1]), int(pair[1])]) for pair in pairs]

    items = [Item(f"{row}", f"{row}") for row in range(60)]
    asked = [Query(f"{row}", f"query {row}") for row in range(6)]
    searcher = Exact()
    searcher.index(Corpus(items, CallableJudge(function, items, chunk=16)))
    with pytest.raises(FloatingPointError, match=r"2 of 16 scores .* query '3', item '7'"):
        searcher.search(asked, 5)
    before, wrong = set(paid), set(broken)
    broken.clear()
    found = searcher.search(asked, 5)
    twice = {pair for pair in paid if paid.count(pair) > 1}
    assert wrong <= before and twice == wrong and len(set(paid)) == 6 * 60
    np.testing.assert_array_equal(found.items, np.argsort(-MATRIX[:6, :60], axis=1, kind="stable")[:, :5])


@ONE
@pytest.mark.parametrize("value", [0.0, -3.5, 1e30])
def test_constant_scores_come_by_row(searcher: Searcher, value: float) -> None:
    """A similarity that says nothing must not crash a fit, nor bring an item twice; huge scores neither."""
    matrix = np.full_like(MATRIX, value)
    corpus = corpus_of(matrix, Known(np.zeros_like(matrix)))
    corpus.judge.matrix[:] = value  # type: ignore[union-attr]
    if getattr(searcher, "normalize", False):
        with pytest.raises(ValueError, match="the cross-encoder gives the same score to every pair"):
            searcher.index(corpus)
        return
    searcher.index(corpus)
    if isinstance(searcher, TourMSE) and value == 1e30:
        with pytest.raises(FloatingPointError, match="take a smaller rate"):
            searcher.search(QUERIES, 5)
        return
    found = searcher.search(QUERIES, 5)
    np.testing.assert_array_equal(found.items, np.tile(np.arange(5), (12, 1)))


def test_a_query_without_words_is_searched() -> None:
    """BM25 finds nothing for it: the round's items come from elsewhere, and the budget is spent all the same."""
    task = task_of(MATRIX, 12)
    items = [Item(f"{row}", f"river {row}") for row in range(60)]
    corpus = replace(task.corpus, items=items)
    asked = [Query(query.id, "?!") for query in task.queries]
    vectors = Vectors(VECTORS._queries, VECTORS.items)
    for searcher in (
        AXN(vectors, BM25(), budget=13, rounds=3),
        TourCE(vectors, BM25(), budget=13, rounds=3),
        AdaCUR(BM25(), 13, anchor_queries=8, rounds=3),
    ):
        searcher.index(corpus)
        found = searcher.search(asked, 5)
        assert (found.calls == 13).all() and (found.items >= 0).all()
        for row, items in enumerate(found.items):
            np.testing.assert_array_equal(found.scores[row], MATRIX[row, items])


@pytest.mark.parametrize(("searcher", "name"), [(CUR, "anchor_queries"), (ItemCUR, "index_items")])
def test_messages_name_the_argument_that_there_is(searcher: type[CUR], name: str) -> None:
    """ITEMCUR has no anchor queries: who is told to change them looks for an argument that is not there."""
    with pytest.raises(ValueError, match=f"{name} must be at least 1"):
        searcher(10, 0, 5)
    with pytest.warns(UserWarning, match=f"{name} = anchor_items = 5"):
        searcher(10, 5, 5)


def test_vectors_of_other_items_are_refused() -> None:
    """Row 7 of one item set is another item than row 7 of the other."""
    few = Vectors(VECTORS._queries, VECTORS.items)
    few.index(Corpus([Item(f"{row}", "x") for row in range(50)], Known(MATRIX[:, :50])))
    with pytest.raises(ValueError, match="the embedder is over 50 items, but the corpus has 60"):
        Corpus([Item(f"{row}", "x") for row in range(60)], Known(MATRIX), few.embedder)
    with pytest.raises(ValueError, match="the judge is over 50 items"):
        Corpus([Item(f"{row}", "x") for row in range(60)], Known(MATRIX[:, :50]))


@ONE
def test_fewer_items_than_the_budget(searcher: Searcher) -> None:
    """All are scored, once each, and the ranking is the exact one."""
    exact = run(Exact(), task_of(MATRIX[:, :20], 12), 5)
    found = run(searcher, task_of(MATRIX[:, :20], 12), 5)
    np.testing.assert_array_equal(found.items, exact.items)
    assert (found.calls == 20).all()
