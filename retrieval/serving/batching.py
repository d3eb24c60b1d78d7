"""Queries of requests that arrive together are searched together."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field

from simzoo.core.records import Query
from simzoo.retrieval.hits import Hits
from simzoo.retrieval.serving.refusal import Busy

Search = Callable[[Sequence[Query], int], list[Hits]]


@dataclass
class _Asked:
    queries: Sequence[Query]
    k: int
    arrived: float = field(default_factory=time.monotonic)
    found: Future[list[Hits]] = field(default_factory=Future)


class Batcher:
    """One thread that searches; what arrives while it is at work, or within the wait, is its next batch.

    Args:
        search: of several queries and k, as `Engine.search`; called by one thread alone.
        max_queue: queries that wait at most.
        max_batch: queries searched together; a request of more is a batch by itself.
        wait_ms: how long the first of a batch waits for others.
        told: is told the number of queries of each batch.
    """

    def __init__(
        self,
        search: Search,
        max_queue: int,
        max_batch: int,
        wait_ms: float,
        told: Callable[[int], object] = lambda queries: None,
    ) -> None:
        self._search = search
        self._max_queue = max_queue
        self._max_batch = max_batch
        self._wait = wait_ms / 1000
        self._told = told
        self._waiting: deque[_Asked] = deque()
        self._count = 0
        self._changed = threading.Condition()
        self._closing = False
        self._thread = threading.Thread(target=self._run, name="simzoo search", daemon=True)
        self._thread.start()

    @property
    def waiting(self) -> int:
        """Queries that wait."""
        return self._count

    @property
    def alive(self) -> bool:
        """Whether the thread is there."""
        return self._thread.is_alive()

    def submit(self, queries: Sequence[Query], k: int) -> Future[list[Hits]]:
        """The results that are to come, one a query.

        Raises:
            Busy: too many queries wait, or the server is being stopped.
        """
        asked = _Asked(queries, k)
        with self._changed:
            if self._closing:
                raise Busy("the server is being stopped")
            if self._count + len(queries) > self._max_queue:
                raise Busy(f"{self._count} queries wait, and at most {self._max_queue} may")
            self._waiting.append(asked)
            self._count += len(queries)
            self._changed.notify()
        return asked.found

    def close(self) -> None:
        """Answers what waits, and ends."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        self._thread.join()

    def _run(self) -> None:
        while batch := self._next():
            wanted = [asked for asked in batch if asked.found.set_running_or_notify_cancel()]
            for k in dict.fromkeys(asked.k for asked in wanted):
                self._answer([asked for asked in wanted if asked.k == k], k)

    def _next(self) -> list[_Asked]:
        """Whole requests, in the order in which they came; none when it is closed and nothing waits."""
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._closing)
            if self._waiting:
                left = self._waiting[0].arrived + self._wait - time.monotonic()
                self._changed.wait_for(lambda: self._closing or self._count >= self._max_batch, max(0.0, left))
            batch: list[_Asked] = []
            room = self._max_batch
            while self._waiting and (not batch or len(self._waiting[0].queries) <= room):
                asked = self._waiting.popleft()
                self._count -= len(asked.queries)
                room -= len(asked.queries)
                batch.append(asked)
        return batch

    def _answer(self, batch: Sequence[_Asked], k: int) -> None:
        """Searches the queries of a batch at once; if that fails, each request alone, so that one spoils no other."""
        queries = [query for asked in batch for query in asked.queries]
        self._told(len(queries))
        try:
            found = self._search(queries, k)
        except BaseException as error:
            if len(batch) > 1:
                for asked in batch:
                    self._answer([asked], k)
            else:
                batch[0].found.set_exception(error)
            return
        start = 0
        for asked in batch:
            asked.found.set_result(found[start : start + len(asked.queries)])
            start += len(asked.queries)
