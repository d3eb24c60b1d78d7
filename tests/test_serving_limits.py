"""What a server does not take: too much, the malformed, and those who may not."""

from __future__ import annotations

import hmac
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from simzoo.core.records import DataError
from simzoo.retrieval.engine import Engine
from simzoo.retrieval.searchers.exact import Exact
from simzoo.retrieval.serving.settings import ServerSettings, token_in
from tests.test_engine import ITEMS, overlap

for module in ("fastapi", "uvicorn", "prometheus_client"):
    pytest.importorskip(module, reason="needs the extra serve: pip install 'simzoo[serve]'")

from simzoo.retrieval.serving.server import Server  # noqa: E402
from tests.serving import CLIENT, JSON, ask, search  # noqa: E402

pytest_plugins = ["tests.serving"]

TOKEN = "correct-horse-battery-staple"
FEW: dict[str, Any] = {
    "max_queries": 2, "max_k": 20, "max_text": 30, "max_items": 2, "max_body": 400
}  # fmt: skip


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """One for the tests that change nothing, with small limits."""
    engine = Engine(overlap, search=Exact(), folder=tmp_path_factory.mktemp("shared") / "index")
    engine.add(ITEMS)
    with Server(engine, ServerSettings(port=0, **FEW)) as server:
        yield server


@pytest.mark.parametrize(
    ("path", "body", "status", "said"),
    [
        ("search", {"queries": ["a"] * 3}, 422, "queries: got 3, and this server takes at most 2"),
        ("search", {"queries": ["a"], "k": 21}, 422, "k: got 21"),
        ("search", {"queries": ["a" * 31]}, 422, "characters: got 31"),
        ("search", {"queries": [{"items": ["a"] * 3}]}, 422, "items: got 3"),
        ("search", {"queries": ["a" * 400]}, 413, "more than 400 bytes"),
        ("add", {"items": [{"id": n, "text": "a"} for n in "xyz"]}, 422, "items: got 3"),
        ("add", {"items": [{"id": "x", "text": "a" * 20, "title": "b" * 11}]}, 422, "characters: got 31"),
        ("add", {"items": [{"id": "x", "text": "a"}] * 2}, 422, "2 entries with 1 ids"),
        ("remove", {"ids": ["i1"] * 3}, 422, "ids: got 3"),
    ],
)
def test_what_is_too_much_is_refused_in_a_sentence(
    path: str, body: Any, status: int, said: str, shared: Server
) -> None:
    """One request could take all the memory and time there is."""
    answer = ask(shared, path, body)
    assert answer.status_code == status and said in answer.json()["error"], answer.text
    assert CLIENT.get(f"{shared.url}/health").json()["items"] == 60


HEAD = b"POST /search HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"


@pytest.mark.parametrize(
    "rest",
    [b"Content-Length: 99999999999\r\n\r\n", b"Transfer-Encoding: chunked\r\n\r\n401\r\n" + b"a" * 0x401],
    ids=["announced", "chunked"],
)
def test_a_body_is_refused_before_it_is_there(rest: bytes, shared: Server) -> None:
    """A limit that looks at what was read has read it."""
    assert answered(shared, HEAD + rest).startswith(b"HTTP/1.1 413 ")


def test_a_body_that_does_not_come_is_not_waited_for(engine: Engine) -> None:
    """Clients that send a byte a minute would hold all there is to hold."""
    with Server(engine, ServerSettings(port=0, body_seconds=0.1)) as server:
        assert answered(server, HEAD + b"Content-Length: 10\r\n\r\n{").startswith(b"HTTP/1.1 408 ")


def answered(server: Server, sent: bytes) -> bytes:
    with socket.create_connection(("127.0.0.1", int(server.url.rpartition(":")[2])), timeout=60) as client:
        client.sendall(sent)
        return client.recv(100)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"null",
        b"\xff\xfe",
        b'{"queries": ["a"]',
        b'{"queries": ["a"], "k": NaN}',
        b'{"queries": ["a"], "k": Infinity}',
        b'{"queries": ["a"], "k": 1e400}',
        b'{"queries": ["a"], "k": 1' + b"0" * 300 + b"}",
        b'{"queries": ["a"], "k": 0}',
        b'{"queries": ["a"], "k": true}',
        b'{"queries": ["a"], "k": "5"}',
        b'{"queries": ["a"], "other": 1}',
        b'{"queries": ["a"], "\\ud800": 1}',
        b'{"queries": ["\\ud800"]}',
        b'{"queries": [{"items": ["\\ud800"]}]}',
        b'{"queries": ["  "]}',
        b'{"queries": [""]}',
        b'{"queries": []}',
        b'{"queries": "boat"}',
        b'{"queries": [7]}',
        b'{"queries": [{"text": "boat", "mention": [0, 99]}]}',
        b'{"queries": [{"items": ["a"], "times": [1, 2]}]}',
    ],
    ids=lambda body: body[:40].decode(errors="replace"),
)
def test_a_body_that_cannot_be_searched_is_refused(body: bytes, shared: Server) -> None:
    """A parser's exception is answered as a failure of the server, or ends a thread."""
    answer = CLIENT.post(f"{shared.url}/search", content=body, headers=JSON)
    assert answer.status_code in (400, 422) and len(answer.json()["error"]) > 5, answer.text
    assert answer.headers["content-type"] == "application/json"


