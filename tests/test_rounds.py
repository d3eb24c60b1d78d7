"""ADACUR, TOUR, FIXEDITEM and ITEMCUR against their formulas, written out for one query at a time."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from simzoo.core.records import DataError, Item, Query
from simzoo.retrieval.corpus import Corpus
from simzoo.retrieval.first_stages.offered import Random
from simzoo.retrieval.searchers.adacur import AdaCUR
from simzoo.retrieval.searchers.axn import AXN
from simzoo.retrieval.searchers.exact import Exact
from simzoo.retrieval.searchers.fixed_item import FixedItem
from simzoo.retrieval.searchers.item_cur import ItemCUR
from simzoo.retrieval.searchers.item_queries import item_query
from simzoo.retrieval.searchers.solvers import Ridge
from simzoo.retrieval.searchers.tour import Tour, TourCE, TourMSE
from tests.test_searchers import Known, Watched, problem, run, task_of

Doubles = NDArray[np.float64]


def chosen(approximate: Doubles, scored: list[int], size: int) -> list[int]:
    """The best items that are not scored."""
    return [item for item in np.argsort(-approximate, kind="stable").tolist() if item not in scored][:size]


@pytest.mark.parametrize("kind", ["noise", "copies", "constant rows", "few anchors"])
def test_adacur_is_the_pseudo_inverse_of_the_scored_columns(kind: str) -> None:
    """C_q pinv(R_A) R_anc each round, whether A has fewer items than there are anchor queries, more, or equal ones."""
    matrix, vectors = problem(3, 40, 90, 12, 0.3, copies=20 if kind == "copies" else 0)
    if kind == "copies":
        matrix[:, 5:20] = matrix[:, 5:6]
    if kind == "constant rows":
        matrix[12:30] = np.arange(18, dtype=np.float32)[:, None]
    anchors = 3 if kind == "few anchors" else 20
    task = task_of(matrix, 10)
    searcher = AdaCUR(vectors, 36, anchor_queries=anchors, rounds=6, rcond=1e-3, query_batch=4)
    run(searcher, task, 5)
    r_anc = searcher.embedder.vectors.T.astype(np.float64)
    assert {row.tobytes() for row in r_anc} <= {row.tobytes() for row in matrix[10:].astype(np.float64)}
    for row in range(10):
        asked = task.judge.asked[row]
        scored = list(asked[:6])
        assert set(scored) == set(vectors.search([task.queries[row]], 6)[0][0].tolist())
        for start in range(6, 36, 6):
            exact = matrix[row, scored].astype(np.float64)
            approximate = exact @ np.linalg.pinv(r_anc[:, scored], rcond=1e-3) @ r_anc
            best, mine = chosen(approximate, scored, 6), asked[start : start + 6]
            # Equal items are equally good: which of them is taken is rounding.
            np.testing.assert_allclose(np.sort(approximate[mine]), np.sort(approximate[best]), atol=1e-5)
            scored += mine


def test_adacur_finds_what_a_low_rank_matrix_hides_from_its_first_stage() -> None:
    """The reason to use it: a random start, and the top 10 of a matrix of rank 4 after 20 calls."""
    matrix, _ = problem(6, 40, 200, 4, 0.0)
    searcher = AdaCUR(Random(), 20, anchor_queries=15, rounds=2)
    found = run(searcher, task_of(matrix, 20), 10)
    np.testing.assert_array_equal(found.items, run(Exact(), task_of(matrix, 20), 10).items)
    assert searcher.index_calls == 15 * 200


def test_adacur_growing_costs_what_is_added() -> None:
    """Anchors scored with all items again, for every new item, would be the whole index for each."""
    matrix, vectors = problem(11, 24, 60, 6, 0.4)
    whole = task_of(matrix, 12)
    grown = AdaCUR(vectors, 13, anchor_queries=8, rounds=3)
    grown.index(Corpus(whole.corpus.items[:50], Known(matrix[:, :50]), anchors=whole.corpus.anchors))
    assert grown.index_calls == 8 * 50
    grown.extend(whole.corpus, 50)
    assert grown.index_calls == 8 * 10 == sum(map(len, whole.judge.asked.values()))
    again = AdaCUR(vectors, 13, anchor_queries=8, rounds=3)
    again.restore(whole.corpus, grown.state(), 60)
    assert again.index_calls == 0
    np.testing.assert_array_equal(again.search(whole.queries, 5).items, grown.search(whole.queries, 5).items)


def divergence(approximate: torch.Tensor, exact: torch.Tensor) -> torch.Tensor:
    target = exact.softmax(dim=0)
    return (target * (target.log() - approximate.log_softmax(dim=0))).sum()


def squared(approximate: torch.Tensor, exact: torch.Tensor) -> torch.Tensor:
    return ((approximate - exact) ** 2).mean()


@pytest.mark.parametrize(("kind", "loss", "rate"), [(TourCE, divergence, 0.5), (TourMSE, squared, 0.02)])
def test_tour_takes_the_gradient_step_of_its_loss(
    kind: type[Tour], loss: Callable[[torch.Tensor, torch.Tensor], torch.Tensor], rate: float
) -> None:
    """A wrong sign or a lost factor still finds items, only worse ones: the steps are autograd's."""
    matrix, vectors = problem(5, 20, 90, 8, 0.5)
    task = task_of(matrix, 6)
    run(kind(embeddings=vectors, budget=20, rounds=4, rate=rate, query_batch=4), task, 5)
    items = torch.from_numpy(vectors.items).double()
    for row in range(6):
        u, scored = torch.from_numpy(vectors._queries[row]).double(), list[int]()
        for _ in range(4):
            fresh = chosen((items @ u).numpy(), scored, 5)
            scored += fresh
            u.requires_grad_()
            (slope,) = torch.autograd.grad(loss(items[fresh] @ u, torch.from_numpy(matrix[row, fresh]).double()), [u])
            u = (u - rate * slope).detach()
        assert set(task.judge.asked[row]) == set(scored)


