"""``make demo``: the released checkpoints on WordNet, recall against calls, a small training run, one report.

Writes out/demo/report.html. Fails if a live sample of scores differs from the committed score matrix.
"""

from __future__ import annotations

import shlex
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.calls.recall import curves, methods, table
from simzoo import train
from simzoo.core.progress import quiet
from simzoo.core.records import Collection
from simzoo.datamodules.readers.wordnet import find_wordnet, load_wordnet
from simzoo.models.formats import load
from simzoo.retrieval.corpus import Corpus
from simzoo.retrieval.evaluation import evaluate
from simzoo.retrieval.first_stages.dense import Dense
from simzoo.retrieval.first_stages.lexical import BM25
from simzoo.retrieval.first_stages.offered import AliasTable
from simzoo.retrieval.judge import Judge, SimilarityJudge
from simzoo.retrieval.results import run_files
from simzoo.retrieval.results.examples import Example
from simzoo.retrieval.results.report import RunReport, write_report
from simzoo.retrieval.searcher import Searcher
from simzoo.retrieval.searchers.exact import Rerank, Retrieve
from simzoo.retrieval.storage.score_matrix import ScoreMatrix
from simzoo.retrieval.topk import Rows

OUT = Path("out/demo")
WORLD = "noun.event"
MATRIX = Path("checkpoints/wordnet-emb-ce/noun.event.safetensors")
DE, EMB = "checkpoints/wordnet-de", "checkpoints/wordnet-emb-ce"
CMC, HYPENCODER, MOL = (f"checkpoints/wordnet-{name}" for name in ("cmc", "hypencoder", "mol"))
METRICS = ["nDCG@10", "RR@10", "R@1", "R@64"]
RERANKED = 40  # queries whose top 64 the other models score live, and CMC their top 512
SAMPLE = 2000  # pairs of the matrix that are scored again
CALLS = (50, 100, 200, 500)
TOLERANCE = 1e-3
LOOKED_UP = " (reads the titles)"
ABOUT = (
    "The task: a word in a sentence is to be linked to its meaning, one of the definitions of WordNet's nouns for "
    "events. A query is the sentence with the word marked; the items are the definitions.",
    "The items are without their titles, the words that they define. The models never see that a definition is one of "
    "the marked word: they have the meaning of the two texts alone, among all definitions of this world, which none of "
    "them was trained on. That is hard, and it is what this is for: searchers are told apart where a model's scores "
    "are not those of a word index.",
    f"The alias table and the most frequent sense{LOOKED_UP} look the word up in WordNet's own index, which holds the "
    "titles. They show how much the titles give away, and are no rivals of the other rows. With titles the models pass "
    "them where a word has several meanings: see docs/wordnet.md.",
    f"{RERANKED} queries are few: an interval is about 0.2 wide, and two rows whose intervals overlap by much are not "
    "told apart.",
)


def say(text: str) -> None:
    """A heading with the time so far."""
    print(f"\n[{time.perf_counter() - START:5.0f} s] {text}", flush=True)


def described(name: str, searcher: Searcher, collection: Collection, summary: dict[str, Any]) -> RunReport:
    """A run as its metrics.json would describe it."""
    return RunReport(
        f"{Path(name).name}, {type(searcher).__name__}",
        {
            "checkpoint": {"name": name},
            "data": {"name": collection.name, "fingerprint": collection.fingerprint},
            "searcher": {"name": type(searcher).__name__},
            "queries": RERANKED,
            "command": shlex.join(["python", *sys.argv]),
            "commit": run_files.commit(),
            "versions": run_files.versions(),
            **summary,
        },
    )


