"""Measures an engine's index of made-up items, one part a process, resumably.

    python -m benchmarks.engine.measure all --items 5000000 --out /data/engine
    python -m benchmarks.engine.measure report --out /data/engine

Parts: build; open; prepare, which is CUR's offline work, kept beside the index; search for every searcher, alone and in
batches of 32; add; remove; and, up to a million items, bm25-build and bm25-open, an engine over BM25. A part that is in
``results.jsonl`` is not run again; each can be run alone by its name. A killed build goes on where it was.

Memory is the largest number of anonymous resident pages of the process, looked at every 10 ms; what is mapped from
files is the page cache's. ``--cold`` drops the index's pages from the cache first; otherwise all its files are read
before the clock runs, and 4 queries (32 in batches) are asked. recall@100 is against scoring every item, for Retrieve
against a scan of all vectors, over 32 queries.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.engine.data import Near, Vectors, records
from simzoo.core.records import Query
from simzoo.retrieval.corpus import Corpus
from simzoo.retrieval.engine import Engine
from simzoo.retrieval.first_stages.dense import Dense
from simzoo.retrieval.first_stages.flat_scan import resident, scan
from simzoo.retrieval.first_stages.lexical import BM25
from simzoo.retrieval.first_stages.vector_index import IVF, IVFPQ, Auto, Flat
from simzoo.retrieval.index_folder import Opened
from simzoo.retrieval.searcher import Ranking, Searcher
from simzoo.retrieval.searchers.axn import AXN
from simzoo.retrieval.searchers.cur import CUR
from simzoo.retrieval.searchers.exact import Rerank, Retrieve

K = 100
ADDED = 1000
QUERIES = 128
WARM = 32  # queries before the clock runs
BM25_MOST = 1_000_000  # items of which a BM25 index is built
KINDS: dict[str, Callable[[], Any]] = {"auto": Auto, "flat": Flat, "ivf": IVF, "ivfpq": IVFPQ}
SEARCHERS: dict[str, Callable[[], Searcher]] = {
    "Retrieve": lambda: Retrieve(Dense()),
    "Rerank": lambda: Rerank(Dense(), 100),
    "AXN": lambda: AXN(budget=100, rounds=5),
    "CUR": lambda: CUR(100, anchor_queries=64, anchor_items=48),
}


class Memory:
    """The largest anonymous resident memory since it was made, in MB."""

    def __init__(self) -> None:
        self.peak = 0.0
        threading.Thread(target=self._watch, daemon=True).start()

    def _watch(self) -> None:
        while True:
            self.look()
            time.sleep(0.01)

    def look(self) -> float:
        """Now."""
        found = re.search(r"RssAnon:\s+(\d+)", Path("/proc/self/status").read_text())
        now = int(found[1]) / 1024 if found else 0.0
        self.peak = max(self.peak, now)
        return now


@contextmanager
def clock(result: dict[str, Any], name: str) -> Iterator[None]:
    start = time.perf_counter()
    yield
    result[name] = time.perf_counter() - start


def drop_pages(folder: Path) -> None:
    """Asks the system to forget the folder's pages."""
    for path in folder.rglob("*"):
        if path.is_file():
            with path.open("rb") as file:
                os.fsync(file.fileno())
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def read_pages(folder: Path) -> None:
    """Reads the folder's files, so that their pages are in the cache if they fit."""
    for path in folder.rglob("*"):
        if path.is_file():
            with path.open("rb", buffering=0) as file:
                while file.read(1 << 24):
                    pass


def opened(args: argparse.Namespace, vectors: Vectors) -> Engine:
    return Engine.load(args.out / "index", embedder=vectors)


def build(args: argparse.Namespace, vectors: Vectors, result: dict[str, Any]) -> None:
    engine = Engine(
        None, vectors, Retrieve(Dense()), index=KINDS[args.kind](), folder=args.out / "index"
    )  # killed and started again, it goes on
    with clock(result, "seconds"):
        engine.add(records(0, args.items))
    result["megabytes"] = sum(path.stat().st_size for path in (args.out / "index").rglob("*")) / 1e6


def open_(args: argparse.Namespace, vectors: Vectors, result: dict[str, Any]) -> None:
    with clock(result, "seconds"):
        engine = opened(args, vectors)
        len(engine)
    with clock(result, "first_query_seconds"):
        engine.search("query 0", K)


