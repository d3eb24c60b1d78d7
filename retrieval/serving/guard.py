"""What every request passes before it is parsed, and what is counted and logged of it."""

from __future__ import annotations

import asyncio
import hmac
import logging
import time
import traceback
from collections.abc import Mapping

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from simzoo.retrieval.serving.metrics import Metrics
from simzoo.retrieval.serving.refusal import Busy, Refused, as_json
from simzoo.retrieval.serving.settings import ServerSettings, is_loopback

log = logging.getLogger("simzoo.serve")

HELD = 8  # bodies of the largest size that are held at once

FAILED = "the server failed at this request; its log says where"


class Guard:
    """Takes a request's whole body, bounded in bytes and time, after looking at its host and its token.

    Nothing that a client wrote gets into the log unless `ServerSettings.log_content` is set: of a path that is not
    known, nothing is written, and of an error its kind and place.

    Args:
        app: what answers.
        settings: limits and token.
        metrics: what is counted.
        paths: those that are known, and whether a request to them needs the token.
    """

    def __init__(self, app: ASGIApp, settings: ServerSettings, metrics: Metrics, paths: Mapping[str, bool]) -> None:
        self._app = app
        self._settings = settings
        self._metrics = metrics
        self._paths = paths
        self._held = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        start, status, body = time.perf_counter(), 0, b""

        async def noted(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            headers = {name.decode("latin-1"): value for name, value in scope["headers"]}
            self._admit(scope, headers)
            body = await self._body(headers, receive)
            await self._app(scope, _replayed(body, receive), noted)
        except Refused as refused:
            await refuse(noted, refused)
        except Exception as error:
            self.note(error)
            if not status:
                await refuse(noted, Refused(500, FAILED))
        finally:
            self._held -= len(body)
            self._end(scope, status, time.perf_counter() - start, body)

    def _admit(self, scope: Scope, headers: Mapping[str, bytes]) -> None:
        """Looks at the host, at the page that asks, if one does, and at the token.

        Raises:
            Refused: the first are not ours, or the last is missing or wrong.
        """
        settings = self._settings
        if not self._ours(headers.get("host", b"")):
            raise Refused(
                421, "the server is not known under the name in the address; to make it so, start it with --name"
            )
        if "origin" in headers and not self._ours(headers["origin"].partition(b"://")[2]):
            raise Refused(
                403, "a page of another site asks; to let it, start the server with --name and the site's name"
            )
        if settings.token is None or not self._paths.get(scope["path"], True):
            return
        kind, _, given = headers.get("authorization", b"").partition(b" ")
        right = hmac.compare_digest(given.strip(), settings.token.encode())
        if kind.lower() != b"bearer" or not right:
            raise Refused(
                401,
                "this needs the server's token, in a header: Authorization: Bearer TOKEN",
                WWW_Authenticate="Bearer",
            )

    def _ours(self, host: bytes) -> bool:
        """Whether a server on loopback is to be reached under a name, whose port does not matter."""
        name = _name(host.decode("latin-1"))
        return not self._settings.on_loopback or is_loopback(name) or name in self._settings.names

    async def _body(self, headers: Mapping[str, bytes], receive: Receive) -> bytes:
        """The whole body.

        Raises:
            Refused: it is too large, or comes too slowly.
            Busy: the bodies of other requests fill the room for them.
        """
        most = self._settings.max_body
        large = f"the body has more than {most:,} bytes, and this server takes at most that; send less at once"
        length = headers.get("content-length", b"0")
        if not length.isdigit() or int(length[:20]) > most:
            raise Refused(413, large, Connection="close")
        parts: list[bytes] = []
        held = 0
        try:
            async with asyncio.timeout(self._settings.body_seconds):
                more = True
                while more:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        raise Refused(400, "the client has gone away")
                    part, more = message.get("body", b""), message.get("more_body", False)
                    parts.append(part)
                    held += len(part)
                    self._held += len(part)
                    if held > most:
                        raise Refused(413, large, Connection="close")
                    if self._held > HELD * most:
                        raise Busy("the requests of others fill the memory for them")
        except BaseException as error:
            self._held -= held
            if isinstance(error, TimeoutError):
                seconds = f"{self._settings.body_seconds:g}"
                raise Refused(408, f"the body was not there after {seconds} s", Connection="close") from None
            raise
        return b"".join(parts)

    def note(self, error: BaseException) -> None:
        """Logs an error: its kind and its place, and what it says only where content may be logged."""
        content = self._settings.log_content
        said = str(error) if content else "its text is not logged, see --log-content"
        places = traceback.extract_tb(error.__traceback__)
        trace = "".join(f"\n  {frame.filename}:{frame.lineno} in {frame.name}" for frame in places)
        log.error("%s (%s)%s", type(error).__name__, ascii(said), trace)

    def _end(self, scope: Scope, status: int, seconds: float, body: bytes) -> None:
        path = scope["path"] if scope["path"] in self._paths else "other"
        self._metrics.requests.labels(path, str(status)).inc()
        self._metrics.seconds.labels(path).observe(seconds)
        shown = f" {body.decode(errors='replace')!a}" if self._settings.log_content else ""
        log.info("%s %s %d %.1f ms%s", scope["method"], path, status, 1000 * seconds, shown)


async def refuse(send: Send, refused: Refused) -> None:
    """Answers with a sentence."""
    body = as_json(refused.detail)
    headers = {"content-type": "application/json", "content-length": str(len(body)), **(refused.headers or {})}
    pairs = [(name.lower().encode(), value.encode()) for name, value in headers.items()]
    await send({"type": "http.response.start", "status": refused.status_code, "headers": pairs})
    await send({"type": "http.response.body", "body": body})


def _name(host: str) -> str:
    """A Host header without its port."""
    if host.startswith("["):
        return host.partition("]")[0] + "]"
    return host.partition(":")[0].lower()


def _replayed(body: bytes, receive: Receive) -> Receive:
    """Gives the body that was taken, then what comes."""
    given = False

    async def again() -> Message:
        nonlocal given
        if given:
            return await receive()
        given = True
        return {"type": "http.request", "body": body, "more_body": False}

    return again
