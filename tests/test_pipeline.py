"""Search in stages."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from simzoo.core.command_line import prepared
from simzoo.evaluate import parser
from simzoo.models.cmc import CMC
from simzoo.models.cross_encoder import CrossEncoder
from simzoo.models.dual_encoder import DualEncoder
from simzoo.models.formats import load, save
from simzoo.models.similarity import LearnedSimilarity
from simzoo.retrieval.corpus import Corpus
from simzoo.retrieval.evaluation import Evaluation, evaluate
from simzoo.retrieval.first_stages.dense import Dense
from simzoo.retrieval.first_stages.lexical import BM25
from simzoo.retrieval.judge import SimilarityJudge
from simzoo.retrieval.searcher import Searcher
from simzoo.retrieval.searchers.axn import AXN
from simzoo.retrieval.searchers.cur import CUR
from simzoo.retrieval.searchers.exact import Exact, Rerank
from simzoo.retrieval.searchers.pipeline import Pipeline, Stage
from tests.toy import toy_collection

COLLECTION = toy_collection()
QUERIES = COLLECTION.queries


def corpus_of(similarity: LearnedSimilarity) -> Corpus:
    return Corpus.of(COLLECTION, SimilarityJudge.of(similarity.eval(), COLLECTION.items))


def evaluated(searcher: Searcher, corpus: Corpus) -> Evaluation:
    return evaluate(searcher, corpus, COLLECTION, np.arange(24), 5, ["RR@5"])


@pytest.fixture(scope="module")
def between(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A CMC as a checkpoint."""
    folder = tmp_path_factory.mktemp("cmc")
    save(CMC.tiny(), folder)
    return folder


def test_a_stage_keeps_its_best(between: Path) -> None:
    """By hand: BM25's 12, CMC's 5 of them, the cross-encoder's order."""
    corpus = corpus_of(CrossEncoder.tiny())
    pipeline = Pipeline(BM25(), 12, [Stage(str(between), 5)])
    pipeline.index(corpus)
    found = pipeline.search(QUERIES, 5)
    first = BM25()
    first.index(corpus)
    retrieved, _ = first.search(QUERIES, 12)
    compared = SimilarityJudge.of(load(between), COLLECTION.items).scorer(QUERIES).lists(retrieved)
    kept = np.take_along_axis(retrieved, np.lexsort((retrieved, -compared))[:, :5], axis=1)
    assert [set(row) for row in found.items.tolist()] == [set(row) for row in kept.tolist()]
    assert (np.diff(found.scores, axis=1) <= 0).all() and (found.calls == 5).all()


def test_costs_by_stage_are_reported(between: Path) -> None:
    """The reason for stages is what each costs."""
    searcher = Pipeline(BM25(), 12, [Stage(str(between), 5)])
    first, stage, last = evaluated(searcher, corpus_of(CrossEncoder.tiny())).summary["stages"]
    assert first["kept"] == 12 and last["pairs"] == 5
    assert stage["lists"] == 1 and stage["kept"] == 5 and stage["bytes"] == 4 * 16 * (24 + 40)
    assert all(cost["milliseconds"] > 0 for cost in (first, stage, last))
    assert list(searcher.index_seconds) == ["first stage", f"stage 2, {between}"]


def test_normalised_accuracy_is_by_the_first_retriever(between: Path) -> None:
    """By the last stage's list a stage that drops most gold items looks better the more it drops (CMC §5)."""
    found = evaluated(Pipeline(BM25(), 12, [Stage(str(between), 2)]), corpus_of(CrossEncoder.tiny()))
    first = BM25()
    first.index(Corpus.of(COLLECTION))
    gold = np.array([next(iter(judged)) for judged in COLLECTION.judgements])
    retrieved = (first.search(QUERIES, 12)[0] == gold[:, None]).any(axis=1)
    kept = (found.ranking.items == gold[:, None]).any(axis=1)
    assert kept.sum() < retrieved.sum()  # the two definitions differ here
    values = found.values["accuracy (normalised)"]
    np.testing.assert_array_equal(np.isfinite(values), retrieved)
    np.testing.assert_array_equal(values[retrieved], found.values["accuracy"][retrieved])


def test_without_stages_it_is_rerank() -> None:
    """Two ways to say the same thing must not differ."""
    corpus = corpus_of(DualEncoder.tiny())
    found = []
    for searcher in (Pipeline(BM25(), 10), Rerank(BM25(), 10)):
        searcher.index(corpus)
        found.append(searcher.search(QUERIES, 10))
    np.testing.assert_array_equal(found[0].items, found[1].items)
    np.testing.assert_array_equal(found[0].scores, found[1].scores)


def test_whole_lists_for_a_similarity_that_compares() -> None:
    """A call of CMC is a list; searchers that score single pairs have nothing to ask it."""
    corpus = corpus_of(CMC.tiny())
    for searcher in (Exact(), Rerank(BM25(), 10), Pipeline(BM25(), 10)):
        searcher.index(corpus)
        assert (searcher.search(QUERIES, 5).calls == 1).all()
    for refused in (CUR(), AXN(Dense("unused"))):
        with pytest.raises(TypeError, match="scores single pairs, but this similarity compares"):
            refused.index(corpus)


def test_the_composed_search_is_one_the_command_takes() -> None:
    """The YAML that the docs name must build these stages with this version's names."""
    path = Path(__file__).parents[1] / "configs" / "search" / "wordnet_pipeline.yaml"
    words = prepared(["run", "--config", str(path)])
    top = parser(words)
    chosen = top.instantiate(top.parse_args(words)).run
    assert isinstance(chosen.search, Pipeline) and isinstance(chosen.search.first_stage, Dense)
    assert (chosen.search.depth, chosen.search.budget) == (512, 16)
    assert chosen.search.stages == [Stage("checkpoints/wordnet-cmc", 16)]


def test_stages_must_narrow() -> None:
    """A stage cannot keep more than it is given."""
    with pytest.raises(ValueError, match=r"no more items than it is given, at least 1; got \[10, 20\]"):
        Pipeline(BM25(), 10, [Stage("x", 20)])
