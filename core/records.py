"""The records that every data layout is read into, and the collection that holds them."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

__all__ = ["Collection", "DataError", "History", "Item", "Query", "hide_titles", "sample_together"]

LONGEST_MESSAGE = 4000


class DataError(ValueError):
    """Input that cannot be used: says what was found, where, what was expected and what to do."""

    def __init__(self, message: str, path: str | Path | None = None, line: int | None = None) -> None:
        where = "" if path is None else f"{path}:{line}: " if line is not None else f"{path}: "
        if len(message) > LONGEST_MESSAGE:  # an id or a value of a broken file may have any length
            message = f"{message[: LONGEST_MESSAGE // 2]} ... {message[-LONGEST_MESSAGE // 2 :]}"
        super().__init__(where + message)


def has_surrogate(text: str) -> bool:
    """Whether a text holds half of a character (a lone surrogate), which no file and no tokenizer can take."""
    if text.isascii():
        return False
    try:
        text.encode()
    except UnicodeEncodeError:
        return True
    return False


def _check_text(kind: str, name: str, *texts: str) -> None:
    for text in (name, *texts):
        if has_surrogate(text):
            raise DataError(
                f"{kind} {name!a} holds half of a character (a lone surrogate): {text!a:.80}; it was cut inside a "
                "character, or read with the wrong encoding"
            )


@dataclass(frozen=True, slots=True)
class Query:
    """A query; ``mention`` is the character span [start, end) of the mention inside ``text``, if it has one.

    ``alias`` is the normal form under which an alias table lists the mention (WordNet: its lemma).

    Examples:
        >>> from simzoo import Query
        >>> query = Query("q1", "the boat lay on the bank", mention=(20, 24))
        >>> query.text[slice(*query.mention)]
        'bank'
    """

    id: str
    text: str
    mention: tuple[int, int] | None = None
    alias: str | None = None

    def __post_init__(self) -> None:
        _check_text("query", self.id, self.text)
        if not self.text.strip():
            raise DataError(f"query {self.id!r} is empty; give it a text or remove it")
        if self.mention is not None:
            start, end = self.mention
            if not 0 <= start < end <= len(self.text):
                raise DataError(
                    f"query {self.id!r}: mention span [{start}, {end}) lies outside its {len(self.text)} characters"
                )


@dataclass(frozen=True, slots=True)
class History(Query):
    """What a user did, oldest first: a query whose relevant item is the one that comes next.

    Attributes:
        items: ids of the items.
        times: when, in seconds; None: the data does not say.
        now: when the next action happens, in seconds; None: not known.

    Examples:
        >>> from simzoo import History
        >>> History.of("user 7", ["film 3", "film 1"]).items
        ('film 3', 'film 1')
    """

    items: tuple[str, ...] = ()
    times: tuple[int, ...] | None = None
    now: int | None = None

    def __post_init__(self) -> None:
        # Not super(): dataclasses with slots are made anew, and the class that super() remembers is the old one.
        Query.__post_init__(self)
        if not self.items:
            raise DataError(f"the history of user {self.id!r} is empty; give it an action or leave the user out")
        if self.times is not None and len(self.times) != len(self.items):
            raise DataError(f"user {self.id!r} has {len(self.items)} actions, but {len(self.times)} times")

    @classmethod
    def of(cls, user: str, items: Sequence[str], times: Sequence[int] | None = None, now: int | None = None) -> History:
        """The history of a user without a text of their own: its text lists the items' ids."""
        shown = " ".join(items) or "no actions"
        return cls(user, shown, items=tuple(items), times=None if times is None else tuple(times), now=now)


@dataclass(frozen=True, slots=True)
class Item:
    """An item that can be retrieved; ``title`` may be empty.

    Examples:
        >>> from simzoo import Item
        >>> Item("bank.n.01", "sloping land beside a river", title="bank")
        Item(id='bank.n.01', text='sloping land beside a river', title='bank')
    """

    id: str
    text: str
    title: str = ""

    def __post_init__(self) -> None:
        _check_text("item", self.id, self.text, self.title)


