"""The server: a real one on loopback, before an engine whose scorer is watched."""

from __future__ import annotations

import json
import logging
import os
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch

from simzoo.core.locks import locked
from simzoo.core.records import History, Query
from simzoo.models.dual_encoder import DualEncoder
from simzoo.retrieval.engine import Engine
from simzoo.retrieval.searchers.exact import Exact, Rerank
from simzoo.retrieval.serving.settings import ServerSettings
from tests.test_engine import ITEMS, QUERIES, best, overlap

for module in ("fastapi", "uvicorn", "prometheus_client"):
    pytest.importorskip(module, reason="needs the extra serve: pip install 'simzoo[serve]'")

from simzoo.retrieval.serving import writing  # noqa: E402
from simzoo.retrieval.serving.server import Server  # noqa: E402
from tests.serving import CLIENT, JSON, Watched, ask, number, search, until  # noqa: E402

pytest_plugins = ["tests.serving"]

ROOT = Path(__file__).parents[1]

# -- search ----------------------------------------------------------------------------------------------------------


def test_results_are_those_of_scoring_everything(server: Server) -> None:
    """Results in another order, of another query, or cut at another request's k."""
    for k in (1, 7, 60):
        answer = search(server, *QUERIES, k=k).json()["results"]
        assert [[hit["id"] for hit in one["hits"]] for one in answer] == [best(query, ITEMS, k) for query in QUERIES]
        assert [one["calls"] for one in answer] == [60] * len(QUERIES)
    (found,) = search(server, QUERIES[0], k=1).json()["results"]
    item = {item.id: item for item in ITEMS}[found["hits"][0]["id"]]
    shown = {"id": item.id, "text": item.text, "title": item.title}
    assert {key: found["hits"][0][key] for key in shown} == shown
    (bare,) = ask(server, "search", {"queries": [QUERIES[0]], "k": 1, "texts": False}).json()["results"]
    assert bare["hits"] == [{"id": item.id, "score": found["hits"][0]["score"]}]


def test_a_model_behind_the_server_gives_what_the_engine_gives(tmp_path: Path) -> None:
    """Scores of a model that is called from another thread, or of queries that lost their mention or history."""
    torch.manual_seed(0)
    engine = Engine(DualEncoder.tiny().eval(), folder=tmp_path / "index")
    engine.add(ITEMS)
    mentioned = Query("query 0", QUERIES[0], (0, len(QUERIES[0].split()[0])))
    history = History.of("query 0", ["boat", "sea"])
    expected = [engine.search(query, 5) for query in (mentioned, history)]
    asked = [{"text": QUERIES[0], "mention": mentioned.mention}, {"items": ["boat", "sea"]}]
    with Server(engine, ServerSettings(port=0)) as server:
        answers = [ask(server, "search", {"queries": [one], "k": 5}).json()["results"][0] for one in asked]
    for hits, answer in zip(expected, answers, strict=True):
        assert [hit.id for hit in hits] == [hit["id"] for hit in answer["hits"]]
        assert [hit["score"] for hit in answer["hits"]] == pytest.approx([hit.score for hit in hits], rel=1e-5)


def test_requests_that_arrive_together_are_scored_together(engine: Engine, scorer: Watched) -> None:
    """One call of the similarity a request: eight clients would wait eight times as long."""
    with Server(engine, ServerSettings(port=0)) as server, ThreadPoolExecutor(9) as pool:
        scorer.go.clear()
        first = pool.submit(search, server, "first")
        until(lambda: scorer.calls)
        others = [pool.submit(search, server, f"{query} {n}") for n, query in enumerate([*QUERIES, "sea", "road"])]
        until(lambda: number(server, "simzoo_waiting_queries") == 8)
        scorer.go.set()
        assert {one.result().status_code for one in [first, *others]} == {200}
        assert len(scorer.calls) == 2 and len(scorer.calls[1]) == 8
        for n, (query, one) in enumerate(zip([*QUERIES, "sea", "road"], others, strict=True)):
            found = [hit["id"] for hit in one.result().json()["results"][0]["hits"]]
            assert found == best(f"{query} {n}", ITEMS, 5)


