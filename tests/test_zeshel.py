"""The ZESHEL reader, on a small folder in the published layout."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from simzoo.core.records import DataError
from simzoo.datamodules.readers.zeshel import NO_TEXT, OTHER_WORLDS, ZESHEL_SPLITS, load_zeshel

PAGES = [
    {"document_id": "A1", "title": "Dalek (film)", "text": "Dalek ( film )  A film about\tthe Dalek race ."},
    {"document_id": "B2", "title": "Dalek", "text": "Dalek The Daleks are a race of mutants from Skaro ."},
    {"document_id": "C3", "title": "Skaro", "text": ""},
]


def mention(identifier: str, context: str, label: str, text: str, start: int, end: int, **other: Any) -> dict[str, Any]:
    return {
        "category": "LOW_OVERLAP",
        "mention_id": identifier,
        "context_document_id": context,
        "label_document_id": label,
        "corpus": "yugioh",
        "text": text,
        "start_index": start,
        "end_index": end,
        **other,
    }


MENTIONS = [
    mention("m1", "B2", "C3", "Skaro", 9, 9),
    mention("m2", "A1", "B2", "Dalek race", 8, 9),
    mention("m3", "X", "Y", "elsewhere", 0, 0, corpus="lego"),
    mention("m4", "B2", "B2", "Dalek", 0, 0),
]


def lines(records: list[dict[str, Any]]) -> str:
    return "".join(json.dumps(record) + "\n" for record in records)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for folder, name, records in (("documents", "yugioh", PAGES), ("mentions", "test", MENTIONS)):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / f"{name}.json").write_text(lines(records))
    return tmp_path


def test_world(root: Path) -> None:
    """Token spans turned into wrong characters, or ends taken as excluded, would mark the wrong words."""
    world = load_zeshel(root, "yugioh")
    assert [(item.id, item.title) for item in world.items] == [("A1", "Dalek (film)"), ("B2", "Dalek"), ("C3", "Skaro")]
    marked = []
    for query in world.queries:
        assert query.mention is not None
        start, end = query.mention
        marked.append(f"{query.text[:start]}[{query.text[start:end]}]{query.text[end:]}")
    assert marked == [
        "Dalek The Daleks are a race of mutants from [Skaro] .",
        "Dalek ( film ) A film about the [Dalek race] .",
        "[Dalek] The Daleks are a race of mutants from Skaro .",
    ]
    assert [query.id for query in world.queries] == ["m1", "m2", "m4"]
    assert [query.alias for query in world.queries] == ["skaro", "dalek race", "dalek"]
    assert world.judgements == [{2: 1}, {1: 1}, {1: 1}]
    assert world.notes == {NO_TEXT: 1, OTHER_WORLDS: 1}


@pytest.mark.parametrize(
    ("context_tokens", "text"),
    [(0, "Dalek race"), (1, "the Dalek race ."), (3, "film about the Dalek race ."), (128, None)],
)
def test_context_is_cut(root: Path, context_tokens: int, text: str | None) -> None:
    """No left context must not become the whole left context, as a slice from -0 makes it."""
    query = load_zeshel(root, "yugioh", context_tokens=context_tokens).queries[1]
    assert query.mention is not None
    assert query.text[slice(*query.mention)] == "Dalek race"
    assert query.text == (text or "Dalek ( film ) A film about the Dalek race .")


def test_context_at_the_start(root: Path) -> None:
    """A window that begins before the document must not wrap around to its end."""
    (root / "mentions" / "test.json").write_text(lines([mention("m1", "B2", "B2", "Daleks", 2, 2)]))
    assert load_zeshel(root, "yugioh", context_tokens=3).queries[0].text == "Dalek The Daleks are a race"


def test_aliases_are_titles(root: Path) -> None:
    """A page whose title is the mention must come before one that needs a bracketed addition."""
    assert load_zeshel(root, "yugioh").aliases == {"dalek (film)": [0], "dalek": [1, 0], "skaro": [2]}


def test_mentions_file_can_be_chosen(root: Path) -> None:
    """Held-out mentions read by default would leak into training."""
    (root / "mentions" / "heldout_train_seen.json").write_text(lines([mention("h1", "B2", "C3", "Skaro", 9, 9)]))
    assert [query.id for query in load_zeshel(root, "yugioh", "heldout_train_seen").queries] == ["h1"]
    with pytest.raises(DataError, match=r"'oz' is not one of ZESHEL's worlds \(american_football, "):
        load_zeshel(root, "oz")


def test_splits_are_disjoint() -> None:
    """ZESHEL's point is that test worlds were never seen: 8, 4 and 4 worlds, none twice."""
    assert {split: len(worlds) for split, worlds in ZESHEL_SPLITS.items()} == {"train": 8, "val": 4, "test": 4}
    assert len({world for worlds in ZESHEL_SPLITS.values() for world in worlds}) == 16


