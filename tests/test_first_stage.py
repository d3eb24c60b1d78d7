"""First stages against independent formulas."""

from __future__ import annotations

import math
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.metrics.pairwise import cosine_similarity

from simzoo.core.records import DataError, Item, Query
from simzoo.models.cross_encoder import CrossEncoder
from simzoo.models.dual_encoder import DualEncoder
from simzoo.models.formats import save
from simzoo.retrieval.corpus import Corpus
from simzoo.retrieval.first_stages.dense import Dense
from simzoo.retrieval.first_stages.first_stage import FirstStage
from simzoo.retrieval.first_stages.lexical import BM25, TFIDF
from simzoo.retrieval.first_stages.offered import AliasTable, Random
from simzoo.retrieval.first_stages.vector_index import HNSW, IVF, Flat
from tests.toy import toy_collection

TOY = toy_collection()
CORPUS = Corpus.of(TOY)


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
    stage.index(Corpus.of(collection))
    rows, scores = stage.search(collection.queries, 40)
    for i, query in enumerate(collection.queries):
        expected = np.array([score(query.text, d) for d in documents])
        np.testing.assert_allclose(scores[i], expected[rows[i]], atol=1e-4)
        np.testing.assert_allclose(scores[i], -np.sort(-expected), atol=1e-4)


def test_unknown_words_retrieve_in_row_order() -> None:
    """A query without a known word must not crash or return garbage."""
    stage = BM25()
    stage.index(Corpus([Item("a", "boat"), Item("b", "river")]))
    rows, scores = stage.search([Query("q", "zzz the")], 2)
    assert rows.tolist() == [[0, 1]]
    assert scores.tolist() == [[0, 0]]


