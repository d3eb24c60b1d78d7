"""Graph search over all of WordNet with trained q-nets: recall, q-net evaluations, time, against exhaustive search.

    python -m benchmarks.graph_search quality [--plot docs/graph_search.svg]
    python -m benchmarks.graph_search time
    python -m benchmarks.graph_search floor [--width 768 --depth 6 --items 8192]

The items and the q-nets are those of benchmarks.graph_search_data; vectors, exhaustive scores and the graph of 100
neighbours are made once and kept under out/graph-search. ``quality`` takes every score from the exhaustive ones, so
that it needs no q-net; ``time`` runs the q-nets. ``floor`` compares scoring with its matrix products alone, on random
weights. The paper's settings are Algorithm 1 as the released code runs it: entry points, breadth n, rounds; of each
round's items max(n, k) are offered; it stops after a round that adds nothing.
"""

from __future__ import annotations

import argparse
import resource
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure
from numpy.typing import NDArray
from torch import Tensor

from benchmarks.graph_search_data import Space, trained_queries
from datamodules.reps import Reps
from models.hypencoder import Hypencoder, QNet, QNetConfig
from retrieval.graph import GraphConfig, build_graph
from retrieval.graph_search import EntryPoints, GraphSearch, RandomItems
from retrieval.linear_search import LinearSearch
from retrieval.scorer import Represented, Scorer
from retrieval.searcher import Ranking, Searcher, SearchTask
from retrieval.topk import top_columns

CACHE = Path("out/graph-search")
DEPTH, STEPS, DEGREE, K = 2, 200, 100, 100
Make = Callable[[], Searcher]


class OneNet:
    """A similarity of q-nets and vectors at hand."""

    pointwise, training, device = True, False, "cpu"
    score, score_pairs = Hypencoder.score, Hypencoder.score_pairs

    def __init__(self, net: QNet) -> None:
        self.q_net = net


class OnGraph(GraphSearch):
    """Over the first neighbours of one graph, so that degrees share it."""

    def __init__(self, entry: EntryPoints, degree: int, breadth: int, rounds: int, **settings: Any) -> None:
        graph = GraphConfig(DEGREE, folder=CACHE / "graph-100")
        super().__init__(None, entry, graph, breadth, rounds, **settings)
        self.degree = degree

    def _near(self, items: NDArray[np.int64]) -> NDArray[np.int64]:
        near = super()._near(items).reshape(*items.shape, -1)
        return near[:, :, : self.degree].reshape(len(items), -1)


def methods() -> dict[str, list[tuple[str, Make]]]:
    """Curves: by name, the settings in the order of their cost."""

    def paper(count: int, breadth: int, rounds: int) -> tuple[str, Make]:
        settings = {"offered": max(breadth, K), "stop_early": True}
        return f"({count:,}, {breadth}, {rounds})", lambda: OnGraph(
            RandomItems(count), DEGREE, breadth, rounds + 1, **settings
        )

    def linear(budget: int, rounds: int) -> tuple[str, Make]:
        return f"{budget:,} evaluations, {rounds} rounds", lambda: LinearSearch(budget=budget, rounds=rounds)

    def best_first(entry: EntryPoints, degree: int, breadth: int, rounds: int) -> tuple[str, Make]:
        return f"breadth {breadth}, rounds {rounds}", lambda: OnGraph(entry, degree, breadth, rounds, best_first=True)

    few, walks = RandomItems(256), [(4, 6), (4, 12), (8, 12), (16, 24), (32, 48)]
    return {
        "paper": [paper(10_000, 64, 16), paper(10_000, 328, 20)],
        "paper, 256 entry points": [paper(256, 64, 16), paper(256, 328, 20)],
        "best first, 256 entry points": [best_first(few, DEGREE, *walk) for walk in walks],
        "best first, 256 entry points, degree 16": [best_first(few, 16, 4 * b, r) for b, r in walks],
        "linear, 256 anchors": [linear(budget, 6) for budget in (500, 1_000, 1_756, 4_000, 8_000)],
        "linear, 256 anchors, 2 rounds": [linear(budget, 2) for budget in (500, 1_000, 1_756, 4_000, 8_000)],
    }


