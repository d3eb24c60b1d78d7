"""Recall against indexing time (AXN Figure 1): RNR, CUR, ADACUR and AXN over item vectors from several sources.

    python -m benchmarks.calls.indexing --matrix out/event.safetensors --world noun.event --call 0.004 --out out/figure1
        [--beir DIR] [--dense checkpoints/wordnet-de] [--distilled checkpoints/wordnet-de-match] [--train 50 100 200]
        [--depth 25 100] [--tested 200] [--dev 50] [--seeds 1]

The matrix holds the scores of a collection's queries with all its items (``evaluate.py matrix``). Its queries are drawn
apart into those that are tested, dev queries, which choose CUR's anchor items and cut-off, ADACUR's cut-off and AXN's
lambda for each k and budget, and training queries: the anchors of CUR and ADACUR, the rows of the sparse matrices, and
what score normalisation is fitted on. Factorizations are trained by train.py on ``depth`` items of each training query,
the dual encoder's first ones, by the recipes in configs/wordnet.

Indexing seconds are those of encoding the items, measured here, of training, measured here with the program's start,
and ``--call`` seconds for each call that the index needs, as ``evaluate.py matrix`` took them. Results of each query
are written to --out, and what is there is not run again; then the table, the paired tests and the plot are made.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from matplotlib.figure import Figure

from simzoo.core.files import replacing
from simzoo.core.records import Query
from simzoo.datamodules.sources import BEIR, Source, WordNet
from simzoo.retrieval.corpus import Corpus
from simzoo.retrieval.first_stages.dense import Dense
from simzoo.retrieval.judge import MatrixJudge
from simzoo.retrieval.pair_sampling import QueriesToItems
from simzoo.retrieval.results.metrics import interval, topk_recall
from simzoo.retrieval.results.significance import holm, paired_randomization
from simzoo.retrieval.searcher import Searcher
from simzoo.retrieval.searchers.adacur import AdaCUR
from simzoo.retrieval.searchers.axn import AXN
from simzoo.retrieval.searchers.cur import CUR
from simzoo.retrieval.searchers.exact import Rerank
from simzoo.retrieval.sparse_matrix import build_sparse_matrix
from simzoo.retrieval.storage.score_matrix import ScoreMatrix
from simzoo.retrieval.topk import Rows, Scores

POINTS = {1: 100, 100: 500}
"""Calls by k: what the paper's Figure 1 shows."""
WEIGHTS = [(weight,) for weight in (0.0, 0.2, 0.4, 0.6, 0.8)]
CUTS = (1e-6, 1e-3, 1e-2)
NORMALIZED_ON = 100  # training queries
RECIPES = {"MF_TRNS": "configs/wordnet/mf_transductive.yaml", "MF_IND": "configs/wordnet/mf_inductive.yaml"}
Setting = tuple[float, ...]


@dataclass(frozen=True)
class Index:
    """What a method needs before a query comes.

    Attributes:
        name: of the method.
        train: training queries.
        depth: scored items of each; 0: all, or none.
        calls: that the index took.
        seconds: besides the calls.
        make: a searcher of a budget and a setting.
        settings: among which the dev queries choose.
    """

    name: str
    train: int
    depth: int
    calls: int
    seconds: float
    make: Callable[[int, Setting], Searcher]
    settings: Sequence[Setting] = ((),)

    @property
    def title(self) -> str:
        """The method with its numbers."""
        numbers = f" {self.train}" * bool(self.train) + f" x {self.depth}" * bool(self.depth)
        return f"{self.name}{numbers}"


