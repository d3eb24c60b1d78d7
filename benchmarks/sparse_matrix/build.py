"""A sparse score matrix of 5 million items and 10,000 queries, with a made-up scorer, killed three times.

    python -m benchmarks.sparse_matrix.build --folder out/large-entries

It builds the matrix once without a break and once with a kill -9 at three moments, and prints whether the bytes are the
same, the seconds, and the peak memory. 100 items a query, 80 from a made-up first stage, 20 drawn.
"""

from __future__ import annotations

import argparse
import hashlib
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from simzoo.core.records import Item, Query
from simzoo.retrieval.corpus import Corpus
from simzoo.retrieval.first_stages.first_stage import FirstStage
from simzoo.retrieval.judge import Judge
from simzoo.retrieval.pair_sampling import QueriesToItems
from simzoo.retrieval.scorer import Scorer
from simzoo.retrieval.sparse_matrix import build_sparse_matrix
from simzoo.retrieval.topk import Rows, Scores


class MadeUpItems(Sequence[Item]):
    """Items of which none is kept."""

    def __init__(self, size: int) -> None:
        self.size = size

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, row: Any) -> Any:
        return Item(f"i{row}", "a text")


class MadeUpNeighbours(FirstStage):
    """A first stage that finds what arithmetic says."""

    def prepare(self) -> None:
        """Nothing to prepare."""

    def find(self, queries: Sequence[Query], k: int) -> tuple[Rows, Scores]:
        """See `FirstStage.find`."""
        starts = np.array([int(query.id[1:]) * 977 for query in queries])
        rows = (starts[:, None] + 7919 * np.arange(k)) % len(self.corpus)
        return rows, np.zeros(rows.shape, dtype=np.float32)


class MadeUpJudge(Judge):
    """A score that depends on its pair alone."""

    def __init__(self, num_items: int) -> None:
        self.num_items = num_items

    def scorer(self, queries: Sequence[Query]) -> Scorer:
        """See `Judge.scorer`."""
        names = np.array([int(query.id[1:]) for query in queries])
        return Scorer(lambda q, i: np.sin(names[q] * 0.37 + i * 0.11), len(queries), self.num_items)


def build(folder: Path, items: int, queries: int, each: int) -> None:
    """The work of one process; prints its peak memory."""
    corpus = Corpus(MadeUpItems(items), MadeUpJudge(items))
    asked = [Query(f"q{row}", "a query") for row in range(queries)]
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    sampling = QueriesToItems(each - each // 5, each // 5, MadeUpNeighbours())
    build_sparse_matrix(corpus, asked, sampling, folder, "made up", "made up")
    after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    print(f"peak memory {after / 1024:,.0f} MiB, {(after - before) / 1024:,.1f} of it since the queries were made")


def digests(folder: Path) -> dict[str, str]:
    """sha256 by file."""
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(folder.iterdir())}


def main() -> None:
    """Parses the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--folder", type=Path, required=True, help="made anew")
    parser.add_argument("--items", type=int, default=5_000_000)
    parser.add_argument("--queries", type=int, default=10_000)
    parser.add_argument("--each", type=int, default=100, help="items a query")
    parser.add_argument("--kills", type=int, default=3)
    parser.add_argument("--work", action="store_true", help="one process's work, in the folder as it is")
    args = parser.parse_args()
    if args.work:
        build(args.folder, args.items, args.queries, args.each)
        return
    sizes = ["--items", str(args.items), "--queries", str(args.queries), "--each", str(args.each)]
    work = [sys.executable, "-m", "benchmarks.sparse_matrix.build", "--work", *sizes, "--folder"]
    shutil.rmtree(args.folder, ignore_errors=True)
    whole, killed = args.folder / "whole", args.folder / "killed"
    start = time.perf_counter()
    subprocess.run([*work, str(whole)], check=True)
    shards = len(list(whole.glob("shard-*")))
    print(f"{args.items:,} items x {args.queries:,} queries x {args.each}: {time.perf_counter() - start:.1f} s")
    for number in range(1, args.kills + 1):
        process = subprocess.Popen([*work, str(killed)])
        while process.poll() is None and len(list(killed.glob("shard-*"))) < number * shards / (args.kills + 1):
            time.sleep(0.01)
        process.send_signal(signal.SIGKILL)
        assert process.wait() == -signal.SIGKILL, "it ended before it was killed: more queries, please"
        print(f"killed at {len(list(killed.glob('shard-*.safetensors')))} of {shards} shards")
    subprocess.run([*work, str(killed)], check=True)
    same = digests(whole) == digests(killed)
    print(f"{len(digests(whole))} files, the same bytes: {same}")
    sys.exit(not same)


if __name__ == "__main__":
    main()
