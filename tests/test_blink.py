"""BLINK's layout of Wikipedia entity linking, on small files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from simzoo.core.records import DataError
from simzoo.datamodules.readers.blink import NO_ENTITY, load_blink, load_entities
from simzoo.datamodules.sources import BLINK
from tests.layouts import entity, json_lines, mention, write_blink


def test_mentions_and_entities(tmp_path: Path) -> None:
    """A mention whose span is off by a space marks other words; ids are the pages', however they are written."""
    catalogue = [entity(0), entity(1), {"idx": "102", "title": "Sea 2", "text": "A sea ."}]
    json_lines(tmp_path / "entity.jsonl", catalogue)
    json_lines(tmp_path / "testb.jsonl", [mention(4, 2), mention(5, 0), mention(0, 77) | {"label_id": "177"}])
    entities = load_entities(tmp_path / "entity.jsonl")
    assert [item.id for item in entities] == ["100", "101", "102"]
    read = load_blink(entities, tmp_path / "testb.jsonl", context_words=3)
    assert [(query.id, query.alias) for query in read.queries] == [("1", "money it"), ("2", "tree it")]
    first = read.queries[0]
    assert first.mention is not None and first.text[slice(*first.mention)] == "money it"
    assert first.text == "the bank and money it there . Then"
    assert [read.relevant(row) for row in range(2)] == [[2], [0]]
    assert read.aliases["sea 2"] == [2] and read.notes == {NO_ENTITY: 1}


def test_the_splits_share_the_catalogue(tmp_path: Path) -> None:
    """Six million entities fit into memory once."""
    write_blink(tmp_path, entities=20, mentions=5)
    data = BLINK(root=tmp_path)
    train, test = data.collections("train")[0], data.collections("test")[0]
    assert train.items is test.items and (train.name, test.name) == ("AIDA-YAGO2_train", "AIDA-YAGO2_testb")


@pytest.mark.parametrize(
    ("name", "record", "message"),
    [
        ("entity.jsonl", entity(0), r"entity\.jsonl:4: page id '100' appears more than once"),
        ("entity.jsonl", {"idx": "9", "title": "x"}, r"entity\.jsonl:4: expected a string under 'text'"),
        ("m.jsonl", mention(0, 1) | {"mention": " "}, r"m\.jsonl:2: the mention is empty"),
        ("m.jsonl", {"mention": "x", "label_id": 101}, r"m\.jsonl:2: expected a string under 'context_left'"),
        ("m.jsonl", mention(0, 1) | {"label_id": None}, r"m\.jsonl:2: expected a string under 'label_id'"),
        ("entity.jsonl", entity(9) | {"idx": "x?curid= "}, r"entity\.jsonl:4: expected a page id"),
    ],
)
def test_bad_lines_are_named(tmp_path: Path, name: str, record: dict[str, Any], message: str) -> None:
    """Among millions of lines, the number is what helps."""
    json_lines(tmp_path / "entity.jsonl", [entity(n) for n in range(3)])
    json_lines(tmp_path / "m.jsonl", [mention(0, 1)])
    with (tmp_path / name).open("a") as file:
        file.write(json.dumps(record) + "\n")
    with pytest.raises(DataError, match=message):
        load_blink(load_entities(tmp_path / "entity.jsonl"), tmp_path / "m.jsonl")


@pytest.mark.parametrize("words", [-2, -1])
def test_context_of_less_than_no_words(tmp_path: Path, words: int) -> None:
    """A slice with a negative length takes nearly everything, and the left context without its beginning."""
    write_blink(tmp_path, entities=20, mentions=5)
    with pytest.raises(DataError, match=f"context_words .* at least 0; got {words}"):
        BLINK(root=tmp_path, context_words=words).collections("test")


def test_a_catalogue_of_something_else(tmp_path: Path) -> None:
    """Without a single mention left there is nothing to test, and the mean of nothing is no figure."""
    write_blink(tmp_path, entities=20, mentions=5)
    json_lines(tmp_path / "entity.jsonl", [entity(n) for n in range(500, 510)])
    with pytest.raises(DataError, match=r"AIDA-YAGO2_testb\.jsonl: the catalogue has none of the mentions' entities"):
        BLINK(root=tmp_path).collections("test")
