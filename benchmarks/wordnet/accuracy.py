"""Accuracy and R@64 on WordNet's four test worlds: baselines, dual encoders, and cross-encoders over the dual encoder.

    python -m benchmarks.wordnet.accuracy [--queries 200] \
        [--worlds noun.artifact noun.person verb.communication noun.event]

Every row ranks the same random sample of each world's queries. The last columns pool them; p is that of the paired
randomisation test against the dual encoder's pooled accuracy, Holm-corrected within a table.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import transformers

from simzoo.core.records import Collection
from simzoo.datamodules.readers.wordnet import TEST_WORLDS, find_wordnet, load_wordnet
from simzoo.models.formats import load
from simzoo.models.parts.backbone import MINILM
from simzoo.models.similarity import LearnedSimilarity, fastest_device
from simzoo.retrieval.corpus import Corpus
from simzoo.retrieval.evaluation import evaluate, split_queries
from simzoo.retrieval.first_stages.dense import Dense
from simzoo.retrieval.first_stages.lexical import BM25
from simzoo.retrieval.first_stages.offered import AliasTable
from simzoo.retrieval.judge import Judge, SimilarityJudge
from simzoo.retrieval.results.metrics import Values, interval
from simzoo.retrieval.results.significance import holm, paired_randomization
from simzoo.retrieval.searcher import Searcher
from simzoo.retrieval.searchers.exact import Rerank, Retrieve
from simzoo.retrieval.topk import Rows

DE = "wordnet-de"
DEPTH = 64
Row = dict[str, Values]


def measured(collection: Collection, rows: Rows, searcher: Searcher, judge: Judge | None = None) -> Row:
    """Per-query values by metric."""
    return evaluate(searcher, Corpus.of(collection, judge), collection, rows, DEPTH, [f"R@{DEPTH}"]).values


def on_world(collection: Collection, rows: Rows, models: dict[str, LearnedSimilarity]) -> dict[str, Row]:
    """Every row of the table."""
    dense = Dense(f"checkpoints/{DE}")
    found = {
        "BM25": measured(collection, rows, Retrieve(BM25())),
        "alias table": measured(collection, rows, Retrieve(AliasTable(by_sense=False))),
        "most frequent sense": measured(collection, rows, Retrieve(AliasTable())),
        "all-MiniLM-L6-v2": measured(collection, rows, Retrieve(Dense(MINILM))),
        DE: measured(collection, rows, Retrieve(dense)),
    }
    for name, model in models.items():
        judge = SimilarityJudge.of(model, collection.items)
        found[f"{name} over {DE}"] = measured(collection, rows, Rerank(dense, budget=DEPTH), judge)
    return found


def pooled(worlds: list[dict[str, Row]], row: str, metric: str) -> Values:
    """(B,) values of all worlds' queries; NaN where a query does not count."""
    return np.concatenate([world[row][metric] for world in worlds])


def table(worlds: dict[str, dict[str, Row]]) -> str:
    """Markdown."""
    found = list(worlds.values())
    names = list(found[0])
    tests = [
        paired_randomization(pooled(found, DE, "accuracy"), pooled(found, name, "accuracy"))
        for name in names
        if name != DE
    ]
    p = dict(zip((name for name in names if name != DE), holm(tests), strict=True))
    heads = [*worlds, "all", "ambiguous", f"R@{DEPTH}", "p"]
    lines = [f"| accuracy | {' | '.join(heads)} |", f"|{'---|' * (1 + len(heads))}"]
    for name in names:
        cells = [f"{world[name]['accuracy'].mean():.3f}" for world in found]
        for metric in ("accuracy", "accuracy (ambiguous)"):
            values = pooled(found, name, metric)
            cells.append("{:.3f} ({:.3f} to {:.3f})".format(*interval(values[np.isfinite(values)])))
        cells += [f"{pooled(found, name, f'R@{DEPTH}').mean():.3f}", f"{p[name]:.2g}" if name in p else "-"]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    """Prints a table with titles and one without."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--queries", type=int, default=200)
    parser.add_argument("--worlds", nargs="+", default=list(TEST_WORLDS))
    options = parser.parse_args()
    transformers.utils.logging.disable_progress_bar()
    models = {path.name: load(path, fastest_device()) for path in sorted(Path("checkpoints").glob("wordnet-*-ce"))}
    for titles in (False, True):
        collections = load_wordnet(find_wordnet(), titles=titles, only=options.worlds)
        found = {}
        for name in options.worlds:
            rows, _ = split_queries(collections[name], min(options.queries, len(collections[name].queries)), seed=0)
            found[name] = on_world(collections[name], rows, models)
        queries = sum(len(next(iter(world.values()))["accuracy"]) for world in found.values())
        ambiguous = np.isfinite(pooled(list(found.values()), DE, "accuracy (ambiguous)")).sum()
        print(f"\n{'With' if titles else 'Without'} titles, {queries} queries, {ambiguous} of them ambiguous:\n")
        print(table(found), flush=True)


if __name__ == "__main__":
    main()
