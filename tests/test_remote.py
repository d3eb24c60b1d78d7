"""A scorer behind HTTP, on the loopback interface."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from simzoo.retrieval.remote import Remote, RemoteError

PAIRS = [(f"query {i}", "x" * i) for i in range(10)]
LENGTHS = [float(i) for i in range(10)]


class Server(ThreadingHTTPServer):
    """Scores a pair by the length of its item; fails as told first."""

    daemon_threads = True
    failures: list[Any]
    asked: list[dict[str, Any]]

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/score"


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_POST(self) -> None:
        message = json.loads(self.rfile.read(int(self.headers["content-length"])))
        self.server.asked.append({"pairs": len(message["pairs"]), "token": self.headers.get("authorization")})
        failure = self.server.failures.pop(0) if self.server.failures else None
        status, body = 200, json.dumps({"scores": [len(item) for _, item in message["pairs"]]}).encode()
        if isinstance(failure, int):
            status, body = failure, b"not now"
        elif isinstance(failure, bytes):
            body = failure
        elif failure == "slow":
            time.sleep(1)
        elif failure == "hang up":
            self.connection.close()
            return
        self.send_response(status)
        self.send_header("content-length", str(len(body)))
        if status == 302:
            self.send_header("location", "http://127.0.0.1:1/elsewhere")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def server() -> Iterator[Server]:
    server = Server(("127.0.0.1", 0), Handler)
    server.failures, server.asked = [], []
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server
    server.shutdown()
    server.server_close()


def test_scores_come_back_in_order_and_in_batches(server: Server) -> None:
    """The last, shorter batch, and none at all."""
    assert Remote(server.url, batch=4)(PAIRS) == LENGTHS
    assert [asked["pairs"] for asked in server.asked] == [4, 4, 2]
    assert Remote(server.url)([]) == []


def test_what_may_go_away_is_asked_again(server: Server) -> None:
    """One restart of a server would end a search of an hour."""
    server.failures = [503, "hang up", "slow"]
    assert Remote(server.url, timeout=0.3, wait=0.01)(PAIRS) == LENGTHS
    assert len(server.asked) == 4
    server.failures = [429] * 9
    with pytest.raises(RemoteError, match=r"127\.0\.0\.1:\d+/score answered 429: 'not now'; is it running"):
        Remote(server.url, retries=2, wait=0.01)(PAIRS)
    assert len(server.asked) == 7


@pytest.mark.parametrize("status", [400, 404, 302])
def test_what_will_not_go_away_is_not_asked_again(server: Server, status: int) -> None:
    """And a redirection does not carry texts elsewhere."""
    server.failures = [status]
    with pytest.raises(RemoteError, match=f"answered {status}"):
        Remote(server.url, wait=0.01)(PAIRS)
    assert len(server.asked) == 1


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b"hello", "answered 'hello'; expected"),
        (b'{"score": 1}', "expected"),
        (b'{"scores": [1, 2]}', "answered 2 scores for 10 pairs"),
        (b'{"scores": 3}', "answered int for 10 pairs"),
        (b'{"scores": [1,1,1,1,1,1,1,1,1,NaN]}', "gave nan for pair 9"),
        (b'{"scores": ["1",1,1,1,1,1,1,1,1,1]}', "gave '1' for pair 0"),
        (b'{"scores": ' + b"[" * 100_000, "expected"),
    ],
)
def test_answers_that_are_no_scores_are_refused(server: Server, body: bytes, said: str) -> None:
    """A short list would be spread over the wrong pairs, NaN sorts anywhere."""
    server.failures = [body]
    with pytest.raises(RemoteError, match=said):
        Remote(server.url)(PAIRS)


def test_no_server_is_said_in_a_sentence() -> None:
    """A traceback from inside a client does not say what to start."""
    with pytest.raises(RemoteError, match=r"127\.0\.0\.1:1 could not be reached \(ConnectError"):
        Remote("http://127.0.0.1:1", retries=1, wait=0)(PAIRS)
    with pytest.raises(ValueError, match="begins with http"):
        Remote("file:///etc/passwd")
    with pytest.raises(ValueError, match="batch of at least 1"):
        Remote("http://127.0.0.1:1", batch=0)


def test_tokens_come_from_the_environment(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """A token in an argument ends up in a settings file."""
    remote = Remote(server.url, token_variable="SCORER_TOKEN")
    with pytest.raises(RemoteError, match="set the variable SCORER_TOKEN"):
        remote(PAIRS)
    monkeypatch.setenv("SCORER_TOKEN", "secret")
    remote(PAIRS)
    assert server.asked[-1]["token"] == "Bearer secret" and "secret" not in repr(remote)


def test_a_rate_is_kept(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """A limit that is run into costs refusals, and with some servers the account; repetitions count as well."""
    now, sent = [100.0], list[float]()
    monkeypatch.setattr("simzoo.retrieval.remote.time.monotonic", lambda: now[0])

    def sleep(seconds: float) -> None:
        now[0] += seconds

    monkeypatch.setattr("simzoo.retrieval.remote.time.sleep", sleep)
    remote = Remote(server.url, batch=4, per_minute=30, wait=0.0)
    posted = remote._headers
    monkeypatch.setattr(remote, "_headers", lambda: sent.append(now[0]) or posted())
    server.failures = [None, 503]
    assert remote(PAIRS) == LENGTHS
    assert sent == [100.0, 102.0, 104.0, 106.0]
    now[0] += 60
    remote(PAIRS[:1])
    assert sent[-1] == now[0]  # what was not used does not add up to a burst, nor to a wait
    with pytest.raises(ValueError, match="per_minute is how many"):
        Remote(server.url, per_minute=0)
