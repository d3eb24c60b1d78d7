"""Answers that are no results."""

from __future__ import annotations

import json

from starlette.exceptions import HTTPException

RETRY_SECONDS = 1
LONGEST = 500  # characters of a sentence, which may quote a client's own words


class Refused(HTTPException):
    """A request that is answered with a status and a sentence.

    Args:
        status: of HTTP.
        sentence: what was got, what was expected, what to do.
        headers: of the answer.
    """

    def __init__(self, status: int, sentence: str, **headers: str) -> None:
        super().__init__(status, sentence, {name.replace("_", "-"): value for name, value in headers.items()})


class Busy(Refused):
    """There is no room for a request now: 503, with the seconds after which to ask again.

    Args:
        sentence: what there is no room in.
    """

    def __init__(self, sentence: str) -> None:
        super().__init__(503, f"{sentence}; ask again in a second", Retry_After=str(RETRY_SECONDS))


def as_json(sentence: str) -> bytes:
    """The body of an answer; in ASCII, because a sentence may quote half a character."""
    shown = sentence if len(sentence) <= LONGEST else f"{sentence[:LONGEST]} ..."
    return json.dumps({"error": shown}).encode()
