"""What users give an engine, as records: ids and texts, tuples, mappings, iterators of them, queries."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simzoo.core.records import DataError, Item, Query
from simzoo.retrieval.sides import checked_vectors

BLOCK = 2048  # items represented and written at once

Record = Item | tuple[str, str] | tuple[str, str, str] | Mapping[str, str]
"""An `Item`; (id, text) or (id, text, title); or a mapping with ``id``, ``text`` and perhaps ``title``."""


def records_of(items: Any, texts: Any, titles: Any) -> Iterator[Item]:
    """Items of what `Engine.add` was given, one by one.

    Raises:
        TypeError: a text in place of a list.
        ValueError: lists of different lengths.
        DataError: a record that is none; raised when it is reached.
    """
    if texts is None:
        if isinstance(items, str):
            raise TypeError("add takes a list of ids and a list of texts, or records; got one text")
        return map(_record, items, _counted())
    if isinstance(texts, str) or isinstance(items, str):
        raise TypeError("add takes a list of ids and a list of texts; got one text")
    shown = titles if titles is not None else [""] * len(texts)
    if not len(items) == len(texts) == len(shown):
        raise ValueError(
            f"each item has an id, a text and perhaps a title; got {len(items)}, {len(texts)}, {len(shown)}"
        )
    return map(_record, zip(items, texts, shown, strict=True), _counted())


def _counted() -> Iterator[int]:
    number = 0
    while True:
        yield number
        number += 1


def _record(given: Any, number: int) -> Item:
    if isinstance(given, Item):
        return given if given.id else Item(id_of(given.id, number), given.text, given.title)
    if isinstance(given, Mapping) and {"id", "text"} <= given.keys():
        parts = given["id"], given["text"], given.get("title", "")
    elif isinstance(given, tuple) and len(given) in (2, 3):
        parts = given if len(given) == 3 else (*given, "")
    else:
        raise DataError(
            f"record {number} is {given!r}; expected an Item, (id, text), (id, text, title), or a mapping with id and "
            "text"
        )
    for name, part in zip(("text", "title"), parts[1:], strict=True):
        if not isinstance(part, str):
            raise DataError(f"record {number}: the {name} is {part!r}; expected text")
    return Item(id_of(parts[0], number), parts[1], parts[2])


def id_of(name: Any, number: int | None = None) -> str:
    """An id as text; whole numbers become text.

    Raises:
        DataError: it is neither, or empty.
    """
    if isinstance(name, str) and name:
        return name
    if isinstance(name, int | np.integer) and not isinstance(name, bool):
        return str(name)
    where = "" if number is None else f"record {number}: "
    raise DataError(f"{where}the id is {name!r}; expected text that is not empty, or a whole number")


def blocks_of(
    records: Iterator[Item], vectors: NDArray[Any] | None
) -> Iterator[tuple[list[Item], NDArray[np.float32] | None]]:
    """Items in blocks of 2,048, each with its vectors.

    Raises:
        ValueError: there are not as many vectors as items, or they are no (M, d) finite numbers.
    """
    start = 0
    while block := list(islice(records, BLOCK)):
        stop = start + len(block)
        given = None
        if vectors is not None:
            given = checked_vectors(vectors[start:stop], len(block), f"for records {start} to {stop - 1} there are")
        yield block, given
        start = stop
    if vectors is not None and len(vectors) != start:
        raise ValueError(f"{len(vectors)} vectors were given for {start} records")


def queries_of(given: Sequence[str | Query], kind: str) -> list[Query]:
    """Texts as queries, named by their place.

    Raises:
        TypeError: something else among them.
    """
    found = []
    for number, query in enumerate(given):
        if not isinstance(query, str | Query):
            raise TypeError(f"{kind} {number} is {query!r}; expected a text or a Query")
        found.append(Query(f"{kind} {number}", query) if isinstance(query, str) else query)
    return found