def checkpoints(collection: Collection, rows: Rows) -> tuple[list[RunReport], list[Example]]:
    """The released models and their baselines on a sample of queries."""
    dense = Dense(DE)
    reports, examples = [], []
    first_stages = {
        "BM25": BM25(),
        f"alias table{LOOKED_UP}": AliasTable(by_sense=False),
        f"most frequent sense{LOOKED_UP}": AliasTable(),
    }
    runs: list[tuple[str, Searcher, Judge | None]] = [
        (name, Retrieve(stage), None) for name, stage in (*first_stages.items(), (DE, dense))
    ]
    cross_encoders = sorted(map(str, Path("checkpoints").glob("wordnet-*-ce")))
    budgets = dict.fromkeys([*cross_encoders, MOL, HYPENCODER], 64) | {CMC: 512}
    for name, budget in budgets.items():
        model = load(name)
        runs.append((name, Rerank(dense, budget), SimilarityJudge.of(model, collection.items)))
    for name, searcher, judge in runs:
        result = evaluate(searcher, Corpus.of(collection, judge), collection, rows, 64, METRICS)
        reports.append(described(name, searcher, collection, result.summary))
        mean = result.summary["metrics"]
        print(
            f"  {reports[-1].name:50} accuracy {mean['accuracy']['mean']:.2f}   R@64 {mean['R@64']['mean']:.2f}",
            flush=True,
        )
        if name == EMB:
            examples = Example.chosen(collection, rows, result.ranking, 4)
    return reports, examples


def rescore(collection: Collection, matrix: ScoreMatrix) -> None:
    """Scores a random sample of the committed matrix again.

    Raises:
        ValueError: another checkpoint made the matrix, or a score differs.
    """
    model = load(EMB)
    if matrix.checkpoint != model.weights_sha256:
        raise ValueError(
            f"{MATRIX} was made with other weights than {EMB} has; make it again: python evaluate.py matrix"
        )
    rng = np.random.default_rng()
    places = rng.integers(len(matrix.query_ids), size=SAMPLE), rng.integers(len(collection.items), size=SAMPLE)
    asked = [collection.queries[row] for row in matrix.of(collection)]
    live = SimilarityJudge.of(model, collection.items).scorer(asked)(*places)
    difference = float(np.abs(live - matrix.scores[places]).max())
    if not difference <= TOLERANCE:
        raise ValueError(f"live scores differ from {MATRIX} by up to {difference:.2g}, more than {TOLERANCE}")
    print(f"  {SAMPLE} of {matrix.scores.size:,} scores again: largest difference {difference:.1e}")


def main() -> None:
    """Runs everything."""
    quiet()
    OUT.mkdir(parents=True, exist_ok=True)
    collection = load_wordnet(find_wordnet(), titles=False, only=[WORLD])[WORLD]
    matrix = ScoreMatrix.load(MATRIX)
    rows = np.sort(np.random.default_rng(0).permutation(len(collection.queries))[:RERANKED])
    say(f"released checkpoints on {WORLD} without titles: {len(collection.items)} items, {RERANKED} queries")
    reports, examples = checkpoints(collection, rows)
    say("the committed score matrix, scored again in part")
    rescore(collection, matrix)
    tested = len(matrix.query_ids) - len(matrix.query_ids) // 2
    say(f"Top-k-Recall at {', '.join(map(str, CALLS))} calls, {tested} queries")
    points, _ = curves(collection, matrix, methods(Dense(DE), rounds=5, tune=False), CALLS)
    print(table(points))
    say("training a small dual encoder: train.py fit --config configs/wordnet/demo.yaml")
    train.main(["fit", "--config", "configs/wordnet/demo.yaml", "--trainer.enable_progress_bar", "false"])
    trained = Retrieve(Dense(OUT / "wordnet-de-small"))
    result = evaluate(trained, Corpus.of(collection), collection, rows, 64, METRICS)
    reports.append(described("trained here", trained, collection, result.summary))
    print(f"  accuracy {result.summary['metrics']['accuracy']['mean']:.2f} with the model trained here")
    write_report(OUT / "report.html", reports, points, examples, about=ABOUT)
    say(f"written: {OUT / 'report.html'}")


if __name__ == "__main__":
    START = time.perf_counter()
    torch.set_num_threads(min(2, torch.get_num_threads()))
    main()
