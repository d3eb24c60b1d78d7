"""``evaluate.py run``: a checkpoint and a searcher on a collection, to metrics, a TREC run and a report."""

from __future__ import annotations

import shlex
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from simzoo.core.progress import show_table
from simzoo.core.records import DataError
from simzoo.datamodules.sources import Source
from simzoo.retrieval.commands.parts import dtype_of, judge_of, loaded, single
from simzoo.retrieval.corpus import Corpus
from simzoo.retrieval.evaluation import evaluate, split_queries
from simzoo.retrieval.results import run_files
from simzoo.retrieval.results.examples import Example
from simzoo.retrieval.results.metrics import chosen_metrics, recall_curve
from simzoo.retrieval.results.output import check_folder
from simzoo.retrieval.results.report import RunReport, write_report
from simzoo.retrieval.searcher import Searcher
from simzoo.retrieval.searchers.exact import Exact
from simzoo.retrieval.settings import described
from simzoo.retrieval.storage.score_matrix import ScoreMatrix


def run(
    data: Source,
    output: Path,
    checkpoint: str | None = None,
    search: Searcher | None = None,
    queries: int | None = None,
    k: int | None = None,
    metrics: list[str] | None = None,
    exact: Path | None = None,
    seed: int = 0,
    bf16: bool = False,
    store: Path | None = None,
    overwrite: bool = False,
) -> None:
    """Evaluates a checkpoint with a searcher on a collection.

    Args:
        data: the data; its test split must be one collection.
        output: folder for metrics.json, run.trec, per_query.jsonl and report.html.
        checkpoint: a checkpoint of any known layout: folder, file, archive, or org/name@revision. None: no similarity,
            for ``--search Retrieve``, which ranks by its first stage alone.
        search: the searcher; Exact if none is given.
        queries: evaluate a fixed random sample of so many queries; the others may serve as anchors. None: all.
        k: results a query. None: 100, or as many as the budget or the collection has.
        metrics: names as ir-measures has them. None: nDCG@10, RR@10, R@1, R@10, R@64 and R@100, as deep as there are
            results.
        exact: exact scores made by ``evaluate.py matrix``: adds Top-k-Recall, and the queries are those of the matrix.
        seed: of the sample of queries.
        bf16: compute the transformers in bfloat16: for hardware that has it.
        store: folder that keeps the items' representations, so that they are encoded once and a killed run goes on.
        overwrite: replace results that are in the output folder; they are refused otherwise.
    """
    import torch

    from simzoo.models.similarity import fastest_device

    check_folder(output, overwrite)
    searcher = search or Exact()
    collection = single(data)
    known = None if exact is None else ScoreMatrix.load(exact)
    most = min(len(collection.items), searcher.budget or len(collection.items))
    if k is not None and not 1 <= k <= most:
        raise DataError(f"--k {k}: with these items and this budget there are between 1 and {most} results")
    k = k or min(100, most)
    names = chosen_metrics(metrics, k, len(collection.items))
    rows, anchors = split_queries(collection, queries, seed)
    if known is not None:
        rows = known.of(collection)
        anchors = np.setdiff1d(np.arange(len(collection.queries)), rows)
    check_folder(output, overwrite, room=100 * len(rows) * k)
    start = time.perf_counter()
    similarity = None if checkpoint is None else loaded(checkpoint, bf16)
    judge = judge_of(similarity, searcher, collection, len(rows), store, dtype_of(bf16))
    encoding = time.perf_counter() - start
    # Anchors of the data's own spare the test queries.
    own = collection.anchors or [collection.queries[row] for row in anchors]
    corpus = Corpus.of(collection, judge, anchors=own)
    result = evaluate(searcher, corpus, collection, rows, k, names, None if known is None else known.scores)
    about = {
        "checkpoint": {"name": checkpoint, "sha256": similarity and similarity.weights_sha256},
        "data": {"name": collection.name, "fingerprint": collection.fingerprint, "notes": dict(collection.notes)},
        "searcher": described(searcher),
        "queries": len(rows),
        "k": k,
        "seed": seed,
        **result.summary,
        "index_seconds": {"tokens and representations": encoding, **result.summary["index_seconds"]},
        "command": shlex.join(["python", *sys.argv]),
        "commit": run_files.commit(),
        "versions": run_files.versions(),
        "threads": torch.get_num_threads(),
        "device": fastest_device(),
        "bf16": bf16,
    }
    ids = [collection.queries[row].id for row in rows]
    run_files.write_trec(output, collection, rows, result.ranking, type(searcher).__name__)
    run_files.write_per_query(output, ids, {name: column.tolist() for name, column in result.values.items()})
    run_files.write_metrics(output, about)
    examples = Example.chosen(collection, rows, result.ranking, 5)
    curves = {} if known is None else {type(searcher).__name__: recall_curve(result.ranking.items, known.scores)}
    write_report(output / "report.html", [RunReport(output.name, about)], curves, examples, "results looked at")
    show(about)
    if about["truncated"]:
        print(f"{about['truncated']:,} texts were longer than the model takes, and truncated")
    print(f"written: {output / 'report.html'}")


def show(described: dict[str, Any]) -> None:
    """Prints the means with their intervals."""
    rows = [
        (name, f"{value['mean']:.4f}", f"{value['low']:.4f} to {value['high']:.4f}")
        for name, value in {**described["metrics"], **described["cost"]}.items()
    ]
    show_table(("metric", "mean", "95 % interval"), rows)
