"""Data sets of the package ir_datasets (MacAvaney et al., 2021) by name: TREC DL, TREC ToT, BEIR, Vaswani, ..."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from simzoo.core.extras import extra
from simzoo.core.records import Collection, DataError
from simzoo.core.registry import nearest
from simzoo.datamodules.readers.beir import load_corpus, load_files
from simzoo.datamodules.readers.candidates import with_candidates
from simzoo.datamodules.readers.json_lines import Record
from simzoo.datamodules.readers.notes import Notes

__all__ = ["load_ir_dataset"]

NO_QUERY = "judgements of queries that are not in the data set, dropped"
NO_ITEM = "judgements of items that are not in the data set, dropped"
HELP = "a file that it cannot fetch may be put below IR_DATASETS_HOME, where its documentation says"


def load_ir_dataset(
    name: str, query: str | None = None, depth: int | None = None, drop_same_id: bool = False
) -> Collection:
    """Reads documents, queries and judgements; and scored documents, if there are some, as candidates.

    Args:
        name: as ir_datasets has it, for example vaswani or msmarco-passage/trec-dl-2019/judged.
        query: the field that is a query's text, for example description; None: its default text.
        depth: most candidates to keep for a query; None: all.
        drop_same_id: see `simzoo.datamodules.readers.beir.load_beir`.

    Returns:
        All documents of the data set, and the queries that are judged. Where a document's default text begins with its
        title, the two are kept apart. Judgements of documents or queries that are not there are dropped and counted:
        in TREC's collections there are some, which trec_eval counts as relevant items that nobody can find. Candidates
        are in the order of their scores.

        A data set that has documents alone is a collection without queries.

    Raises:
        MissingExtraError: ir_datasets is not installed.
        DataError: there is no such data set, it has no documents or no judgements, a file cannot be fetched or read, or
            as `load_beir`.
    """
    source = _Named(name, query)
    if not source.has("docs"):
        raise DataError("has no documents", f"ir_datasets:{name}")
    if not source.has("queries"):
        return load_corpus(source)
    if not source.has("qrels"):
        below = [other for other in source.registry if other.startswith(f"{name}/")]
        raise DataError(f"has no judgements; name another, for example {', '.join(below[:5])}", f"ir_datasets:{name}")
    collection = load_files(source, "test", drop_same_id=drop_same_id)
    collection = replace(collection, notes={**collection.notes, **source.notes.told(name)})
    return with_candidates(collection, source.candidates(), depth) if source.has("scoreddocs") else collection


class _Named:
    """A data set as `BeirFiles`: the checks are those of BEIR's layout."""

    def __init__(self, name: str, query: str | None) -> None:
        module = extra("ir_datasets", "ir-datasets", "a data set by its name in ir_datasets")
        self.name = name
        self.registry: list[str] = list(module.registry)
        self.notes = Notes()
        self._query = query
        self._ids: dict[str, set[str]] = {"docs": set(), "queries": set()}
        try:
            self._dataset: Any = module.load(name)
        except KeyError as error:
            near = nearest(name, self.registry)
            meant = f"did you mean {near}? " if near else ""
            raise DataError(
                f"ir_datasets has no data set {name!r}; {meant}`ir_datasets list` lists them all"
            ) from error

    def has(self, kind: str) -> bool:
        """Whether there are docs, queries, qrels or scoreddocs."""
        return bool(self._dataset.has(kind))

    def items(self) -> Iterator[Record]:
        """See `BeirFiles`."""
        for number, record in self._records("docs"):
            text, title = _text(record), getattr(record, "title", None)
            if isinstance(title, str) and title and text.startswith(title):
                text = text[len(title) :].lstrip()
            else:
                title = ""
            yield self._known("docs", number, record.doc_id, {"_id": record.doc_id, "title": title, "text": text})

    def queries(self) -> Iterator[Record]:
        """See `BeirFiles`."""
        for number, record in self._records("queries"):
            if self._query is not None and self._query not in record._fields:
                raise DataError(
                    f"queries have the fields {', '.join(record._fields)}, not {self._query!r}", self._at("queries")
                )
            text = _text(record) if self._query is None else getattr(record, self._query)
            yield self._known("queries", number, record.query_id, {"_id": record.query_id, "text": text})

    def judgements(self, split: str) -> Iterator[Record]:
        """See `BeirFiles`; a data set has one split."""
        for number, record in self._records("qrels"):
            if record.query_id not in self._ids["queries"]:
                self.notes.drop(NO_QUERY, record.query_id)
            elif record.doc_id not in self._ids["docs"]:
                self.notes.drop(NO_ITEM, record.doc_id)
            else:
                fields = {"query-id": record.query_id, "corpus-id": record.doc_id, "score": record.relevance}
                yield Record(fields, self._at("qrels"), number)

    def generated(self) -> Iterator[Record]:
        """See `BeirFiles`.

        Raises:
            DataError: there are none.
        """
        raise DataError("has no generated queries", f"ir_datasets:{self.name}")

    def candidates(self) -> dict[str, list[str]]:
        """Ids of documents by query, best first; those with one score in the order of the file."""
        scored: dict[str, list[tuple[float, str]]] = defaultdict(list)
        for _, record in self._records("scoreddocs"):
            scored[record.query_id].append((-float(record.score), record.doc_id))
        return {query: [name for _, name in sorted(rows, key=lambda row: row[0])] for query, rows in scored.items()}

    def _known(self, kind: str, number: int, name: str, fields: dict[str, Any]) -> Record:
        self._ids[kind].add(name)
        return Record(fields, self._at(kind), number)

    def _at(self, kind: str) -> str:
        return f"ir_datasets:{self.name}/{kind}"

    def _records(self, kind: str) -> Iterator[tuple[int, Any]]:
        try:
            yield from enumerate(getattr(self._dataset, f"{kind}_iter")(), start=1)
        except MemoryError:
            raise
        except Exception as error:  # each of the downloads and readers behind it fails in its own way
            told = error.args[0] if error.args and isinstance(error.args[0], str) else error
            reason = " ".join(str(told).split()) or type(error).__name__
            raise DataError(f"ir_datasets cannot read it: {reason:.400}; {HELP}", self._at(kind)) from error


def _text(record: Any) -> str:
    text = record.default_text() if hasattr(record, "default_text") else record.text
    return text if isinstance(text, str) else ""  # a topic may lack its title
