"""Ranked examples in a report: a query, the head of its ranking, and what was missed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import Self

from simzoo.core.records import Collection, Query
from simzoo.retrieval.scorer import Rows
from simzoo.retrieval.searcher import Ranking

SHOWN = 5  # results of an example
LENGTH = 400  # characters shown of a text


@dataclass(frozen=True)
class Result:
    """An item in the ranking of an example.

    Attributes:
        place: from 1; None for a relevant item that is not in the ranking.
        score: None with ``place``.
    """

    id: str
    title: str
    text: str
    relevant: bool
    place: int | None = None
    score: float | None = None


@dataclass(frozen=True)
class Example:
    """A query and the head of its ranking.

    Attributes:
        query: with its mention, if it has one.
        found: the first results.
        missed: relevant items that are further down or not in the ranking.
        depth: results in the ranking.
    """

    query: Query
    found: Sequence[Result]
    missed: Sequence[Result]
    depth: int

    @property
    def hit(self) -> bool:
        """Whether the first result is relevant."""
        return bool(self.found) and self.found[0].relevant

    @classmethod
    def chosen(cls, collection: Collection, query_rows: Rows, ranking: Ranking, number: int) -> list[Self]:
        """Examples in the order of the queries, but for a hit that comes first and a miss that comes next."""
        every = [cls.of(collection, query_rows, ranking, place) for place in range(len(query_rows))]
        first = [next((one for one in every if one.hit is hit), None) for hit in (True, False)]
        ahead = [one for one in first if one is not None]
        return [*ahead, *(one for one in every if one not in ahead)][:number]

    @classmethod
    def of(cls, collection: Collection, query_rows: Rows, ranking: Ranking, place: int) -> Self:
        """The example at a place of the ranking."""
        row = int(query_rows[place])
        items, scores = ranking.items[place].tolist(), ranking.scores[place].tolist()
        items = [item for item in items if item >= 0]
        relevant = collection.relevant(row)

        def result(item: int) -> Result:
            record = collection.items[item]
            where = items.index(item) if item in items else None
            about = record.id, record.title, record.text, item in relevant
            return Result(*about) if where is None else Result(*about, where + 1, scores[where])

        missed = [item for item in relevant if item not in items[:SHOWN]]
        return cls(collection.queries[row], [*map(result, items[:SHOWN])], [*map(result, missed)], len(items))

    def html(self) -> str:
        """A hit or a miss, the query, its first results, and the relevant items that are not among them."""
        rows = "".join(
            f"<tr{' class=gold' if result.relevant else ''}><td>{result.place}</td><td>{result.score:.3f}</td>"
            f"<td class=text>{_item(result)}</td></tr>"
            for result in self.found
        )
        missed = "".join(
            f"<p><small>{f'place {result.place}' if result.place else f'not among the {self.depth} results'}: "
            f"{_item(result)}</small></p>"
            for result in self.missed[:SHOWN]
        )
        return (
            f"<h3>{'A hit' if self.hit else 'A miss'}: {self._verdict()}</h3>"
            f"<p class=query>{_query(self.query)} <small>{escape(self.query.id)}</small></p>"
            '<div class="scroll" tabindex=0><table class="results">'
            "<thead><tr><th></th><th>score</th><th class=text>item</th></tr></thead>"
            f"<tbody>{rows}</tbody></table></div>{missed}"
        )

    def _verdict(self) -> str:
        if self.hit:
            return "the first result is relevant"
        places = [result.place for result in (*self.found, *self.missed) if result.relevant and result.place]
        if places:
            return f"the first relevant result is at place {min(places)}"
        return f"none of the {self.depth} results is relevant"


def _item(result: Result) -> str:
    title = f"<b>{escape(result.title)}</b>: " if result.title else ""
    badge = " <span class=badge>relevant</span>" if result.relevant else ""
    return f"{title}{escape(_head(result.text, LENGTH))} <small>{escape(result.id)}</small>{badge}"


def _query(query: Query) -> str:
    if query.mention is None:
        return escape(_head(query.text, LENGTH))
    start, end = query.mention
    left, right = query.text[:start], query.text[end:]
    left = left if len(left) <= LENGTH // 2 else f"… {left[-LENGTH // 2 :]}"
    return f"{escape(left)}<mark>{escape(query.text[start:end])}</mark>{escape(_head(right, LENGTH // 2))}"


def _head(text: str, length: int) -> str:
    return text if len(text) <= length else f"{text[:length].rstrip()} …"
