"""Engines on MTEB: the real package evaluates them on tasks that are made here, of a few texts."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pytest

from simzoo.core.records import Collection, DataError, Query
from simzoo.models.cmc import CMC
from simzoo.models.hypencoder import Hypencoder
from simzoo.retrieval.engine import Engine
from simzoo.retrieval.evaluation import evaluate
from simzoo.retrieval.first_stages.dense import Dense
from simzoo.retrieval.first_stages.lexical import BM25
from simzoo.retrieval.mteb_model import MTEBModel
from simzoo.retrieval.searcher import Searcher
from simzoo.retrieval.searchers.axn import AXN
from simzoo.retrieval.searchers.exact import Exact, Rerank, Retrieve
from tests.toy import WORDS, toy_collection

mteb = pytest.importorskip("mteb", reason="mteb is not installed: pip install 'simzoo[mteb]'")

ABOUT = {
    "description": "A toy.",
    "reference": "https://example.org/toy",
    "dataset": {"path": "toy", "revision": "none"},
    "category": "t2t",
    "modalities": ["text"],
    "eval_splits": ["test"],
    "eval_langs": ["eng-Latn"],
    "main_score": "ndcg_at_10",
    "date": ("2024-01-01", "2024-01-01"),
    "domains": [],
    "task_subtypes": [],
    "license": "cc0-1.0",
    "annotations_creators": "derived",
    "dialect": [],
    "sample_creation": "found",
    "bibtex_citation": "",
}


def overlap(pairs: Sequence[tuple[str, str]]) -> list[float]:
    """A similarity with many ties: words that query and item share."""
    return [float(len(set(query.split()) & set(item.split()))) for query, item in pairs]


def bags(texts: Sequence[str]) -> np.ndarray:
    """Vectors: which words a text has."""
    return np.array([[float(word in text.split()) for word in WORDS] for text in texts], dtype=np.float32)


def task_of(
    collection: Collection, top_ranked: dict[str, list[str]] | None = None, instructions: Sequence[str] = ()
) -> Any:
    """A task of MTEB over a collection, at hand without a download."""
    from mteb.abstasks.task_metadata import TaskMetadata

    texts = [{"id": item.id, "title": item.title, "text": item.text} for item in collection.items]
    asked = [{"id": query.id, "text": query.text} for query in collection.queries]
    for query, instruction in zip(asked, instructions, strict=bool(instructions)):
        query["instruction"] = instruction
    judged = {
        query.id: {collection.items[row].id: grade for row, grade in grades.items()}
        for query, grades in zip(collection.queries, collection.judgements, strict=True)
    }

    class Toy(mteb.abstasks.AbsTaskRetrieval):  # type: ignore[misc, name-defined]
        metadata = TaskMetadata(name="Toy", type="Retrieval" if top_ranked is None else "Reranking", **ABOUT)

        def load_data(self, **_: Any) -> None:
            split = {
                "corpus": datasets.Dataset.from_list(texts),
                "queries": datasets.Dataset.from_list(asked),
                "relevant_docs": judged,
                "top_ranked": top_ranked,
            }
            self.dataset = {"default": {"test": split}}
            self.data_loaded = True

    return Toy()


def scores_of(model: MTEBModel, task: Any, folder: Path | None = None) -> dict[str, float]:
    cache = None if folder is None else mteb.ResultCache(folder / "cache")
    settings = {"cache": cache, "co2_tracker": False, "show_progress_bar": False}
    found = mteb.evaluate(model, task, prediction_folder=folder, **settings)
    scores: dict[str, float] = found.task_results[0].scores["test"][0]
    return scores


@pytest.mark.parametrize(
    ("similarity", "search"),
    [
        (overlap, Exact()),
        (overlap, Rerank(BM25(), budget=15)),
        (overlap, AXN(Dense(), budget=20, rounds=2)),
        (overlap, Retrieve(BM25())),
        (overlap, Retrieve(Dense())),
        (Hypencoder, Exact()),
        (CMC, Rerank(Dense(), budget=15)),
    ],
    ids=lambda part: getattr(part, "__name__", type(part).__name__),
)
def test_scores_are_those_of_our_own_evaluation(similarity: Any, search: Searcher) -> None:
    """Ids, order among ties, titles or a budget lost on the way: MTEB's figure would be of another searcher."""
    toy = toy_collection()
    collection = replace(toy, queries=[Query(query.id, query.text) for query in toy.queries])  # MTEB has no mentions
    judge = similarity.tiny().eval() if isinstance(similarity, type) else similarity
    model = MTEBModel(Engine(judge, bags, search), "simzoo/toy", revision="1")
    assert isinstance(model, mteb.models.SearchProtocol)
    theirs = scores_of(model, task_of(collection))
    engine = model.engine.without_items()
    engine.add(collection.items)
    names = {"nDCG@10": "ndcg_at_10", "R@5": "recall_at_5", "AP@10": "map_at_10", "R@10": "recall_at_10"}
    rows = np.arange(len(collection.queries))
    ours = evaluate(engine.searcher, engine.corpus, collection, rows, 15, [*names])
    for name, key in names.items():
        assert theirs[key] == pytest.approx(ours.summary["metrics"][name]["mean"], abs=1e-5)


