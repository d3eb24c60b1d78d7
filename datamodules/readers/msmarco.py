"""MS MARCO passages (Nguyen et al., 2016) with a given list of candidates for each query.

Layout: tab-separated ``collection.tsv`` (passage id, text), ``queries.<split>.tsv`` (query id, text),
``qrels.<split>.tsv`` (query id, 0, passage id, grade; between tabs or spaces), and the candidates, best first: MS
MARCO's run (query id, passage id, rank) or ``top1000.<split>.tsv`` (query id, passage id, query, passage), or TREC's
run (query id, Q0, passage id, rank, score, tag).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Container, Iterator
from itertools import pairwise
from pathlib import Path

from simzoo.core.records import Collection, DataError, Item, Query
from simzoo.datamodules.readers.json_lines import existing, numbered_lines, whole_number
from simzoo.datamodules.readers.notes import Notes

NO_CANDIDATES = "queries without candidates, left out"
NO_JUDGEMENT = "queries with candidates but without a relevant passage, left out"
NOT_ASKED = "judgements of queries that are not among the queries, left out"
REPEATED_JUDGEMENT = "judgements given twice alike, dropped"
REPEATED_CANDIDATE = "candidates given twice alike, dropped"
NO_TEXT = "passages without a text, kept"


Row = tuple[int, str, str, int]
"""Number of a line, query, passage, and its grade or rank."""


def load_msmarco(root: Path, split: str, candidates: Path, depth: int | None = None) -> Collection:
    """Read a split with its candidates.

    Args:
        root: the folder with collection.tsv, queries.<split>.tsv and qrels.<split>.tsv.
        split: train, dev, ...
        candidates: the candidates' file, each query's in order of rank.
        depth: most candidates to keep for a query, at least 1; None: all.

    Returns:
        The collection. Its items are only the passages that are a candidate or relevant, so that the whole of MS MARCO
        need not be in memory. Its ``candidates`` are in the order of the ranks; a top1000 file has none, there it is
        that of the lines. Notes count what was left out, by reason.

    Raises:
        DataError: a file is missing or empty; or, with file and line, a line has other columns or no id; a passage or
            query is there twice; a judgement or candidate is there twice with another grade or rank; two passages have
            one rank; a candidate's query is not in queries.<split>.tsv, or a passage not in collection.tsv.
    """
    if depth is not None and depth < 1:
        raise DataError(f"depth is the number of candidates to keep for a query, at least 1; got {depth}")
    notes = Notes()
    qrels = existing(root / f"qrels.{split}.tsv")
    candidates = existing(candidates)
    judged = _judgements(qrels, notes)
    listed = _candidates(candidates, depth, notes)
    asked = _queries(root / f"queries.{split}.tsv")
    if unknown := next((query for query in listed if query not in asked), None):
        line = _line(_candidate_rows(candidates), unknown)
        raise DataError(f"candidates of query {unknown!r}, which is not in queries.{split}.tsv", candidates, line)
    for query in judged.keys() - asked.keys():
        notes.drop(NOT_ASKED, query, len(judged[query]))
    kept = []
    for query in asked:
        if query not in listed:
            notes.drop(NO_CANDIDATES, query)
        elif not any(grade > 0 for grade in judged.get(query, {}).values()):
            notes.drop(NO_JUDGEMENT, query)
        else:
            kept.append(query)
    if not kept:
        raise DataError(f"no query has both candidates and a relevant passage: are these of {split}?", candidates)
    # Passages of queries that are left out are looked up all the same: a candidate that is nowhere is a mistake.
    wanted = {passage for query in listed for passage in (*listed[query], *judged.get(query, ()))}
    items = _passages(root / "collection.tsv", wanted, notes)
    rows = {item.id: row for row, item in enumerate(items)}
    for query in listed:
        for passage in listed[query]:
            if passage not in rows:
                line = _line(_candidate_rows(candidates), query, passage)
                raise DataError(f"passage {passage!r} is not in collection.tsv", candidates, line)
        for passage in judged.get(query, ()):
            if passage not in rows:
                line = _line(_judgement_rows(qrels), query, passage)
                raise DataError(f"passage {passage!r} is not in collection.tsv", qrels, line)
    return Collection(
        name := f"MS MARCO {split}",
        items,
        [asked[query] for query in kept],
        [{rows[passage]: grade for passage, grade in judged[query].items()} for query in kept],
        notes=notes.told(name),
        candidates=[[rows[passage] for passage in listed[query]] for query in kept],
    )


def _queries(path: Path) -> dict[str, Query]:
    found: dict[str, Query] = {}
    path = existing(path)
    for number, (name, text) in _rows(path):
        if name in found:
            raise DataError(f"query {name!r} appears more than once", path, number)
        if not text.strip():
            raise DataError(f"query {name!r} is empty; give it a text or remove it", path, number)
        found[name] = Query(name, text)
    return found


def _passages(path: Path, wanted: Container[str], notes: Notes) -> list[Item]:
    seen: set[str] = set()
    items = []
    path = existing(path)
    for number, (name, text) in _rows(path):
        if name not in wanted:
            continue
        if name in seen:
            raise DataError(f"passage {name!r} appears more than once", path, number)
        seen.add(name)
        items.append(Item(name, text))
        notes.keep(NO_TEXT, not text.strip())
    return items


def _rows(path: Path) -> Iterator[tuple[int, list[str]]]:
    """The lines of a file of ids and texts, with their number."""
    for number, line in numbered_lines(path):
        fields = line.split("\t")
        if len(fields) != 2 or not fields[0].strip():
            raise DataError(f"expected an id and a text, 2 columns between tabs, got {line[:80]!r}", path, number)
        yield number, fields


def _judgements(path: Path, notes: Notes) -> dict[str, dict[str, int]]:
    """Grades by query and passage."""
    judged: dict[str, dict[str, int]] = defaultdict(dict)
    for number, query, passage, grade in _judgement_rows(path):
        before = judged[query].get(passage)
        if before is None:
            judged[query][passage] = grade
        elif before == grade:
            notes.drop(REPEATED_JUDGEMENT, f"{query} {passage}")
        else:
            raise DataError(
                f"passage {passage!r} has grade {grade} for query {query!r}, but had {before} before", path, number
            )
    return dict(judged)


def _judgement_rows(path: Path) -> Iterator[Row]:
    for number, line in numbered_lines(path):
        fields = line.split()
        if len(fields) != 4:
            raise DataError(f"expected query id, 0, passage id and grade, got {line[:80]!r}", path, number)
        grade = whole_number(fields[3], bits=32)
        if grade is None:
            raise DataError(f"expected a whole-number grade of at most 32 bits, got {fields[3][:80]!r}", path, number)
        yield number, fields[0], fields[2], grade


def _candidates(path: Path, depth: int | None, notes: Notes) -> dict[str, list[str]]:
    """Passages by query, in the order of their ranks."""
    ranked: dict[str, dict[str, int]] = defaultdict(dict)
    for number, query, passage, rank in _candidate_rows(path):
        before = ranked[query].get(passage)
        if before is None:
            ranked[query][passage] = rank
        elif before == rank:
            notes.drop(REPEATED_CANDIDATE, f"{query} {passage}")
        else:
            raise DataError(f"passage {passage!r} is a candidate of query {query!r} already", path, number)
    listed = {}
    for query, ranks in ranked.items():
        order = sorted(ranks, key=ranks.__getitem__)
        for one, other in pairwise(order):
            if ranks[one] == ranks[other]:
                raise DataError(
                    f"passages {one!r} and {other!r} both have rank {ranks[one]} for query {query!r}; is this one run?",
                    path,
                    _line(_candidate_rows(path), query, other),
                )
        listed[query] = order[:depth]
    return listed


def _candidate_rows(path: Path) -> Iterator[Row]:
    """Query, passage and rank, which is the line's number where the file has no ranks; every line of one kind."""
    kind = None
    for number, line in numbered_lines(path):
        fields = line.split("\t")
        if len(fields) != 4:  # a passage holds spaces
            fields = line.split()
        match len(fields):
            case 3:
                query, passage, text = fields
                rank = whole_number(text)
            case 4 if "\t" in line:
                query, passage, _, _ = fields
                rank = number
            case 6:
                query, _, passage, text, _, _ = fields
                rank = whole_number(text)
            case _:
                query = passage = ""
                rank = None
        kind = kind or len(fields)
        if rank is None or len(fields) != kind or not query.strip() or not passage.strip():
            raise DataError(
                "expected lines of MS MARCO's run (3 columns), of its top1000 files (4) or of TREC's run (6), all of "
                f"one kind, got {line[:80]!r}",
                path,
                number,
            )
        yield number, query, passage, rank


def _line(rows: Iterator[Row], query: str, passage: str | None = None) -> int:
    """The last line that has a query, and a passage: it is looked for only when something is wrong with it."""
    return max(number for number, name, other, _ in rows if name == query and passage in (None, other))
