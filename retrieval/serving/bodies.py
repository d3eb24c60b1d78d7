"""What requests and answers hold."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, ConfigDict, Field

from simzoo.core.records import DataError, History, Item, Query
from simzoo.retrieval.hits import Hits
from simzoo.retrieval.serving.refusal import Refused
from simzoo.retrieval.serving.settings import ServerSettings

LONGEST_ID = 1000  # characters
LARGEST = 2**53  # whole numbers that every JSON reader has

Id = Annotated[str, Field(min_length=1, max_length=LONGEST_ID)]
Seconds = Annotated[int, Field(ge=-LARGEST, le=LARGEST)]


class Body(BaseModel):
    """Nothing is turned into another type, and no other keys are taken."""

    model_config = ConfigDict(extra="forbid", strict=True)


class AskedQuery(Body):
    """A query with more than a text: a mention in it, or what a user did."""

    text: str = ""
    mention: tuple[int, int] | None = Field(
        default=None, description="characters [start, end) of the mention", strict=False
    )
    items: list[Id] | None = Field(
        default=None, description="ids of what a user did, oldest first; the text may be left out"
    )
    times: list[Seconds] | None = None
    now: Seconds | None = None

    def query(self, name: str) -> Query:
        """As a record.

        Raises:
            DataError: a mention outside of the text, and the like.
        """
        if self.items is None:
            return Query(name, self.text, self.mention)
        history = History.of(name, self.items, self.times, self.now)
        return (
            History(name, self.text, self.mention, None, history.items, history.times, history.now)
            if self.text
            else history
        )


class SearchBody(Body):
    """What is searched."""

    queries: list[str | AskedQuery] = Field(min_length=1)
    k: int = Field(default=10, ge=1)
    texts: bool = Field(default=True, description="whether results have the items' texts and titles")

    def checked(self, settings: ServerSettings) -> list[Query]:
        """The queries as records, named by their places.

        Raises:
            Refused: too many, too long, or none that can be searched.
        """
        _at_most("queries", len(self.queries), settings.max_queries)
        _at_most("k", self.k, settings.max_k)
        found = []
        for number, given in enumerate(self.queries):
            asked = AskedQuery(text=given) if isinstance(given, str) else given
            _at_most(f"queries.{number}: characters", len(asked.text), settings.max_text)
            _at_most(f"queries.{number}: items", len(asked.items or ()), settings.max_items)
            try:
                found.append(asked.query(f"query {number}"))
            except DataError as error:
                raise Refused(422, str(error)) from error
        return found


class GivenItem(Body):
    """An item to add or to update."""

    id: Id
    text: str
    title: str = ""


class ItemsBody(Body):
    """Items to add or to update."""

    items: list[GivenItem] = Field(min_length=1)

    def checked(self, settings: ServerSettings) -> list[Item]:
        """As records.

        Raises:
            Refused: too many, too long, or an id twice.
        """
        _check_ids("items", [item.id for item in self.items], settings)
        found = []
        for number, item in enumerate(self.items):
            _at_most(f"items.{number}: characters", len(item.text) + len(item.title), settings.max_text)
            try:
                found.append(Item(item.id, item.text, item.title))
            except DataError as error:
                raise Refused(422, str(error)) from error
        return found


class IdsBody(Body):
    """Items to remove."""

    ids: list[Id] = Field(min_length=1)

    def checked(self, settings: ServerSettings) -> list[str]:
        """The ids.

        Raises:
            Refused: too many, or one twice.
        """
        _check_ids("ids", self.ids, settings)
        return self.ids


class FoundItem(BaseModel):
    """One result; without text and title where they were not asked for."""

    id: str
    score: float
    text: str | None = None
    title: str | None = None


class FoundHits(BaseModel):
    """The results of one query, best first."""

    hits: list[FoundItem]
    calls: int = Field(description="pairs that the similarity has scored for it")

    @classmethod
    def of(cls, hits: Hits, texts: bool) -> FoundHits:
        """What `Engine.search` found."""
        if texts:
            found = [FoundItem(id=hit.id, score=hit.score, text=hit.text, title=hit.item.title) for hit in hits]
        else:
            found = [FoundItem(id=hit.id, score=hit.score) for hit in hits]
        return cls(hits=found, calls=hits.calls)


class SearchAnswer(BaseModel):
    """Results, one a query."""

    results: list[FoundHits]


class WriteAnswer(BaseModel):
    """What was done is on disk."""

    items: int = Field(description="how many there are now")


class HealthAnswer(BaseModel):
    """The server is at work."""

    status: str
    items: int


class ErrorAnswer(BaseModel):
    """What was got, what was expected, what to do."""

    error: str


def sentence(error: RequestValidationError) -> str:
    """What is wrong with a body, without what it holds."""
    first = error.errors()[0]
    where = ".".join(str(part) for part in first["loc"][1:])
    if first["type"] == "json_invalid":
        return f"the body is no JSON: {first['ctx']['error']} at character {where}"
    return f"{where or 'the body'}: {first['msg']}"


def _check_ids(name: str, ids: Sequence[str], settings: ServerSettings) -> None:
    _at_most(name, len(ids), settings.max_items)
    if len(set(ids)) < len(ids):
        raise Refused(422, f"{name} has {len(ids)} entries with {len(set(ids))} ids; give each once")


def _at_most(name: str, got: int, most: int) -> None:
    if got > most:
        raise Refused(422, f"{name}: got {got}, and this server takes at most {most}")
