"""Graph search over all of WordNet with trained q-nets: recall, q-net evaluations, time, against exhaustive search.

    python -m benchmarks.graph_search.measure quality [--wide] [--plot docs/graph_search.svg]
    python -m benchmarks.graph_search.measure time [--wide]
    python -m benchmarks.graph_search.measure floor [--width 768 --depth 6]

The items and the q-nets are those of benchmarks.graph_search.data; vectors, exhaustive scores and the graph of 100
neighbours are made once and kept under out/graph-search. ``quality`` takes every score from the exhaustive ones, so
that it needs no q-net; ``time`` runs the q-nets. ``floor`` compares scoring with its matrix products alone, on random
weights. The paper's settings are Algorithm 1 as the released code runs it: entry points, breadth n, rounds; of each
round's items max(n, k) are offered; it stops after a round that adds nothing.
"""

from __future__ import annotations

import argparse
import resource
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure
from numpy.typing import NDArray
from torch import Tensor

from benchmarks.graph_search.data import Space
from simzoo.core.records import Query
from simzoo.core.reps import Reps, take
from simzoo.datamodules.readers.wordnet import TEST_WORLDS
from simzoo.models.hypencoder import Hypencoder
from simzoo.models.parts.q_net import QNet, QNetConfig
from simzoo.retrieval.corpus import Corpus
from simzoo.retrieval.first_stages.lexical import BM25
from simzoo.retrieval.judge import SimilarityJudge
from simzoo.retrieval.scorer import Scorer
from simzoo.retrieval.searcher import Searcher, Stopwatch
from simzoo.retrieval.searchers.graph_search import EntryPoints, GraphSearch, RandomItems, Retrieved
from simzoo.retrieval.searchers.linear_search import LinearSearch
from simzoo.retrieval.searchers.vectors import own_vectors
from simzoo.retrieval.storage.graph import GraphConfig, build_graph, load_graph
from simzoo.retrieval.storage.score_matrix import build_matrix
from simzoo.retrieval.topk import top_columns

CACHE = Path("out/graph-search")
DEGREE, K = 100, 100
Make = Callable[[], Searcher]
Setting = tuple[str, Make]  # and its name


def graph_folder(width: int) -> Path:
    """Of the vectors of that width."""
    return CACHE / f"graph-{width}"


class OneNet:
    """A similarity of q-nets and vectors at hand."""

    pointwise, training, device = True, False, "cpu"
    score, score_pairs = Hypencoder.score, Hypencoder.score_pairs

    def __init__(self, net: QNet) -> None:
        self.q_net = net


class OnGraph(GraphSearch):
    """Over the first neighbours of one graph, so that degrees share it."""

    def __init__(self, entry: EntryPoints, degree: int, breadth: int, rounds: int, **settings: Any) -> None:
        super().__init__(None, entry, None, breadth, rounds, **settings)
        self.degree = degree

    def prepare(self, watch: Stopwatch) -> None:
        vectors = own_vectors(self.corpus, None)
        self._neighbors = load_graph(graph_folder(vectors.shape[1]), len(vectors))[:, : self.degree]
        self.entry_points.index(self.corpus)


class Looked(Scorer):
    """Known scores (B, N), looked up and counted, and no more."""

    def __init__(self, matrix: NDArray[np.float32]) -> None:
        super().__init__(lambda queries, items: matrix[queries, items], *matrix.shape)
        self.matrix = matrix

    def score_lists(self, query_rows: NDArray[np.int64], item_rows: NDArray[np.int64]) -> NDArray[np.float32]:
        found = self.matrix[query_rows[:, None], item_rows]
        found[item_rows < 0] = -np.inf
        self.calls[query_rows] += (item_rows >= 0).sum(axis=1)
        return found


class Encoded(SimilarityJudge):
    """Over the q-nets of a space, or over their exhaustive scores (Q, N)."""

    def __init__(self, space: Space, scores: NDArray[np.float32] | None = None, pairs: int = 65_536) -> None:
        super().__init__(OneNet(space.net), {"vector": space.vectors}, pairs)
        self.rows = {query.id: row for row, query in enumerate(space.collection.queries)}
        self.queries, self.scores = space.queries, scores

    def encode(self, queries: Sequence[Query]) -> Reps:
        return take(self.queries, torch.tensor([self.rows[query.id] for query in queries]))

    def scorer(self, queries: Sequence[Query]) -> Any:
        if self.scores is None:
            return super().scorer(queries)
        return Looked(self.scores[[self.rows[query.id] for query in queries]])


