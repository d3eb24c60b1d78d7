"""Do cross-encoders judge better than the dual encoder that feeds them? And what does its score add to theirs?

    python -m benchmarks.wordnet.judges checkpoints/wordnet-emb-ce checkpoints/wordnet-cls-ce [--titles]
        [--queries 200] [--dev 160] [--out out/judges]

Every cross-encoder ranks wordnet-de's first 64 of each query. The test queries are drawn from those of the four test
worlds that no table of this project was made with (the README's 100 of each world, drawn with seed 0, are left out).
The prior adds a multiple of wordnet-de's cosine at inference; the multiple is the best for nDCG@10 on the dev worlds.
Differences are paired, with 95 % bootstrap intervals over queries and the p of the paired randomisation test,
Holm-corrected over the rows. Scores are kept in --out by the weights' hash.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from simzoo.core.files import replacing
from simzoo.core.records import Collection
from simzoo.datamodules.readers.wordnet import DEV_WORLDS, TEST_WORLDS, find_wordnet, load_wordnet
from simzoo.models.formats import load
from simzoo.models.similarity import LearnedSimilarity, fastest_device
from simzoo.retrieval.corpus import Corpus
from simzoo.retrieval.evaluation import split_queries
from simzoo.retrieval.first_stages.dense import Dense
from simzoo.retrieval.judge import SimilarityJudge
from simzoo.retrieval.results.metrics import Values, accuracy, interval, ir_metrics
from simzoo.retrieval.results.significance import holm, paired_randomization
from simzoo.retrieval.topk import Rows, Scores

DE = "checkpoints/wordnet-de"
DEPTH = 64
LOOKED_AT = 100  # queries of each test world that tables show
MULTIPLES = (0.0, 2.5, 5.0, 10.0, 25.0, 50.0)
METRICS = ("nDCG@10", "accuracy", "accuracy (ambiguous)")


@dataclass(frozen=True)
class World:
    """Queries of a world with the dual encoder's first items (Q, 64) and their cosines."""

    collection: Collection
    rows: Rows
    items: Rows
    cosines: Scores

    @classmethod
    def of(cls, collection: Collection, rows: Rows) -> World:
        """Asks the dual encoder."""
        dense = Dense(DE)
        dense.index(Corpus.of(collection))
        return cls(collection, rows, *dense.search([collection.queries[row] for row in rows.tolist()], DEPTH))

    def scores(self, model: LearnedSimilarity, out: Path) -> Scores:
        """Of a cross-encoder (Q, 64), computed once."""
        name = f"{model.weights_sha256[:16]}-{self.collection.fingerprint[:16]}-{len(self.rows)}.npy"
        if not (out / name).exists():
            queries = [self.collection.queries[row] for row in self.rows.tolist()]
            scorer = SimilarityJudge.of(model, self.collection.items).scorer(queries)
            found = scorer(np.repeat(np.arange(len(queries)), DEPTH), self.items.ravel())
            with replacing(out / name) as file:
                np.save(file, np.asarray(found, dtype=np.float32).reshape(self.items.shape))
        kept: Scores = np.load(out / name)
        return kept

    def values(self, scores: NDArray[np.floating]) -> dict[str, Values]:
        """Metrics of each query (Q,) where the items are ranked by scores (Q, 64); NaN where one does not count."""
        order = np.argsort(-scores, axis=1, kind="stable")
        ranked = np.take_along_axis(self.items, order, axis=1)
        first = accuracy(ranked[:, 0], self.collection, self.rows)
        aliases = (self.collection.queries[row].alias for row in self.rows.tolist())
        ambiguous = [alias is not None and len(self.collection.aliases.get(alias, ())) > 1 for alias in aliases]
        found = ir_metrics(ranked[:, :10], self.collection, self.rows, ["nDCG@10"])
        return {**found, "accuracy": first, "accuracy (ambiguous)": np.where(ambiguous, first, np.nan)}


