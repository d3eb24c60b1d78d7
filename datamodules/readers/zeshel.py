"""ZESHEL (Logeswaran et al., 2019): entity linking to the pages of fan wikis, one world a wiki.

Layout: documents/<world>.json and mentions/{train,val,test,heldout_train_seen,heldout_train_unseen}.json, JSON lines.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path

from simzoo.core.records import Collection, DataError, Item, Query
from simzoo.datamodules.readers.json_lines import Record, read_json_lines
from simzoo.datamodules.readers.notes import Notes

ZESHEL_SPLITS: Mapping[str, tuple[str, ...]] = {
    "train": (
        "american_football", "doctor_who", "fallout", "final_fantasy", "military", "pro_wrestling", "starwars",
        "world_of_warcraft",
    ),
    "val": ("coronation_street", "elder_scrolls", "ice_hockey", "muppets"),
    "test": ("forgotten_realms", "lego", "star_trek", "yugioh"),
}  # fmt: skip

NO_TEXT = "items without a text, kept"
OTHER_WORLDS = "mentions of other worlds, left out"


def load_zeshel(root: Path, world: str, mentions: str | None = None, context_tokens: int = 128) -> Collection:
    """Read a world: its pages as items, the mentions that link to them as queries.

    Args:
        root: The folder that holds ``documents`` and ``mentions``.
        world: A world's name, for example "yugioh".
        mentions: The file in ``mentions`` to read, without ".json". By default that of the world's split: "train",
            "val" or "test". The train worlds' held-out mentions are in "heldout_train_seen" (of entities that training
            mentions link to as well) and "heldout_train_unseen".
        context_tokens: How many whitespace tokens to keep on each side of a mention.

    Returns:
        The collection. A query's text is left context, mention and right context, its tokens joined with single
        spaces; its alias is the mention in lower case. Aliases list titles in lower case, with and without a bracketed
        addition ("Dalek (film)" also under "dalek"), whole titles first.

    Raises:
        DataError: a file is missing or empty; a line is broken JSON, lacks a key, repeats an id, names an unknown
            document, or has a span that lies outside its document or holds other words than its mention.
    """
    if context_tokens < 0:
        raise DataError(f"context_tokens must be 0 or more, got {context_tokens}")
    if mentions is None:
        mentions = next((split for split, worlds in ZESHEL_SPLITS.items() if world in worlds), None)
    if mentions is None:
        known = ", ".join(name for worlds in ZESHEL_SPLITS.values() for name in worlds)
        raise DataError(f"{world!r} is not one of ZESHEL's worlds ({known}); for your own, name the mentions file too")
    notes = Notes()
    rows: dict[str, int] = {}
    items: list[Item] = []
    for record in read_json_lines(root / "documents" / f"{world}.json"):
        item = Item(record.identifier("document_id"), record.text("text"), record.text("title"))
        if item.id in rows:
            raise record.error(f"document_id {item.id!r} appears more than once")
        rows[item.id] = len(items)
        items.append(item)
        notes.keep(NO_TEXT, not item.text.strip())
    queries: dict[str, Query] = {}
    judgements = []
    for record in read_json_lines(root / "mentions" / f"{mentions}.json"):
        if record.identifier("corpus") != world:
            notes.keep(OTHER_WORLDS)  # that is how the files are laid out: nothing of this world is lost
            continue
        label = _row(record, "label_document_id", rows, world)
        page = items[_row(record, "context_document_id", rows, world)]
        query = _query(record, page.text.split(), context_tokens)
        if query.id in queries:
            raise record.error(f"mention_id {query.id!r} appears more than once")
        queries[query.id] = query
        judgements.append({label: 1})
    if not queries:
        raise DataError(f"holds no mention of world {world}", root / "mentions" / f"{mentions}.json")
    return Collection(world, items, list(queries.values()), judgements, _aliases(items), notes.told(world))


def _row(record: Record, key: str, rows: Mapping[str, int], world: str) -> int:
    identifier = record.identifier(key)
    if identifier not in rows:
        raise record.error(f"{key} {identifier!r} is not a document of {world}")
    return rows[identifier]


def _query(record: Record, tokens: Sequence[str], context_tokens: int) -> Query:
    start, end = record.integer("start_index"), record.integer("end_index")
    if not 0 <= start <= end < len(tokens):
        raise record.error(
            f"the mention's tokens {start} to {end} lie outside its document {record.text('context_document_id')!r}, "
            f"which has {len(tokens)} tokens (counted from 0, both ends included)"
        )
    mention = " ".join(tokens[start : end + 1])
    if " ".join(record.text("text").split()) != mention:
        raise record.error(f"the mention is {record.text('text')!r}, but tokens {start} to {end} are {mention!r}")
    left = " ".join(tokens[max(0, start - context_tokens) : start])
    right = " ".join(tokens[end + 1 : end + 1 + context_tokens])
    first = len(left) + 1 if left else 0
    text = " ".join(part for part in (left, mention, right) if part)
    return Query(record.identifier("mention_id"), text, (first, first + len(mention)), mention.lower())


def _aliases(items: Sequence[Item]) -> dict[str, list[int]]:
    aliases: dict[str, list[int]] = defaultdict(list)
    titles = [" ".join(item.title.lower().split()) for item in items]
    for row, title in enumerate(titles):
        if title:
            aliases[title].append(row)
    for row, title in enumerate(titles):
        plain, bracket, _ = title.rpartition(" (")
        if bracket and title.endswith(")"):
            aliases[plain].append(row)
    return dict(aliases)