def exhaustive(space: Space, net: QNet, queries: Reps) -> NDArray[np.float32]:
    """(Q, N), kept."""
    path = CACHE / "scores.npy"
    if path.exists():
        known: NDArray[np.float32] = np.load(path)
        return known
    model, rows = OneNet(net), []
    with torch.inference_mode():
        for row in range(len(space.collection.queries)):
            one = {name: part[row : row + 1] for name, part in queries.items()}
            rows.append(model.score(one, {"vector": space.vectors})[0].numpy())
    scores = np.stack(rows)
    np.save(path, scores)
    return scores


def recall(ranking: Ranking, exact: NDArray[np.int64], k: int) -> float:
    """Share of the exact top k among the first k."""
    pairs = zip(ranking.items[:, :k], exact[:, :k], strict=True)
    return float(np.mean([len(set(found) & set(known)) / k for found, known in pairs]))


def quality(space: Space, scores: NDArray[np.float32], plot: Path | None) -> None:
    """Prints the table of all curves and draws it."""
    exact = top_columns(scores, K)
    rows = np.arange(len(scores))
    curves: dict[str, list[tuple[float, float, float]]] = {}
    print("| search | setting | evaluations a query | recall@10 | recall@100 |\n|---|---|---|---|---|")
    for name, settings in methods().items():
        for setting, make in settings:
            searcher, scorer = make(), Scorer.from_matrix(scores)
            scorer.represented = Represented(None, {}, {"vector": space.vectors})
            searcher.index(SearchTask(space.collection, scorer, rows, rows[:0]))
            ranking = searcher.search(rows, K)
            point = float(ranking.calls.mean()), recall(ranking, exact, 10), recall(ranking, exact, 100)
            curves.setdefault(name, []).append(point)
            print(f"| {name} | {setting} | {point[0]:,.0f} | {point[1]:.3f} | {point[2]:.3f} |", flush=True)
    if plot is not None:
        figure = Figure(figsize=(10, 4.2), layout="constrained")
        for panel, place, k in zip(figure.subplots(1, 2, sharey=True), (1, 2), (10, 100), strict=True):
            for (name, points), marker in zip(curves.items(), "*Pos^D", strict=True):
                ordered = sorted(points)
                panel.plot(
                    [p[0] for p in ordered], [p[place] for p in ordered], marker=marker, markersize=5, label=name
                )
            panel.set(xlabel="q-net evaluations a query", ylabel=f"recall@{k}", xscale="log", ylim=(0, 1.03))
            panel.grid(alpha=0.3)
        panel.legend(fontsize=7)
        figure.suptitle(f"{len(exact)} queries, {scores.shape[1]:,} items, recall against exhaustive search")
        figure.savefig(plot, metadata={"Date": None})