@dataclass(frozen=True)
class Collection:
    """Items, queries over them, and graded judgements.

    ``judgements[i]`` maps the row of an item to its grade (> 0 is relevant) for query ``queries[i]``.
    ``aliases`` maps a normal form to the rows of the items that carry it, most frequent sense first.
    ``notes`` counts what a reader dropped, kept or repaired, by reason.
    ``candidates[i]`` are the rows of the items that the data itself offers for query ``queries[i]``, best first where
    it has an order; empty where it offers none. ``scores[i]`` are a teacher's scores of these, NaN where there is none;
    empty where the data has none.
    ``own`` maps the row of a query that is an item itself to the row of that item, which is no result for it.
    ``anchors`` are other queries over the same items: an index may learn from them, and they are not evaluated.
    ``parts[i]`` names the part of the data that query ``queries[i]`` is of, where each part is to have its own figures;
    empty where the data has one.
    ``changed`` maps the row of a query to the row of the same query with a changed instruction (FollowIR).

    Examples:
        >>> from simzoo import Collection, Item, Query
        >>> items = [Item("i0", "a flat boat"), Item("i1", "money in the bank")]
        >>> toy = Collection("toy", items, [Query("q0", "ship")], judgements=[{0: 1}])
        >>> toy.relevant(0), toy.rows["i1"]
        ([0], 1)
    """

    name: str
    items: Sequence[Item]
    queries: Sequence[Query]
    judgements: Sequence[Mapping[int, int]]
    aliases: Mapping[str, Sequence[int]] = field(default_factory=dict)
    notes: Mapping[str, int] = field(default_factory=dict)
    candidates: Sequence[Sequence[int]] = ()
    scores: Sequence[Sequence[float]] = ()
    own: Mapping[int, int] = field(default_factory=dict)
    anchors: Sequence[Query] = ()
    parts: Sequence[str] = ()
    changed: Mapping[int, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.items:
            raise DataError(f"collection {self.name!r} has no items")
        if len(self.judgements) != len(self.queries):
            raise DataError(
                f"collection {self.name!r} has {len(self.queries)} queries but {len(self.judgements)} judgement rows"
            )
        if self.candidates and len(self.candidates) != len(self.queries):
            raise DataError(
                f"collection {self.name!r} has {len(self.queries)} queries but {len(self.candidates)} candidate lists"
            )
        if self.parts and len(self.parts) != len(self.queries):
            raise DataError(
                f"collection {self.name!r} has {len(self.queries)} queries but names the parts of {len(self.parts)}"
            )
        if self.scores and [len(row) for row in self.scores] != [len(row) for row in self.candidates]:
            raise DataError(f"collection {self.name!r} needs a score for each of its candidates, or none")
        for kind, records in (("item", self.items), ("query", [*self.queries, *self.anchors])):
            seen: set[str] = set()
            for record in records:
                if record.id in seen:
                    raise DataError(f"collection {self.name!r}: {kind} id {record.id!r} appears more than once")
                seen.add(record.id)
        for query, judged in zip(self.queries, self.judgements, strict=True):
            for row in judged:
                if not 0 <= row < len(self.items):
                    raise DataError(f"collection {self.name!r}: query {query.id!r} judges unknown item row {row}")
        if any(not (0 <= q < len(self.queries) and 0 <= i < len(self.items)) for q, i in self.own.items()):
            raise DataError(f"collection {self.name!r}: own names an unknown query or item row")
        if any(not 0 <= row < len(self.queries) for pair in self.changed.items() for row in pair):
            raise DataError(f"collection {self.name!r}: changed names an unknown query row")

    def relevant(self, query_row: int) -> list[int]:
        """Rows of the items judged relevant (grade > 0) for a query."""
        return [row for row, grade in self.judgements[query_row].items() if grade > 0]

    def seen(self, query_row: int) -> list[int]:
        """Rows of the items that are no results for a query.

        They are the item that the query itself is (``own``), and those that a history holds already, but for the
        relevant one if it is repeated.
        """
        query = self.queries[query_row]
        own = {self.own[query_row]} if query_row in self.own else set()
        if not isinstance(query, History):
            return sorted(own)
        known = {self.rows[name] for name in query.items if name in self.rows}
        return sorted(own | (known - set(self.relevant(query_row))))

    @cached_property
    def rows(self) -> Mapping[str, int]:
        """Rows of the items by their ids."""
        return {item.id: row for row, item in enumerate(self.items)}

    def sample(self, num_queries: int | None, seed: int = 0) -> Collection:
        """The same items with a fixed random sample of the queries (all of them for ``None``).

        Raises:
            DataError: fewer than one query is asked for.
        """
        _check_sample(num_queries)
        if num_queries is None or num_queries >= len(self.queries):
            return self
        return self.with_queries(self._drawn(num_queries, seed))

    def _drawn(self, num_queries: int, seed: int) -> list[int]:
        """Rows of a fixed random sample of the queries, which may be empty."""
        key = lambda i: hashlib.sha256(f"{seed}:{self.queries[i].id}".encode()).digest()  # noqa: E731
        return sorted(sorted(range(len(self.queries)), key=key)[:num_queries])

    def with_queries(self, rows: Sequence[int]) -> Collection:
        """The same items with the queries at ``rows``, in that order."""
        places = {row: place for place, row in enumerate(rows)}
        return replace(
            self,
            queries=[self.queries[i] for i in rows],
            judgements=[self.judgements[i] for i in rows],
            candidates=[self.candidates[i] for i in rows] if self.candidates else (),
            scores=[self.scores[i] for i in rows] if self.scores else (),
            own={place: self.own[i] for place, i in enumerate(rows) if i in self.own},
            parts=[self.parts[i] for i in rows] if self.parts else (),
            changed={places[a]: places[b] for a, b in self.changed.items() if a in places and b in places},
        )

    @cached_property
    def fingerprint(self) -> str:
        """sha256 over every record and judgement: two runs with the same fingerprint saw the same data."""
        digest = hashlib.sha256()
        for item in self.items:
            digest.update(f"i\0{item.id}\0{item.title}\0{item.text}\n".encode())
        for query, judged in zip(self.queries, self.judgements, strict=True):
            digest.update(f"q\0{query.id}\0{query.text}\0{query.mention}\0{sorted(judged.items())}\n".encode())
            if isinstance(query, History):
                digest.update(f"h\0{query.items}\0{query.times}\n".encode())
        for listed in self.candidates:
            digest.update(f"c\0{list(listed)}\n".encode())
        for pair in sorted(self.own.items()):
            digest.update(f"o\0{pair}\n".encode())
        for pair in sorted(self.changed.items()):
            digest.update(f"s\0{pair}\n".encode())
        for anchor in self.anchors:
            digest.update(f"a\0{anchor.id}\0{anchor.text}\0{anchor.mention}\n".encode())
        return digest.hexdigest()


def sample_together(collections: Sequence[Collection], num_queries: int | None, seed: int) -> list[Collection]:
    """A sample of ``num_queries`` over all collections, each in proportion to its size.

    Raises:
        DataError: fewer than one query is asked for.
    """
    _check_sample(num_queries)
    total = sum(len(collection.queries) for collection in collections)
    if num_queries is None or num_queries >= total:
        return list(collections)
    sizes = [round(num_queries * len(collection.queries) / total) for collection in collections]
    if not any(sizes):  # a few queries of many collections: a share of each is none at all
        sizes[max(range(len(sizes)), key=lambda i: len(collections[i].queries))] = num_queries
    return [c.with_queries(c._drawn(size, seed)) for c, size in zip(collections, sizes, strict=True)]


def _check_sample(num_queries: int | None) -> None:
    if num_queries is not None and num_queries < 1:
        raise DataError(
            f"a sample of {num_queries} queries was asked for; ask for at least 1, or for null: all of them"
        )


def hide_titles(collection: Collection, share: float, seed: int) -> list[Collection]:
    """The collection with part of its queries, and without titles with the others, a fixed random ``share`` of them."""
    hidden = collection.with_queries(collection._drawn(round(share * len(collection.queries)), seed))
    ids = {query.id for query in hidden.queries}
    rows = [row for row, query in enumerate(collection.queries) if query.id not in ids]
    shown = collection.with_queries(rows)
    hidden = replace(hidden, items=[replace(item, title="") for item in collection.items])
    return [part for part in (shown, hidden) if part.queries]
