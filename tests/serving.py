"""A server on loopback before an engine whose scorer is watched, for the tests of serving; needs the extra `serve`."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from simzoo.retrieval.engine import Engine
from simzoo.retrieval.searchers.exact import Exact
from simzoo.retrieval.serving.server import Server
from simzoo.retrieval.serving.settings import ServerSettings
from tests.test_engine import ITEMS, overlap

CLIENT = httpx.Client(verify=False, timeout=30)  # one for all: making one reads certificates
JSON = {"content-type": "application/json"}


class Watched:
    """`overlap`, which remembers the queries of each call, and can be held."""

    def __init__(self) -> None:
        self.calls: list[set[str]] = []
        self.go = threading.Event()
        self.go.set()

    def __call__(self, pairs: Sequence[tuple[str, str]]) -> list[float]:
        self.calls.append({query for query, _ in pairs})
        assert self.go.wait(30)
        if any("bad" in query for query, _ in pairs):
            raise RuntimeError(f"cannot score {pairs[0][0]}")
        return overlap(pairs)


@pytest.fixture
def scorer() -> Watched:
    return Watched()


@pytest.fixture
def engine(scorer: Watched, tmp_path: Path) -> Engine:
    engine = Engine(scorer, search=Exact(), folder=tmp_path / "index")
    engine.add(ITEMS)
    return engine


@pytest.fixture
def server(engine: Engine) -> Iterator[Server]:
    with Server(engine, ServerSettings(port=0)) as server:
        yield server


def ask(server: Server, path: str, body: Any, **options: Any) -> httpx.Response:
    return CLIENT.post(f"{server.url}/{path}", json=body, **options)


def search(server: Server, *queries: str, k: int = 5) -> httpx.Response:
    return ask(server, "search", {"queries": queries, "k": k})


def number(server: Server, name: str, **labels: str) -> float:
    """A sample of the metrics."""
    text = CLIENT.get(f"{server.url}/metrics").text
    found = [s for family in text_string_to_metric_families(text) for s in family.samples]
    (value,) = [s.value for s in found if s.name == name and s.labels == labels]
    return float(value)


def until(condition: Callable[[], object]) -> None:
    end = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < end, "it does not come true"
        time.sleep(0.005)
