"""Wikipedia entity linking in BLINK's layout (Wu et al., 2020): a catalogue of entities, mentions in their context.

Layout: ``entity.jsonl`` with title, text and idx (a URL that ends in ``curid=<page id>``, or the page id); mentions as
JSON lines with context_left, mention, context_right and label_id (the page id), as the files for AIDA, MSNBC and WNED
are.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

from simzoo.core.records import Collection, DataError, Item, Query
from simzoo.datamodules.readers.json_lines import Record, read_json_lines
from simzoo.datamodules.readers.notes import Notes

NO_ENTITY = "mentions of entities that the catalogue lacks, left out"


def load_entities(path: Path) -> list[Item]:
    """The catalogue, titles and texts.

    Raises:
        DataError: the file is missing or empty; a line is broken JSON, lacks a key or repeats an id.
    """
    seen: set[str] = set()
    items = []
    for record in read_json_lines(path):
        name = record.identifier("idx").rpartition("curid=")[2].strip()
        if not name:
            raise record.error(f"expected a page id, or an address that ends in one, got {record.identifier('idx')!r}")
        item = Item(name, record.text("text"), record.text("title"))
        if item.id in seen:
            raise record.error(f"page id {item.id!r} appears more than once")
        seen.add(item.id)
        items.append(item)
    return items


def load_blink(entities: Sequence[Item], mentions: Path, context_words: int = 64) -> Collection:
    """Read a file of mentions against a catalogue.

    Args:
        entities: the catalogue; see `load_entities`.
        mentions: JSON lines, for example ``AIDA-YAGO2_testb.jsonl``.
        context_words: words to keep on each side of a mention, at least 0.

    Returns:
        The collection. A query's id is the line's number, because BLINK's own ids repeat; its alias is the mention in
        lower case. Aliases list titles in lower case. Mentions of entities outside the catalogue are left out and
        counted, as BLINK does.

    Raises:
        DataError: the file is missing or empty, or the catalogue has none of its entities; or, with file and line,
            broken JSON, a missing key or an empty mention.
    """
    if context_words < 0:
        raise DataError(
            f"context_words is a number of words on each side of a mention, at least 0; got {context_words}"
        )
    rows = {item.id: row for row, item in enumerate(entities)}
    notes = Notes()
    queries, judgements = [], []
    for record in read_json_lines(mentions):
        query = _query(record, context_words)
        gold = rows.get(record.identifier("label_id").strip())
        if gold is None:
            notes.drop(NO_ENTITY, f"line {record.line}")
            continue
        queries.append(query)
        judgements.append({gold: 1})
    if not queries:
        raise DataError("the catalogue has none of the mentions' entities; is it the right one?", mentions)
    aliases: dict[str, list[int]] = defaultdict(list)
    for row, item in enumerate(entities):
        aliases[item.title.lower()].append(row)
    return Collection(mentions.stem, entities, queries, judgements, aliases, notes.told(mentions.stem))


def _query(record: Record, context_words: int) -> Query:
    mention = " ".join(record.text("mention").split())
    if not mention:
        raise record.error("the mention is empty")
    left = " ".join(record.text("context_left").split()[-context_words:] if context_words else [])
    right = " ".join(record.text("context_right").split()[:context_words])
    first = len(left) + 1 if left else 0
    text = " ".join(part for part in (left, mention, right) if part)
    return Query(str(record.line), text, (first, first + len(mention)), mention.lower())
