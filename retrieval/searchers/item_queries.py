"""Items in the place of queries: item-item scores of a similarity that was made for query-item pairs."""

from __future__ import annotations

from collections.abc import Sequence

from simzoo.core.records import DataError, Item, Query
from simzoo.retrieval.topk import Rows


def item_query(item: Item, mentions: bool) -> Query:
    """An item as a query, named "of-" and its id (ANNCUR A.2): its title is the mention, its text the right context.

    Args:
        item: with a title or a text.
        mentions: mark the title, as in entity linking; otherwise the query is plain text.

    Raises:
        DataError: it has neither.
    """
    title = item.title.strip()
    text = f"{title} {item.text}".strip()
    if not text:
        raise DataError(
            f"item {item.id!r} has neither title nor text and cannot stand in a query's place; give it words, remove "
            "it, or use CUR, whose anchors are queries"
        )
    return Query(f"of-{item.id}", text, (0, len(title)) if title and mentions else None)


def with_words(items: Sequence[Item], rows: Rows) -> Rows:
    """Those of the rows whose items have a title or a text."""
    return rows[[bool(items[row].title.strip() or items[row].text.strip()) for row in rows.tolist()]]
