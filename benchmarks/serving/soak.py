"""A long run: clients search while items are added, removed and compacted; a sample is checked by brute force."""

from __future__ import annotations

import asyncio
import json
import random
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from benchmarks.serving.clients import Connection

CLIENTS = 8
K = 10
ADDED = 8  # items in a request
EVERY = 50  # searches, of which one is kept for the check
COMPACT_SECONDS = 60.0
LOOK_SECONDS = 5.0
TOLERANCE = 1e-4  # of a score
FOREVER = float("inf")


@dataclass
class Life:
    """When an item was there, in seconds: it came between the first two, and went between the last two."""

    text: int
    asked: float = -1.0
    added: float = -1.0
    removing: float = FOREVER
    removed: float = FOREVER


@dataclass
class Sample:
    """One answer: the query's number, when it was asked and answered, and ids with scores."""

    query: int
    asked: float
    answered: float
    hits: list[tuple[str, float]]


@dataclass
class Soaked:
    """What a long run brought.

    Attributes:
        memory: (minute, anonymous megabytes of the server, items).
        searches: answered.
        writes: acknowledged.
        busy: answers 503.
        samples: for `wrong`.
        lives: of all items that there ever were, by id.
    """

    lives: dict[str, Life]
    memory: list[tuple[float, float, int]] = field(default_factory=list)
    searches: int = 0
    writes: int = 0
    busy: int = 0
    samples: list[Sample] = field(default_factory=list)


def anonymous(process: int) -> float:
    """Anonymous resident memory of a process, in MB."""
    found = re.search(r"RssAnon:\s+(\d+)", Path(f"/proc/{process}/status").read_text())
    return int(found[1]) / 1024 if found else float("nan")


async def soak(
    url: str, process: int, queries: Sequence[str], texts: Sequence[str], items: int, minutes: float
) -> Soaked:
    """Runs it.

    Args:
        url: of the server, whose index has the first ``items`` of ``texts``, with their numbers as ids.
        process: its id.
        queries: to choose from.
        texts: of the items, and of those that come and go.
        items: how many the index has.
        minutes: how long.
    """
    found = Soaked({str(number): Life(number) for number in range(items)})
    start = time.monotonic()
    end = start + 60 * minutes
    tasks = [_search(url, queries, found, end, seed) for seed in range(CLIENTS)]
    await asyncio.gather(*tasks, _write(url, texts, items, found, end), _look(process, found, start, end))
    return found


async def _search(url: str, queries: Sequence[str], found: Soaked, end: float, seed: int) -> None:
    chance = random.Random(seed)
    async with Connection(url) as connection:
        while (asked := time.monotonic()) < end:
            query = chance.randrange(len(queries))
            status, body = await connection.ask("/search", {"queries": [queries[query]], "k": K, "texts": False})
            if status == 503:
                found.busy += 1
                await asyncio.sleep(1)
                continue
            assert status == 200, body
            found.searches += 1
            if found.searches % EVERY == 0:
                hits = json.loads(body)["results"][0]["hits"]
                pairs = [(hit["id"], hit["score"]) for hit in hits]
                found.samples.append(Sample(query, asked, time.monotonic(), pairs))


async def _write(url: str, texts: Sequence[str], items: int, found: Soaked, end: float) -> None:
    """Adds some and removes as many, so that the index stays as large as it is."""
    chance, number, compacted = random.Random(7), items, time.monotonic()
    async with Connection(url) as connection:
        while (asked := time.monotonic()) < end:
            new = {str(number + n): chance.randrange(items, len(texts)) for n in range(ADDED)}
            number += ADDED
            found.lives |= {name: Life(text, asked, FOREVER) for name, text in new.items()}
            body = {"items": [{"id": name, "text": texts[text]} for name, text in new.items()]}
            await _acknowledged(connection, "/add", body, found)
            for name in new:
                found.lives[name].added = time.monotonic()
            old = chance.sample([name for name, life in found.lives.items() if life.removing == FOREVER], ADDED)
            for name in old:
                found.lives[name].removing = time.monotonic()
            await _acknowledged(connection, "/remove", {"ids": old}, found)
            for name in old:
                found.lives[name].removed = time.monotonic()
            if time.monotonic() - compacted > COMPACT_SECONDS:
                await _acknowledged(connection, "/compact", {}, found)
                compacted = time.monotonic()


async def _acknowledged(connection: Connection, path: str, body: object, found: Soaked) -> None:
    while (answer := await connection.ask(path, body))[0] == 503:
        found.busy += 1
        await asyncio.sleep(1)
    assert answer[0] == 200, answer[1]
    found.writes += 1


async def _look(process: int, found: Soaked, start: float, end: float) -> None:
    while (now := time.monotonic()) < end:
        there = sum(life.removing == FOREVER for life in found.lives.values())
        found.memory.append(((now - start) / 60, anonymous(process), there))
        await asyncio.sleep(min(LOOK_SECONDS, max(0.0, end - now)))


def wrong(sample: Sample, lives: Mapping[str, Life], scores: NDArray[np.float32]) -> str:
    """What is wrong with an answer, by the scores (texts,) of its query with every text; empty: nothing.

    An item that was being added or removed while it was asked may be among the hits or not.
    """
    shown = {name for name, _ in sample.hits}
    sure, there = [], set()
    for name, life in lives.items():
        if life.asked <= sample.answered and life.removed > sample.asked:
            there.add(name)
            if life.added <= sample.asked and life.removing > sample.answered:
                sure.append(name)
    if missing := shown - there:
        return f"{sorted(missing)[0]} was not there"
    if len(shown) != min(K, len(sure)) or len(shown) != len(sample.hits):
        return f"{len(sample.hits)} hits"
    for name, score in sample.hits:
        if abs(score - scores[lives[name].text]) > TOLERANCE:
            return f"{name} has the score {score}, expected {scores[lives[name].text]}"
    last = min(score for _, score in sample.hits)
    better = [name for name in sure if name not in shown and scores[lives[name].text] > last + TOLERANCE]
    return f"{better[0]} is missing" if better else ""