def test_tour_that_diverges_is_refused() -> None:
    """Steps that grow without end would rank by rounding, and then by NaN."""
    matrix, vectors = problem(5, 20, 90, 8, 0.5)
    with pytest.raises(FloatingPointError, match=r"rate 1000000.0 made .* take a smaller rate"):
        run(TourMSE(vectors, budget=20, rounds=10, rate=1e6), task_of(matrix, 6), 5)
    with pytest.raises(ValueError, match="must be positive, got 0"):
        TourCE(rate=0)


def test_a_faint_ridge_is_the_least_norm() -> None:
    """The penalty's other end: a strength near 0 must lead to the items of plain AXN."""
    matrix, vectors = problem(3, 20, 120, 16, 0.3)
    plain, task = task_of(matrix, 10), task_of(matrix, 10)
    run(AXN(vectors, budget=30, rounds=5), plain, 5)
    run(AXN(vectors, budget=30, rounds=5, solver=Ridge(1e-9, centred=False)), task, 5)
    assert task.judge.asked == plain.judge.asked


def test_a_strong_ridge_stays_at_the_dual_encoder() -> None:
    """Its centre is the query's own vector: with all weight on it AXN re-ranks the dual encoder's top items."""
    matrix, vectors = problem(3, 20, 120, 16, 0.3)
    task = task_of(matrix, 10)
    run(AXN(vectors, budget=30, rounds=5, solver=Ridge(1e9)), task, 5)
    found, _ = vectors.search(task.queries, 30)
    assert [set(task.judge.asked[row]) for row in range(10)] == [set(items) for items in found.tolist()]


@pytest.mark.parametrize("searcher", [FixedItem(24, 9, seed=2), ItemCUR(24, 11, 9, seed=2)])
def test_item_item_baselines_by_their_formulas(searcher: FixedItem | ItemCUR) -> None:
    """FIXEDITEM: e_q . e_i over the anchor items; ITEMCUR: e_q pinv(C) R over items in the place of queries."""
    matrix, _ = problem(7, 20, 70, 6, 0.2)
    task = task_of(matrix, 5)
    run(searcher, task, 5)
    between = Watched(matrix).matrix[20:].astype(np.float64)
    anchors = searcher.anchor_rows
    if isinstance(searcher, FixedItem):
        embeddings = between[:, anchors].T
        assert searcher.index_calls == 70 * 9
    else:
        stand_in = searcher.state()["queries"]
        assert len(set(stand_in.tolist())) == 11 and searcher.index_calls == 11 * 70
        embeddings = np.linalg.pinv(between[np.ix_(stand_in, anchors)], rcond=1e-6) @ between[stand_in]
    for row in range(5):
        approximate = matrix[row, anchors].astype(np.float64) @ embeddings
        expected = {*anchors.tolist(), *chosen(approximate, anchors.tolist(), 15)}
        assert set(task.judge.asked[row]) == expected


def test_removed_items_do_not_stand_in_for_queries() -> None:
    """A deleted text that is kept as an anchor is sent to the scorer with every new item."""
    matrix, _ = problem(7, 20, 70, 6, 0.2)
    for searcher in (ItemCUR(24, 11, 9), FixedItem(24, 9)):
        few = task_of(matrix[:, :60], 5)
        searcher.index(few.corpus)
        stand_in = searcher.state()["queries"] if isinstance(searcher, ItemCUR) else searcher.anchor_rows
        removed = np.zeros(70, dtype=bool)
        removed[stand_in[:3]] = True
        task = task_of(matrix, 5, removed)
        searcher.extend(task.corpus, 60)
        searcher.search(task.queries, 5)
        gone = set(np.flatnonzero(removed).tolist())
        assert not any(gone & set(items) for items in task.judge.asked.values())
        assert not any(task.judge.asked[20 + item] for item in gone)


def test_an_item_as_a_query() -> None:
    """ANNCUR A.2: the title is the mention, the text follows it; an item without words is no query."""
    assert item_query(Item("7", "A river.", " Bank "), True) == Query("of-7", "Bank A river.", (0, 4))
    assert item_query(Item("7", "A river.", "Bank"), False) == Query("of-7", "Bank A river.")
    assert item_query(Item("7", "A river."), True) == Query("of-7", "A river.")
    assert item_query(Item("7", "", "Bank"), True) == Query("of-7", "Bank", (0, 4))
    matrix, _ = problem(7, 20, 30, 6, 0.2)
    judge = Watched(matrix)
    items = [Item(str(row), "" if row % 2 else "x") for row in range(30)]
    with pytest.raises(DataError, match="item '1' has neither title nor text"):
        FixedItem(24, 9).index(Corpus(items, judge))
    assert not any(judge.asked.values())  # found before anything was paid for
    searcher = ItemCUR(24, 20, 9)
    searcher.index(Corpus(items, judge))
    assert searcher.state()["queries"].tolist() == list(range(0, 30, 2))
    with pytest.raises(DataError, match="no item of the corpus has a title or a text"):
        searcher.index(Corpus([Item(str(row), " ") for row in range(30)], judge))
