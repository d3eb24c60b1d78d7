"""BEIR's layout (Thakur et al., 2021): corpus.jsonl, queries.jsonl and qrels/<split>.tsv, from a folder or the Hub."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection as Known
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from simzoo.core.records import Collection, DataError, Item, Query
from simzoo.datamodules.readers.anchors import pseudo_queries
from simzoo.datamodules.readers.beir_files import GRADE_BITS, BeirFiles, Folder, Hub
from simzoo.datamodules.readers.json_lines import Record, existing
from simzoo.datamodules.readers.notes import Notes

__all__ = ["generated_queries", "load_beir", "load_beir_hub", "load_corpus", "load_files", "split_queries"]

_Value = TypeVar("_Value")

EMPTY_TITLE = "items without a title, kept"
EMPTY_ITEM = "items with neither title nor text, dropped"
EMPTY_ITEM_JUDGED = "judgements of a dropped item, dropped"
REPEATED = "repeated lines with the same content, dropped"
UNJUDGED = "queries without judgements, dropped"
ONLY_IRRELEVANT = "queries judged without a relevant item, kept"
OWN_ITEM = "queries with the id of an item, which is no result for them"
OTHER_TEXT = "queries with the id of an item that does not hold their text; that item is no result for them either"
OWN_ITEM_JUDGED = "judgements of a query by the item with its id, dropped"


def load_beir(
    root: Path | str, split: str = "test", judged_only: bool = True, drop_same_id: bool = False
) -> Collection:
    """Read a folder in BEIR's layout; each file may be gzipped (.gz), the judgements may have BEIR's header line.

    Args:
        root: The folder.
        split: The name of the file in ``qrels``; "dev" and "validation" are the same.
        judged_only: Drop the queries that the split does not judge.
        drop_same_id: An item with a query's id is that query itself, as in ArguAna and Quora: it is no result for the
            query (`Collection.own`), and its judgement is dropped. BEIR's own evaluation does so. Other data sets
            number queries and items apart: there it would take judgements away.

    Returns:
        The collection; grades are kept as they are, zero and negative ones too. Items with neither title nor text are
        dropped with their judgements. Notes count what was dropped, by reason.

    Raises:
        DataError: a file is missing or empty; or, with file and line, broken JSON, a missing key, an empty query, an id
            given twice with different content, or a judgement that is malformed or names an unknown id.
    """
    folder = Folder(root)
    existing(folder.root / "corpus.jsonl")  # asked for first: whoever only wants to search needs nothing else
    return load_files(folder, split, judged_only, drop_same_id)


def load_beir_hub(
    name: str, split: str = "test", judged_only: bool = True, drop_same_id: bool = False, revision: str | None = None
) -> Collection:
    """Read a BEIR set from the Hugging Face Hub: the data sets ``BeIR/<name>`` and ``BeIR/<name>-qrels``.

    Args:
        name: "scifact", or with its owner: "BeIR/scifact".
        split: The split of the judgements; "dev" and "validation" are the same.
        judged_only: As in ``load_beir``.
        drop_same_id: As in ``load_beir``.
        revision: A commit, tag or branch of ``BeIR/<name>``; None for its newest.

    Raises:
        DataError: as ``load_beir``, the row number in place of the line; or the data sets cannot be loaded.
    """
    return load_files(Hub(name, revision), split, judged_only, drop_same_id)


def load_corpus(source: BeirFiles) -> Collection:
    """Read the items alone: a folder with corpus.jsonl and nothing else will do.

    Args:
        source: a `Folder` or a data set of the `Hub`.

    Returns:
        A collection without queries.

    Raises:
        DataError: as ``load_beir``.
    """
    builder = _Builder(source.name)
    builder.add_items(source.items())
    items = builder.kept_items()
    return Collection(source.name, items, [], [], notes=builder.notes.told(source.name))


def split_queries(source: BeirFiles, split: str) -> list[Query]:
    """The queries that a split judges, to serve as anchors (`with_anchors`); the items are not read.

    Args:
        source: a `Folder` or a data set of the `Hub`.
        split: of the judgements, for example "train".

    Raises:
        DataError: as ``load_beir``.
    """
    builder = _Builder(source.name)
    builder.add_queries(source.queries())
    builder.add_judgements(source.judgements(split), None)
    builder.notes.told(source.name)
    return [query for query in builder.queries.values() if query.id in builder.judged]


def generated_queries(source: BeirFiles) -> list[Query]:
    """The pseudo-queries that BEIR's authors generated for the items, to serve as anchors (`with_anchors`).

    Args:
        source: a `Folder`, which has them in gen-queries.jsonl as BEIR's GenQ writes it, or the `Hub`, which has them
            in ``<name>-generated-queries``.

    Returns:
        Each text once, named "generated-" and its line or row.

    Raises:
        DataError: they are missing or empty; or, with file and line, one is malformed.
    """
    return pseudo_queries(source.generated())


def load_files(source: BeirFiles, split: str, judged_only: bool = True, drop_same_id: bool = False) -> Collection:
    """Reads a collection from wherever its records are; see `load_beir`.

    Raises:
        DataError: as `load_beir`, where the record is in place of the file.
    """
    builder = _Builder(source.name)
    judgements = source.judgements(split)  # a mistyped split is told before a long corpus is read
    builder.add_items(source.items())
    builder.add_queries(source.queries())
    builder.add_judgements(judgements, builder.items)
    return builder.build(split, judged_only, drop_same_id)


@dataclass
class _Builder:
    """Checks records one by one and counts what it drops."""

    name: str
    items: dict[str, Item] = field(default_factory=dict)
    queries: dict[str, Query] = field(default_factory=dict)
    judged: dict[str, dict[str, int]] = field(default_factory=lambda: defaultdict(dict))
    notes: Notes = field(default_factory=Notes)

    def add_items(self, records: Iterable[Record]) -> None:
        for record in records:
            item = Item(record.identifier("_id"), record.text("text", ""), record.text("title", ""))
            self._add(record, item.id, item, self.items)

    def add_queries(self, records: Iterable[Record]) -> None:
        for record in records:
            identifier, text = record.identifier("_id"), record.text("text")
            if not text.strip():
                raise record.error(f"query {identifier!r} is empty; give it a text or remove it")
            self._add(record, identifier, Query(identifier, text), self.queries)

    def add_judgements(self, records: Iterable[Record], items: Known[str] | None) -> None:
        for record in records:
            query, item = record.identifier("query-id"), record.identifier("corpus-id")
            grade = record.integer("score", GRADE_BITS)
            if query not in self.queries:
                raise record.error(f"a judgement for query {query!r}, which is not among the queries")
            if items is not None and item not in items:
                raise record.error(f"a judgement of item {item!r}, which is not in the corpus")
            self._add(record, item, grade, self.judged[query])

    def _add(self, record: Record, identifier: str, value: _Value, known: dict[str, _Value]) -> None:
        if identifier not in known:
            known[identifier] = value
        elif known[identifier] == value:
            self.notes.drop(REPEATED, f"{record.path}:{record.line}")
        else:
            raise record.error(f"id {identifier!r} was given before with other content")

    def kept_items(self) -> list[Item]:
        items = []
        for item in self.items.values():
            if not item.title.strip() and not item.text.strip():
                self.notes.drop(EMPTY_ITEM, item.id)
                continue
            items.append(item)
            self.notes.keep(EMPTY_TITLE, not item.title.strip())
        return items

    def build(self, split: str, judged_only: bool, drop_same_id: bool) -> Collection:
        items = self.kept_items()
        rows = {item.id: row for row, item in enumerate(items)}
        own = {name: rows[name] for name in self.queries if name in rows} if drop_same_id else {}
        judged = {query: self._judgements(query, rows, own) for query in self.judged}
        queries = []
        for query in self.queries.values():
            if judged_only and not judged.get(query.id):
                self.notes.drop(UNJUDGED, query.id)
            else:
                queries.append(query)
        if not queries:
            raise DataError(f"collection {self.name!r} has no query that the split {split!r} judges")
        judgements = [judged.get(query.id, {}) for query in queries]
        self.notes.keep(ONLY_IRRELEVANT, sum(bool(grades) and max(grades.values()) <= 0 for grades in judgements))
        themselves = {place: own[query.id] for place, query in enumerate(queries) if query.id in own}
        for place, row in themselves.items():
            self.notes.drop(OWN_ITEM, queries[place].id)
            if not _holds(items[row], queries[place].text):
                self.notes.drop(OTHER_TEXT, queries[place].id)
        return Collection(self.name, items, queries, judgements, notes=self.notes.told(self.name), own=themselves)

    def _judgements(self, query: str, rows: dict[str, int], own: Known[str]) -> dict[int, int]:
        kept = {}
        for item, grade in self.judged[query].items():
            if item not in rows:
                self.notes.drop(EMPTY_ITEM_JUDGED, f"{query} {item}")
            elif item == query and query in own:
                self.notes.drop(OWN_ITEM_JUDGED, query)
            else:
                kept[rows[item]] = grade
        return kept


def _holds(item: Item, text: str) -> bool:
    return _words(text) in _words(f"{item.title} {item.text}")


def _words(text: str) -> str:
    return " " + " ".join(text.lower().split()) + " "
