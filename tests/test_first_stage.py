"""First stages against independent formulas."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.metrics.pairwise import cosine_similarity

from simzoo.core.records import Collection, DataError, Item, Query
from simzoo.models.cross_encoder import CrossEncoder
from simzoo.models.dual_encoder import DualEncoder
from simzoo.models.formats import save
from simzoo.retrieval.first_stages.dense import Dense
from simzoo.retrieval.first_stages.first_stage import FirstStage
from simzoo.retrieval.first_stages.lexical import BM25, TFIDF
from simzoo.retrieval.first_stages.offered import AliasTable, Random
from simzoo.retrieval.first_stages.vector_index import HNSW, IVF, Flat
from tests.toy import toy_collection

ALL = np.arange(24)


def test_bm25_by_its_formula() -> None:
    """Lucene's BM25 with k1 = 1.5, b = 0.75, term by term; a title that is not indexed would change it."""
    collection = toy_collection()
    documents = [f"{item.title} {item.text}".split() for item in collection.items]
    mean = np.mean([len(d) for d in documents])

    def score(query: str, document: list[str]) -> float:
        total = 0.0
        for word in query.split():
            containing = sum(word in d for d in documents)
            idf = math.log(1 + (len(documents) - containing + 0.5) / (containing + 0.5))
            frequency = document.count(word)
            total += idf * frequency / (frequency + 1.5 * (0.25 + 0.75 * len(document) / mean))
        return total

    stage = BM25()
    stage.index(collection)
    rows, scores = stage.search(ALL, 40)
    for i, query in enumerate(collection.queries):
        expected = np.array([score(query.text, d) for d in documents])
        np.testing.assert_allclose(scores[i], expected[rows[i]], atol=1e-4)
        np.testing.assert_allclose(scores[i], -np.sort(-expected), atol=1e-4)


def test_unknown_words_retrieve_in_row_order() -> None:
    """A query without a known word must not crash or return garbage."""
    collection = Collection("c", [Item("a", "boat"), Item("b", "river")], [Query("q", "zzz the")], [{}])
    stage = BM25()
    stage.index(collection)
    rows, scores = stage.search(np.array([0]), 2)
    assert rows.tolist() == [[0, 1]]
    assert scores.tolist() == [[0, 0]]


def test_tfidf_is_the_cosine() -> None:
    """Against scikit-learn's cosine of the same vectors, fitted on the items alone."""
    collection = toy_collection()
    stage = TFIDF()
    stage.index(collection)
    texts = [f"{item.title} {item.text}" for item in collection.items]
    vectorizer = TfidfVectorizer().fit(texts)
    queries = vectorizer.transform([q.text for q in collection.queries])
    expected = cosine_similarity(queries, vectorizer.transform(texts))
    rows, scores = stage.search(ALL, 5)
    np.testing.assert_allclose(scores, np.take_along_axis(expected, rows, axis=1), atol=1e-6)
    np.testing.assert_allclose(scores, -np.sort(-expected, axis=1)[:, :5], atol=1e-6)


def test_alias_table_puts_senses_first() -> None:
    """The most-frequent-sense baseline is the table's order; the alias-table baseline is not to know it."""
    items = [Item(str(i), text) for i, text in enumerate(["boat", "boat boat", "river", "boat"])]
    queries = [Query(str(i), "boat", alias="boat#n") for i in range(30)] + [Query("x", "boat", alias="none#n")]
    collection = Collection("c", items, queries, [{}] * 31, aliases={"boat#n": (2, 0)})
    by_sense, at_random = AliasTable(), AliasTable(by_sense=False)
    for stage in (by_sense, at_random):
        stage.index(collection)
    rows, _ = by_sense.search(np.arange(31), 4)
    assert all(row.tolist()[:2] == [2, 0] for row in rows[:30])
    assert rows[30].tolist()[-1] == 2
    drawn = {tuple(row[:2]) for row in at_random.search(np.arange(30), 4)[0].tolist()}
    assert drawn == {(2, 0), (0, 2)}
    with pytest.raises(ValueError, match="no alias table"):
        AliasTable().index(toy_collection())


@pytest.mark.parametrize("stage", [BM25(), TFIDF(), Random(), Dense.of(DualEncoder.tiny().eval())])
def test_k_is_checked_and_rows_are_distinct(stage: FirstStage) -> None:
    """faiss fills up with -1 where there is nothing more; a row of -1 is the last item."""
    stage.index(toy_collection())
    rows, scores = stage.search(ALL, 40)
    assert all(sorted(row) == list(range(40)) for row in rows.tolist())
    assert np.all(np.diff(scores, axis=1) <= 0)
    for k in (0, 41):
        with pytest.raises(ValueError, match=f"over 40 items cannot return {k}"):
            stage.search(ALL, k)


def test_a_cross_encoder_is_no_vector_index(tmp_path: object) -> None:
    """Only an inner product may be handed to faiss."""
    with pytest.raises(TypeError, match="no inner product"):
        Dense.of(CrossEncoder.tiny()).index(toy_collection())


def test_a_store_keeps_the_vectors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A store that is written and never read costs disk; one that is read for other weights gives another's vectors."""
    model = DualEncoder.tiny()
    save(model, tmp_path / "one")
    with torch.no_grad():
        next(model.parameters()).mul_(2)
    save(model, tmp_path / "two")
    collection = toy_collection()
    made = Dense(tmp_path / "one", store=tmp_path / "store")
    made.index(collection)
    again = Dense(tmp_path / "one", store=tmp_path / "store")
    monkeypatch.setattr(again.similarity, "encode_items", None)  # a call fails
    again.index(collection)
    np.testing.assert_array_equal(again.items, made.items)
    with pytest.raises(DataError, match="checkpoint"):
        Dense(tmp_path / "two", store=tmp_path / "store").index(collection)


def test_approximate_indices_find_most() -> None:
    """HNSW and IVF against flat search: near it with wide beams, equal when every list is probed."""
    rng = np.random.default_rng(0)
    vectors = rng.normal(size=(500, 16)).astype(np.float32)
    queries = rng.normal(size=(20, 16)).astype(np.float32)
    exact, scores = Flat().build(vectors).search(queries, 10)
    np.testing.assert_array_equal(exact, np.argsort(-(queries @ vectors.T), axis=1)[:, :10])
    np.testing.assert_array_equal(IVF(lists=8, probes=8).build(vectors).search(queries, 10)[0], exact)
    found, _ = HNSW(ef_search=200).build(vectors).search(queries, 10)
    assert np.mean([len(set(a) & set(b)) / 10 for a, b in zip(found, exact, strict=True)]) > 0.95
    with pytest.raises(ValueError, match="at least as many vectors"):
        IVF(lists=501).build(vectors)
    assert scores.shape == (20, 10)