def add(args: argparse.Namespace, vectors: Vectors, result: dict[str, Any]) -> None:
    engine = opened(args, vectors)
    len(engine)
    with clock(result, "seconds"):
        engine.add(records(args.items, args.items + ADDED))
    with clock(result, "next_query_seconds"):
        engine.search("query 0", K)


def remove(args: argparse.Namespace, vectors: Vectors, result: dict[str, Any]) -> None:
    engine = opened(args, vectors)
    len(engine)
    names = [f"i{row}" for row in range(args.items, args.items + ADDED)]
    with clock(result, "seconds"):
        engine.remove(names)
    with clock(result, "next_query_seconds"):
        engine.search("query 0", K)


def judged(args: argparse.Namespace, vectors: Vectors) -> tuple[Engine, Opened, Corpus, Near]:
    """The index, its items with a made-up similarity over them, and anchors."""
    engine = opened(args, vectors)
    found, corpus = engine._items.ready()
    assert corpus.embedder is not None
    judge = Near(corpus.embedder.vectors, vectors)
    anchors = [Query(f"anchor {n}", f"query {10_000 + n}") for n in range(100)]
    return engine, found, replace(corpus, judge=judge, anchors=anchors), judge


def prepare(args: argparse.Namespace, vectors: Vectors, result: dict[str, Any]) -> None:
    engine, found, corpus, _ = judged(args, vectors)
    searcher = SEARCHERS["CUR"]()
    with clock(result, "seconds"):
        searcher.index(corpus)
        state = searcher.state()
        assert state is not None
        engine._store.keep(found, "CUR", state)


def bm25_build(args: argparse.Namespace, vectors: Vectors, result: dict[str, Any]) -> None:
    with clock(result, "seconds"):
        Engine.load(args.out / "index", embedder=vectors, search=Retrieve(BM25())).search("w1 w2 w3", K)


def bm25_open(args: argparse.Namespace, vectors: Vectors, result: dict[str, Any]) -> None:
    with clock(result, "seconds"):
        engine = Engine.load(args.out / "index", embedder=vectors, search=Retrieve(BM25()))
        engine._items.ready()
    with clock(result, "first_query_seconds"):
        engine.search("w1 w2 w3", K)


def search(args: argparse.Namespace, vectors: Vectors, result: dict[str, Any]) -> None:
    searcher = SEARCHERS[args.searcher]()
    engine, opened_, corpus, judge = judged(args, vectors)
    kept = engine._store.kept(opened_, "CUR") if args.searcher == "CUR" else None
    with clock(result, "index_seconds"):
        if kept is None:
            searcher.index(corpus)
        else:
            searcher.restore(corpus, *kept)
    result["megabytes_after_indexing"] = Memory().look()
    queries = [Query(str(n), f"query {n}") for n in range(WARM + QUERIES)]
    vectors([query.text for query in queries])
    if not args.cold:
        searcher.search(queries[:WARM] if args.batch > 1 else queries[:4], K)
    parts: list[Ranking] = []
    spent: list[float] = []
    for start in range(WARM, len(queries), args.batch):
        some = queries[start : start + args.batch]
        begin = time.perf_counter()
        parts.append(searcher.search(some, K))
        spent.append((time.perf_counter() - begin) / len(some))
    scored = sum(part.seconds.get("scoring", 0.0) for part in parts) / QUERIES
    result |= {
        "milliseconds": 1000 * float(np.mean(spent)),
        "milliseconds_outside_the_scorer": 1000 * (float(np.mean(spent)) - scored),
        "first_milliseconds": 1000 * spent[0],
        "slowest_milliseconds": 1000 * max(spent),
        "steps": {
            name: 1000 * sum(part.seconds.get(name, 0.0) for part in parts) / QUERIES for name in parts[0].seconds
        },
        "calls": float(np.mean(np.concatenate([part.calls for part in parts]))),
    }
    few = queries[WARM : WARM + 32]
    asked = vectors([q.text for q in few]) if args.searcher == "Retrieve" else judge.asked(few)
    best, _ = scan(resident(judge.vectors), asked, K, corpus.gone)
    found = np.concatenate([part.items for part in parts])[: len(few)]
    result["recall@100"] = float(np.mean([len(set(a) & set(b)) / K for a, b in zip(found, best, strict=True)]))