class IndexedOnce(BM25):
    """Walks of all lengths share its index."""

    def prepare(self) -> None:
        if not hasattr(self, "_index"):
            super().prepare()


def algorithm_1(count: int, breadth: int, rounds: int) -> Setting:
    """As the released code runs it."""
    settings = {"offered": max(breadth, K), "stop_early": True}
    make = partial(OnGraph, RandomItems(count), DEGREE, breadth, rounds + 1, **settings)
    return f"({count:,}, {breadth}, {rounds})", make


def best_first(entry: EntryPoints, degree: int = DEGREE) -> list[Setting]:
    """Walks of all lengths."""
    walks = [(breadth, rounds) for breadth in (8, 32) for rounds in (6, 12, 24, 48)]
    return [(f"breadth {n}, {r} rounds", partial(OnGraph, entry, degree, n, r, best_first=True)) for n, r in walks]


def linear(settings: dict[str, Any]) -> Setting:
    """By what is set."""
    return ", ".join(f"{name} {value:,}" for name, value in settings.items()), partial(LinearSearch, **settings)


PAPER = algorithm_1(10_000, 64, 16), algorithm_1(10_000, 328, 20)
FEW = RandomItems(256)
FIXED = {
    "Algorithm 1": list(PAPER),
    "Algorithm 1, 256 entry points": [algorithm_1(256, 64, 16), algorithm_1(256, 328, 20)],
}
WALKS = {
    "best first, 10,000 entry points": best_first(RandomItems(10_000)),
    "best first, 256 entry points": best_first(FEW),
    "best first, 256 entry points, degree 32": best_first(FEW, 32),
    "best first, 256 entry points of BM25": best_first(Retrieved(IndexedOnce(), 256)),
}
TIMED: dict[str, Make] = {
    "Algorithm 1 (10,000, 64, 16)": PAPER[0][1],
    "Algorithm 1 (10,000, 328, 20)": PAPER[1][1],
    "best first, 256 entry points, breadth 32, 24 rounds": WALKS["best first, 256 entry points"][6][1],
    "linear, 1,000 evaluations, 2 rounds": partial(LinearSearch, budget=1_000, rounds=2),
    "linear, 1,000 evaluations, 6 rounds": partial(LinearSearch, budget=1_000),
    "linear, 600 evaluations, as tuned": partial(LinearSearch, budget=600, anchors=64, components=256, ridge=0.03),
}
LINEAR = {
    "rounds": (2, 6, 12, 24),
    "anchors": (64, 128, 256, 512),
    "components": (64, 128, 256),
    "ridge": (0.03, 0.1, 0.3),
}
BUDGETS = (600, 800, 1_000, 1_300, 1_756, 2_500, 4_000, 8_000)


def exhaustive(space: Space) -> NDArray[np.float32]:
    """(Q, N), kept query by query."""
    rows, folder = np.arange(len(space.collection.queries)), CACHE / f"scores-{space.vectors.shape[1]}"
    judge, size = Encoded(space, pairs=len(space.vectors)), len(space.vectors)
    return build_matrix(
        judge.scorer, space.collection, rows, space.made_by, folder, query_block=1, item_block=size
    ).scores


@dataclass(frozen=True)
class Point:
    """Means over queries: evaluations, recall@10 and half of its 95 % interval, recall@100."""

    evaluations: float
    recall: float
    error: float
    recall_100: float

    def __str__(self) -> str:
        return f"{self.evaluations:,.0f} | {self.recall:.3f} ± {self.error:.3f} | {self.recall_100:.3f}"