@pytest.mark.parametrize(
    "body", [b"[" * 100_000, b'{"queries": ["a"], "k": 1' + b"0" * 5000 + b"}"], ids=["deep", "long"]
)
def test_a_body_that_breaks_a_parser_is_refused(body: bytes, server: Server) -> None:
    """The parser's stack, and its limit on digits, end in other errors than that of broken JSON."""
    answer = CLIENT.post(f"{server.url}/search", content=body, headers=JSON)
    assert answer.status_code == 400 and "nested too deep" in answer.json()["error"]


def test_other_paths_and_kinds_are_answered_in_json(server: Server) -> None:
    """A client that reads JSON stumbles over a page of HTML; a browser's form needs no leave to post plain text."""
    plain = CLIENT.post(f"{server.url}/search", content=b'{"queries": ["a"]}', headers={"content-type": "text/plain"})
    assert plain.status_code == 422 and plain.json()["error"]
    for answer, status in ((CLIENT.get(f"{server.url}/none"), 404), (CLIENT.get(f"{server.url}/search"), 405)):
        assert answer.status_code == status and answer.json()["error"]
    described = CLIENT.get(f"{server.url}/openapi.json").json()
    assert {"/search", "/add", "/update", "/remove", "/compact", "/health"} <= described["paths"].keys()


# -- who may ---------------------------------------------------------------------------------------------------------


def test_writes_need_the_token_and_it_is_compared_in_constant_time(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A comparison that stops at the first other letter tells the token letter by letter."""
    compared = []
    real = hmac.compare_digest
    monkeypatch.setattr(hmac, "compare_digest", lambda *words: compared.append(words) or real(*words))
    one = {"items": [{"id": "new", "text": "boat"}]}
    with Server(engine, ServerSettings(port=0, token=TOKEN)) as server:
        assert search(server, "boat").status_code == 200 and not compared
        for wrong in (
            {},
            {"authorization": TOKEN},
            {"authorization": f"Bearer {TOKEN[:-1]}"},
            {"authorization": "Bearer \xff"},
        ):
            headers = {key: value.encode("latin-1") for key, value in wrong.items()}
            for path, body in (("add", one), ("update", one), ("remove", {"ids": ["i1"]}), ("compact", None)):
                answer = ask(server, path, body, headers=headers)
                assert answer.status_code == 401 and answer.headers["www-authenticate"] == "Bearer"
        assert len(engine) == 60 and (TOKEN[:-1].encode(), TOKEN.encode()) in compared
        assert ask(server, "add", one, headers={"authorization": f"Bearer {TOKEN}"}).json() == {"items": 61}


def test_others_reach_the_server_only_with_a_token(tmp_path: Path) -> None:
    """A server for a trial, opened to the network, would let everyone remove everything."""
    for host in ("0.0.0.0", "::", "192.0.2.7", "example.org", ""):
        with pytest.raises(ValueError, match="other machines can reach the server"):
            ServerSettings(host=host)
        assert ServerSettings(host=host, token=TOKEN).token
    for host in ("127.0.0.1", "::1", "localhost", "127.3.2.1"):
        assert ServerSettings(host=host).on_loopback
    path = tmp_path / "token"
    path.write_text(f"{TOKEN}\n")
    assert token_in(path) == TOKEN
    for weak in ("", "short", "two words of sixteen letters", "ünsichtbarer-schlüssel"):
        path.write_text(weak)
        with pytest.raises(DataError, match="at least 16"):
            token_in(path)


def test_a_page_of_another_site_does_not_reach_a_server_on_loopback(engine: Engine) -> None:
    """Its name can be made to lead to 127.0.0.1, and then its scripts may read and remove what is here."""
    ours = {"localhost:7": 200, "[::1]:7": 200, "search.example.org": 200}
    with Server(engine, ServerSettings(port=0, names=("search.example.org",))) as server:
        for host, status in ({"evil.example": 421, "": 421} | ours).items():
            assert ask(server, "search", {"queries": ["boat"]}, headers={"host": host}).status_code == status, host
        for host, status in ({"evil.example:7": 403, "localhost.evil.example": 403} | ours).items():
            assert ask(server, "compact", None, headers={"origin": f"http://{host}"}).status_code == status, host
        assert ask(server, "compact", None, headers={"origin": "null"}).status_code == 403


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"max_batch": 0}, "max_batch must be at least 1"),
        ({"wait_ms": -1}, "wait_ms"),
        ({"wait_ms": float("nan")}, "wait_ms"),
        ({"port": 70_000}, "port must be at most 65535"),
        ({"max_queue": 4}, "would never be taken"),
    ],
)
def test_settings_that_cannot_be_are_refused(settings: dict[str, Any], said: str) -> None:
    """A batch of none would never be searched, and every client would wait."""
    with pytest.raises(ValueError, match=said):
        ServerSettings(**settings)
