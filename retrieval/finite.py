"""Scores that are no numbers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from simzoo.core.records import Item, Query


class NotFiniteError(FloatingPointError):
    """A similarity gave NaN or an infinity.

    Attributes:
        query_row: of the first such pair.
        item_row: of the first such pair.
    """

    def __init__(self, message: str, query_row: int, item_row: int) -> None:
        super().__init__(message)
        self.query_row = query_row
        self.item_row = item_row


@contextmanager
def naming(queries: Sequence[Query], items: Sequence[Item]) -> Iterator[None]:
    """Says of a score that is not finite whose it is: rows of a batch name nothing that a user knows.

    Raises:
        FloatingPointError: with the ids, in place of a `NotFiniteError`.
    """
    try:
        yield
    except NotFiniteError as error:
        names = f"query {queries[error.query_row].id!r}, item {items[error.item_row].id!r}"
        raise FloatingPointError(f"{error}: {names}") from error
