"""Clients that cost little themselves: HTTP/1.1 over asyncio's streams, one connection each."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Self
from urllib.parse import urlsplit


class Connection:
    """One that is kept open.

    Args:
        url: of the server.
    """

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self._host, self._port = parts.hostname or "", parts.port

    async def __aenter__(self) -> Self:
        self._reader, self._writer = await asyncio.open_connection(self._host, self._port)
        return self

    async def __aexit__(self, *error: object) -> None:
        self._writer.close()
        await self._writer.wait_closed()

    async def ask(self, path: str, body: Any = None) -> tuple[int, bytes]:
        """Status and body of the answer; POST where there is a body."""
        content = b"" if body is None else json.dumps(body).encode()
        head = (
            f"{'GET' if body is None else 'POST'} {path} HTTP/1.1\r\nHost: {self._host}\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(content)}\r\n\r\n"
        )
        self._writer.write(head.encode() + content)
        answer = (await self._reader.readuntil(b"\r\n\r\n")).decode().lower()
        length = int(answer.partition("content-length:")[2].split("\r\n")[0])
        return int(answer.split()[1]), await self._reader.readexactly(length)


@dataclass
class Load:
    """What a number of clients saw.

    Attributes:
        milliseconds: of each answer with results.
        busy: answers 503.
        wrong: other answers.
        seconds: that it took.
        batch: queries the server searched together, in the mean.
    """

    milliseconds: list[float] = field(default_factory=list)
    busy: int = 0
    wrong: int = 0
    seconds: float = 0.0
    batch: float = 0.0


async def load(url: str, bodies: Iterator[Any], clients: int, seconds: float) -> Load:
    """Each client asks again as soon as it is answered."""
    found = Load()
    before = await batches(url)
    start = time.perf_counter()

    async def client() -> None:
        async with Connection(url) as connection:
            while time.perf_counter() - start < seconds:
                asked = time.perf_counter()
                status, _ = await connection.ask("/search", next(bodies))
                if status == 200:
                    found.milliseconds.append(1000 * (time.perf_counter() - asked))
                elif status == 503:
                    found.busy += 1
                    await asyncio.sleep(1)
                else:
                    found.wrong += 1

    await asyncio.gather(*(client() for _ in range(clients)))
    found.seconds = time.perf_counter() - start
    after = await batches(url)
    found.batch = (after[0] - before[0]) / max(1.0, after[1] - before[1])
    return found


async def batches(url: str) -> tuple[float, float]:
    """Queries searched so far, and batches, as the server counts them."""
    async with Connection(url) as connection:
        _, text = await connection.ask("/metrics")
    samples = dict(line.rsplit(" ", 1) for line in text.decode().splitlines() if not line.startswith("#"))
    return float(samples["simzoo_batch_queries_sum"]), float(samples["simzoo_batch_queries_count"])