def test_the_results_are_filed_under_name_and_searcher(tmp_path: Path) -> None:
    """Two searchers of one similarity whose results cannot be told apart."""
    model = MTEBModel(Engine(overlap, search=Rerank(BM25(), budget=7)), "me/overlap", revision="3")
    scores_of(model, task_of(toy_collection()), tmp_path)
    (written,) = (tmp_path / "cache").rglob("model_meta.json")
    about = json.loads(written.read_text())
    assert about["name"] == "me/overlap" and about["revision"] == "3"
    assert about["experiment_kwargs"]["search"]["arguments"]["budget"] == 7
    assert written.with_name("Toy.json").is_file()


@pytest.mark.parametrize("search", [Rerank(BM25(), budget=3), Retrieve(BM25())], ids=["similarity", "none"])
def test_reranking_keeps_to_the_candidates(search: Searcher, tmp_path: Path) -> None:
    """A re-ranking task's figure is of its candidates: results of a search of our own would be another task's."""
    collection = toy_collection()
    rng = np.random.default_rng(0)
    ids = [item.id for item in collection.items]
    offered = {query.id: rng.permutation(ids)[:12].tolist() for query in collection.queries}
    told = [str(rng.choice(WORDS)) for _ in collection.queries]
    model = MTEBModel(Engine(overlap, search=search), "me/overlap")
    scores_of(model, task_of(collection, offered, told), tmp_path)
    (written,) = tmp_path.rglob("*predictions.json")
    found = json.loads(written.read_text())["default"]["test"]
    for query, instruction in zip(collection.queries, told, strict=True):
        assert set(found[query.id]) <= set(offered[query.id])
        if search.calls_similarity:
            wanted = overlap([(f"{query.text} {instruction}", text(collection, name)) for name in offered[query.id]])
            got = dict(zip(offered[query.id], wanted, strict=True))
            assert found[query.id] == pytest.approx(got, abs=1e-5)
            assert len(set(found[query.id].values())) == 12
    if not search.calls_similarity:
        assert any(found.values())


def text(collection: Collection, name: str) -> str:
    item = collection.items[collection.rows[name]]
    return f"{item.title} {item.text}"


def test_what_is_no_model_is_refused() -> None:
    """Documents of one task in the index of another; a name that mteb cannot file; candidates that do not exist."""
    engine = Engine(overlap)
    engine.add(["i0"], ["a boat"])
    with pytest.raises(ValueError, match="give an engine without items, not one with 1"):
        MTEBModel(engine, "me/overlap")
    with pytest.raises(ValueError, match="organisation/model; got the name 'overlap'"):
        MTEBModel(Engine(overlap), "overlap")
    model = MTEBModel(Engine(overlap), "me/overlap")
    with pytest.raises(RuntimeError, match="no documents yet"):
        model.search([{"id": "q", "text": "boat"}], top_k=1)
    model.index([{"id": "i0", "text": "a boat"}])
    with pytest.raises(DataError, match="candidate 'i9', which is no document"):
        model.search([{"id": "q", "text": "boat"}], top_k=1, top_ranked={"q": ["i9"]})
    with pytest.raises(DataError, match="conversations are not searched"):
        model.search([{"id": "q", "text": ["boat"]}], top_k=1)
