"""Top-k search with Mixture-of-Logits against the formula, pair by pair, in double precision."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import qdrant_client
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from qdrant_client import QdrantClient
from qdrant_client.models import PointIdsList

from simzoo.core.records import Collection, Item, Query
from simzoo.core.reps import Reps, take
from simzoo.models.parts.mixture import MixtureConfig, MoLHead
from simzoo.retrieval.corpus import Corpus
from simzoo.retrieval.evaluation import evaluate
from simzoo.retrieval.first_stages import vector_database
from simzoo.retrieval.first_stages.vector_database import Qdrant
from simzoo.retrieval.first_stages.vector_index import HNSW, Flat, IndexKind
from simzoo.retrieval.judge import MatrixJudge, SimilarityJudge
from simzoo.retrieval.searchers.mol import candidates as mol_candidates
from simzoo.retrieval.searchers.mol import index as mol_index
from simzoo.retrieval.searchers.mol import topk as mol_topk
from simzoo.retrieval.searchers.mol.index import MixtureIndex
from simzoo.retrieval.searchers.mol.screen import Screen
from simzoo.retrieval.searchers.mol.searcher import Best, BoundedRanking, MixtureSearcher
from simzoo.retrieval.searchers.mol.topk import (
    BruteForce,
    CombTopK,
    ExactMoL,
    TopKAvg,
    TopKGate,
    TopKPerEmbd,
)

Doubles = NDArray[np.float64]
METHODS: list[type[MixtureSearcher]] = [BruteForce, ExactMoL, TopKPerEmbd, TopKAvg, CombTopK, TopKGate]


class Given:
    """A similarity over given raw vectors."""

    pointwise = True

    def __init__(self, head: MoLHead) -> None:
        self.head = head.eval()
        self.score_pairs = head.score_pairs


@torch.no_grad()
def problem(
    seed: int,
    queries: int,
    items: int,
    grid: tuple[int, int, int] = (2, 3, 4),
    scale: float = 1.0,
    vectors: bool = True,
    copies: int = 0,
) -> Task:
    """Random vectors and weights; ``scale`` makes the gate sharper, ``copies`` items repeat the first one."""
    torch.manual_seed(seed)
    p_q, p_x, width = grid
    config = MixtureConfig(p_q, p_x, gate_hidden=5, query_gate=vectors, item_gate=vectors, temperature=0.1)
    head = MoLHead(config, p_q * width, p_x * width)
    for parameter in head.parameters():
        parameter.copy_(scale * torch.randn_like(parameter))
    raw = torch.randn(items, p_x * width)
    raw[torch.randperm(items)[:copies]] = raw[0].clone()
    return task_of(Given(head), head.queries(torch.randn(queries, p_q * width)), head.items(raw))


class Judge(SimilarityJudge):
    """Over representations of queries at hand, by their ids, which are q0, q1, ..."""

    def __init__(self, similarity: Any, queries: Reps, items: Reps) -> None:
        super().__init__(similarity, items)
        self.queries = queries

    def encode(self, queries: Sequence[Query]) -> Reps:
        return take(self.queries, torch.tensor([int(query.id[1:]) for query in queries]))


@dataclass
class Task:
    """What is searched, and the queries."""

    corpus: Corpus
    queries: list[Query]
    judge: Judge


def task_of(similarity: Any, queries: Reps, items: Reps) -> Task:
    judge = Judge(similarity, queries, items)
    sizes = len(queries["components"]), judge.num_items
    corpus = Corpus([Item(f"i{row}", "x") for row in range(sizes[1])], judge)
    return Task(corpus, [Query(f"q{row}", "x") for row in range(sizes[0])], judge)


def silu(x: Doubles) -> Doubles:
    return x * (0.5 + 0.5 * np.tanh(x / 2))


def mixtures(task: Task) -> tuple[Doubles, Doubles]:
    """(B, N, P) gates and logits, one pair after the other, straight from the paper."""
    made = task.judge
    head: MoLHead = made.similarity.head
    weights = {name: value.detach().double().numpy() for name, value in head.gate.named_parameters()}
    q, x = ({name: part.double().numpy() for name, part in reps.items()} for reps in (made.queries, made.items))  # type: ignore[union-attr]
    shape = (len(q["components"]), len(x["components"]), q["components"].shape[1] * x["components"].shape[1])
    gates, all_logits = np.empty(shape), np.empty(shape)
    for b, i in np.ndindex(shape[:2]):
        logits = np.array([f @ g / head.temperature for f in q["components"][b] for g in x["components"][i]])
        gating = weights["cross_out.weight"] @ silu(weights["cross_in.weight"] @ logits + weights["cross_in.bias"])
        gating += weights["cross_out.bias"]
        if "gate" in q:
            gating += q["gate"][b] * x["gate"][i]
        unnormalised = np.exp(silu(gating) - silu(gating).max())
        gates[b, i], all_logits[b, i] = unnormalised / unnormalised.sum(), logits
    return gates, all_logits


def formula(task: Task) -> Doubles:
    """(B, N) scores."""
    gates, logits = mixtures(task)
    scores: Doubles = (gates * logits).sum(axis=2)
    return scores


def expected(scores: Doubles, k: int) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """The top k of each row, ties by lower row."""
    rounded = scores.astype(np.float32)
    rows = np.argsort(-rounded, axis=1, kind="stable")[:, :k]
    return rows, np.take_along_axis(rounded, rows, axis=1)


def run(searcher: MixtureSearcher, task: Task, k: int) -> BoundedRanking:
    searcher.index(task.corpus)
    found = searcher.search(task.queries, k)
    assert isinstance(found, BoundedRanking)
    return found


@pytest.fixture(params=[3, 2048], ids=["many chunks", "one chunk"])
def chunk(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr(mol_index, "CHUNK", request.param)
    monkeypatch.setattr(mol_index, "QUERIES", 2)
    size = 4 * request.param
    monkeypatch.setattr(mol_candidates, "SCANNED", size)
    monkeypatch.setattr(mol_topk, "SEGMENT", size)
    monkeypatch.setattr(
        MixtureIndex,
        "ranges",
        lambda index, queries: (
            (start, min(start + size, index.num_items)) for start in range(0, index.num_items, size)
        ),
    )
    return int(request.param)


@settings(max_examples=25)
@given(st.data())
def test_exact_is_brute_force_and_certified(data: st.DataObject) -> None:
    """A bound that is too low, a threshold that rises too early or a tie broken by rounding loses an item unseen."""
    draw = data.draw
    items = draw(st.integers(1, 30), "items")
    task = problem(
        draw(st.integers(0, 999), "seed"),
        draw(st.integers(1, 3), "queries"),
        items,
        (draw(st.integers(1, 3), "P_Q"), draw(st.integers(1, 3), "P_X"), draw(st.integers(1, 4), "width")),
        draw(st.sampled_from([0.01, 0.3, 1.0, 5.0]), "scale"),
        draw(st.booleans(), "vectors"),
        draw(st.integers(0, items), "copies"),
    )
    k = draw(st.integers(1, items), "k")
    rows, scores = expected(formula(task), k)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(mol_index, "CHUNK", draw(st.sampled_from([2, 7, 2048]), "chunk"))
        patch.setattr(mol_index, "LOGITS", draw(st.sampled_from([1, 40, 1 << 18]), "logits at once"))
        patch.setattr(mol_topk, "SEGMENT", draw(st.sampled_from([1, 11, 2048]), "segment"))
        patch.setattr(mol_topk, "SPARSE", draw(st.sampled_from([0.0, 0.95]), "screened from"))
        patch.setattr(mol_topk, "SCREENED", draw(st.sampled_from([1, 9, 1 << 15]), "screened at once"))
        for searcher in (BruteForce(), ExactMoL(1), ExactMoL()):
            found = run(searcher, task, k)
            np.testing.assert_array_equal(found.items, rows)
            # To the last bit, but where logits cancel to nearly nothing: there the order of a sum shows.
            np.testing.assert_allclose(found.scores, scores, rtol=0, atol=1e-14)
            assert found.certified.all()
            assert (found.gaps == 0).all()


@pytest.mark.parametrize("vectors", [True, False])
@pytest.mark.parametrize("screened", [True, False])
def test_the_certificate_is_true(chunk: int, vectors: bool, screened: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A certificate nobody checks: the bound must hold for every item left out, and items must have been left out."""
    task = problem(3, 5, 200, (1, 2, 4), 2.0, vectors)
    monkeypatch.setattr(mol_topk, "SPARSE", 0.0 if screened else 2.0)
    scores = formula(task)
    evaluated: list[NDArray[np.int64]] = []
    add = Best.add

    def seen(self: Best, found: torch.Tensor, first: int) -> None:
        evaluated.extend(np.flatnonzero(row) for row in found.isfinite().numpy())
        add(self, found, first)

    monkeypatch.setattr(Best, "add", seen)
    ranking = run(ExactMoL(5), task, 5)
    np.testing.assert_array_equal(ranking.items, expected(scores, 5)[0])
    assert ranking.certified.all() and (ranking.calls < 200).all()
    assert len(evaluated) == 5
    for row, rows in enumerate(evaluated):
        assert len(rows) == ranking.calls[row]
        assert np.delete(scores[row], rows).max() <= ranking.bounds[row] < ranking.scores[row, -1]