class Known:
    """Searches with the exhaustive scores at hand.

    Attributes:
        tuning: rows of the queries that settings are chosen on, the first half of each world's.
        held_out: rows of the others, which results are reported on.
    """

    def __init__(self, space: Space, scores: NDArray[np.float32]) -> None:
        rows = np.arange(len(scores))
        self.corpus = Corpus.of(space.collection, Encoded(space, scores))
        self.queries = space.collection.queries
        self.exact = top_columns(scores, K)
        tuning, held_out = np.split(rows.reshape(len(TEST_WORLDS), 2, -1), 2, axis=1)
        self.tuning, self.held_out = tuning.ravel(), held_out.ravel()

    def indexed(self, make: Make) -> Searcher:
        """A searcher, ready."""
        searcher = make()
        searcher.index(self.corpus)
        return searcher

    def point(self, searcher: Searcher, rows: NDArray[np.int64]) -> Point:
        """What it finds for these queries."""
        ranking = searcher.search([self.queries[row] for row in rows], K)
        pairs = list(zip(ranking.items, self.exact[rows], strict=True))
        ten, hundred = (np.array([len(np.intersect1d(a[:k], b[:k])) / k for a, b in pairs]) for k in (10, K))
        error = 1.96 * ten.std() / len(rows) ** 0.5
        return Point(float(ranking.calls.mean()), float(ten.mean()), float(error), float(hundred.mean()))


def tuned_linear(known: Known) -> list[Setting]:
    """One setting after the other is chosen by recall@10 of the tuning queries, at one budget; then all budgets."""
    chosen: dict[str, Any] = {"budget": 1_000}
    for name, values in LINEAR.items():
        tried = {value: known.indexed(linear(chosen | {name: value})[1]) for value in values}
        found = {value: known.point(searcher, known.tuning).recall for value, searcher in tried.items()}
        chosen[name] = max(values, key=found.__getitem__)
        print(f"{name}: " + ", ".join(f"{value} {recall:.3f}" for value, recall in found.items()), flush=True)
    return [linear(chosen | {"budget": budget}) for budget in BUDGETS]


def quality(space: Space, scores: NDArray[np.float32], plot: Path | None) -> None:
    """Prints what the held-out queries give at the settings that the tuning queries chose, and draws it."""
    known = Known(space, scores)
    print(f"{len(known.tuning)} tuning and {len(known.held_out)} held-out queries, {scores.shape[1]:,} items\n")
    goals: list[tuple[str, Point, Point]] = []  # of the paper's settings: on the tuning queries, on the held-out ones
    curves: dict[str, list[Point]] = {}
    reached: list[str] = []
    table = ["| search | setting | evaluations a query | recall@10 | recall@100 |", "|---|---|---|---|---|"]
    for name, settings in (FIXED | WALKS | {"linear": tuned_linear(known)}).items():
        ready = [(setting, known.indexed(make)) for setting, make in settings]
        tuned = [(known.point(searcher, known.tuning), setting, searcher) for setting, searcher in ready]
        tuned.sort(key=lambda one: one[0].evaluations)
        best = np.maximum.accumulate([-1, *(point.recall for point, _, _ in tuned)])
        # A setting is kept where no cheaper one finds as much for the tuning queries.
        kept = [one for one, before in zip(tuned, best[:-1], strict=True) if name in FIXED or one[0].recall > before]
        shown = [(point, known.point(searcher, known.held_out), setting) for point, setting, searcher in kept]
        curves[name] = [point for _, point, _ in shown]
        table += [f"| {name} | {setting} | {point} |" for _, point, setting in shown]
        print(f"{table[-1]}", flush=True)
        goals = goals or [(setting, least, whole) for least, whole, setting in shown]
        for goal, least, whole in goals:
            cell = "not reached | | | | |"
            for point in (one for one in shown if one[0].recall >= least.recall):
                share = point[1].evaluations / whole.evaluations
                cell = f"{point[2]} | {point[1]} | {share:.3f} |"
                break
            reached.append(f"| {goal} | {name} | {cell}")
    print("\n".join(table))
    print("\n| at the recall@10 of | search | setting | evaluations | recall@10 | recall@100 | share of evaluations |")
    print("\n".join(["|---|---|---|---|---|---|---|", *sorted(reached)]))
    if plot is not None:
        draw(curves, len(known.held_out), space, plot)


