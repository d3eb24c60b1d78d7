"""BEIR's layout (Thakur et al., 2021): corpus.jsonl, queries.jsonl and qrels/<split>.tsv, from a folder or the Hub."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Set
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any, TypeVar

from simzoo.core.records import Collection, DataError, Item, Query
from simzoo.datamodules.readers.json_lines import Record, existing, numbered_lines, read_json_lines

_Value = TypeVar("_Value")

EMPTY_TITLE = "items without a title, kept"
EMPTY_ITEM = "items with neither title nor text, dropped"
EMPTY_ITEM_JUDGED = "judgements of a dropped item, dropped"
REPEATED = "repeated lines with the same content, dropped"
UNJUDGED = "queries without judgements, dropped"
ONLY_IRRELEVANT = "queries judged without a relevant item, kept"
OWN_ITEM = "queries that are an item themselves"
OWN_ITEM_JUDGED = "judgements of a query by itself, dropped"


def load_beir(root: Path | str, split: str = "test", judged_only: bool = True, drop_same_id: bool = True) -> Collection:
    """Read a folder in BEIR's layout; each file may be gzipped (.gz), the judgements may have a header line.

    Args:
        root: The folder.
        split: The name of the file in ``qrels``.
        judged_only: Drop the queries that the split does not judge.
        drop_same_id: Drop the judgement of a query by the item that is the query itself (see ``own_items``). Rankings
            must leave that item out as well.

    Returns:
        The collection; grades are kept as they are, zero and negative ones too. Items with neither title nor text are
        dropped with their judgements. Notes count what was dropped, by reason.

    Raises:
        DataError: a file is missing or empty; or, with file and line, broken JSON, a missing key, an empty query, an id
            given twice with different content, or a judgement that is malformed or names an unknown id.
    """
    root = Path(root)
    if not root.is_dir():
        raise DataError("expected a folder with corpus.jsonl, queries.jsonl and qrels/, but there is none", root)
    qrels = existing(root / "qrels" / f"{split}.tsv")
    builder = _Builder(root.resolve().name)
    builder.add_items(read_json_lines(root / "corpus.jsonl"))
    builder.add_queries(read_json_lines(root / "queries.jsonl"))
    builder.add_judgements(_read_qrels(qrels))
    return builder.build(judged_only, drop_same_id)


def load_beir_hub(
    name: str, split: str = "test", judged_only: bool = True, drop_same_id: bool = True, revision: str | None = None
) -> Collection:
    """Read a BEIR set from the Hugging Face Hub: the data sets ``BeIR/<name>`` and ``BeIR/<name>-qrels``.

    Args:
        name: "scifact", or with its owner: "BeIR/scifact".
        split: The split of the judgements.
        judged_only: As in ``load_beir``.
        drop_same_id: As in ``load_beir``.
        revision: A commit, tag or branch of ``BeIR/<name>``; None for its newest.

    Raises:
        DataError: as ``load_beir``, the row number in place of the line; or the data sets cannot be loaded.
    """
    repo = name if "/" in name else f"BeIR/{name}"
    builder = _Builder(repo.split("/")[-1])
    builder.add_items(_hub_rows(repo, "corpus", "corpus", revision))
    builder.add_queries(_hub_rows(repo, "queries", "queries", revision))
    builder.add_judgements(_hub_rows(f"{repo}-qrels", None, split, None))
    return builder.build(judged_only, drop_same_id)


def _hub_rows(repo: str, config: str | None, split: str, revision: str | None) -> Iterator[Record]:
    datasets = import_module("datasets")  # takes a second or two, which folders need not pay
    try:
        rows: Iterable[Mapping[str, Any]] = datasets.load_dataset(repo, config, split=split, revision=revision)
    except (OSError, ValueError) as error:
        what = f"split {split!r}" + (f" of {config!r}" if config else "")
        raise DataError(f"cannot load {what} from the Hub: {error}", repo) from error
    for number, row in enumerate(rows, start=1):
        yield Record(row, f"{repo}/{config or split}", number)


def _read_qrels(path: Path) -> Iterator[Record]:
    for number, line in numbered_lines(path):
        fields = [field.strip() for field in line.rstrip("\r\n").split("\t")]
        try:
            query, item, grade = fields
            yield Record({"query-id": query, "corpus-id": item, "score": int(grade)}, path, number)
        except ValueError as error:
            if number > 1 or len(fields) != 3 or any(map(str.isdigit, fields[2])):  # line 1 may be a header
                raise DataError(
                    f"expected query id, item id and a whole-number grade between tabs, got {line.rstrip()[:80]!r}",
                    path,
                    number,
                ) from error


def own_items(collection: Collection) -> dict[int, int]:
    """The queries that are an item themselves, as in ArguAna and Quora: query row -> row of that item.

    The item has the query's id and holds the query's text word for word. The id alone does not tell: many sets number
    queries and items independently of each other.
    """
    rows = {item.id: row for row, item in enumerate(collection.items)}
    return {
        query_row: rows[query.id]
        for query_row, query in enumerate(collection.queries)
        if query.id in rows and _is_item(query, collection.items[rows[query.id]])
    }


def _is_item(query: Query, item: Item) -> bool:
    return _words(query.text) in _words(f"{item.title} {item.text}")


def _words(text: str) -> str:
    return " " + " ".join(text.lower().split()) + " "


@dataclass
class _Builder:
    """Checks records one by one and counts what it drops."""

    name: str
    items: dict[str, Item] = field(default_factory=dict)
    queries: dict[str, Query] = field(default_factory=dict)
    judged: dict[str, dict[str, int]] = field(default_factory=lambda: defaultdict(dict))
    notes: Counter[str] = field(default_factory=Counter)

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

    def add_judgements(self, records: Iterable[Record]) -> None:
        for record in records:
            query, item, grade = record.identifier("query-id"), record.identifier("corpus-id"), record.integer("score")
            if query not in self.queries:
                raise record.error(f"a judgement for query {query!r}, which is not among the queries")
            if item not in self.items:
                raise record.error(f"a judgement of item {item!r}, which is not in the corpus")
            self._add(record, item, grade, self.judged[query])

    def _add(self, record: Record, identifier: str, value: _Value, known: dict[str, _Value]) -> None:
        if identifier not in known:
            known[identifier] = value
        elif known[identifier] == value:
            self.notes[REPEATED] += 1
        else:
            raise record.error(f"id {identifier!r} was given before with other content")

    def build(self, judged_only: bool, drop_same_id: bool) -> Collection:
        items = [item for item in self.items.values() if item.title.strip() or item.text.strip()]
        self.notes[EMPTY_ITEM] = len(self.items) - len(items)
        self.notes[EMPTY_TITLE] = sum(not item.title.strip() for item in items)
        rows = {item.id: row for row, item in enumerate(items)}
        own = {q.id for q in self.queries.values() if q.id in rows and _is_item(q, items[rows[q.id]])}
        judged = self._judgements(rows, own if drop_same_id else set())
        queries = [query for query in self.queries.values() if not judged_only or judged.get(query.id)]
        if not queries:
            raise DataError(f"collection {self.name!r} has no judged queries")
        self.notes[UNJUDGED] = len(self.queries) - len(queries)
        judgements = [judged.get(query.id, {}) for query in queries]
        self.notes[ONLY_IRRELEVANT] = sum(bool(grades) and max(grades.values()) <= 0 for grades in judgements)
        self.notes[OWN_ITEM] = sum(query.id in own for query in queries)
        return Collection(self.name, items, queries, judgements, notes=dict(+self.notes))

    def _judgements(self, rows: Mapping[str, int], own: Set[str]) -> dict[str, dict[int, int]]:
        judged: dict[str, dict[int, int]] = {}
        for query, grades in self.judged.items():
            judged[query] = {}
            for item, grade in grades.items():
                if item not in rows:
                    self.notes[EMPTY_ITEM_JUDGED] += 1
                elif item == query and query in own:
                    self.notes[OWN_ITEM_JUDGED] += 1
                else:
                    judged[query][rows[item]] = grade
        return judged