def test_a_batch_waits_for_others_until_it_is_full(engine: Engine, scorer: Watched) -> None:
    """A server that is idle would search the first of four requests alone."""
    with Server(engine, ServerSettings(port=0, wait_ms=20_000, max_batch=4)) as server, ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(lambda query: search(server, query), QUERIES[:4]))
    assert {one.status_code for one in answers} == {200} and scorer.calls == [set(QUERIES[:4])]


def test_a_full_queue_says_when_to_come_again(engine: Engine, scorer: Watched) -> None:
    """Without a bound every client waits longer than it has patience for, and memory grows with them."""
    settings = ServerSettings(port=0, max_queue=4, max_queries=4, max_batch=4)
    with Server(engine, settings) as server, ThreadPoolExecutor(3) as pool:
        scorer.go.clear()
        first = pool.submit(search, server, "first")
        until(lambda: scorer.calls)
        others = [pool.submit(search, server, f"a{n}", f"b{n}") for n in range(2)]
        until(lambda: number(server, "simzoo_waiting_queries") == 4)
        refused = search(server, "one more")
        assert refused.status_code == 503 and int(refused.headers["Retry-After"]) >= 1
        assert "4 queries wait" in refused.json()["error"]
        assert CLIENT.get(f"{server.url}/health").json() == {"status": "ok", "items": 60}
        scorer.go.set()
        assert {one.result().status_code for one in [first, *others]} == {200}
        assert search(server, "one more").status_code == 200


def test_a_query_that_fails_does_not_spoil_its_batch(engine: Engine, scorer: Watched) -> None:
    """Whoever is searched together with it would get its error."""
    with Server(engine, ServerSettings(port=0)) as server, ThreadPoolExecutor(3) as pool:
        scorer.go.clear()
        first = pool.submit(search, server, "first")
        until(lambda: scorer.calls)
        good, bad = pool.submit(search, server, QUERIES[0]), pool.submit(search, server, "bad")
        until(lambda: number(server, "simzoo_waiting_queries") == 2)
        scorer.go.set()
        assert first.result().status_code == good.result().status_code == 200
        assert bad.result().status_code == 500 and "log" in bad.result().json()["error"]


@pytest.mark.parametrize("shown", [False, True])
def test_what_was_asked_is_logged_only_if_that_is_wanted(
    engine: Engine, caplog: pytest.LogCaptureFixture, shown: bool
) -> None:
    """Queries are people's words; a log is read by others, and kept."""
    with caplog.at_level(logging.DEBUG), Server(engine, ServerSettings(port=0, log_content=shown)) as server:
        search(server, "bad secret")
        search(server, "fine secret")
        ask(server, "add", {"items": [{"id": "secret", "text": "secret"}]})
        ask(server, "add", {"items": [{"id": "secret", "text": "secret"}]})
        CLIENT.get(f"{server.url}/secret?secret=secret")
    ours = "\n".join(
        record.getMessage() for record in caplog.records if not record.name.startswith(("httpx", "httpcore"))
    )
    assert "POST /search 500" in ours and "RuntimeError" in ours and "serving.py" in ours
    assert ("secret" in ours) == shown


# -- writes ----------------------------------------------------------------------------------------------------------


def test_what_was_acknowledged_is_there_after_a_restart(engine: Engine, scorer: Watched, tmp_path: Path) -> None:
    """An addition that was only in memory."""
    with Server(engine, ServerSettings(port=0)) as server:
        assert ask(server, "add", {"items": [{"id": "new", "text": "zebra", "title": "t"}]}).json() == {"items": 61}
        assert [hit["id"] for hit in search(server, "zebra", k=1).json()["results"][0]["hits"]] == ["new"]
        assert ask(server, "update", {"items": [{"id": "i1", "text": "walrus"}]}).json() == {"items": 61}
        assert ask(server, "remove", {"ids": ["i2", "i3"]}).json() == {"items": 59}
        assert ask(server, "compact", None).json() == {"items": 59}
        before = search(server, "zebra walrus", k=59).json()
    opened = Engine.load(tmp_path / "index", scorer)
    assert len(opened) == 59 and opened["i1"].text == "walrus" and opened["new"].title == "t" and "i2" not in opened
    with Server(opened, ServerSettings(port=0)) as server:
        assert search(server, "zebra walrus", k=59).json() == before


