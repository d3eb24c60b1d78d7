"""Collections whose instructions were changed, in FollowIR's layout (Weller et al., 2024, arXiv 2403.15246).

BEIR's corpus, queries and judgements, with an instruction for each query and ranked candidates. A query ``7`` is there
twice: ``7-og`` with the original instruction and its judgements, ``7-changed`` with the changed one and its own.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Protocol

from simzoo.core.records import Collection, DataError, Query
from simzoo.datamodules.readers.beir import load_files
from simzoo.datamodules.readers.beir_files import BeirFiles, Folder, hub_rows
from simzoo.datamodules.readers.candidates import with_candidates
from simzoo.datamodules.readers.json_lines import Record, read_json_lines

__all__ = ["InstructedFolder", "InstructedHub", "load_followir"]

ORIGINAL, CHANGED = "-og", "-changed"


class InstructedFiles(BeirFiles, Protocol):
    """The records of one collection with instructions."""

    def instructions(self) -> Iterator[Record]:
        """``query-id`` and ``instruction`` of every query."""

    def ranked(self) -> Iterator[Record]:
        """``query-id`` and ``corpus-ids``, the candidates of every query, best first."""


class InstructedFolder(Folder):
    """BEIR's files, with instruction.jsonl and top_ranked.jsonl beside them."""

    def instructions(self) -> Iterator[Record]:
        """See `InstructedFiles`."""
        return read_json_lines(self.root / "instruction.jsonl")

    def ranked(self) -> Iterator[Record]:
        """See `InstructedFiles`."""
        return read_json_lines(self.root / "top_ranked.jsonl")


class InstructedHub:
    """A data set of the Hub in mteb's layout: corpus, queries, default, instruction and top_ranked are its parts.

    Args:
        name: for example mteb/Core17InstructionRetrieval.
        revision: a commit, tag or branch; None for the newest.
    """

    def __init__(self, name: str, revision: str | None = None) -> None:
        self.name = name
        self.revision = revision

    def items(self) -> Iterator[Record]:
        """See `BeirFiles`."""
        return self._part("corpus")

    def queries(self) -> Iterator[Record]:
        """See `BeirFiles`."""
        return self._part("queries")

    def judgements(self, split: str) -> Iterator[Record]:
        """See `BeirFiles`."""
        return hub_rows(self.name, "default", (split,), self.revision)

    def generated(self) -> Iterator[Record]:
        """See `BeirFiles`.

        Raises:
            DataError: there are none.
        """
        raise DataError("has no generated queries", self.name)

    def instructions(self) -> Iterator[Record]:
        """See `InstructedFiles`."""
        return self._part("instruction")

    def ranked(self) -> Iterator[Record]:
        """See `InstructedFiles`."""
        return self._part("top_ranked")

    def _part(self, config: str) -> Iterator[Record]:
        return hub_rows(self.name, config, (config, "test"), self.revision)


def load_followir(source: InstructedFiles, split: str = "test", depth: int | None = None) -> Collection:
    """Reads a collection with changed instructions.

    Args:
        source: a folder or a data set of the Hub.
        split: of the judgements.
        depth: most candidates to keep for a query; None: all.

    Returns:
        The collection. A query's text is the query, a blank and the instruction, as mteb gives it to models.
        `Collection.changed` has the pairs of queries.

    Raises:
        DataError: as `load_beir`; a query has no instruction; or none is there with both instructions.
    """
    told = {}
    for record in source.instructions():
        told[record.identifier("query-id")] = record.text("instruction")
    collection = load_files(source, split)
    queries = []
    for query in collection.queries:
        if query.id not in told:
            raise DataError(f"query {query.id!r} has no instruction", source.name)
        queries.append(Query(query.id, f"{query.text} {told[query.id]}".strip()))
    rows = {query.id: row for row, query in enumerate(queries)}
    pairs = {
        row: rows[other]
        for name, row in rows.items()
        if name.endswith(ORIGINAL) and (other := name.removesuffix(ORIGINAL) + CHANGED) in rows
    }
    if not pairs:
        raise DataError(
            f"no query is there both as <id>{ORIGINAL} and as <id>{CHANGED}; is this FollowIR's layout?", source.name
        )
    offered = {}
    for record in source.ranked():
        offered[record.identifier("query-id")] = _ids(record)
    return with_candidates(replace(collection, queries=queries, changed=pairs), offered, depth)


def _ids(record: Record) -> list[str]:
    names = record.fields.get("corpus-ids")
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise record.error("expected a list of ids under 'corpus-ids'")
    return names