def timed(space: Space, net: QNet, queries: Reps, singles: int) -> None:
    """Milliseconds a query, one by one and 32 at once, and the share of the time outside the q-net."""
    print(
        "| search | ms, single | ms, batch of 32 | outside the q-net, single | batch |\n|---|---|---|---|---|",
        flush=True,
    )
    clock = {"q-net": 0.0}
    forward = net.forward

    def watched(weights: Reps, x: Tensor) -> Tensor:
        began = time.perf_counter()
        scores = forward(weights, x)
        clock["q-net"] += time.perf_counter() - began
        return scores

    net.forward = watched  # type: ignore[method-assign]
    items: Reps = {"vector": space.vectors}

    def everything(rows: NDArray[np.int64]) -> None:
        some = {name: part[torch.from_numpy(rows)] for name, part in queries.items()}
        with torch.inference_mode():
            OneNet(net).score(some, items).topk(K)

    made = methods()
    chosen = {
        "paper (10,000, 64, 16)": made["paper"][0][1],
        "paper (10,000, 328, 20)": made["paper"][1][1],
        "best first (256, 16, 24)": made["best first, 256 entry points"][3][1],
        "linear, 1,756 evaluations, 6 rounds": made["linear, 256 anchors"][2][1],
        "linear, 1,756 evaluations, 2 rounds": made["linear, 256 anchors, 2 rounds"][2][1],
    }
    runs: dict[str, Callable[[NDArray[np.int64]], object]] = {"exhaustive": everything}
    scorer = Scorer.from_similarity(OneNet(net), queries, items)
    task = SearchTask(space.collection, scorer, np.arange(len(space.collection.queries)), np.arange(0))
    for name, make in chosen.items():
        searcher = make()
        searcher.index(task)
        runs[name] = lambda rows, searcher=searcher: (scorer.forget(rows), searcher.search(rows, K))  # type: ignore[misc]
    for name, search in runs.items():
        cells, shares = [], []
        few = 1 if name == "exhaustive" else singles
        for batches in ([np.array([row]) for row in range(few)], [np.arange(32)]):
            clock["q-net"], began = 0.0, time.perf_counter()
            for rows in batches:
                search(rows)
            spent = time.perf_counter() - began
            cells.append(f"{1000 * spent / sum(map(len, batches)):,.1f}")
            shares.append(f"{1 - clock['q-net'] / spent:.1%}")
        print(f"| {name} | {' | '.join(cells)} | {' | '.join(shares)} |", flush=True)
    net.forward = forward  # type: ignore[method-assign]
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"peak memory of the process {peak:,.0f} MB; vectors {space.vectors.nbytes / 1e6:,.0f} MB")


def floor(width: int, depth: int, items: int, repeats: int = 5) -> None:
    """Milliseconds of scoring and of its matrix products alone, in the same blocks; medians of paired repeats."""
    config = QNetConfig((width,) * depth)
    net = QNet(config, width).eval()
    bare = replace(config, norm="none", residual=False)
    for size in (1, 32):
        weights: Reps = {f"weight_{i}": torch.randn(size, width, width) / width**0.5 for i in range(depth)}
        weights |= {f"bias_{i}": torch.randn(size, 1, width) / 10 for i in range(depth)}
        weights[f"weight_{depth}"] = torch.randn(size, 1, width)
        vectors: Reps = {"vector": torch.randn(max(256, items // size), width)}
        products = QNet(bare, width).eval()
        products.activation = lambda x: x  # type: ignore[assignment]
        spent: dict[str, list[float]] = {"scoring": [], "products": []}
        with torch.inference_mode():
            for _ in range(repeats):
                for name, one in (("scoring", net), ("products", products)):
                    began = time.perf_counter()
                    OneNet(one).score(weights, vectors)
                    spent[name].append(1000 * (time.perf_counter() - began))
        scoring, product = (float(np.median(spent[name])) for name in ("scoring", "products"))
        ratio = float(np.median(np.array(spent["scoring"]) / np.array(spent["products"])))
        print(
            f"{depth} x {width}, {size} queries at once, {len(vectors['vector']):,} items: scoring {scoring:.0f} ms, "
            f"products {product:.0f} ms, ratio {ratio:.2f}",
            flush=True,
        )


def main() -> None:
    """Runs one command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=["quality", "time", "floor"])
    parser.add_argument("--queries", type=int, default=12, help="of each test world")
    parser.add_argument("--plot", type=Path, default=None)
    parser.add_argument("--width", type=int, default=384)
    parser.add_argument("--depth", type=int, default=DEPTH)
    parser.add_argument("--items", type=int, default=32_768)
    options = parser.parse_args()
    if options.command == "floor":
        floor(options.width, options.depth, options.items)
        return
    space = Space.of_wordnet(options.queries)
    net, queries = trained_queries(space, DEPTH, STEPS, CACHE)
    if options.command == "quality":
        quality(space, exhaustive(space, net, queries), options.plot)
    else:
        build_graph(space.vectors.numpy(), GraphConfig(DEGREE, folder=CACHE / "graph-100"))
        timed(space, net, queries, singles=8)


if __name__ == "__main__":
    main()