@torch.inference_mode()
@pytest.mark.parametrize("vnni", [True, False])
def test_no_logit_exceeds_its_rounded_bound(vnni: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A bound that is too low by an error of rounding loses an item unseen; one that is far too high saves nothing."""
    if not vnni:
        monkeypatch.setattr("simzoo.core.int8._has_vnni", lambda: False)
    task = problem(9, 6, 90, (3, 2, 32))
    index = MixtureIndex(task.corpus, 1 << 20)
    [block] = index.blocks(task.judge.queries, task.queries)
    largest = index.logits(block, 4, 77)[..., :-1].amax(dim=2)
    bounds = Screen(index).of(block)(4, 77)
    assert bounds.shape == largest.shape and (bounds >= largest).all()
    assert float((bounds - largest).max()) < 0.1 * index.highest


def test_each_query_is_bounded_only_where_that_pays(chunk: int) -> None:
    """Exact search that looks at bounds which leave out nothing; one block holds queries of both kinds."""
    task = problem(4, 8, 300, (2, 2, 4), 0.3)
    index = MixtureIndex(task.corpus, 1 << 20)
    with torch.inference_mode():
        blocks = index.blocks(task.judge.queries, task.queries)
        largest_logits = np.concatenate([index.logits(b, 0, 300)[..., :-1].amax(2) for b in blocks])
    scores, ranking = formula(task), run(ExactMoL(1), task, 5)
    sample = slice(0, 19)  # a 16th; its best item stands for the 5th of all
    below = (largest_logits[:, sample] < scores[:, sample].max(axis=1, keepdims=True)).mean(axis=1)
    bounded = ranking.calls < 300
    assert bounded.any() and not bounded.all()
    assert bounded.tolist() == (below >= 0.3).tolist()
    np.testing.assert_array_equal(ranking.items, expected(scores, 5)[0])
    assert np.isneginf(ranking.bounds[~bounded]).all()


@pytest.mark.parametrize("method", METHODS)
def test_full_budget_is_brute_force(chunk: int, method: type[MixtureSearcher]) -> None:
    """With every item scored, there is nothing left to get wrong."""
    task = problem(1, 5, 24, copies=6)
    found = run(method.tiny(None, 24), task, 24)
    rows, scores = expected(formula(task), 24)
    np.testing.assert_array_equal(found.items, rows)
    np.testing.assert_array_equal(found.scores, scores)
    assert found.calls.tolist() == [24] * 5
    assert np.isneginf(found.bounds).all()


@pytest.mark.parametrize("copies", [0, 12])
def test_heuristics_score_the_items_they_name(chunk: int, copies: int) -> None:
    """Duplicates among the candidates, or the caller's k overwritten, as in the authors' code."""
    task = problem(2, 5, 40, copies=copies)
    made = task.judge
    q, x = (np.asarray(reps["components"], dtype=np.float64) for reps in (made.queries, made.items))
    logits = np.einsum("bnd,xmd->bnmx", q, x).reshape(5, 6, 40)
    tops = [set(np.argsort(-row, axis=1, kind="stable")[:, :3].flatten().tolist()) for row in logits.round(6)]
    means = np.argsort(-logits.mean(axis=1).round(6), axis=1, kind="stable")[:, :9]
    gates, weighted = mixtures(task)
    scores = (gates * weighted).sum(axis=2)
    seeds = np.argsort(-logits.mean(axis=1).round(6), axis=1, kind="stable")[:, :5]
    gated = np.einsum("bip,bp->bi", weighted, np.take_along_axis(gates, seeds[..., None], axis=1).mean(axis=1))
    np.put_along_axis(gated, seeds, -np.inf, axis=1)
    second = np.argsort(-gated.round(6), axis=1, kind="stable")[:, :4]
    for searcher, candidates in (
        (TopKPerEmbd(3), tops),
        (TopKAvg(9), [set(row) for row in means.tolist()]),
        (CombTopK(3, 9), [top | set(row) for top, row in zip(tops, means.tolist(), strict=True)]),
        (TopKGate(5, 4), [set(row) for row in np.concatenate([seeds, second], axis=1).tolist()]),
    ):
        found = run(searcher, task, 3)
        assert found.calls.tolist() == [len(some) for some in candidates]
        for row, some in enumerate(candidates):
            best = sorted(some, key=lambda item: (-np.float32(scores[row, item]), item))[:3]
            assert found.items[row].tolist() == best
            others = np.delete(scores[row], sorted(some))
            assert found.bounds[row] >= others.max()
            assert found.gaps[row] >= np.float32(others.max()) - found.scores[row, -1]


def test_a_small_union_is_widened_to_k() -> None:
    """k is what the caller asked for, also when all logits agree on a few items."""
    task = problem(4, 4, 30, (1, 1, 4))
    found = run(TopKPerEmbd(2), task, 11)
    assert found.items.shape == (4, 11)
    assert (found.calls >= 11).all()
    assert all(len(set(row)) == 11 for row in found.items.tolist())


def test_blocks_do_not_change_results() -> None:
    """A budget so small that one item and one query go at a time must give the same bytes."""
    task = problem(5, 4, 20, copies=4)
    whole = run(BruteForce(), task, 20)
    for searcher in (BruteForce(), ExactMoL()):
        searcher.index(task.corpus)
        searcher._index._memory = 1
        found = searcher.search(task.queries, 20)
        np.testing.assert_array_equal(found.items, whole.items)
        np.testing.assert_array_equal(found.scores, whole.scores)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("budget", [4, 60])
def test_removed_items_are_as_if_never_there(method: type[MixtureSearcher], budget: int) -> None:
    """A bound or a candidate of a removed item would change which others are looked at."""
    task = problem(6, 5, 40, copies=5)
    removed = np.random.default_rng(0).random(40) < 0.4
    live = np.flatnonzero(~removed)
    without = task_of(task.judge.similarity, task.judge.queries, take(task.judge.items, torch.from_numpy(live)))
    expected = run(method.tiny(None, budget), without, 4)
    found = run(method.tiny(None, budget), replace(task, corpus=replace(task.corpus, removed=removed)), 4)
    np.testing.assert_array_equal(found.items, live[expected.items])
    np.testing.assert_array_equal(found.scores, expected.scores)
    np.testing.assert_array_equal(found.calls, expected.calls)


@pytest.mark.parametrize("method", METHODS)
def test_few_items_are_few_results(method: type[MixtureSearcher]) -> None:
    """An index begins small."""
    task = problem(6, 3, 2)
    found = run(method.tiny(None, 30), task, 5)
    np.testing.assert_array_equal(found.items[:, :2], expected(formula(task), 2)[0])
    assert (found.items[:, 2:] == -1).all() and np.isneginf(found.scores[:, 2:]).all()
    assert found.certified.all() and (found.gaps == 0).all()


def test_seeds_may_be_all_items(chunk: int) -> None:
    """Nothing is left for the second pass."""
    task = problem(1, 3, 20)
    found, whole = run(TopKGate(20, 20), task, 5), run(BruteForce(), task, 5)
    np.testing.assert_array_equal(found.items, whole.items)
    np.testing.assert_array_equal(found.scores, whole.scores)
    assert (found.calls == 20).all() and found.certified.all()


@pytest.mark.parametrize("method", METHODS)
def test_no_queries_no_results(method: type[MixtureSearcher]) -> None:
    """The last batch of a run may be empty; it must not end the run."""
    searcher = method.tiny(None, 8)
    searcher.index(problem(0, 2, 8).corpus)
    found = searcher.search([], 3)
    assert found.items.shape == found.scores.shape == (0, 3)


def test_bad_input_is_refused() -> None:
    """Each impossible wish gets the reason, not a traceback from deep inside."""
    task = problem(0, 3, 12)
    with pytest.raises(ValueError, match="at least 1; got 0"):
        run(BruteForce(), task, 0)
    with pytest.raises(ValueError, match="per_embedding is a number of items, at least 1; got 0"):
        TopKPerEmbd(0)
    with pytest.raises(ValueError, match="k = 5 results need a budget of at least 5"):
        run(TopKAvg(4), task, 5)
    with pytest.raises(ValueError, match="at least 1; got 0"):
        ExactMoL(memory=0)
    with pytest.raises(TypeError, match="a score matrix or function is no mixture of logits"):
        BruteForce().index(Corpus(task.corpus.items, MatrixJudge(np.zeros((3, 12)))))


def test_items_that_are_not_finite_are_named() -> None:
    """NaN compares as false with every threshold: the item would vanish from the results in silence."""
    task = problem(0, 3, 12)
    made = task.judge
    components, gate = made.items["components"], made.items["gate"]
    assert isinstance(components, torch.Tensor) and isinstance(gate, torch.Tensor)
    components[7, 1, 2], gate[4, 0] = torch.nan, torch.inf
    with pytest.raises(ValueError, match="2 items have representations that are not finite: i4, i7"):
        run(ExactMoL(), task, 3)


def test_a_gate_that_overflows_is_refused() -> None:
    """A score that is NaN has no place in a ranking, and no number of passes makes it one."""
    task = problem(0, 2, 12)
    made = task.judge
    with torch.no_grad():
        made.similarity.head.gate.cross_out.weight.fill_(torch.inf)
    for searcher in (BruteForce(), ExactMoL()):
        with pytest.raises(FloatingPointError, match="scores that are not finite"):
            run(searcher, task, 3)


EMBEDDED = Qdrant(":memory:")


@pytest.mark.parametrize("ann", [Flat(), HNSW(8, 40, 40), EMBEDDED], ids=lambda ann: type(ann).__name__)
def test_candidates_from_a_vector_index(ann: IndexKind) -> None:
    """Components of the wrong query or item would be found, and scored, all the same: only worse."""
    task = problem(2, 5, 60)
    for plain, indexed in (
        (TopKPerEmbd(3), TopKPerEmbd(3, ann=ann)),
        (TopKAvg(9), TopKAvg(9, ann=ann)),
        (CombTopK(3, 9), CombTopK(3, 9, ann=ann)),
        (TopKPerEmbd(1), TopKPerEmbd(1, ann=ann)),  # widened to k
    ):
        expect, found = run(plain, task, 7), run(indexed, task, 7)
        np.testing.assert_array_equal(found.items, expect.items)
        np.testing.assert_array_equal(found.scores, expect.scores)
        assert found.calls.tolist() == expect.calls.tolist()
        assert (found.bounds >= expect.bounds).all()  # an index may miss an item, so it bounds less


def test_a_database_is_filled_once() -> None:
    """A collection left half full by a killed run would be searched as if it were whole."""
    vectors = np.random.default_rng(0).normal(size=(30, 4)).astype(np.float32)
    client = QdrantClient(":memory:")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(qdrant_client, "QdrantClient", lambda _: client)
        for _ in range(2):
            rows, scores = EMBEDDED.build(vectors).search(vectors[:3], 30)
            exact = vectors[:3] @ vectors.T
            np.testing.assert_array_equal(rows, np.argsort(-exact, axis=1))
            np.testing.assert_allclose(scores, -np.sort(-exact, axis=1), atol=1e-5)
            [collection] = client.get_collections().collections
            client.delete(collection.name, PointIdsList(points=[7]))
        with pytest.raises(RuntimeError, match="gives 29 of 30 results"):
            vector_database.QdrantIndex(client, collection.name, None).search(vectors[:1], 30)
        assert EMBEDDED.build(vectors).search(vectors[:0], 3)[0].shape == (0, 3)


def test_metrics_say_certificate_gap_and_share_of_gates() -> None:
    """Without them a run of a heuristic looks like an exact one."""
    task = problem(3, 5, 200, (1, 2, 4), 2.0)
    for searcher in (ExactMoL(1), TopKAvg(9)):
        ranking = run(searcher, task, 5)
        collection = Collection("given", task.corpus.items, task.queries, [{0: 1}] * 5)
        notes = evaluate(searcher, task.corpus, collection, np.arange(5), 5, ["R@5"]).summary["notes"]
        assert notes["certified"]["mean"] == ranking.certified.mean()
        assert notes["gap"]["mean"] == pytest.approx(ranking.gaps.mean(dtype=np.float64))
        assert notes["gates evaluated"]["mean"] == pytest.approx(ranking.calls.mean() / 200)
    assert notes["certified"]["mean"] < 1 and notes["gap"]["mean"] > 0