PARTS: dict[str, Callable[[argparse.Namespace, Vectors, dict[str, Any]], None]] = {
    "build": build,
    "open": open_,
    "add": add,
    "remove": remove,
    "prepare": prepare,
    "search": search,
    "bm25-build": bm25_build,
    "bm25-open": bm25_open,
}


def key_of(args: argparse.Namespace) -> dict[str, Any]:
    key: dict[str, Any] = {"part": args.part, "items": args.items, "kind": args.kind, "cold": args.cold}
    return key | ({"searcher": args.searcher, "batch": args.batch} if args.part == "search" else {})


def known(out: Path) -> list[dict[str, Any]]:
    path = out / "results.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def run(args: argparse.Namespace) -> None:
    """One part, in this process."""
    key = key_of(args)
    if any(key.items() <= done.items() for done in known(args.out)):
        print(f"{key} is there already")
        return
    if args.part != "build":
        (drop_pages if args.cold else read_pages)(args.out / "index")
    print(f"{key} ...", file=sys.stderr, flush=True)
    memory, result = Memory(), dict(key)
    vectors = Vectors(args.items)
    result["megabytes_before"] = memory.look()
    PARTS[args.part](args, vectors, result)
    memory.look()
    result["peak_anonymous_megabytes"] = memory.peak
    args.out.mkdir(parents=True, exist_ok=True)
    with (args.out / "results.jsonl").open("a") as file:
        file.write(json.dumps(result) + "\n")
    print(json.dumps(result, indent=1))


def run_all(args: argparse.Namespace) -> None:
    """Every part, each in a process of its own; then the tables."""
    common = ["--items", str(args.items), "--kind", args.kind, "--out", str(args.out)]
    plans = [["build"], ["open", "--cold"], ["open"], ["prepare"]]
    for name in SEARCHERS:  # before anything is added: then the index is the one that was built at once
        plans += [["search", "--searcher", name, *more] for more in (["--cold"], [], ["--batch", "32"])]
    if args.items <= BM25_MOST:
        plans += [["bm25-build"], ["bm25-open", "--cold"], ["bm25-open"]]
    plans += [["add"], ["remove"]]
    for number, plan in enumerate(plans, start=1):
        print(f"part {number} of {len(plans)}: {' '.join(plan)}", file=sys.stderr, flush=True)
        subprocess.run([sys.executable, "-m", "benchmarks.engine.measure", *plan, *common], check=True)
    report(args)


def report(args: argparse.Namespace) -> None:
    """The results as tables in Markdown."""
    found = known(args.out)
    print("| items | index | part | page cache | seconds | peak anonymous MB |\n|---|---|---|---|---|---|")
    for r in (r for r in found if r["part"] != "search"):
        cells = [f"{r['items']:,}", r["kind"], r["part"], "cold" if r["cold"] else "warm", f"{r['seconds']:.2f}"]
        print("|", " | ".join([*cells, f"{r['peak_anonymous_megabytes']:,.0f}"]), "|")
    print("\n| items | searcher | batch | page cache | ms a query outside the scorer | first | recall@100 | peak MB |")
    print("|---|---|---|---|---|---|---|---|")
    for r in (r for r in found if r["part"] == "search"):
        cells = [f"{r['items']:,}", r["searcher"], str(r["batch"]), "cold" if r["cold"] else "warm"]
        cells += [f"{r['milliseconds_outside_the_scorer']:.1f}", f"{r['first_milliseconds']:.1f}"]
        print("|", " | ".join([*cells, f"{r['recall@100']:.3f}", f"{r['peak_anonymous_megabytes']:,.0f}"]), "|")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=[*PARTS, "all", "report"])
    parser.add_argument("--items", type=int, default=20_000, help="how many items")
    parser.add_argument("--kind", choices=KINDS, default="auto", help="how vectors are indexed")
    parser.add_argument("--out", type=Path, required=True, help="folder of the index and of results.jsonl")
    parser.add_argument("--searcher", choices=SEARCHERS, default="Rerank")
    parser.add_argument("--batch", type=int, default=1, help="queries at once")
    parser.add_argument("--cold", action="store_true", help="drop the index's pages from the cache first")
    args = parser.parse_args()
    {"all": run_all, "report": report}.get(args.part, run)(args)


if __name__ == "__main__":
    main()
