"""A server that runs: its address, its threads, its end."""

from __future__ import annotations

import logging
import socket
import sys
import threading
from typing import Self

import uvicorn

from simzoo.core.interrupts import Stopped
from simzoo.core.progress import say, silent
from simzoo.retrieval.engine import Engine
from simzoo.retrieval.serving.app import application
from simzoo.retrieval.serving.settings import ServerSettings

__all__ = ["Server", "serve"]

BACKLOG = 2048  # connections that the system accepts before the server does


class Server:
    """An engine behind HTTP; within ``with`` it answers, from a thread.

    Args:
        engine: what is served. No other thread may search it meanwhile. Its similarity is called by the thread that
            searches, its embedder by that one and by the one that writes: a function has to stand two calls at once.
        settings: where it listens, and what it takes at most; None: those of `ServerSettings`.

    Raises:
        OSError: the address is taken, or not of this machine.
    """

    def __init__(self, engine: Engine, settings: ServerSettings | None = None) -> None:
        self.settings = settings = settings or ServerSettings()
        family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
        self._socket = socket.socket(family, socket.SOCK_STREAM)
        try:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            self._socket.bind((settings.host, settings.port))
            if len(engine):
                engine.prepare()
            self._socket.listen(BACKLOG)  # from here on who connects is answered, if a moment later
            config = uvicorn.Config(
                application(engine, settings),
                log_config=None,
                log_level="warning",
                access_log=False,  # it has paths as they were asked for
                lifespan="on",
                ws="none",
                backlog=BACKLOG,
                proxy_headers=False,
                server_header=False,
                timeout_graceful_shutdown=settings.stop_seconds,
            )
        except BaseException:
            self._socket.close()
            raise
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self.run, name="simzoo serve", daemon=True)

    @property
    def url(self) -> str:
        """Where it answers."""
        host, port = self._socket.getsockname()[:2]
        return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"

    def run(self) -> None:
        """Answers until SIGTERM or Ctrl-C, or `stop`; what was taken is answered, what was written is on disk."""
        with silent():
            self._server.run(sockets=[self._socket])

    def stop(self) -> None:
        """Takes no more requests, and ends when those taken are answered."""
        self._server.should_exit = True

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()
        self._thread.join()


def serve(engine: Engine, settings: ServerSettings | None = None) -> None:
    """Serves an engine until SIGTERM or Ctrl-C; the log is on standard error.

    Raises:
        OSError: the address is taken, or not of this machine.
        ValueError: the index cannot be searched.
    """
    logging.basicConfig(stream=sys.stderr, level=logging.WARNING, format="%(asctime)s %(levelname)s %(message)s")
    logging.getLogger("simzoo.serve").setLevel(logging.INFO)
    server = Server(engine, settings)
    say(f"{len(engine):,} items at {server.url}; Ctrl-C or SIGTERM ends it")
    try:
        server.run()
    except (Stopped, KeyboardInterrupt):  # uvicorn raises the signal again when it has ended
        say("stopped; what was acknowledged is on disk")