def draw(curves: dict[str, list[Point]], queries: int, space: Space, plot: Path) -> None:
    """Recall by evaluations."""
    items = len(space.vectors)
    figure = Figure(figsize=(10, 5.2), layout="constrained")
    panels = figure.subplots(1, 2, sharey=True)
    for panel, (attribute, k) in zip(panels, (("recall", 10), ("recall_100", 100)), strict=True):
        for (name, points), marker in zip(curves.items(), "*PosvD^", strict=True):
            line = "none" if name in FIXED else "-"
            x, y = [p.evaluations for p in points], [getattr(p, attribute) for p in points]
            panel.plot(x, y, marker=marker, markersize=9 if name in FIXED else 4, linestyle=line, label=name)
        panel.axvline(items, color="grey", linestyle=":", label="exhaustive")
        panel.set(xlabel="q-net evaluations a query", ylabel=f"recall@{k}", xscale="log", ylim=(0, 1.03))
        panel.grid(alpha=0.3)
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=3, fontsize=8)
    figure.suptitle(
        f"Recall against exhaustive search: {queries} held-out queries, {items:,} items, {space.sizes} q-nets",
        fontsize=11,
    )
    figure.savefig(plot, metadata={"Date": None})


class Watched:
    """Adds up the seconds of a q-net."""

    def __init__(self, net: QNet) -> None:
        self.seconds = 0.0
        self._forward = net.forward
        net.forward = self._watched  # type: ignore[method-assign]

    def _watched(self, weights: Reps, x: Tensor) -> Tensor:
        began = time.perf_counter()
        scores = self._forward(weights, x)
        self.seconds += time.perf_counter() - began
        return scores


def timed(space: Space, singles: int, batch: int) -> None:
    """Milliseconds a query, one by one (median) and as a batch, and what part of the batch's time is not the q-net's.

    Of that part, the searcher's own steps are named apart; the rest gathers vectors and keeps account of scores.
    """
    columns = "search", "evaluations a query", "ms, single", f"ms, {batch} at once", "outside the q-net", "own steps"
    print(f"{space.sizes}\n\n| {' | '.join(columns)} |\n|---|---|---|---|---|---|")
    watched = Watched(space.net)
    items: Reps = {"vector": space.vectors}
    each = []
    for size in (1, batch):
        asked = take(space.queries, torch.arange(size))
        began = time.perf_counter()
        with torch.inference_mode():
            OneNet(space.net).score(asked, items).topk(K)
        each.append(f"{1000 * (time.perf_counter() - began) / size:,.1f}")
    print(f"| exhaustive | {len(space.vectors):,} | {' | '.join(each)} | | |", flush=True)
    corpus, queries = Corpus.of(space.collection, Encoded(space)), space.collection.queries
    for name, make in TIMED.items():
        searcher = make()
        searcher.index(corpus)
        searcher.search(queries[singles : singles + 1], K)  # once unmeasured
        spent = []
        for row in range(singles):
            began = time.perf_counter()
            searcher.search(queries[row : row + 1], K)
            spent.append(1000 * (time.perf_counter() - began))
        watched.seconds, began = 0.0, time.perf_counter()
        ranking = searcher.search(queries[:batch], K)
        seconds = time.perf_counter() - began
        own = sum(ranking.seconds.values()) - ranking.seconds["scoring"]
        print(
            f"| {name} | {ranking.calls.mean():,.0f} | {np.median(spent):,.1f} | {1000 * seconds / batch:,.1f} "
            f"| {1 - watched.seconds / seconds:.1%} | {own / seconds:.1%} |",
            flush=True,
        )
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"\npeak memory of the process so far {peak:,.0f} MB; vectors {space.vectors.nbytes / 1e6:,.0f} MB\n")


def floor(width: int, depth: int, items: int, repeats: int = 25) -> None:
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
    parser.add_argument("--queries", type=int, default=32, help="of each test world; half of them choose the settings")
    parser.add_argument("--plot", type=Path, default=None)
    parser.add_argument("--wide", action="store_true", help="6 x 768 q-nets and vectors instead of 2 x 384")
    parser.add_argument("--singles", type=int, default=8, help="queries timed one by one")
    parser.add_argument("--batch", type=int, default=32, help="queries timed together")
    parser.add_argument("--width", type=int, default=384, help="of the floor")
    parser.add_argument("--depth", type=int, default=2, help="of the floor")
    parser.add_argument("--items", type=int, default=8_192, help="of the floor")
    options = parser.parse_args()
    if options.command == "floor":
        floor(options.width, options.depth, options.items)
        return
    space = Space.of_wordnet(options.queries, options.wide)
    build_graph(space.vectors.numpy(), GraphConfig(DEGREE, folder=graph_folder(space.vectors.shape[1])))
    if options.command == "quality":
        quality(space, exhaustive(space), options.plot)
    else:
        timed(space, options.singles, options.batch)


if __name__ == "__main__":
    main()
