"""Top-k-Recall against calls: RNR, ANNCUR and AXN on a matrix of exact scores.

    python -m benchmarks.calls.recall --checkpoint checkpoints/wordnet-emb-ce --world noun.event [--titles] \
        [--dense checkpoints/wordnet-de] [--budgets 50 100 200 500] [--plot docs/recall.svg]

The matrix is the checkpoint's own ``<world>.safetensors`` (made by ``evaluate.py matrix``) unless ``--matrix`` names
another. Half of its queries are tested. The other half are CUR's anchor queries and AXN's normalisation queries; on
them, half as anchors and half as dev queries, CUR's share of anchor items, its rcond, and AXN's lambda are chosen for
each k and budget.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from simzoo.core.records import Collection
from simzoo.datamodules.readers.wordnet import find_wordnet, load_wordnet
from simzoo.retrieval.corpus import Corpus
from simzoo.retrieval.first_stages.dense import Dense
from simzoo.retrieval.first_stages.lexical import BM25
from simzoo.retrieval.judge import MatrixJudge
from simzoo.retrieval.results.metrics import topk_recall
from simzoo.retrieval.searcher import Searcher
from simzoo.retrieval.searchers.axn import AXN
from simzoo.retrieval.searchers.cur import CUR
from simzoo.retrieval.searchers.exact import Rerank
from simzoo.retrieval.storage.score_matrix import ScoreMatrix
from simzoo.retrieval.topk import Rows, Scores

KS = (1, 10, 100)
Setting = tuple[float, ...]
Curves = dict[str, dict[int, list[tuple[float, float]]]]


@dataclass(frozen=True)
class Method:
    """A searcher by budget, setting and number of anchor queries; dev queries choose among the settings."""

    make: Callable[[int, Setting, int], Searcher]
    settings: Sequence[Setting] = ((),)


def methods(dense: Dense, rounds: int, tune: bool) -> dict[str, Method]:
    """What is compared; without tuning, CUR's anchor items take 0.4 of the budget, rcond is 0.01 and lambda 0."""
    bm25 = BM25()
    return {
        "BM25, Rerank": Method(lambda budget, _, __: Rerank(bm25, budget)),
        "dual encoder, Rerank": Method(lambda budget, _, __: Rerank(dense, budget)),
        "CUR": Method(
            lambda budget, setting, anchors: CUR(budget, anchors, round(setting[0] * budget), rcond=setting[1]),
            list(product((0.2, 0.4, 0.6, 0.8), (1e-6, 1e-3, 1e-2))) if tune else [(0.4, 1e-2)],
        ),
        "AXN": Method(
            lambda budget, setting, _: AXN(dense, budget=budget, rounds=rounds, weight=setting[0], normalize=True),
            [(weight,) for weight in (0.0, 0.2, 0.4, 0.6, 0.8)] if tune else [(0.0,)],
        ),
    }


def recalls(
    searcher: Searcher, collection: Collection, scores: Scores, tested: Rows, anchors: Rows
) -> dict[int, float]:
    """Mean Top-k-Recall by k; ``scores`` (Q, N) are NaN where they are not known."""
    judge = MatrixJudge(scores, [query.id for query in collection.queries])
    searcher.index(Corpus.of(collection, judge, anchors=[collection.queries[row] for row in anchors]))
    assert searcher.budget is not None
    asked = [collection.queries[row] for row in tested]
    found = searcher.search(asked, min(searcher.budget, max(KS), len(collection.items))).items
    return {k: float(topk_recall(found, scores[tested], k).mean()) for k in KS if k <= searcher.budget}


def curves(
    collection: Collection, matrix: ScoreMatrix, compared: dict[str, Method], budgets: Sequence[int]
) -> tuple[Curves, dict[str, list[Setting]]]:
    """(calls, recall) by method and k, and the settings chosen, by method in the order of budgets and k."""
    rows = np.random.default_rng(0).permutation(matrix.of(collection))
    scores = np.full((len(collection.queries), len(collection.items)), np.nan, dtype=np.float32)
    scores[matrix.of(collection)] = matrix.scores
    others, tested = np.sort(rows[: len(rows) // 2]), np.sort(rows[len(rows) // 2 :])
    anchors, dev = others[::2], others[1::2]
    found: Curves = {name: {k: [] for k in KS} for name in compared}
    chosen: dict[str, list[Setting]] = {name: [] for name in compared}
    for budget in budgets:
        for name, method in compared.items():
            on_dev = {
                setting: recalls(method.make(budget, setting, len(anchors)), collection, scores, dev, anchors)
                for setting in method.settings
                if len(method.settings) > 1
            }
            on_test: dict[Setting, dict[int, float]] = {}
            for k in (k for k in KS if k <= budget):
                best = max(on_dev, key=lambda setting: on_dev[setting][k]) if on_dev else method.settings[0]
                if best not in on_test:
                    on_test[best] = recalls(method.make(budget, best, len(others)), collection, scores, tested, others)
                found[name][k].append((budget, on_test[best][k]))
                chosen[name].append(best)
    return found, chosen


def table(found: Curves) -> str:
    """Markdown: a row for each method, a column for each k with the recalls in the order of the budgets."""
    budgets = ", ".join(f"{calls:g}" for calls, _ in next(iter(found.values()))[1])
    lines = [f"| searcher | k = 1 at {budgets} calls | k = 10 | k = 100 |", "|---|---|---|---|"]
    for name, points in found.items():
        cells = [" ".join(f"{recall:.3f}" for _, recall in points[k]) for k in KS]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def plot(found: Curves, title: str, path: Path) -> None:
    """One panel for each k."""
    figure = Figure(figsize=(10, 3.4), layout="constrained")
    for panel, k in zip(figure.subplots(1, len(KS), sharey=True), KS, strict=True):
        for (name, points), marker in zip(found.items(), "os^D", strict=True):
            panel.plot(*zip(*points[k], strict=True), marker=marker, markersize=4, label=name)
        panel.set(title=f"k = {k}", xlabel="calls a query", ylabel=f"Top-{k}-Recall", ylim=(0, 1.03), xscale="log")
        ticks = [calls for calls, _ in points[k]]
        panel.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
        panel.minorticks_off()
        panel.grid(alpha=0.3)
    panel.legend(fontsize=8)
    figure.suptitle(title)
    figure.savefig(path, metadata={"Date": None})


def main() -> None:
    """Prints the table and what was chosen; draws the curves."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--checkpoint", type=Path, required=True)
    parser.add_argument("--world", default="noun.event")
    parser.add_argument("--titles", action="store_true")
    parser.add_argument("--matrix", type=Path, default=None)
    parser.add_argument("--dense", default="checkpoints/wordnet-de")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--budgets", type=int, nargs="+", default=[50, 100, 200, 500])
    parser.add_argument("--plot", type=Path, default=None)
    options = parser.parse_args()
    collection = load_wordnet(find_wordnet(), titles=options.titles, only=[options.world])[options.world]
    matrix = ScoreMatrix.load(options.matrix or options.checkpoint / f"{options.world}.safetensors")
    compared = methods(Dense(options.dense), options.rounds, tune=True)
    found, chosen = curves(collection, matrix, compared, options.budgets)
    print(table(found))
    for name in ("CUR", "AXN"):
        print(f"{name}, chosen for {len(KS)} k at each budget: {chosen[name]}")
    if options.plot is not None:
        plot(found, f"{options.checkpoint.name} on {options.world}", options.plot)


if __name__ == "__main__":
    main()
