"""MS MARCO passages (Nguyen et al., 2016) with a given list of candidates for each query.

Layout: tab-separated ``collection.tsv`` (passage id, text), ``queries.<split>.tsv`` (query id, text),
``qrels.<split>.tsv`` (query id, 0, passage id, grade), and the candidates, best first: MS MARCO's run (query id,
passage id, rank) or ``top1000.<split>.tsv`` (query id, passage id, query, passage), or TREC's run (query id, Q0,
passage id, rank, score, tag).
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path

from simzoo.core.records import Collection, DataError, Item, Query
from simzoo.datamodules.readers.json_lines import existing, numbered_lines

NO_CANDIDATES = "queries without candidates, left out"
NO_JUDGEMENT = "queries with candidates but without a relevant passage, left out"


def load_msmarco(root: Path, split: str, candidates: Path, depth: int | None = None) -> Collection:
    """Read a split with its candidates.

    Args:
        root: the folder with collection.tsv, queries.<split>.tsv and qrels.<split>.tsv.
        split: train, dev, ...
        candidates: the candidates' file, each query's in order of rank.
        depth: most candidates to keep for a query; None: all.

    Returns:
        The collection. Its items are only the passages that are a candidate or relevant, so that the whole of MS MARCO
        need not be in memory. Its ``candidates`` are in the file's order.

    Raises:
        DataError: a file is missing or empty; or, with file and line, a line has other columns, an id is not in
            collection.tsv or queries.<split>.tsv, or is there twice.
    """
    relevant: dict[str, dict[str, int]] = defaultdict(dict)
    for path, number, (query, _, passage, grade) in _rows(root / f"qrels.{split}.tsv", 4):
        if not grade.lstrip("-").isdigit():
            raise DataError(f"expected a whole-number grade, got {grade!r}", path, number)
        relevant[query][passage] = int(grade)
    listed = _candidates(candidates, depth)
    wanted = {passage for query in listed for passage in (*listed[query], *relevant.get(query, ()))}
    rows: dict[str, int] = {}
    items: list[Item] = []
    for path, number, (passage, text) in _rows(root / "collection.tsv", 2):
        if passage in wanted:
            if passage in rows:
                raise DataError(f"passage {passage!r} appears more than once", path, number)
            rows[passage] = len(items)
            items.append(Item(passage, text))
    missing = sorted(wanted - rows.keys())
    if missing:
        raise DataError(
            f"{len(missing)} passages of the candidates or judgements, such as {missing[0]!r}, are not there",
            root / "collection.tsv",
        )
    notes: Counter[str] = Counter()
    queries, judgements, lists = [], [], []
    for _, _, (query, text) in _rows(root / f"queries.{split}.tsv", 2):
        if query not in listed:
            notes[NO_CANDIDATES] += 1
        elif not any(grade > 0 for grade in relevant[query].values()):
            notes[NO_JUDGEMENT] += 1
        else:
            queries.append(Query(query, text))
            judgements.append({rows[passage]: grade for passage, grade in relevant[query].items()})
            lists.append([rows[passage] for passage in listed[query]])
    return Collection(f"MS MARCO {split}", items, queries, judgements, notes=dict(notes), candidates=lists)


def _rows(path: Path, columns: int) -> Iterator[tuple[Path, int, list[str]]]:
    """The lines of a file with their place, split at tabs (qrels: at spaces too)."""
    path = existing(path)
    for number, line in numbered_lines(path):
        fields = line.rstrip("\r\n").split("\t")
        if len(fields) != columns:
            fields = line.split()
        if len(fields) != columns:
            raise DataError(f"expected {columns} columns between tabs, got {line.rstrip()[:80]!r}", path, number)
        yield path, number, fields


def _candidates(path: Path, depth: int | None) -> dict[str, list[str]]:
    """Passage ids by query id, in order of the rank column where there is one."""
    path = existing(path)
    ranked: dict[str, list[tuple[int, str]]] = defaultdict(list)
    for number, line in numbered_lines(path):
        fields = line.rstrip("\r\n").split("\t")
        if len(fields) not in (3, 4):
            fields = line.split()
        try:
            if len(fields) == 6:
                query, passage, rank = fields[0], fields[2], int(fields[3])
            elif len(fields) == 3:
                query, passage, rank = fields[0], fields[1], int(fields[2])
            else:
                (query, passage, _, _), rank = fields, number
        except ValueError as error:
            raise DataError(
                "expected a line of MS MARCO's run (3 columns), of its top1000 files (4) or of TREC's run (6), got "
                f"{line.rstrip()[:80]!r}",
                path,
                number,
            ) from error
        ranked[query].append((rank, passage))
    in_order = {query: sorted(found, key=lambda pair: pair[0]) for query, found in ranked.items()}
    return {query: [passage for _, passage in found[:depth]] for query, found in in_order.items()}
