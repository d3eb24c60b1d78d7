"""Milliseconds a query that AXN takes besides the calls, beside two plain forms of its algorithm.

    python -m benchmarks.calls.overhead [--items 10000 100000 1000000] [--queries 1 8 32] [--rounds 5 10 20]
        [--width 384] [--budget 500] [--threads 2] [--repeats 5]

- **plain** is Algorithm 1 as written: one query at a time, numpy's least squares anew in each of the R - 1 rounds that
  need it. It is timed on at most 8 of the queries, as they do not know of each other.
- **ridge** is what one would write in torch: all queries together in single precision, ridge regression anew each
  round by the smaller of the two normal equations, ``topk``.

The scores come from a matrix; the seconds in which it is read are taken off on all sides, those of our bookkeeping
around the calls are not. The forms take turns, with a pause before each in which the threads of the one before come to
rest; ratios are medians over these turns, after one that warms up, with the least and the largest behind them.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Sequence
from itertools import product

import numpy as np
import torch
from numpy.typing import NDArray

from simzoo.core.records import Item, Query
from simzoo.retrieval.corpus import Corpus
from simzoo.retrieval.embedder import Embedder
from simzoo.retrieval.first_stages.vector_index import Flat
from simzoo.retrieval.judge import Judge
from simzoo.retrieval.scorer import Scorer
from simzoo.retrieval.searchers.axn import AXN

PLAIN = 8  # queries that the plain form is timed on
PAUSE = 0.2  # seconds
TOP = 100
CUT = 1e-5
STRENGTH = 0.1
Floats = NDArray[np.float32]
Rows = NDArray[np.int64]


class Given(Embedder):
    """Given vectors; a query's id is its row."""

    def __init__(self, queries: Floats, items: Floats) -> None:
        super().__init__(None, items, Flat().build(items), exact=True)
        self.queries = queries

    def encode(self, queries: Sequence[Query]) -> Floats:
        """See `Embedder.encode`."""
        return self.queries[[int(query.id) for query in queries]]


class Calls(Judge):
    """A matrix (Q, N) in the place of a similarity; the seconds that reading it took."""

    def __init__(self, matrix: Floats) -> None:
        self.matrix = matrix
        self.num_items = matrix.shape[1]
        self.seconds = 0.0

    def __call__(self, query_rows: Rows, item_rows: Rows) -> Floats:
        """Scores of pairs."""
        start = time.perf_counter()
        found: Floats = self.matrix[query_rows, item_rows]
        self.seconds += time.perf_counter() - start
        return found

    def scorer(self, queries: Sequence[Query]) -> Scorer:
        """See `Judge.scorer`."""
        rows = np.array([int(query.id) for query in queries])
        return Scorer(lambda query_rows, item_rows: self(rows[query_rows], item_rows), len(rows), self.num_items)


def plain(calls: Calls, vectors: Given, queries: int, budget: int, rounds: int) -> Rows:
    """Algorithm 1 as written; the top items (Q, 100)."""
    found = []
    for row in range(queries):
        scored, scores = np.empty(0, dtype=np.int64), np.empty(0, dtype=np.float32)
        u = vectors.queries[row]
        for number in range(rounds):
            if number:
                v, a = vectors.vectors[scored].astype(np.float64), scores.astype(np.float64)
                u = np.linalg.lstsq(v, a, rcond=CUT)[0].astype(np.float32)
            approximate = vectors.vectors @ u
            approximate[scored] = -np.inf
            size = budget // rounds
            fresh = np.argpartition(approximate, len(approximate) - size)[-size:]
            scored = np.concatenate([scored, fresh])
            scores = np.concatenate([scores, calls(np.full(size, row), fresh)])
        found.append(scored[np.lexsort((scored, -scores))][:TOP])
    return np.array(found)