def test_an_index_that_is_empty_can_be_filled(scorer: Watched, tmp_path: Path) -> None:
    """The first items of a new index come through the server."""
    with Server(Engine(scorer, search=Rerank(), folder=tmp_path / "index"), ServerSettings(port=0)) as server:
        assert search(server, "boat").json() == {"results": [{"hits": [], "calls": 0}]}
        ask(server, "add", {"items": [{"id": "a", "text": "boat"}]})
        assert [hit["id"] for hit in search(server, "boat").json()["results"][0]["hits"]] == ["a"]


@pytest.mark.parametrize(
    ("path", "body", "status", "said"),
    [
        ("add", {"items": [{"id": "new", "text": "a"}, {"id": "i1", "text": "a"}]}, 409, "'i1' is there already"),
        ("update", {"items": [{"id": "i1", "text": "a"}, {"id": "new", "text": "a"}]}, 404, "no item 'new'"),
        ("remove", {"ids": ["i1", "new"]}, 404, "no item 'new'"),
        ("remove", {"ids": []}, 422, "ids"),
        ("add", {"items": [{"id": "", "text": "a"}]}, 422, "id"),
        ("add", {"items": [{"id": "new"}]}, 422, "text"),
        ("add", {"items": [{"id": "new", "text": "\ud800"}]}, 422, "half of a character"),
    ],
)
def test_a_write_that_is_refused_changes_nothing(
    path: str, body: Any, status: int, said: str, server: Server, engine: Engine
) -> None:
    """Half of a list that was added, and no word which."""
    content = json.dumps(body).encode()
    answer = CLIENT.post(f"{server.url}/{path}", content=content, headers=JSON)
    assert answer.status_code == status and said in answer.json()["error"], answer.text
    assert len(engine) == 60 and "new" not in engine and engine["i1"] == ITEMS[1]