class Study:
    """A collection, its scores, and the queries' parts."""

    def __init__(self, source: Source, matrix: ScoreMatrix, dense: str, tested: int, dev: int, out: Path) -> None:
        (self.collection,) = source.collections("test")
        self.source, self.dense, self.out = source, Dense(dense), out
        rows = matrix.of(self.collection)
        order = np.random.default_rng(0).permutation(len(rows))
        self.tested, self.dev, self.train = (rows[part] for part in np.split(order, [tested, tested + dev]))
        self.scores = np.full((len(self.collection.queries), len(self.collection.items)), np.nan, dtype=np.float32)
        self.scores[rows] = matrix.scores
        self.judge = MatrixJudge(self.scores, [query.id for query in self.collection.queries])

    def queries(self, rows: Rows) -> list[Query]:
        """Queries of rows."""
        return [self.collection.queries[row] for row in rows.tolist()]

    def corpus(self, train: int) -> Corpus:
        """The items, with so many training queries as anchors."""
        return Corpus.of(self.collection, self.judge, anchors=self.queries(self.train[: train or NORMALIZED_ON]))

    def recall(self, searcher: Searcher, train: int, rows: Rows, k: int) -> Scores:
        """Top-k-Recall of each query (Q,)."""
        searcher.index(self.corpus(train))
        found = searcher.search(self.queries(rows), min(k, len(self.collection.items))).items
        return topk_recall(found, self.scores[rows], k)

    def measured(self, index: Index, k: int) -> dict[str, Any]:
        """The recall of the tested queries, at the setting that is best on the dev queries."""
        budget, best = POINTS[k], index.settings[0]
        if len(index.settings) > 1:
            best = max(
                index.settings, key=lambda one: self.recall(index.make(budget, one), index.train, self.dev, k).mean()
            )
        recall = self.recall(index.make(budget, best), index.train, self.tested, k)
        return {"setting": list(best), "recall": [round(float(value), 6) for value in recall]}

    def factorized(self, kind: str, train: int, depth: int, seed: int) -> tuple[Path, float]:
        """A trained factorization's folder, and the seconds that training took."""
        folder = self.out / f"{kind}-{train}-{depth}-{seed}"
        done = folder / "seconds"
        if not done.exists():
            entries = folder / "entries"
            asked, dense = self.queries(self.train[:train]), self.dense
            corpus = self.corpus(train)
            dense.index(corpus)
            sampling = QueriesToItems(top=depth, first_stage=dense)
            sampling.begin(corpus, asked)

            def known(few: Sequence[Query], query_rows: Rows, item_rows: Rows) -> Scores:
                encoded, taken = dense.embedder.encode(few), dense.embedder.take(item_rows)
                return np.einsum("pd,pd->p", encoded[query_rows], taken)  # type: ignore[no-any-return]

            build_sparse_matrix(
                corpus, asked, sampling, entries, self.collection.fingerprint, "a matrix", known, dense.identity()
            )
            for name, vectors in (("items", dense.embedder.vectors), ("queries", dense.embedder.encode(asked))):
                np.save(entries / f"{name}.npy", vectors)
            start = time.perf_counter()
            self._train(kind, entries, folder, seed)
            with replacing(done) as file:
                file.write(f"{time.perf_counter() - start:.1f}".encode())
        return folder / "release", float(done.read_text())

    def _train(self, kind: str, entries: Path, folder: Path, seed: int) -> None:
        """Runs train.py with the recipe on these data."""
        data = {"class_path": type(self.source).__name__, "init_args": _arguments(self.source)}
        source = {"class_path": "ScoredPairs", "init_args": {"data": data, "matrix": str(entries)}}
        own: dict[str, Any] = {"seed_everything": seed, "output": str(folder), "data": {"source": source}}
        own["release"] = str(folder / "release")
        if kind == "MF_TRNS":
            own["model"] = {"class_path": "MatrixFactorization", "init_args": {"start": str(entries)}}
        path = folder / "own.yaml"
        path.write_text(yaml.safe_dump(own))
        command = [sys.executable, "train.py", "fit", "--config", RECIPES[kind], "--config", str(path)]
        with (folder / "log.txt").open("w") as log:
            subprocess.run(command, check=True, stdout=log, stderr=subprocess.STDOUT)


def _arguments(source: Source) -> dict[str, Any]:
    if isinstance(source, WordNet):
        return {"world": source.world, "titles": source.titles}
    assert isinstance(source, BEIR)
    return {"root": str(source.root)}


def indexes(study: Study, options: argparse.Namespace) -> Iterator[Index]:
    """What is compared, the cheap ones first."""
    start = time.perf_counter()
    study.dense.index(study.corpus(0))
    embedding, items = time.perf_counter() - start, len(study.collection.items)
    dense = study.dense
    yield Index("RNR", 0, 0, 0, embedding, lambda budget, _: Rerank(dense, budget))
    yield _axn("AXN, dual encoder", dense, 0, 0, 0, embedding)
    if options.distilled:
        distilled = Dense(options.distilled)
        yield _axn("AXN, distilled dual encoder", distilled, 0, 0, 0, embedding)
        yield Index("RNR, distilled dual encoder", 0, 0, 0, embedding, lambda budget, _: Rerank(distilled, budget))
    for train in options.train:
        yield Index(
            "CUR", train, 0, train * items, 0.0,
            lambda budget, one, train=train: CUR(budget, train, round(one[0] * budget), rcond=one[1]),  # type: ignore[misc]
            [one for one in product((0.2, 0.4, 0.6, 0.8), CUTS) if round(one[0] * POINTS[1]) != train],
        )  # fmt: skip
        yield Index(
            "ADACUR", train, 0, train * items, embedding,
            lambda budget, one, train=train: AdaCUR(dense, budget, train, options.rounds, rcond=one[0]),  # type: ignore[misc]
            [(cut,) for cut in CUTS],
        )  # fmt: skip
    for kind, train, depth, seed in product(RECIPES, options.train, options.depth, range(1, options.seeds + 1)):
        folder, seconds = study.factorized(kind, train, depth, seed)
        vectors = Dense(folder, queries=dense.checkpoint) if kind == "MF_TRNS" else Dense(folder)
        name = f"AXN, {kind}" + f", seed {seed}" * (options.seeds > 1)
        yield _axn(name, vectors, train, depth, train * depth, embedding + seconds)


