"""``evaluate.py run``: a checkpoint and a searcher on one data set or several, to metrics, a TREC run and a report."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from simzoo.core.progress import show_table
from simzoo.core.records import Collection, DataError
from simzoo.datamodules.sources import Source
from simzoo.retrieval.commands.parts import loaded, several, show_search_plan
from simzoo.retrieval.commands.worlds import Asked, evaluated, folder_names, joined
from simzoo.retrieval.evaluation import split_queries
from simzoo.retrieval.results.output import check_folder
from simzoo.retrieval.searcher import Searcher
from simzoo.retrieval.searchers.exact import Exact
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
    anchors: str | None = None,
    most_anchors: int | None = None,
    seed: int = 0,
    bf16: bool = False,
    quantize: Literal["int8"] | None = None,
    store: Path | None = None,
    overwrite: bool = False,
    plan: bool = False,
    price: float | None = None,
) -> None:
    """Evaluates a checkpoint with a searcher on the test split; on several data sets, with macro and micro averages.

    Args:
        data: the data. Where its test split holds several data sets, as the worlds of WordNet and ZeShEL, each has a
            folder of its own in the output, and the averages stand above.
        output: folder for metrics.json, run.trec, per_query.jsonl and report.html.
        checkpoint: a checkpoint of any known layout: folder, file, archive, or org/name@revision. None: no similarity,
            for ``--search Retrieve``, which ranks by its first stage alone.
        search: the searcher; Exact if none is given.
        queries: evaluate a fixed random sample of so many queries, of each data set; the others may serve as anchors.
            None: all.
        k: results a query. None: 100, or as many as the budget or the collection has.
        metrics: names as ir-measures has them. None: nDCG@10, RR@10, R@1, R@10, R@64 and R@100, as deep as there are
            results.
        exact: exact scores made by ``evaluate.py matrix``, of one data set: adds Top-k-Recall, and the queries are
            those of the matrix.
        anchors: the queries that CUR and AXN score with all items beforehand: train, those of the data's train split;
            generated, BEIR's pseudo-queries; items, the items' titles or first sentences; or a file of queries in JSON
            lines with the key text. No tested query is among them. None: the data's own, or the test queries that
            ``queries`` leaves over.
        most_anchors: take a fixed random sample of so many anchors; None: all.
        seed: of the samples.
        bf16: compute the transformers in bfloat16: for hardware that has it.
        quantize: int8 for products of whole numbers of 8 bits in the transformers: faster on a CPU, other digits.
        store: folder that keeps the items' representations, so that they are encoded once and a killed run goes on.
        overwrite: replace results that are in the output folder; they are refused otherwise.
        plan: only say what it takes: calls, memory, time, cost; judged by some seconds of work.
        price: of an hour of one machine like this one, for the plan's cost.
    """
    check_folder(output, overwrite)
    collections = several(data)
    if anchors is None and most_anchors is not None:
        raise DataError("--most_anchors says how many of --anchors to take: give --anchors too")
    given = None if anchors is None or anchors == "items" else data.anchors(anchors)
    asked = Asked(
        checkpoint, search or Exact(), queries, k, metrics, seed, bf16, overwrite, given, anchors, most_anchors
    )
    for collection in collections:
        asked.names(collection)  # before any work
    known = None if exact is None else ScoreMatrix.load(exact)
    if known is not None and len(collections) > 1:
        raise DataError(f"--exact is of one data set, and there are {_listed(collections)}; choose one of them")
    similarity = None if checkpoint is None else loaded(checkpoint, bf16, quantize)
    if plan:
        for collection in collections:
            number = len(split_queries(collection, queries, seed)[0])
            show_search_plan(similarity, asked.searcher, collection, number, price)
        return
    if len(collections) == 1:
        about = evaluated(collections[0], similarity, asked, output, store, known).described
        show(about)
    else:
        outcomes = {}
        for name, collection in zip(folder_names(collections), collections, strict=True):
            place = None if store is None else store / name
            outcomes[name] = evaluated(collection, similarity, asked, output / name, place)
        about = joined(outcomes, output)
        show_worlds(about)
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


def show_worlds(described: dict[str, Any]) -> None:
    """Prints a line a data set, and both averages."""
    names = list({**described["metrics"], **described["cost"]})
    lines = [(one["data"], one["queries"], one) for one in described["worlds"].values()]
    lines += [("macro average", described["queries"], described["macro"])]
    lines += [("micro average", described["queries"], described)]
    rows = []
    for label, count, one in lines:
        values = {**one["metrics"], **one["cost"]}
        rows.append([label, f"{count:,}", *(f"{values[name]['mean']:.4f}" for name in names)])
    show_table(("data", "queries", *names), rows)
    for name, data in described["lacking"].items():
        print(f"no average: {name}, which {', '.join(data)} lack{'s' * (len(data) == 1)}")


def _listed(collections: list[Collection]) -> str:
    return ", ".join(collection.name for collection in collections)
