"""A similarity behind HTTP: pairs of texts are posted, scores come back."""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import httpx

__all__ = ["Remote", "RemoteError"]

RETRIED = (408, 425, 429, 500, 502, 503, 504)  # what may go away by itself
LONGEST_WAIT = 30.0  # seconds between two attempts, whatever the server asks for
MOST = 1 << 24  # bytes of an answer


class RemoteError(RuntimeError):
    """The scorer gave no scores: says what it said, and what to do."""


@dataclass
class Remote:
    """Scores pairs by a server; to be handed to `Engine` as its similarity.

    A request is ``POST url`` with ``{"pairs": [["query text", "item text"], ...]}``; the answer is
    ``{"scores": [1.5, ...]}``, one finite number a pair, in their order: logits rather than probabilities, because
    least squares on squashed scores fits the squashing. A request that fails for want of a connection or time, or with
    a status that may go away (408, 425, 429, 5xx), is repeated, after twice the wait each time; ``Retry-After`` is
    heeded up to 30 s. A server that allows only so many requests a minute is spared the refusals by ``per_minute``.

    Attributes:
        url: http:// or https://; redirections are not followed.
        batch: pairs a request.
        timeout: seconds for a connection, and between two parts of an answer.
        retries: repetitions of a request that failed.
        wait: seconds before the first repetition.
        token_variable: environment variable with a bearer token; the token itself is never written down.
        per_minute: requests, repetitions included, that are sent in a minute at most, evenly; None: no limit.
    """

    url: str
    batch: int = 64
    timeout: float = 30.0
    retries: int = 3
    wait: float = 0.5
    token_variable: str | None = None
    per_minute: float | None = None

    def __post_init__(self) -> None:
        if not self.url.startswith(("http://", "https://")):
            raise ValueError(f"a remote scorer needs an address that begins with http:// or https://, got {self.url!r}")
        if self.batch < 1 or self.timeout <= 0 or self.retries < 0 or self.wait < 0:
            raise ValueError(f"a remote scorer needs a batch of at least 1, a timeout above 0 and no negatives: {self}")
        if self.per_minute is not None and not self.per_minute > 0:
            raise ValueError(f"per_minute is how many requests may be sent, more than 0 or None; got {self.per_minute}")
        self._client: httpx.Client | None = None
        self._next = 0.0  # when the next request may be sent

    def __call__(self, pairs: Sequence[tuple[str, str]]) -> list[float]:
        """Scores of pairs (query text, item text).

        Raises:
            RemoteError: a request failed for good, or its answer is no list of as many finite scores.
        """
        scores: list[float] = []
        for start in range(0, len(pairs), self.batch):
            some = [list(pair) for pair in pairs[start : start + self.batch]]
            scores += self._checked(self._posted({"pairs": some}), len(some))
        return scores

    def _posted(self, message: dict[str, Any]) -> bytes:
        if self._client is None:
            self._client = httpx.Client(timeout=self.timeout)
        wait, said = self.wait, ""
        for attempt in range(self.retries + 1):
            asked = 0.0
            self._pace()
            try:
                with self._client.stream("POST", self.url, json=message, headers=self._headers()) as answer:
                    body = self._read(answer)
                    if answer.status_code == 200:
                        return body
                    said = f"answered {answer.status_code}: {body[:200].decode(errors='replace')!r}"
                    if answer.status_code not in RETRIED:
                        break
                    after = answer.headers.get("retry-after", "")
                    asked = float(after) if after.isdigit() else 0.0
            except httpx.TransportError as error:
                said = f"could not be reached ({type(error).__name__}: {error})"
            if attempt < self.retries:
                time.sleep(min(LONGEST_WAIT, max(wait, asked)))
                wait *= 2
        raise RemoteError(f"the scorer at {self.url} {said}; is it running, and does it take POST with pairs?")

    def _pace(self) -> None:
        """Waits until the next request may be sent."""
        if self.per_minute is None:
            return
        now = time.monotonic()
        if self._next > now:
            time.sleep(self._next - now)
        self._next = max(now, self._next) + 60 / self.per_minute

    def _headers(self) -> dict[str, str]:
        if self.token_variable is None:
            return {}
        token = os.environ.get(self.token_variable)
        if not token:
            raise RemoteError(f"the scorer at {self.url} needs a token: set the variable {self.token_variable}")
        return {"Authorization": f"Bearer {token}"}

    def _read(self, answer: httpx.Response) -> bytes:
        body = b""
        for part in answer.iter_bytes():
            body += part
            if len(body) > MOST:
                raise RemoteError(f"the scorer at {self.url} sends more than {MOST >> 20} MB for {self.batch} pairs")
        return body

    def _checked(self, body: bytes, count: int) -> list[float]:
        try:
            scores = json.loads(body)["scores"]
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise RemoteError(
                f"the scorer at {self.url} answered {body[:200].decode(errors='replace')!r}; expected "
                '{"scores": [...]}'
            ) from error
        if not isinstance(scores, list) or len(scores) != count:
            found = f"{len(scores)} scores" if isinstance(scores, list) else type(scores).__name__
            raise RemoteError(f"the scorer at {self.url} answered {found} for {count} pairs")
        for place, score in enumerate(scores):
            if isinstance(score, bool) or not isinstance(score, int | float) or not math.isfinite(score):
                raise RemoteError(f"the scorer at {self.url} gave {score!r} for pair {place}; expected a finite number")
        return [float(score) for score in scores]
