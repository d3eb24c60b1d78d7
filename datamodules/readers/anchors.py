"""Anchors: queries that an index may learn from, so that every test query is tested.

CUR and AXN score some queries with all items beforehand. Taken from the test queries they leave fewer to test; the
papers take them from elsewhere: BEIR's generated pseudo-queries, or the queries of the train split.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Sequence
from dataclasses import replace

from simzoo.core.records import Collection, DataError, Item, Query
from simzoo.datamodules.readers.json_lines import Record
from simzoo.datamodules.readers.notes import Notes

__all__ = ["item_queries", "with_anchors"]

TESTED = "anchors that are a test query too, by id or text, left out"


def with_anchors(
    collection: Collection, anchors: Sequence[Query], most: int | None = None, seed: int = 0
) -> Collection:
    """The collection with anchors; its own queries are all left to be tested.

    Args:
        collection: the items and the queries that are tested.
        anchors: `split_queries`, `generated_queries`, `item_queries`, or the user's own.
        most: take a fixed random sample of so many; None: all.
        seed: of the sample.

    Returns:
        The collection with `Collection.anchors`; none of them has the id or the text of a tested query.

    Raises:
        DataError: there are fewer than ``most``, or none at all.
    """
    ids = {query.id for query in collection.queries}
    texts = {_words(query.text) for query in collection.queries}
    notes, kept = Notes(), []
    for anchor in anchors:
        if anchor.id in ids or _words(anchor.text) in texts:
            notes.drop(TESTED, anchor.id)
        else:
            kept.append(anchor)
    counts = notes.told(collection.name)
    if not kept or (most is not None and not 1 <= most <= len(kept)):
        raise DataError(
            f"{collection.name}: {'anchors' if most is None else f'{most} anchors'} were asked for, and there are "
            f"{len(kept)} besides the tested queries; take others, or fewer, but at least 1"
        )
    return replace(collection, anchors=_sampled(kept, most, seed), notes={**collection.notes, **counts})


def pseudo_queries(records: Iterable[Record]) -> list[Query]:
    """Queries from JSON lines with the key ``text``, each text once, named "generated-" and the line or row.

    Raises:
        DataError: with file and line, the text is missing or empty; or there is none.
    """
    found: dict[str, Query] = {}
    for record in records:
        text = record.text("text")
        if not text.strip():
            raise record.error("the generated query is empty; remove it")
        found.setdefault(text, Query(f"generated-{record.line}", text))
    return list(found.values())


def item_queries(items: Sequence[Item], most: int | None = None, seed: int = 0) -> list[Query]:
    """A pseudo-query from each item, where no better ones are at hand: its title, or the first sentence of its text.

    Args:
        items: with a title or a text.
        most: of a fixed random sample of so many items; None: of all.
        seed: of the sample.

    Returns:
        Queries named "of-" and the item's id.
    """
    whole = [Query(f"of-{item.id}", text) for item in items if (text := item.title.strip() or _sentence(item.text))]
    return _sampled(whole, most, seed)


def _sampled(queries: Sequence[Query], most: int | None, seed: int) -> list[Query]:
    if most is None or most >= len(queries):
        return list(queries)
    key = lambda place: hashlib.sha256(f"{seed}:{queries[place].id}".encode()).digest()  # noqa: E731
    return [queries[place] for place in sorted(sorted(range(len(queries)), key=key)[:most])]


def _sentence(text: str) -> str:
    return re.split(r"(?<=[.!?])\s", text.strip(), maxsplit=1)[0]


def _words(text: str) -> str:
    return " ".join(text.lower().split())