def test_another_writer_is_waited_for_and_then_told(
    server: Server, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two writers at once lose each other's items; searches need not wait for either."""
    monkeypatch.setattr(writing, "PATIENCE", 0.2)
    with locked(engine.folder):
        refused = ask(server, "add", {"items": [{"id": "new", "text": "boat"}]})
        assert refused.status_code == 503 and int(refused.headers["Retry-After"]) >= 1
        assert search(server, "boat").status_code == 200
    other = Engine(overlap, search=Exact(), folder=engine.folder)
    other.add([("theirs", "boat")])
    assert ask(server, "add", {"items": [{"id": "theirs", "text": "boat"}]}).status_code == 409
    assert ask(server, "add", {"items": [{"id": "new", "text": "boat"}]}).json() == {"items": 62}


def test_searches_and_writes_at_once_find_what_is_there(engine: Engine) -> None:
    """A searcher that takes in new items while it searches gives rows of the one and texts of the other index."""
    known = {item.id: f"{item.title} {item.text}".strip() for item in ITEMS} | {f"n{n}": f"boat {n}" for n in range(5)}
    with Server(engine, ServerSettings(port=0)) as server, ThreadPoolExecutor(4) as pool:
        done = threading.Event()

        def write() -> None:
            for n in range(5):
                assert ask(server, "add", {"items": [{"id": f"n{n}", "text": f"boat {n}"}]}).status_code == 200
                assert ask(server, "remove", {"ids": [f"i{n}"]}).status_code == 200
            done.set()

        def read(query: str) -> None:
            while not done.is_set():
                for hit in search(server, query, k=60).json()["results"][0]["hits"]:
                    assert hit["score"] == pytest.approx(overlap([(query, known[hit["id"]])])[0])

        for work in [pool.submit(write), *(pool.submit(read, query) for query in QUERIES[:2])]:
            work.result()
        there = [item for item in ITEMS if item.id in engine] + [engine[f"n{n}"] for n in range(5)]
        found = [hit["id"] for hit in search(server, "boat", k=60).json()["results"][0]["hits"]]
        assert found == best("boat", there, 60) and len(found) == 60


# -- what is told ----------------------------------------------------------------------------------------------------


def test_metrics_are_those_of_what_was_done(server: Server) -> None:
    """A number that counts something else, or a format that Prometheus does not take."""
    search(server, *QUERIES)
    search(server, "boat")
    CLIENT.get(f"{server.url}/a/path/of/somebody")
    assert number(server, "simzoo_requests_total", path="/search", status="200") == 2
    assert number(server, "simzoo_requests_total", path="other", status="404") == 1
    assert number(server, "simzoo_similarity_calls_total") == 60 * (len(QUERIES) + 1)
    assert number(server, "simzoo_batch_queries_count") == 2 and number(server, "simzoo_batch_queries_sum") == 7
    assert number(server, "simzoo_request_seconds_count", path="/search") == 2
    assert number(server, "simzoo_items") == 60 and number(server, "simzoo_waiting_queries") == 0
    assert CLIENT.get(f"{server.url}/metrics").headers["content-type"].startswith("text/plain; version=")


SLOW = """
import sys, time
from pathlib import Path
from simzoo import Engine
from simzoo.__main__ import main
from simzoo.retrieval.serving import command
folder = Path(sys.argv[1])

def slow(pairs):
    (folder / "entered").touch()
    while not (folder / "go").exists():
        time.sleep(0.01)
    return [1.0] * len(pairs)

load = Engine.load
Engine.load = lambda index, *rest: load(index, slow)
main(["serve", str(folder / "index"), "--port", "0"])
"""


def test_sigterm_lets_what_was_taken_be_answered(engine: Engine, tmp_path: Path) -> None:
    """Every new version of a service would cost the requests of its last second; a status of 143 reads as a crash."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    words = [sys.executable, "-c", SLOW, str(tmp_path)]
    process = subprocess.Popen(words, cwd=ROOT, env=environment, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stderr is not None
        line = process.stderr.readline()
        url = line.split(" at ")[1].split(";")[0]
        assert line.startswith("60 items at http://127.0.0.1:")
        assert httpx.get(f"{url}/health", timeout=30).json()["items"] == 60
        with ThreadPoolExecutor(1) as pool:
            answer = pool.submit(httpx.post, f"{url}/search", json={"queries": ["boat"]}, timeout=30)
            until((tmp_path / "entered").exists)
            process.send_signal(signal.SIGTERM)
            until(lambda: _refuses(url))
            (tmp_path / "go").touch()
            assert answer.result().status_code == 200 and len(answer.result().json()["results"][0]["hits"]) == 10
        _, said = process.communicate(timeout=30)
        assert process.returncode == 0 and "Traceback" not in said and "POST /search 200" in said
    finally:
        process.kill()


def _refuses(url: str) -> bool:
    try:
        httpx.get(f"{url}/health")
    except httpx.TransportError:
        return True
    return False


def test_help_of_the_command_imports_nothing_heavy() -> None:
    """Help that takes seconds is not asked for; a refusal is one line, not a traceback."""
    code = (
        "import sys\nfrom simzoo.__main__ import main\ntry:\n    main(['serve', '--help'])\nexcept SystemExit:\n"
        "    print(*sys.modules, file=sys.stderr)"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=environment, capture_output=True, text=True)
    assert not {"torch", "fastapi", "uvicorn", "lightning"} & set(done.stderr.split())
    for option in ("host", "port", "token-file", "max-queue", "max-batch", "wait-ms", "max-body", "log-content"):
        assert f"--{option}" in done.stdout
    words = [sys.executable, "-m", "simzoo", "serve", "index", "--host", "0.0.0.0"]
    done = subprocess.run(words, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert (
        done.returncode == 1
        and done.stderr.startswith("error: at 0.0.0.0 other machines")
        and done.stderr.count("\n") == 1
    )
