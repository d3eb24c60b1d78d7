"""Does an AXN that stops by itself need fewer calls? Decided on exact scores of a WordNet world without titles.

    python -m benchmarks.calls.stopping --dev checkpoints/wordnet-emb-ce/noun.event.safetensors \
        --test out/event.safetensors [--world noun.event] [--dense checkpoints/wordnet-de] [--size 40] \
        [--most 480] [--explore 0.5] [--plot out/calibration.svg]

The matrices are made by ``evaluate.py matrix``; queries of the test matrix that the other holds as well are left out.
Scores are normalised on the dev queries. Each round scores ``size`` items; after each, the regression's posterior
(`Evidence` around 0: u is Gaussian, the penalty by marginal likelihood) gives every unscored item a Gaussian score. An
item counts as missed with the probability that it is above the k-th best scored one; the search stops where the
expected recall reaches a threshold. Beside it stands a budget that is the same for all queries, at the same mean
number of calls (between two rounds: interpolated), with a `Ridge` around 0 and with least norm. Intervals are 95 %, by
bootstrap over queries, of the paired difference to that ridge. Exploring takes the items of the largest mean plus
``explore`` deviations. Calibration: the probability that all of the top k are found, said and found.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
import torch
from matplotlib.figure import Figure
from numpy.typing import NDArray
from scipy.stats import norm

from simzoo.datamodules.readers.wordnet import find_wordnet, load_wordnet
from simzoo.retrieval.corpus import Corpus
from simzoo.retrieval.first_stages.dense import Dense
from simzoo.retrieval.searchers.evidence import Evidence, Evident
from simzoo.retrieval.searchers.solvers import LeastNorm, Ridge
from simzoo.retrieval.storage.score_matrix import ScoreMatrix

KS = (1, 10, 100)
THRESHOLDS = (0.5, 0.7, 0.8, 0.9, 0.95, 0.99)
EDGES = (0, 0.1, 0.3, 0.5, 0.7, 0.9, 0.97, 1.0001)
SAMPLES = 2000
Doubles = NDArray[np.float64]


@dataclass
class Rounds:
    """What is known after each of R rounds.

    Attributes:
        calls: (R,).
        recall: (R, Q) by k.
        expected: (R, Q) by k: the recall that the posterior expects; empty without one.
        sure: (R, Q) by k: the probability that all of the top k are found.
    """

    calls: Doubles
    recall: dict[int, Doubles]
    expected: dict[int, Doubles]
    sure: dict[int, Doubles]


def searched(
    solver: Evidence | LeastNorm | Ridge,
    scores: Doubles,
    own: Doubles,
    items: Doubles,
    size: int,
    most: int,
    explore: float,
) -> Rounds:
    """Runs over scores (Q, N) with vectors own (Q, d) and items (N, d)."""
    best = {k: np.argsort(-scores, axis=1, kind="stable")[:, :k] for k in KS}
    system, every = solver.begin(torch.from_numpy(own), most), torch.from_numpy(items)
    closed, fresh = np.zeros(scores.shape, dtype=bool), np.argsort(-(own @ items.T), axis=1)[:, :size]
    rounds = range(size, most + 1, size)
    found = Rounds(np.array(rounds, dtype=float), *({k: [] for k in KS} for _ in range(3)))  # type: ignore[arg-type]
    for _ in rounds:
        np.put_along_axis(closed, fresh, True, axis=1)
        system.add(torch.from_numpy(items[fresh]), torch.from_numpy(np.take_along_axis(scores, fresh, axis=1)))
        means = (system.solve() @ every.T).numpy()
        goal = means.copy()
        for k in KS:
            found.recall[k].append(np.take_along_axis(closed, best[k], axis=1).mean(axis=1))
        if isinstance(system, Evident):
            spread = system.variances(every.expand(len(own), -1, -1)).numpy()
            deviation = np.sqrt(spread + system.noise.numpy()[:, None])
            goal += explore * np.sqrt(spread)
            for k in KS:
                last = np.sort(np.where(closed, scores, -np.inf), axis=1)[:, -k, None]  # -inf: not yet k of them
                away = (last - means) / deviation
                missed = np.where(closed, 0, norm.sf(away)).sum(axis=1)
                found.expected[k].append(1 - np.minimum(1, missed / k))
                found.sure[k].append(np.exp(np.where(closed, 0, norm.logcdf(away)).sum(axis=1)))
        goal[closed] = -np.inf
        fresh = np.argpartition(-goal, size, axis=1)[:, :size]
    for known in (found.recall, found.expected, found.sure):
        for k in KS:
            known[k] = np.array(known[k])
    return found


def table(adaptive: Rounds, ridge: Rounds, plain: Rounds) -> str:
    """Markdown: a row for each k and threshold."""
    rng, lines = np.random.default_rng(0), ["| k | threshold | calls | stops | ridge | least norm | stops - ridge |"]
    lines.append("|---|---|---|---|---|---|---|")
    for k in KS:
        for threshold in THRESHOLDS:
            reached = adaptive.expected[k] >= threshold
            stop = np.where(reached.any(axis=0), reached.argmax(axis=0), len(reached) - 1)
            queries = np.arange(len(stop))
            calls, recall = adaptive.calls[stop], adaptive.recall[k][stop, queries]
            same = np.array([np.interp(calls.mean(), ridge.calls, ridge.recall[k][:, q]) for q in queries])
            least = np.mean([np.interp(calls.mean(), plain.calls, plain.recall[k][:, q]) for q in queries])
            apart = recall - same
            means = apart[rng.integers(len(apart), size=(SAMPLES, len(apart)))].mean(axis=1)
            low, high = np.quantile(means, [0.025, 0.975])
            cells = f"{calls.mean():.0f} | {recall.mean():.3f} | {same.mean():.3f} | {least:.3f}"
            lines.append(f"| {k} | {threshold} | {cells} | {apart.mean():+.3f} ({low:+.3f} to {high:+.3f}) |")
    return "\n".join(lines)


def calibration(found: Rounds, k: int) -> list[tuple[float, float, int]]:
    """Probability said, share found, and number of cases, by bins of what was said."""
    said, right = found.sure[k], found.recall[k] > 1 - 1e-9
    bins = [(said >= low) & (said < high) for low, high in pairwise(EDGES)]
    return [(float(said[some].mean()), float(right[some].mean()), int(some.sum())) for some in bins if some.any()]


def main() -> None:
    """Prints the table and the calibration; draws the latter."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dev", type=Path, required=True)
    parser.add_argument("--test", type=Path, required=True)
    parser.add_argument("--world", default="noun.event")
    parser.add_argument("--dense", default="checkpoints/wordnet-de")
    parser.add_argument("--size", type=int, default=40)
    parser.add_argument("--most", type=int, default=480)
    parser.add_argument("--explore", type=float, default=0.0)
    parser.add_argument("--plot", type=Path, default=None)
    options = parser.parse_args()
    collection = load_wordnet(find_wordnet(), titles=False, only=[options.world])[options.world]
    dense = Dense(options.dense)
    dense.index(Corpus.of(collection))
    items = dense.embedder.vectors.astype(np.float64)
    dev, test = ScoreMatrix.load(options.dev), ScoreMatrix.load(options.test)
    new = np.array([name not in set(dev.query_ids) for name in test.query_ids])

    def own(matrix: ScoreMatrix) -> Doubles:
        rows = matrix.of(collection)
        return dense.embedder.encode([collection.queries[row] for row in rows]).astype(np.float64)

    near = own(dev) @ items.T
    top = np.argsort(-near, axis=1)[:, :50]
    exact, dot = np.take_along_axis(dev.scores, top, axis=1), np.take_along_axis(near, top, axis=1)
    scale = dot.std() / exact.std()
    scores = scale * (test.scores[new].astype(np.float64) - exact.mean()) + dot.mean()
    given = (scores, own(test)[new], items, options.size, options.most)
    print(f"{new.sum()} test queries, {len(items)} items, rounds of {options.size}\n")
    adaptive = searched(Evidence(centred=False), *given, options.explore)
    print(table(adaptive, searched(Ridge(0.1, centred=False), *given, 0), searched(LeastNorm(), *given, 0)))
    figure = Figure(figsize=(4, 4), layout="constrained")
    panel = figure.subplots()
    panel.plot([0, 1], [0, 1], color="grey", linewidth=0.8)
    for k in KS:
        points = calibration(adaptive, k)
        print(f"k = {k}, said, found (cases): " + "; ".join(f"{a:.2f}, {b:.2f} ({n})" for a, b, n in points))
        panel.plot([said for said, _, _ in points], [share for _, share, _ in points], marker="o", label=f"k = {k}")
    panel.set(xlabel="probability said that the top k is found", ylabel="share of cases in which it was")
    panel.legend()
    if options.plot is not None:
        figure.savefig(options.plot, metadata={"Date": None})


if __name__ == "__main__":
    main()