def _axn(name: str, vectors: Dense, train: int, depth: int, calls: int, seconds: float) -> Index:
    def make(budget: int, setting: Setting) -> Searcher:
        return AXN(vectors, budget=budget, rounds=5, weight=setting[0], normalize=True)

    return Index(name, train, depth, calls, seconds, make, WEIGHTS)


def row(found: dict[str, Any], call: float) -> str:
    """A row of the table."""
    cells = [found["title"], f"{found['calls']:,}", f"{found['seconds'] + call * found['calls']:,.0f}"]
    for k in POINTS:
        mean, low, high = interval(np.array(found[str(k)]["recall"]))
        cells.append(f"{mean:.3f} ({low:.3f} to {high:.3f})")
    return f"| {' | '.join(cells)} |"


def tests(every: Sequence[dict[str, Any]], baseline: str) -> list[str]:
    """Every index against one, paired over queries, Holm-corrected within a k."""
    base = next(one for one in every if one["title"] == baseline)
    others = [one for one in every if one is not base]
    lines = []
    for k, budget in POINTS.items():
        pairs = [(np.array(one[str(k)]["recall"]), np.array(base[str(k)]["recall"])) for one in others]
        corrected = holm([paired_randomization(*pair) for pair in pairs])
        for one, (first, second), p in zip(others, pairs, corrected, strict=True):
            lines.append(f"| {one['title']} | Top-{k}-Recall at {budget} | {(first - second).mean():+.3f} | {p:.2g} |")
    return lines


def plot(every: Sequence[dict[str, Any]], call: float, title: str, path: Path) -> None:
    """Recall against indexing seconds, a panel for each k."""
    figure = Figure(figsize=(10, 4), layout="constrained")
    names = list(dict.fromkeys(one["name"] for one in every))
    for panel, (k, budget) in zip(figure.subplots(1, len(POINTS)), POINTS.items(), strict=True):
        for name, marker in zip(names, "osD^vP*X<>hd", strict=False):
            same = sorted(
                (one["seconds"] + call * one["calls"], float(np.mean(one[str(k)]["recall"])))
                for one in every
                if one["name"] == name
            )
            panel.plot(*zip(*same, strict=True), marker=marker, linestyle=":", markersize=5, label=name)
        panel.set(title=f"{budget} calls", xlabel="indexing seconds", ylabel=f"Top-{k}-Recall", xscale="log")
        panel.grid(alpha=0.3)
    panel.legend(fontsize=7)
    figure.suptitle(title)
    figure.savefig(path, metadata={"Date": None})


def main() -> None:
    """Measures what is not there yet; prints the table and the tests; draws."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--matrix", type=Path, required=True)
    parser.add_argument("--world", default=None)
    parser.add_argument("--beir", type=Path, default=None)
    parser.add_argument("--call", type=float, required=True, help="seconds a call, as evaluate.py matrix took them")
    parser.add_argument("--dense", default="checkpoints/wordnet-de")
    parser.add_argument("--distilled", default=None)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--train", type=int, nargs="+", default=[50, 100, 200])
    parser.add_argument("--depth", type=int, nargs="+", default=[25, 100])
    parser.add_argument("--tested", type=int, default=200)
    parser.add_argument("--dev", type=int, default=50)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    source: Source = BEIR(root=options.beir) if options.beir else WordNet(world=options.world, titles=False)
    options.out.mkdir(parents=True, exist_ok=True)
    matrix = ScoreMatrix.load(options.matrix)
    study = Study(source, matrix, options.dense, options.tested, options.dev, options.out)
    if max(options.train) > len(study.train):
        parser.error(f"--train {max(options.train)}: the matrix leaves {len(study.train)} training queries")
    known_path = options.out / "results.jsonl"
    known = [json.loads(line) for line in known_path.read_text().splitlines()] if known_path.is_file() else []
    every: dict[str, dict[str, Any]] = {one["title"]: one for one in known}
    for index in indexes(study, options):
        if index.title not in every:
            found = {"title": index.title, "name": index.name, "calls": index.calls, "seconds": index.seconds}
            every[index.title] = {**found, **{str(k): study.measured(index, k) for k in POINTS}}
            with known_path.open("a") as file:
                file.write(json.dumps(every[index.title]) + "\n")
        print(row(every[index.title], options.call), flush=True)
    columns = " | ".join(f"Top-{k}-Recall at {budget} calls" for k, budget in POINTS.items())
    print(f"\n| index | calls | indexing seconds | {columns} |\n|{'---|' * (3 + len(POINTS))}")
    print("\n".join(row(one, options.call) for one in every.values()))
    print("\n| index | metric | against AXN, dual encoder | p |\n|---|---|---|---|")
    print("\n".join(tests(list(every.values()), "AXN, dual encoder")))
    plot(list(every.values()), options.call, study.collection.name, options.out / "figure1.svg")


if __name__ == "__main__":
    main()
