"""The server's application: paths, errors as JSON, and the guard in front."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException

from simzoo.retrieval.engine import Engine
from simzoo.retrieval.serving.bodies import ErrorAnswer, sentence
from simzoo.retrieval.serving.guard import FAILED, Guard
from simzoo.retrieval.serving.refusal import Refused, as_json
from simzoo.retrieval.serving.service import Service
from simzoo.retrieval.serving.settings import ServerSettings

__all__ = ["application"]

PLAIN = {
    400: "the body cannot be read as JSON: it is no UTF-8, nested too deep, or has a number of too many digits",
    404: "there is nothing at this path; /openapi.json says what there is",
    405: "this path is not asked in this way; /openapi.json says how",
}
"""What the frameworks' own refusals mean, by status."""

READS = {"/search", "/health", "/metrics", "/openapi.json"}
"""What needs no token; everything else does."""


def application(engine: Engine, settings: ServerSettings) -> Guard:
    """An engine as an ASGI application; its threads end with its lifespan.

    Args:
        engine: what is served. Its similarity is called by the thread that searches, its embedder also by the one that
            writes: a function has to stand two calls at once.
        settings: limits and token.
    """
    service = Service(engine, settings)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        yield
        await asyncio.to_thread(service.close)

    errors: dict[int | str, dict[str, Any]] = {"default": {"model": ErrorAnswer}}
    app = FastAPI(
        title="simzoo", docs_url=None, redoc_url=None, redirect_slashes=False, lifespan=lifespan, responses=errors
    )
    paths: dict[str, Callable[..., Any]] = {
        "/search": service.search,
        "/add": service.add,
        "/update": service.update,
        "/remove": service.remove,
        "/compact": service.compact,
    }
    for path, verb in paths.items():
        app.post(path, response_model_exclude_none=path == "/search")(verb)
    app.get("/health")(service.health)
    app.get("/metrics", response_class=Response)(service.numbers)
    guard = Guard(app, settings, service.metrics, {path: path not in READS for path in {*paths, *READS}})

    async def refused(request: Request, error: HTTPException) -> Response:
        sentence = error.detail if isinstance(error, Refused) else PLAIN.get(error.status_code, error.detail)
        return Response(as_json(sentence), error.status_code, error.headers, "application/json")

    async def malformed(request: Request, error: RequestValidationError) -> Response:
        return Response(as_json(sentence(error)), 422, media_type="application/json")

    async def failed(request: Request, error: Exception) -> Response:  # what it was, the guard logs
        return Response(as_json(FAILED), 500, media_type="application/json")

    app.exception_handler(Exception)(failed)
    app.exception_handler(HTTPException)(refused)
    app.exception_handler(RequestValidationError)(malformed)
    return guard
