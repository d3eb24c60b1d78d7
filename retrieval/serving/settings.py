"""Where a server listens, and what it takes at most."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass, fields
from pathlib import Path

from simzoo.core.records import DataError

__all__ = ["ServerSettings", "token_in"]

LAST_PORT = 65_535
SHORTEST_TOKEN = 16  # characters
LONGEST_TOKEN_FILE = 10_000  # bytes


@dataclass(frozen=True)
class ServerSettings:
    """Where a server listens, and what it takes at most. What is more is refused before anything is done with it.

    Attributes:
        host: address to listen at.
        port: 0: any that is free.
        names: further names in the address under which it is reached, such as that of a proxy in front of it. A server
            on loopback takes no others: pages that a browser shows could reach it otherwise.
        token: what a client has to show to add, update, remove or compact; None: nothing, on loopback alone.
        max_queue: queries that wait; the next request is answered 503.
        max_batch: queries searched together; a request that has more of them is searched by itself.
        wait_ms: how long the first query of a batch waits for others, in milliseconds.
        max_writes: writes that wait.
        max_queries: queries in a request.
        max_k: results a query.
        max_items: items, or ids, in a request.
        max_text: characters of a query, and of an item's text and title together.
        max_body: bytes of a request; refused before it is parsed.
        body_seconds: time for a client to send a request.
        stop_seconds: time for what is being done when the server is stopped.
        log_content: write what was asked and added, and the texts of errors, into the log.

    Raises:
        ValueError: a number below its least, or no token where others than this machine can reach the server.

    Examples:
        >>> ServerSettings(max_k=100).host
        '127.0.0.1'
        >>> ServerSettings(host="0.0.0.0")
        Traceback (most recent call last):
            ...
        ValueError: at 0.0.0.0 other machines can reach the server: give a token for writes (--token-file), or ...
    """

    host: str = "127.0.0.1"
    port: int = 8080
    names: tuple[str, ...] = ()
    token: str | None = None
    max_queue: int = 256
    max_batch: int = 32
    wait_ms: float = 2.0
    max_writes: int = 16
    max_queries: int = 64
    max_k: int = 1000
    max_items: int = 1000
    max_text: int = 20_000
    max_body: int = 8 * 1024 * 1024
    body_seconds: float = 10.0
    stop_seconds: int = 30
    log_content: bool = False

    def __post_init__(self) -> None:
        for field in fields(self):
            value, least = getattr(self, field.name), 0 if field.name in ("port", "wait_ms", "body_seconds") else 1
            number = isinstance(value, int | float) and not isinstance(value, bool)
            if number and not least <= value < float("inf"):
                raise ValueError(f"{field.name} must be at least {least}, got {value}")
        if self.port > LAST_PORT:
            raise ValueError(f"port must be at most {LAST_PORT}, got {self.port}")
        if self.max_queue < self.max_queries:
            raise ValueError(
                f"max_queue must be at least max_queries, got {self.max_queue} and {self.max_queries}: a request of "
                "that size would never be taken"
            )
        if self.token is None and not self.on_loopback:
            raise ValueError(
                f"at {self.host} other machines can reach the server: give a token for writes (--token-file), or "
                "listen at 127.0.0.1"
            )

    @property
    def on_loopback(self) -> bool:
        """Whether only this machine can reach the server."""
        return is_loopback(self.host)


def is_loopback(name: str) -> bool:
    """Whether a host's name, or its address, is that of the machine itself."""
    try:
        return ipaddress.ip_address(name.strip("[]")).is_loopback
    except ValueError:
        return name == "localhost"


def token_in(path: Path) -> str:
    """The token that a file holds, on a line.

    Raises:
        DataError: it holds none, or one that can be guessed.
    """
    with path.open("rb") as file:
        words = file.read(LONGEST_TOKEN_FILE).split()
    if len(words) != 1 or not words[0].isascii() or len(words[0]) < SHORTEST_TOKEN:
        raise DataError(
            f"expected one word of at least {SHORTEST_TOKEN} ASCII characters, the token; make one with: "
            "python -c 'import secrets; print(secrets.token_urlsafe(32))'",
            path,
        )
    return words[0].decode()
