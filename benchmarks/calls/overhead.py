"""Milliseconds a query that AXN takes besides the calls, beside the plain form of its algorithm.

    python benchmarks/calls/overhead.py [--items 10000] [--width 384] [--budget 500] [--threads 2] [--repeats 5]

The plain form is Algorithm 1 as written: one query at a time, numpy's least squares in each round. The scores come from
a matrix, so that a call costs nothing on either side. Ratios are medians over paired repeats, after one that warms up.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from simzoo.core.records import Item, Query
from simzoo.retrieval.corpus import Corpus
from simzoo.retrieval.embedder import Embedder
from simzoo.retrieval.first_stages.vector_index import Flat
from simzoo.retrieval.judge import MatrixJudge
from simzoo.retrieval.searchers.axn import AXN

QUERIES = 32
Floats = NDArray[np.float32]


class Given(Embedder):
    """Given vectors; a query's id is its row."""

    def __init__(self, queries: Floats, items: Floats) -> None:
        super().__init__(None, items, Flat().build(items), exact=True)
        self.queries = queries

    def encode(self, queries: Sequence[Query]) -> Floats:
        """See `Embedder.encode`."""
        return self.queries[[int(query.id) for query in queries]]


def plain(matrix: Floats, vectors: Given, budget: int, rounds: int) -> NDArray[np.int64]:
    """The items scored for each query, best first."""
    found = []
    for row in range(len(matrix)):
        scored = np.empty(0, dtype=np.int64)
        approximate = vectors.vectors @ vectors.queries[row]
        for _ in range(rounds):
            approximate[scored] = -np.inf
            scored = np.concatenate([scored, np.argsort(-approximate, kind="stable")[: budget // rounds]])
            v, a = vectors.vectors[scored].astype(np.float64), matrix[row, scored].astype(np.float64)
            approximate = vectors.vectors @ np.linalg.lstsq(v, a, rcond=1e-5)[0].astype(np.float32)
        found.append(scored[np.lexsort((scored, -matrix[row, scored]))])
    return np.array(found)


def main() -> None:
    """Prints a Markdown table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in (("items", 10_000), ("width", 384), ("budget", 500), ("threads", 2), ("repeats", 5)):
        parser.add_argument(f"--{name}", type=int, default=default)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    rng = np.random.default_rng(0)
    items = rng.normal(size=(options.items, options.width)).astype(np.float32)
    queries = rng.normal(size=(QUERIES, options.width)).astype(np.float32)
    matrix = ((queries + 0.5 * rng.normal(size=queries.shape)) @ items.T).astype(np.float32)
    matrix += rng.normal(size=matrix.shape).astype(np.float32)
    records = [Item(str(i), "x") for i in range(options.items)]
    asked = [Query(str(q), "x") for q in range(QUERIES)]
    print("| rounds | plain, ms a query | AXN, ms a query | ratio | same top 100 |")
    print("|---|---|---|---|---|")
    for rounds in (5, 10):
        runs = []
        for _ in range(1 + options.repeats):
            vectors = Given(queries, items)
            searcher = AXN(budget=options.budget, rounds=rounds, query_batch=QUERIES)
            searcher.index(Corpus(records, MatrixJudge(matrix), vectors))
            start = time.perf_counter()
            expected = plain(matrix, vectors, options.budget, rounds)
            between = time.perf_counter()
            ranking = searcher.search(asked, 100)
            done = time.perf_counter()
            calls = ranking.seconds["scoring"]
            runs.append((1000 * (between - start) / QUERIES, 1000 * (done - between - calls) / QUERIES))
        same = (ranking.items == expected[:, :100]).mean()
        ratio = statistics.median(a / b for a, b in runs[1:])
        slow, fast = (statistics.median(column) for column in zip(*runs[1:], strict=True))
        print(f"| {rounds} | {slow:.1f} | {fast:.1f} | {ratio:.1f} | {100 * same:.1f} % |", flush=True)


if __name__ == "__main__":
    main()
