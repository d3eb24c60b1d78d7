"""kill -9 of a server under load: what it acknowledged is there when it starts again."""

from __future__ import annotations

import random
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import pytest

from simzoo.retrieval.engine import Engine
from simzoo.retrieval.searchers.exact import Exact
from tests.fault_work import overlap
from tests.forks import KILLS, SEED, Forks
from tests.toy import WORDS

for module in ("fastapi", "uvicorn", "prometheus_client"):
    pytest.importorskip(module, reason="needs the extra serve: pip install 'simzoo[serve]'")

SHARE = 30  # kills in a hundred
IN_SHORT = 2
MOST_SECONDS = 0.5  # of load before a kill


@dataclass
class Told:
    """What the server has acknowledged, and what it was asked and has not.

    Attributes:
        texts: of the items that are there, by id.
        open: ids that may or may not have changed.
        searched: answers to searches.
    """

    texts: dict[str, str] = field(default_factory=dict)
    open: set[str] = field(default_factory=set)
    searched: int = 0


@pytest.mark.faults
def test_a_server_that_is_killed_has_what_it_acknowledged(forks: Forks, tmp_path: Path) -> None:
    """An acknowledgement before the files are written, or a start from an older generation."""
    wanted = max(IN_SHORT, round(SHARE * KILLS / 100))
    chance, told = random.Random(f"{SEED} server"), Told()
    acknowledged = 0
    for kill in range(wanted):
        (tmp_path / "url").unlink(missing_ok=True)
        run = forks.start("tests.fault_work:served", tmp_path, output=tmp_path / f"{kill}.log")
        stop = threading.Event()
        with ThreadPoolExecutor(2) as pool:
            work = [
                pool.submit(writes, tmp_path, told, chance.random(), stop),
                pool.submit(searches, tmp_path, told, stop),
            ]
            while not told.searched and not any(one.done() for one in work):
                time.sleep(0.01)
            time.sleep(chance.uniform(0, MOST_SECONDS))
            assert run.end(signal.SIGKILL), run.words()
            stop.set()
            acknowledged += work[0].result()
            work[1].result()
        told.searched = 0
        check(tmp_path, told, f"SIMZOO_SEED={SEED}, after kill {kill}: {run.words()}")
    assert acknowledged > wanted, "the server was killed before it did anything"
    print(f"server: {wanted} kills, {acknowledged} acknowledged writes, {len(told.texts)} items, seed {SEED}")


def writes(folder: Path, told: Told, seed: float, stop: threading.Event) -> int:
    """Adds, updates and removes until the server is gone; how many it acknowledged."""
    chance, done = random.Random(seed), 0
    client = httpx.Client(base_url=address(folder, stop), timeout=30)
    while not stop.is_set():
        there, new = sorted(told.texts), f"n{len(told.texts)}-{chance.random()}"
        verb = chance.choice(["add", "add", "update", "remove"]) if len(there) > 5 else "add"
        names = [f"{new}-{n}" for n in range(chance.randint(1, 4))] if verb == "add" else chance.sample(there, 2)
        texts = {name: " ".join(chance.sample(WORDS, 3)) for name in names}
        items = [{"id": name, "text": text} for name, text in texts.items()]
        told.open = set(names)
        try:
            answer = client.post(f"/{verb}", json={"ids": names} if verb == "remove" else {"items": items})
        except httpx.TransportError:
            return done
        assert answer.status_code == 200, answer.text
        for name in names:
            told.texts.pop(name, None)
        told.texts |= {} if verb == "remove" else texts
        told.open, done = set(), done + 1
        assert answer.json()["items"] == len(told.texts)
    return done


def searches(folder: Path, told: Told, stop: threading.Event) -> None:
    """Searches until the server is gone."""
    client = httpx.Client(base_url=address(folder, stop), timeout=30)
    while not stop.is_set():
        try:
            answer = client.post("/search", json={"queries": ["boat river", "sea"]})
        except httpx.TransportError:
            return
        assert answer.status_code == 200, answer.text
        told.searched += 1


def address(folder: Path, stop: threading.Event) -> str:
    """Where the server is, once it is there."""
    while not (folder / "url").exists() and not stop.is_set():
        time.sleep(0.01)
    return (folder / "url").read_text()


def check(folder: Path, told: Told, where: str) -> None:
    """The index has what was acknowledged, the last request whole or not at all; `told` is what it has now."""
    engine = Engine(overlap, search=Exact(), folder=folder / "index")
    for name in told.texts.keys() - told.open:
        assert name in engine and engine[name].text == told.texts[name], f"{name} was acknowledged; {where}"
    opened = sorted(told.open)
    changed = [name for name in opened if (engine[name].text if name in engine else None) != told.texts.get(name)]
    assert changed in ([], opened), f"half of a request was carried out; {where}"
    for name in changed:
        told.texts.pop(name, None)
        if name in engine:
            told.texts[name] = engine[name].text
    assert len(engine) == len(told.texts), where
    if told.texts:
        found = {hit.id: hit.score for hit in engine.search("boat river", len(told.texts))}
        assert found == {name: overlap([("boat river", text)])[0] for name, text in told.texts.items()}, where