def ridge(calls: Calls, vectors: Given, queries: int, budget: int, rounds: int) -> Rows:
    """Ridge regression in single precision, all queries together; the top items (Q, 100)."""
    every, u = torch.from_numpy(vectors.vectors), torch.from_numpy(vectors.queries[:queries])
    rows, size = np.arange(queries)[:, None], budget // rounds
    scored, scores = torch.empty(queries, 0, dtype=torch.int64), torch.empty(queries, 0)
    for number in range(rounds):
        if number:
            v, few = every[scored], scored.shape[1] <= every.shape[1]
            system = v @ v.mT if few else v.mT @ v
            penalty = STRENGTH * v[:, :size].square().sum(dim=2).mean(dim=1)
            system.diagonal(dim1=1, dim2=2).add_(penalty[:, None])
            factor = torch.linalg.cholesky(system)
            right = scores[..., None] if few else v.mT @ scores[..., None]
            solved = torch.cholesky_solve(right, factor)
            u = (v.mT @ solved if few else solved)[..., 0]
        approximate = u @ every.T if queries > 1 else (every @ u[0])[None]
        approximate.scatter_(1, scored, -torch.inf)
        fresh = approximate.topk(size, dim=1).indices
        scored = torch.cat([scored, fresh], dim=1)
        scores = torch.cat([scores, torch.from_numpy(calls(rows, fresh.numpy()))], dim=1)
    return scored.gather(1, scores.topk(TOP, dim=1).indices).numpy()


def problem(items: int, queries: int, width: int) -> tuple[Calls, Given]:
    """Random vectors, and scores that are their products with moved queries, and noise."""
    rng = np.random.default_rng(0)
    every = rng.standard_normal((items, width), dtype=np.float32)
    asked = rng.standard_normal((queries, width), dtype=np.float32)
    matrix = (asked + 0.5 * rng.standard_normal(asked.shape, dtype=np.float32)) @ every.T
    matrix += rng.standard_normal(matrix.shape, dtype=np.float32)
    return Calls(matrix), Given(asked, every)


def timed(calls: Calls, form: Callable[[], Rows], queries: int) -> tuple[float, Rows]:
    """Milliseconds a query besides the calls, and what was found."""
    time.sleep(PAUSE)
    calls.seconds = 0.0
    start = time.perf_counter()
    found = form()
    return 1000 * (time.perf_counter() - start - calls.seconds) / queries, found


def spread(values: Sequence[float]) -> str:
    """Median (least to largest)."""
    return f"{statistics.median(values):.2f} ({min(values):.2f} to {max(values):.2f})"


def cell(calls: Calls, vectors: Given, corpus: Corpus, queries: int, rounds: int, budget: int, repeats: int) -> str:
    """A row of the table."""
    searcher = AXN(budget=budget, rounds=rounds, query_batch=queries)
    searcher.index(corpus)
    asked = [Query(str(row), "x") for row in range(queries)]
    few, runs = min(queries, PLAIN), []
    for _ in range(1 + repeats):
        slow, expected = timed(calls, lambda: plain(calls, vectors, few, budget, rounds), few)
        other, _ = timed(calls, lambda: ridge(calls, vectors, queries, budget, rounds), queries)
        ours, found = timed(calls, lambda: searcher.search(asked, TOP).items, queries)
        runs.append((slow, other, ours))
    same = 100 * (found[:few] == expected).mean()
    columns = [statistics.median(column) for column in zip(*runs[1:], strict=True)]
    ratios = [spread([run[which] / run[2] for run in runs[1:]]) for which in (0, 1)]
    times = " | ".join(f"{value:.2f}" for value in columns)
    return f"| {calls.num_items:,} | {queries} | {rounds} | {times} | {' | '.join(ratios)} | {same:.1f} % |"


def main() -> None:
    """Prints a Markdown table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--items", type=int, nargs="+", default=[10_000, 100_000, 1_000_000])
    parser.add_argument("--queries", type=int, nargs="+", default=[1, 8, 32])
    parser.add_argument("--rounds", type=int, nargs="+", default=[5, 10, 20])
    for name, default in (("width", 384), ("budget", 500), ("threads", 2), ("repeats", 5)):
        parser.add_argument(f"--{name}", type=int, default=default)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    print("| items | queries | R | plain, ms | ridge, ms | AXN, ms | plain / AXN | ridge / AXN | top 100 as plain |")
    print("|---|---|---|---|---|---|---|---|---|")
    for items in options.items:
        calls, vectors = problem(items, max(options.queries), options.width)
        corpus = Corpus([Item(str(row), "x") for row in range(items)], calls, vectors)
        for queries, rounds in product(options.queries, options.rounds):
            line = cell(calls, vectors, corpus, queries, rounds, options.budget, options.repeats)
            print(line, flush=True)


if __name__ == "__main__":
    main()