def test_a_kept_index_is_the_one_that_was_built(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Opened for other texts or settings, its rows would be other items; half written, it would lack words."""
    built, kept = BM25(), BM25(store=tmp_path)
    built.index(CORPUS)
    kept.index(CORPUS)
    opened = BM25(store=tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(BM25, "_built", None)  # a call fails
        opened.index(CORPUS)
    for stage in (kept, opened):
        for k in (3, 40):
            for one, other in zip(stage.search(TOY.queries, k), built.search(TOY.queries, k), strict=True):
                np.testing.assert_array_equal(one, other)
    for other in (BM25(b=0.5, store=tmp_path), BM25(store=tmp_path)):
        other.index(CORPUS if other.b == 0.5 else replace(CORPUS, items=TOY.items[::-1]))
    assert len(list(tmp_path.iterdir())) == 3
    opened.index(replace(CORPUS, items=TOY.items[:30]))
    opened.extend(CORPUS, 30)
    np.testing.assert_array_equal(opened.search(TOY.queries, 9)[0], built.search(TOY.queries, 9)[0])
    for folder in tmp_path.iterdir():
        (folder / "data.csc.index.npy").write_bytes(b"cut")
    with pytest.raises(DataError, match="is no whole BM25 index"):
        BM25(store=tmp_path).index(CORPUS)


def test_tfidf_is_the_cosine() -> None:
    """Against scikit-learn's cosine of the same vectors, fitted on the items alone."""
    collection = toy_collection()
    stage = TFIDF()
    stage.index(Corpus.of(collection))
    texts = [f"{item.title} {item.text}" for item in collection.items]
    vectorizer = TfidfVectorizer().fit(texts)
    queries = vectorizer.transform([q.text for q in collection.queries])
    expected = cosine_similarity(queries, vectorizer.transform(texts))
    rows, scores = stage.search(collection.queries, 5)
    np.testing.assert_allclose(scores, np.take_along_axis(expected, rows, axis=1), atol=1e-6)
    np.testing.assert_allclose(scores, -np.sort(-expected, axis=1)[:, :5], atol=1e-6)


def test_alias_table_puts_senses_first() -> None:
    """The most-frequent-sense baseline is the table's order; the alias-table baseline is not to know it."""
    items = [Item(str(i), text) for i, text in enumerate(["boat", "boat boat", "river", "boat"])]
    queries = [Query(str(i), "boat", alias="boat#n") for i in range(30)] + [Query("x", "boat", alias="none#n")]
    corpus = Corpus(items, aliases={"boat#n": (2, 0)})
    by_sense, at_random = AliasTable(), AliasTable(by_sense=False)
    for stage in (by_sense, at_random):
        stage.index(corpus)
    rows, _ = by_sense.search(queries, 4)
    assert all(row.tolist()[:2] == [2, 0] for row in rows[:30])
    assert rows[30].tolist()[-1] == 2
    drawn = {tuple(row[:2]) for row in at_random.search(queries[:30], 4)[0].tolist()}
    assert drawn == {(2, 0), (0, 2)}
    with pytest.raises(ValueError, match="no alias table"):
        AliasTable().index(CORPUS)


def test_tfidf_names_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every command ended in an ImportError where scikit-learn was not installed, also those that do not use it."""
    monkeypatch.setitem(sys.modules, "sklearn.feature_extraction.text", None)
    with pytest.raises(ImportError, match=r"TFIDF needs sklearn, .*pip install 'simzoo\[tfidf\]'"):
        TFIDF().index(CORPUS)
    code = "import sys; sys.modules['sklearn'] = None; from simzoo.retrieval.first_stages.lexical import BM25"
    assert subprocess.run([sys.executable, "-c", code], cwd=Path(__file__).parents[1]).returncode == 0


STAGES = [BM25(), TFIDF(), Random(), Dense.of(DualEncoder.tiny().eval())]


@pytest.mark.parametrize("stage", STAGES, ids=lambda stage: type(stage).__name__)
def test_rows_are_distinct_and_minus_one_stands_behind(stage: FirstStage) -> None:
    """A row of -1 is the last item, where nobody looks."""
    stage.index(CORPUS)
    rows, scores = stage.search(TOY.queries, 43)
    assert all(sorted(row) == list(range(40)) for row in rows[:, :40].tolist())
    assert np.all(np.diff(scores[:, :40], axis=1) <= 0)
    assert (rows[:, 40:] == -1).all() and np.isneginf(scores[:, 40:]).all()
    assert stage.search([], 3)[0].shape == (0, 3)
    with pytest.raises(ValueError, match="at least 1 item, not 0"):
        stage.search(TOY.queries, 0)


@pytest.mark.parametrize("stage", STAGES, ids=lambda stage: type(stage).__name__)
def test_removed_rows_are_left_out(stage: FirstStage) -> None:
    """The rest in the order in which they stood, whether they were removed before the index was built or after."""
    stage.index(CORPUS)
    rows, _ = stage.search(TOY.queries, 40)
    removed = np.random.default_rng(0).random(40) < 0.3
    for again in (stage.index, lambda corpus: stage.extend(corpus, 40)):
        again(replace(CORPUS, removed=removed))
        for k in (5, 40):
            found, scores = stage.search(TOY.queries, k)
            for row, before in zip(found.tolist(), rows.tolist(), strict=True):
                left = [item for item in before if not removed[item]][:k]
                assert row == left + [-1] * (k - len(left))
            np.testing.assert_array_equal(found == -1, np.isneginf(scores))
        stage.index(CORPUS)


@pytest.mark.parametrize("stage", STAGES, ids=lambda stage: type(stage).__name__)
def test_a_grown_first_stage_is_one_built_at_once(stage: FirstStage) -> None:
    """BM25's statistics are of all items: weights of the first ones alone would rank the new ones wrongly."""
    stage.index(CORPUS)
    rows, scores = stage.search(TOY.queries, 40)
    stage.index(replace(CORPUS, items=TOY.items[:23]))
    stage.extend(CORPUS, 23)
    found = stage.search(TOY.queries, 40)
    np.testing.assert_array_equal(found[0], rows)
    np.testing.assert_allclose(found[1], scores, rtol=1e-6)
    with pytest.raises(ValueError, match="has indexed 40 items"):
        stage.extend(CORPUS, 23)


def test_retrieved_by_bm25s_is_all_scored() -> None:
    """bm25s breaks ties as it likes, and has nothing for a query without a known word: both must come by row."""
    stage, rng = BM25(), np.random.default_rng(0)
    words = ["boat", "river", "bank", "sea", "money"]
    items = [Item(str(row), " ".join(rng.choice(words, rng.integers(1, 4)))) for row in range(300)]
    queries = [Query(str(row), " ".join(rng.choice([*words, "unknown"], 2))) for row in range(40)]
    stage.index(Corpus(items))
    every = stage.scores(queries)
    for k in (1, 7, 100, 300):
        rows, scores = stage.search(queries, k)
        expected = np.argsort(-every, axis=1, kind="stable")[:, :k]
        np.testing.assert_array_equal(rows, expected)
        np.testing.assert_array_equal(scores, np.take_along_axis(every, expected, axis=1))


def test_a_cross_encoder_is_no_vector_index(tmp_path: object) -> None:
    """Only an inner product may be handed to faiss."""
    with pytest.raises(TypeError, match="no inner product"):
        Dense.of(CrossEncoder.tiny()).index(CORPUS)


def test_a_store_keeps_the_vectors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A store that is written and never read costs disk; one that is read for other weights gives another's vectors."""
    model = DualEncoder.tiny()
    save(model, tmp_path / "one")
    with torch.no_grad():
        next(model.parameters()).mul_(2)
    save(model, tmp_path / "two")
    made = Dense(tmp_path / "one", store=tmp_path / "store")
    made.index(CORPUS)
    again = Dense(tmp_path / "one", store=tmp_path / "store")
    monkeypatch.setattr(again.similarity, "encode_items", None)  # a call fails
    again.index(CORPUS)
    np.testing.assert_array_equal(again.embedder.vectors, made.embedder.vectors)
    with pytest.raises(DataError, match="checkpoint"):
        Dense(tmp_path / "two", store=tmp_path / "store").index(CORPUS)


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