def pooled(worlds: list[World], scores: list[NDArray[np.floating]]) -> dict[str, Values]:
    """Metrics of all worlds' queries."""
    every = [world.values(own) for world, own in zip(worlds, scores, strict=True)]
    return {metric: np.concatenate([one[metric] for one in every]) for metric in METRICS}


def summed(worlds: list[World], scores: list[Scores], multiple: float) -> list[NDArray[np.floating]]:
    """Scores with a multiple of the cosine added."""
    return [own + multiple * world.cosines for world, own in zip(worlds, scores, strict=True)]


def drawn(names: tuple[str, ...], titles: bool, queries: int, skip: int) -> list[World]:
    """So many queries of each world, drawn from those that are not the first ``skip`` of seed 0."""
    found = []
    for name in names:
        collection = load_wordnet(find_wordnet(), titles=titles, only=[name])[name]
        left = split_queries(collection, skip, 0)[1] if skip else np.arange(len(collection.queries))
        rows = np.sort(np.random.default_rng(1).permutation(left)[:queries])
        found.append(World.of(collection, rows))
    return found


def row(name: str, values: dict[str, Values], base: dict[str, Values], p: float | None) -> str:
    """A row of the table: the metrics, and the difference in nDCG@10 to the dual encoder's."""
    cells = [f"{np.nanmean(values[metric]):.3f}" for metric in METRICS]
    if p is None:
        return f"| {name} | {' | '.join(cells)} | - | - |"
    mean, low, high = interval(values["nDCG@10"] - base["nDCG@10"])
    return f"| {name} | {' | '.join(cells)} | {mean:+.3f} ({low:+.3f} to {high:+.3f}) | {p:.2g} |"


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkpoints", type=Path, nargs="+")
    parser.add_argument("--titles", action="store_true")
    parser.add_argument("--queries", type=int, default=200, help="of each test world")
    parser.add_argument("--dev", type=int, default=160, help="of each dev world; 0: no prior")
    parser.add_argument("--out", type=Path, default=Path("out/judges"))
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    tested = drawn(TEST_WORLDS, options.titles, options.queries, LOOKED_AT)
    dev = drawn(DEV_WORLDS, options.titles, options.dev, 0) if options.dev else []
    base = pooled(tested, [world.cosines for world in tested])
    found: dict[str, dict[str, Values]] = {}
    for path in options.checkpoints:
        model = load(path, fastest_device())
        scores = [world.scores(model, options.out) for world in tested]
        found[str(path)] = pooled(tested, list(scores))
        if dev:
            on_dev = [world.scores(model, options.out) for world in dev]
            means = {multiple: pooled(dev, summed(dev, on_dev, multiple))["nDCG@10"].mean() for multiple in MULTIPLES}
            alone = pooled(dev, [world.cosines for world in dev])["nDCG@10"].mean()
            told = ", ".join(f"{multiple:g}: {mean:.3f}" for multiple, mean in means.items())
            print(f"{path}, nDCG@10 on dev worlds by multiple of the cosine: {told}; the cosine alone {alone:.3f}")
            best = max(means, key=lambda multiple: means[multiple])
            found[f"{path} + {best:g} x cosine"] = pooled(tested, summed(tested, scores, best))
    p = holm([paired_randomization(values["nDCG@10"], base["nDCG@10"]) for values in found.values()])
    print(f"\n| over wordnet-de's first {DEPTH} | {' | '.join(METRICS)} | nDCG@10 less wordnet-de's | p |")
    print(f"|{'---|' * (len(METRICS) + 3)}")
    print(row("wordnet-de", base, base, None))
    for (name, values), one in zip(found.items(), p, strict=True):
        print(row(name, values, base, one))
    print(f"\n{len(base['accuracy'])} queries, {np.isfinite(base['accuracy (ambiguous)']).sum()} of them ambiguous.")


if __name__ == "__main__":
    main()
