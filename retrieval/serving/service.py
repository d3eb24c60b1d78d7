"""The verbs of a server."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from concurrent.futures import Future

from fastapi import Response

from simzoo.core.records import Query
from simzoo.retrieval.engine import Engine
from simzoo.retrieval.hits import Hits
from simzoo.retrieval.serving.batching import Batcher
from simzoo.retrieval.serving.bodies import (
    FoundHits,
    HealthAnswer,
    IdsBody,
    ItemsBody,
    SearchAnswer,
    SearchBody,
    WriteAnswer,
)
from simzoo.retrieval.serving.metrics import Metrics
from simzoo.retrieval.serving.refusal import Refused
from simzoo.retrieval.serving.settings import ServerSettings
from simzoo.retrieval.serving.writing import Writer


class Service:
    """An engine, the thread that searches it, and the thread that writes to it.

    Args:
        engine: what is served.
        settings: what is taken at most.
    """

    def __init__(self, engine: Engine, settings: ServerSettings) -> None:
        self._engine = engine
        self._settings = settings
        self.metrics = Metrics(lambda: len(engine), lambda: self._batcher.waiting)
        self._batcher = Batcher(
            self._found, settings.max_queue, settings.max_batch, settings.wait_ms, self.metrics.batches.observe
        )
        self._writer = Writer(engine, settings.max_writes)

    def close(self) -> None:
        """Carries out what waits, and ends the threads."""
        closing = threading.Thread(target=self._writer.close)
        closing.start()
        self._batcher.close()
        closing.join()

    def _found(self, queries: Sequence[Query], k: int) -> list[Hits]:
        if not len(self._engine):
            return [Hits((), 0, 0.0) for _ in queries]
        found = self._engine.search(queries, k)
        self.metrics.calls.inc(sum(hits.calls for hits in found))
        return found

    async def search(self, body: SearchBody) -> SearchAnswer:
        """The best k items of each query."""
        queries = body.checked(self._settings)
        try:
            self._engine.searcher.check(body.k)
        except ValueError as error:
            raise Refused(422, str(error)) from error
        try:
            found = await asyncio.wrap_future(self._batcher.submit(queries, body.k))
        except ValueError as error:  # a query that the similarity cannot take
            raise Refused(422, str(error).replace(str(self._engine.folder), "the index")) from error
        return SearchAnswer(results=[FoundHits.of(hits, body.texts) for hits in found])

    async def add(self, body: ItemsBody) -> WriteAnswer:
        """Adds items, all of them or none."""
        return await _written(self._writer.add(body.checked(self._settings)))

    async def update(self, body: ItemsBody) -> WriteAnswer:
        """Replaces items that are there, all of them or none."""
        return await _written(self._writer.update(body.checked(self._settings)))

    async def remove(self, body: IdsBody) -> WriteAnswer:
        """Removes items, all of them or none."""
        return await _written(self._writer.remove(body.checked(self._settings)))

    async def compact(self) -> WriteAnswer:
        """Copies the index without what was removed."""
        return await _written(self._writer.compact())

    async def health(self) -> HealthAnswer:
        """Whether the server is at work."""
        if not self._batcher.alive:
            raise Refused(503, "the thread that searches has ended; start the server anew, and see its log")
        return HealthAnswer(status="ok", items=len(self._engine))

    async def numbers(self) -> Response:
        """What Prometheus asks for."""
        return Response(self.metrics.text(), media_type=self.metrics.content_type)


async def _written(done: Future[int]) -> WriteAnswer:
    return WriteAnswer(items=await asyncio.wrap_future(done))