def without(key: str) -> Callable[[dict[str, Any]], dict[str, Any]]:
    return lambda record: {name: value for name, value in record.items() if name != key}


def having(**other: Any) -> Callable[[dict[str, Any]], dict[str, Any]]:
    return lambda record: record | other


@pytest.mark.parametrize(
    ("file", "change", "message"),
    [
        ("documents/yugioh.json", without("text"), r"yugioh\.json:2: expected a string under 'text', got no such key"),
        ("documents/yugioh.json", having(title=["a"]), r"yugioh\.json:2: expected a string under 'title', got \['a'\]"),
        ("documents/yugioh.json", having(document_id="A1"), r"yugioh\.json:2: document_id 'A1' appears more than once"),
        ("mentions/test.json", without("label_document_id"), r"test\.json:2: expected .* 'label_document_id'"),
        (
            "mentions/test.json",
            having(label_document_id="Z9"),
            r"test\.json:2: label_document_id 'Z9' is not a document",
        ),
        ("mentions/test.json", having(context_document_id="Z9"), r"test\.json:2: context_document_id 'Z9' is not"),
        ("mentions/test.json", having(mention_id="m1"), r"test\.json:2: mention_id 'm1' appears more than once"),
        ("mentions/test.json", having(start_index="8"), r"test\.json:2: expected a whole number under 'start_index'"),
        (
            "mentions/test.json",
            having(end_index=11),
            r"test\.json:2: the mention's tokens 8 to 11 lie outside .* 11 tokens",
        ),
        ("mentions/test.json", having(start_index=-3), r"test\.json:2: the mention's tokens -3 to 9 lie outside"),
        ("mentions/test.json", having(end_index=7), r"test\.json:2: the mention's tokens 8 to 7 lie outside"),
        ("mentions/test.json", having(start_index=7), r"test\.json:2: the mention is 'Dalek race', but tokens 7 to 9"),
    ],
)
def test_bad_line_is_named(
    root: Path, file: str, change: Callable[[dict[str, Any]], dict[str, Any]], message: str
) -> None:
    """A line that is skipped or half read gives a smaller or wrong data set without a word."""
    records = [json.loads(line) for line in (root / file).read_text().splitlines()]
    records[1] = change(records[1])
    (root / file).write_text(lines(records))
    with pytest.raises(DataError, match=message):
        load_zeshel(root, "yugioh")


@pytest.mark.parametrize("file", ["documents/yugioh.json", "mentions/test.json"])
@pytest.mark.parametrize(("line", "message"), [('{"a": 1', "broken JSON"), ("[1, 2]", "expected a JSON object")])
def test_broken_json_is_named(root: Path, file: str, line: str, message: str) -> None:
    """A file cut off by a full disk must say where."""
    with (root / file).open("a") as stream:
        stream.write("\n" + line)
    count = len(PAGES if "documents" in file else MENTIONS) + 2  # the blank line counts
    with pytest.raises(DataError, match=rf"{Path(file).name}:{count}: {message}"):
        load_zeshel(root, "yugioh")


def test_missing_files(root: Path, tmp_path: Path) -> None:
    """A wrong folder must be told from an empty one, with what is there."""
    with pytest.raises(DataError, match=r"expected forgotten_realms\.json .* holds yugioh\.json"):
        load_zeshel(root, "forgotten_realms")
    with pytest.raises(DataError, match="no such folder"):
        load_zeshel(tmp_path / "nothing", "yugioh")
    (root / "documents" / "yugioh.json").write_text("")
    with pytest.raises(DataError, match=r"yugioh\.json: is empty"):
        load_zeshel(root, "yugioh")
    with pytest.raises(DataError, match="context_tokens must be 0 or more"):
        load_zeshel(root, "yugioh", context_tokens=-1)
