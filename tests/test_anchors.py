"""Anchors from elsewhere than the test queries."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from simzoo.core.records import Collection, DataError, Item, Query
from simzoo.datamodules.readers.anchors import TESTED, item_queries, with_anchors
from simzoo.datamodules.readers.beir import generated_queries, load_beir, split_queries
from simzoo.datamodules.readers.beir_files import Folder

ITEMS = [Item("d0", "One. Two. Three."), Item("d1", "the text", "A title"), Item("d2", "No end")]


def collection() -> Collection:
    queries = [Query("q0", "where is it"), Query("q1", "who is it")]
    return Collection("small", ITEMS, queries, [{0: 1}, {1: 1}], notes={"kept": 3})


def write(path: Path, records: list[dict[str, Any]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(record) + "\n" for record in records))


@pytest.fixture
def root(tmp_path: Path) -> Path:
    write(tmp_path / "corpus.jsonl", [{"_id": item.id, "title": item.title, "text": item.text} for item in ITEMS])
    write(tmp_path / "queries.jsonl", [{"_id": f"q{n}", "text": f"query {n}"} for n in range(5)])
    write(tmp_path / "gen-queries.jsonl", [{"_id": "q3", "text": text} for text in ("one", "query 4", "one", "two")])
    (tmp_path / "qrels").mkdir()
    (tmp_path / "qrels" / "train.tsv").write_text("q0\td0\t1\nq2\td1\t0\nq0\tremoved-from-the-corpus\t1\n")
    (tmp_path / "qrels" / "test.tsv").write_text("q3\td0\t1\nq4\td1\t1\n")
    return tmp_path


def test_anchors_of_beir_leave_every_test_query_to_be_tested(root: Path) -> None:
    """A test query among the anchors is scored with every item beforehand: its figure would be too good."""
    tested = load_beir(root)
    assert [query.text for query in split_queries(Folder(root), "train")] == ["query 0", "query 2"]
    found = with_anchors(tested, split_queries(Folder(root), "train"))
    assert [anchor.id for anchor in found.anchors] == ["q0", "q2"]
    assert found.queries == tested.queries and found.judgements == tested.judgements
    found = with_anchors(tested, generated_queries(Folder(root)))
    assert [(anchor.id, anchor.text) for anchor in found.anchors] == [("generated-1", "one"), ("generated-4", "two")]
    assert found.notes[TESTED] == 1
    assert found.fingerprint != tested.fingerprint
    assert found.with_queries([1]).anchors == found.anchors


def test_a_tested_query_is_no_anchor() -> None:
    """By its id, or by its text under another id."""
    anchors = [Query("q1", "another"), Query("a", "Where  is it"), Query("b", "what"), Query("c", "when")]
    found = with_anchors(collection(), anchors)
    assert [anchor.id for anchor in found.anchors] == ["b", "c"] and found.notes == {"kept": 3, TESTED: 2}
    samples = {tuple(a.id for a in with_anchors(collection(), anchors, 1, seed).anchors) for seed in range(20)}
    assert samples == {("b",), ("c",)}
    for most in (0, 3):
        with pytest.raises(DataError, match=f"small: {most} anchors were asked for, and there are 2 besides"):
            with_anchors(collection(), anchors, most)
    with pytest.raises(DataError, match="small: anchors were asked for, and there are 0"):
        with_anchors(collection(), anchors[:2])


def test_pseudo_queries_of_items() -> None:
    """An item without a title or a sentence must still give text, or none at all, but no empty query."""
    found = item_queries([*ITEMS, Item("d3", " ")])
    assert [(query.id, query.text) for query in found] == [("of-d0", "One."), ("of-d1", "A title"), ("of-d2", "No end")]
    assert len(item_queries(ITEMS, 2, seed=1)) == 2 and item_queries(ITEMS, 2, seed=1) == item_queries(ITEMS, 2, seed=1)


def test_ids_of_anchors_are_no_queries_ids() -> None:
    """Representations are stored by id: two texts under one would share them."""
    with pytest.raises(DataError, match="query id 'q0' appears more than once"):
        Collection("c", ITEMS, [Query("q0", "x")], [{}], anchors=[Query("q0", "y")])
