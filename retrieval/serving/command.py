"""``simzoo serve``: an index behind HTTP."""

from __future__ import annotations

from argparse import ArgumentParser
from dataclasses import fields
from pathlib import Path

from simzoo.core.extras import extra
from simzoo.core.progress import quiet
from simzoo.retrieval.serving.settings import ServerSettings, token_in

__all__ = ["main"]

OPTIONS = {
    "host": "address to listen at; at others than loopback a token is needed",
    "port": "0: any that is free",
    "max_queue": "queries that wait; the next request is answered 503",
    "max_batch": "queries searched together",
    "wait_ms": "how long the first query of a batch waits for others, in milliseconds",
    "max_writes": "writes that wait",
    "max_queries": "queries in a request",
    "max_k": "results a query",
    "max_items": "items, or ids, in a request",
    "max_text": "characters of a query, or of an item's text and title together",
    "max_body": "bytes of a request",
    "body_seconds": "time for a client to send a request",
    "stop_seconds": "time for what is being done when the server is stopped",
}
"""Settings that an option has, of its own name and type."""


def parser() -> ArgumentParser:
    """The command line."""
    top = ArgumentParser(
        prog="simzoo serve",
        description="Serve an index over HTTP: /search, /add, /update, /remove, /compact, /health, /metrics.",
        allow_abbrev=False,
    )
    top.add_argument("index", metavar="INDEX", type=Path, help="folder that an Engine has saved")
    top.add_argument("--similarity", help="name or folder of a checkpoint, instead of the one that the index names")
    top.add_argument("--embedder", help="likewise")
    defaults = {field.name: field.default for field in fields(ServerSettings)}
    for name, text in OPTIONS.items():
        default = defaults[name]
        option = f"--{name.replace('_', '-')}"
        top.add_argument(option, type=type(default), default=default, help=f"{text} (default: {default})")
    top.add_argument("--token-file", type=Path, help="file with the token that writes need")
    top.add_argument(
        "--name", action="append", default=[], dest="names", help="a further name under which it is reached, of a proxy"
    )
    top.add_argument("--log-content", action="store_true", help="log what was asked and added, and the texts of errors")
    return top


def main(args: list[str] | None = None) -> None:
    """Runs the command line."""
    options = vars(parser().parse_args(args))
    token_file = options.pop("token_file")
    index, similarity, embedder = (options.pop(name) for name in ("index", "similarity", "embedder"))
    options["names"] = tuple(options["names"])
    settings = ServerSettings(token=None if token_file is None else token_in(token_file), **options)
    for module in ("fastapi", "uvicorn", "prometheus_client"):
        extra(module, "serve", "simzoo serve")
    # They cost seconds, which help and a refusal need not wait for.
    from simzoo.retrieval.engine import Engine
    from simzoo.retrieval.serving.server import serve

    quiet()
    serve(Engine.load(index, similarity, embedder), settings)
