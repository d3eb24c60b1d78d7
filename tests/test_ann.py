"""Ties, edges and fill-ups of first stages and vector indices."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from simzoo.core.records import Collection, Item, Query
from simzoo.retrieval.corpus import Corpus
from simzoo.retrieval.first_stages.first_stage import FirstStage
from simzoo.retrieval.first_stages.lexical import BM25, TFIDF
from simzoo.retrieval.first_stages.offered import AliasTable, Random
from simzoo.retrieval.first_stages.vector_index import HNSW, IVF, Flat, IndexKind
from simzoo.retrieval.topk import top_columns

ITEMS = [
    Item("i0", "a small boat for the river", "boat"),
    Item("i1", "land beside a river, a river, a river", "bank"),
    Item("i2", "a house for money", "bank"),
    Item("i3", "zzz"),
    Item("i4", "a small boat for the river", "boat"),
    Item("i5", "of the"),
]
QUERIES = [
    Query("q0", "the boat on the river", alias="boat"),
    Query("q1", "money money bank", alias="bank"),
    Query("q2", "unknown words", alias="none"),
    Query("q3", "the of"),
]
COLLECTION = Collection("hand", ITEMS, QUERIES, [{}] * 4, aliases={"bank": [2, 1], "boat": [4, 4, 0]})
CORPUS = Corpus.of(COLLECTION)


def test_equal_items_come_in_row_order() -> None:
    """Ties broken by chance make two runs differ: items 0 and 4 are the same text."""
    stage = BM25()
    stage.index(CORPUS)
    items, scores = stage.search(QUERIES, 6)
    assert items[0, :2].tolist() == [0, 4] and scores[0, 0] == scores[0, 1]


@pytest.mark.parametrize("stage", [BM25(), TFIDF(), Random(3), AliasTable(), AliasTable(by_sense=False, seed=1)])
def test_a_shorter_search_is_the_start_of_a_longer_one(stage: FirstStage) -> None:
    """Otherwise AXN with a pool starts from other items than retrieve-and-rerank, and queries depend on their batch."""
    stage.index(CORPUS)
    items, _ = stage.search(QUERIES, 6)
    for k in (1, 3):
        alone = [stage.search([query], k)[0][0] for query in QUERIES[::-1]][::-1]
        np.testing.assert_array_equal(alone, items[:, :k])


def test_a_row_listed_twice_keeps_its_first_place() -> None:
    """The last of equal entries would win, and the most frequent sense would sink below another."""
    stage = AliasTable()
    stage.index(Corpus(ITEMS, aliases={"boat": [4, 0, 4]}))
    assert stage.search(QUERIES[:1], 2)[0].tolist() == [[4, 0]]


@pytest.mark.parametrize("stage", [BM25(), TFIDF()])
def test_items_without_words_are_refused_by_name(stage: FirstStage) -> None:
    """A traceback from inside a library does not say which data to look at."""
    with pytest.raises(ValueError, match="wordless"):
        stage.index(Corpus([Item("0", "a"), Item("1", "I")], name="wordless"))


@given(st.integers(0, 999), st.integers(1, 4), st.integers(1, 30), st.integers(1, 4))
def test_top_columns_is_a_stable_sort(seed: int, rows: int, size: int, values: int) -> None:
    """Ties at the edge: an item may neither be lost nor taken before its equal in a lower row; -inf comes last."""
    rng = np.random.default_rng(seed)
    scores = rng.integers(values, size=(rows, size)).astype(np.float32)
    scores[rng.random(scores.shape) < 0.2] = -np.inf
    expected = np.argsort(-scores, axis=1, kind="stable")
    for k in range(1, size + 1):
        np.testing.assert_array_equal(top_columns(scores, k), expected[:, :k])


VECTORS = np.random.default_rng(0).normal(size=(400, 8)).astype(np.float32)


@pytest.mark.parametrize("kind", [Flat(), HNSW(4, 8, 8), IVF(20, 1)], ids=lambda kind: type(kind).__name__)
@pytest.mark.parametrize("k", [1, 45, 200, 400])
def test_vector_search_returns_k_real_items(kind: IndexKind, k: int) -> None:
    """faiss fills up with row -1, which indexes the last item; few probes or links make that common."""
    queries = np.random.default_rng(1).normal(size=(30, 8)).astype(np.float32)
    rows, scores = kind.build(VECTORS).search(queries, k)
    assert rows.shape == (30, k) and rows.min() >= 0
    assert all(len(set(row)) == k for row in rows.tolist())
    np.testing.assert_allclose(scores, np.take_along_axis(queries @ VECTORS.T, rows, axis=1), atol=1e-5)
    assert (np.diff(scores, axis=1) <= 0).all()


@pytest.mark.parametrize("k", [7, 45, 120])
@pytest.mark.parametrize("count", [4, 80])
def test_flat_breaks_ties_by_row(k: int, count: int) -> None:
    """Items of equal text: faiss keeps whichever it likes at the edge, another one for another k or batch size."""
    rng = np.random.default_rng(2)
    # Halves of small integers: their products are exact, so that copies tie exactly.
    items = rng.permutation(np.repeat(rng.integers(-4, 5, size=(10, 8)) / 2, 30, axis=0)).astype(np.float32)
    queries = (rng.integers(-4, 5, size=(count, 8)) / 2).astype(np.float32)
    rows, _ = Flat().build(items).search(queries, k)
    np.testing.assert_array_equal(rows, np.argsort(-(queries @ items.T), axis=1, kind="stable")[:, :k])


def test_impossible_indices_are_refused() -> None:
    """HNSW without links ends the whole process inside faiss."""
    with pytest.raises(ValueError, match="2 links"):
        HNSW(links=0)
    with pytest.raises(ValueError, match="one probe"):
        IVF(probes=0)
    with pytest.raises(ValueError, match="500 lists"):
        IVF(lists=500).build(VECTORS)


@pytest.mark.parametrize("order", ["faiss, torch", "torch, faiss"])
def test_faiss_and_torch_share_a_process(order: str) -> None:
    """Both bring an OpenMP runtime of their own; in some orders of import that has crashed or hung."""
    program = f"""
import {order}
import numpy
torch.set_num_threads(2)
vectors = torch.randn(3000, 64)
for _ in range(3):
    product = vectors @ vectors.T
    index = faiss.IndexHNSWFlat(64, 8, faiss.METRIC_INNER_PRODUCT)
    index.add(vectors.numpy())
    found = index.search(vectors[:50].numpy(), 5)[1]
print(found.shape, product.shape[0])
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["(50,", "5)", "3000"]
