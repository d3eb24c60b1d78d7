"""Measures `simzoo serve` on loopback, and lets it run long.

    python -m benchmarks.serving.measure --out /tmp/serving
    python -m benchmarks.serving.measure --engine rerank --out /tmp/serving-rerank
    python -m benchmarks.serving.measure --minutes 10 --out /tmp/serving

Without ``--minutes``: requests a second and milliseconds at 1, 8 and 32 clients, each of which asks again, one query
at a time, as soon as it is answered. With it: 8 clients search while another one adds and removes 8 items at a time and
compacts once a minute; the table has the server's anonymous memory, and every 50th answer is checked against the scores
of all items that were there. The server is a process of its own, started by its command; the clients share the machine
with it.

The engine: ``retrieve``, the 10 nearest by checkpoints/wordnet-de; ``rerank``, the 20 nearest, ranked by
checkpoints/wordnet-cls-ce. The texts are made up of 2,000 made-up words. The index is kept in ``--out``.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import torch

from benchmarks.serving.clients import load
from benchmarks.serving.soak import K, Soaked, soak, wrong
from simzoo import Engine, Item, Query
from simzoo import load as load_model
from simzoo.retrieval.first_stages.dense import Dense
from simzoo.retrieval.searchers.exact import Rerank, Retrieve
from simzoo.retrieval.storage.encoding import encode_items, encode_queries

ENCODER, RERANKER = "checkpoints/wordnet-de", "checkpoints/wordnet-cls-ce"
CLIENTS = (1, 8, 32)
WARM_SECONDS = 3.0
QUERIES = 1000
SPARE = 2000  # texts of items that come and go
START_SECONDS = 600.0  # on a machine that does other things


def texts(count: int, words: int, seed: int) -> list[str]:
    """Made-up texts."""
    chance = random.Random(seed)
    vocabulary = ["".join(chance.choices("aeioubdgklmnprst", k=chance.randint(3, 8))) for _ in range(2000)]
    return [" ".join(chance.choices(vocabulary, k=words)) for _ in range(count)]


def built(args: argparse.Namespace) -> Path:
    """The index, made if it is not there. A soak has changed its own, so that it gets a new one each time."""
    name = f"soak-{time.time():.0f}" if args.minutes else f"{args.engine}-{args.items}"
    folder: Path = args.out / name
    if not folder.exists():
        if args.engine == "retrieve":
            engine = Engine(ENCODER, search=Retrieve(Dense()))
        else:
            engine = Engine(RERANKER, ENCODER, Rerank(Dense(), 20))
        engine.add([str(number) for number in range(args.items)], texts(args.items + SPARE, 12, 0)[: args.items])
        engine.save(folder)
    return folder


@contextmanager
def serving(folder: Path) -> Iterator[tuple[str, int]]:
    """Address and process of a server."""
    log = folder.with_suffix(".log")
    with log.open("w") as file:
        process = subprocess.Popen([sys.executable, "-m", "simzoo", "serve", str(folder), "--port", "0"], stderr=file)
    try:
        end = time.monotonic() + START_SECONDS
        while " at http" not in log.read_text():
            if process.poll() is not None or time.monotonic() > end:
                raise RuntimeError(f"the server did not start: {log.read_text()[-1000:]}")
            time.sleep(0.1)
        yield log.read_text().split(" at ")[1].split(";")[0], process.pid
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait()


def speed(args: argparse.Namespace, url: str) -> list[str]:
    """A table."""
    asked = texts(QUERIES, 5, 1)
    bodies = ({"queries": [query], "k": K} for query in itertools.cycle(asked))
    asyncio.run(load(url, bodies, 8, WARM_SECONDS))
    rows = ["| clients | requests a second | median ms | 99th percentile ms | queries a batch | 503 | other errors |"]
    rows.append("|---|---|---|---|---|---|---|")
    for clients in CLIENTS:
        found = asyncio.run(load(url, bodies, clients, args.seconds))
        half, most = np.percentile(found.milliseconds, [50, 99]) if found.milliseconds else (np.nan, np.nan)
        rate = len(found.milliseconds) / found.seconds
        rows.append(
            f"| {clients} | {rate:,.1f} | {half:.1f} | {most:.1f} | {found.batch:.1f} | {found.busy} | {found.wrong} |"
        )
    return rows


def checked(found: Soaked, queries: Sequence[str], items: Sequence[str]) -> Counter[str]:
    """What is wrong with the sample, by the kind of the error."""
    model = load_model(ENCODER)
    with torch.inference_mode():
        vectors = np.asarray(encode_items(model, [Item(str(n), text) for n, text in enumerate(items)])["vector"])
        asked = np.asarray(encode_queries(model, [Query(str(n), text) for n, text in enumerate(queries)])["vector"])
    told = (wrong(sample, found.lives, vectors @ asked[sample.query]) for sample in found.samples)
    return Counter(text for text in told if text)


def long_run(args: argparse.Namespace, url: str, process: int) -> list[str]:
    """Two tables."""
    asked, items = texts(QUERIES, 5, 1), texts(args.items + SPARE, 12, 0)
    found = asyncio.run(soak(url, process, asked, items, args.items, args.minutes))
    rows = ["| minute | anonymous MB of the server | items |", "|---|---|---|"]
    every = max(1, len(found.memory) // 11)
    rows += [f"| {minute:.1f} | {size:,.0f} | {count:,} |" for minute, size, count in found.memory[::every]]
    errors = checked(found, asked, items)
    rows += ["", "| searches | writes | 503 | answers checked | wrong |", "|---|---|---|---|---|"]
    rows.append(
        f"| {found.searches:,} | {found.writes:,} | {found.busy} | {len(found.samples):,} | {sum(errors.values())} |"
    )
    return [*rows, *(f"- {times} times: {text}" for text, times in errors.most_common(5))]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--engine", choices=("retrieve", "rerank"), default="retrieve")
    parser.add_argument("--items", type=int, default=10_000)
    parser.add_argument("--seconds", type=float, default=20.0, help="of each number of clients")
    parser.add_argument("--minutes", type=float, default=0.0, help="of a long run; 0: none")
    parser.add_argument("--out", type=Path, required=True, help="folder for the index and the server's log")
    args = parser.parse_args()
    if args.minutes and args.engine != "retrieve":
        parser.error("a long run checks the nearest of all items: --engine retrieve")
    args.out.mkdir(parents=True, exist_ok=True)
    with serving(built(args)) as (url, process):
        rows = long_run(args, url, process) if args.minutes else speed(args, url)
    print(f"{args.engine}, {args.items:,} items\n")
    print("\n".join(rows))


if __name__ == "__main__":
    main()
