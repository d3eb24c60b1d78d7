"""Evaluation: ``python evaluate.py COMMAND``: run, compare, search, matrix, teach, card; see ``--help`` for options."""

from __future__ import annotations

if __name__ not in ("__main__", "simzoo.evaluate"):
    raise ImportError("evaluate is a part of simzoo: import simzoo.evaluate instead of evaluate")

import importlib
import pkgutil
import shlex
import sys
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from jsonargparse import ArgumentParser, set_parsing_settings
from rich.console import Console
from rich.table import Table

from simzoo import datamodules, retrieval
from simzoo.core.progress import plan
from simzoo.core.records import Collection, DataError, Query
from simzoo.datamodules.lists import RetrievalData, Split
from simzoo.models.formats import load
from simzoo.models.similarity import LearnedSimilarity, fastest_device
from simzoo.retrieval.evaluation import evaluate, similarity_scorer, split_queries
from simzoo.retrieval.first_stages.first_stage import BM25, FirstStage
from simzoo.retrieval.hub.card import About, write_card
from simzoo.retrieval.results import run_files
from simzoo.retrieval.results.metrics import chosen_metrics, recall_curve
from simzoo.retrieval.results.report import Example, RunReport, write_report
from simzoo.retrieval.results.significance import compare_runs
from simzoo.retrieval.scorer import Scorer
from simzoo.retrieval.searcher import Searcher, SearchTask
from simzoo.retrieval.searchers.exact import Exact
from simzoo.retrieval.storage.encoding import encode_items, encode_queries
from simzoo.retrieval.storage.score_matrix import ScoreMatrix, build_matrix
from simzoo.retrieval.teaching import write_lessons


def run(
    data: RetrievalData,
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
    """
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
    start = time.perf_counter()
    similarity = None if checkpoint is None else loaded(checkpoint, bf16)
    scorer = scorer_of(similarity, searcher, collection, len(rows), store, dtype_of(bf16))
    encoding = time.perf_counter() - start
    task = SearchTask(collection, scorer, rows, anchors)
    result = evaluate(task, searcher, k, names, None if known is None else known.scores)
    described = {
        "checkpoint": {"name": checkpoint, "sha256": similarity and similarity.weights_sha256},
        "data": {"name": collection.name, "fingerprint": collection.fingerprint, "notes": dict(collection.notes)},
        "searcher": {"name": type(searcher).__name__, **settings(searcher)},
        "queries": len(rows),
        "truncated": similarity.text.truncated if similarity and similarity.text else 0,
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
    ids = [collection.queries[row].id for row in task.query_rows]
    run_files.write_trec(output, collection, task.query_rows, result.ranking, type(searcher).__name__)
    run_files.write_per_query(output, ids, {name: column.tolist() for name, column in result.values.items()})
    run_files.write_metrics(output, described)
    examples = [Example.of(collection, task.query_rows, result.ranking, place) for place in range(min(5, len(rows)))]
    curves = {} if known is None else {type(searcher).__name__: recall_curve(result.ranking.items, known.scores)}
    write_report(output / "report.html", [RunReport(output.name, described)], curves, examples, "results looked at")
    show(described)
    if described["truncated"]:
        print(f"{described['truncated']:,} texts were longer than the model takes, and truncated")
    print(f"written: {output / 'report.html'}")


def compare(runs: list[Path], metrics: list[str] | None = None) -> None:
    """Compares runs on the same queries: paired randomisation test, 95 % intervals, Holm-corrected.

    Args:
        runs: output folders of ``evaluate.py run``.
        metrics: which metrics, also calls and milliseconds; None: all metrics of quality that the runs have in common.
    """
    table = Table("metric", "queries", "A", "B", "mean A", "mean B", "B - A", "95 % interval", "p", "p (Holm)")
    for row in compare_runs(runs, metrics):
        means = [f"{mean:.4f}" for mean in row.means]
        span = f"{row.low:+.4f} to {row.high:+.4f}"
        names = row.metric, f"{row.queries:,}", row.first, row.second
        table.add_row(*names, *means, f"{row.difference:+.4f}", span, f"{row.p:.4g}", f"{row.holm:.4g}")
    Console(width=None if sys.stdout.isatty() else 140).print(table)


def search(
    checkpoint: str,
    data: RetrievalData,
    query: str,
    search: Searcher | None = None,
    k: int = 10,
    mention: str = "",
    bf16: bool = False,
) -> None:
    """Answers one query: the ranked items, calls and milliseconds.

    Args:
        checkpoint: a checkpoint of any known layout: folder, file, archive, or org/name@revision.
        data: the data; its test split must be one collection.
        query: the query's text.
        search: the searcher; Exact if none is given.
        k: results.
        mention: the words of the query that are the mention, if the model marks one.
        bf16: compute the transformers in bfloat16: for hardware that has it.
    """
    start = query.find(mention) if mention else -1
    if mention and start < 0:
        raise DataError(f"the mention {mention!r} does not stand in the query {query!r}")
    asked = Query("asked", query, (start, start + len(mention)) if mention else None)
    found = single(data)
    collection = Collection(
        found.name, found.items, [asked, *found.queries], [{}, *found.judgements], found.aliases, found.notes
    )
    searcher = search or Exact()
    scorer = similarity_scorer(loaded(checkpoint, bf16), collection)
    task = SearchTask(collection, scorer, np.array([0]), np.arange(1, len(collection.queries)))
    searcher.index(task)
    began = time.perf_counter()
    ranking = searcher.search(task.query_rows, min(k, len(collection.items)))
    spent = 1000 * (time.perf_counter() - began)
    table = Table("", "score", "id", "item", title=query, title_justify="left")
    for place, (row, score) in enumerate(zip(ranking.items[0], ranking.scores[0], strict=True), start=1):
        item = collection.items[row]
        table.add_row(str(place), f"{score:.3f}", item.id, f"{item.title}: {item.text}" if item.title else item.text)
    Console().print(table)
    print(f"{ranking.calls[0]} calls, {spent:.1f} ms")


def matrix(
    checkpoint: str,
    data: RetrievalData,
    output: Path,
    queries: int | None = None,
    seed: int = 0,
    shards: Path | None = None,
    bf16: bool = False,
) -> None:
    """Scores queries with all items exactly, resumably: the oracle for Top-k-Recall.

    Args:
        checkpoint: as in ``run``.
        data: the data; its test split must be one collection.
        output: file to write, for example out/noun.event.safetensors.
        queries: a fixed random sample of so many queries; None: all.
        seed: of the sample.
        shards: folder of the finished parts; None: beside the output.
        bf16: compute the transformers in bfloat16: for hardware that has it.
    """
    collection = single(data)
    similarity = loaded(checkpoint, bf16)
    rows, _ = split_queries(collection, queries, seed)
    calls = len(rows) * len(collection.items)
    plan(
        "plan",
        {
            "scores": f"{len(rows):,} queries x {len(collection.items):,} items = {calls:,} pairs",
            "file": f"{4 * calls / 1e6:.1f} MB",
            **estimated(similarity, collection, calls),
        },
    )
    scorer = similarity_scorer(similarity, collection)
    folder = shards or output.with_suffix(".shards")
    build_matrix(scorer, collection, rows, f"{similarity.weights_sha256}{' in bfloat16' * bf16}", folder).save(output)
    print(f"written: {output}")


def teach(
    checkpoint: str,
    data: RetrievalData,
    output: Path,
    first_stage: FirstStage | None = None,
    split: Split = "train",
    top: int = 16,
    random: int = 4,
    seed: int = 0,
    bf16: bool = False,
) -> None:
    """Writes what a checkpoint thinks of retrieved and random items, for training others on it (`Distillation`).

    Args:
        checkpoint: the teacher; as in ``run``.
        data: the data; every collection of the split is written.
        output: folder for one file a block of queries; a killed run goes on where it was.
        first_stage: what retrieves; BM25 if none is given.
        split: train, dev or test.
        top: items from the top of the first stage, relevant ones not counted.
        random: items drawn from the others.
        seed: of the draws.
        bf16: compute the transformers in bfloat16: for hardware that has it.
    """
    similarity = loaded(checkpoint, bf16)
    collections = data.collections(split)
    queries = sum(len(collection.queries) for collection in collections)
    plan("plan", {"scores": f"{queries:,} queries, about {queries * (1 + top + random):,} pairs"})
    for collection in collections:
        write_lessons(similarity, collection, first_stage or BM25(), output, top, random, seed)
    print(f"written: {output}")


def loaded(checkpoint: str, bf16: bool) -> LearnedSimilarity:
    """The checkpoint, on the fastest device."""
    return load(checkpoint, fastest_device(), getattr(torch, dtype_of(bf16)))


def dtype_of(bf16: bool) -> str:
    """What the transformers compute in."""
    return "bfloat16" if bf16 else "float32"


def scorer_of(
    similarity: LearnedSimilarity | None,
    searcher: Searcher,
    collection: Collection,
    queries: int,
    store: Path | None,
    dtype: str,
) -> Scorer:
    """The similarity's scorer over the collection, after printing what the search will cost.

    Raises:
        DataError: there is no similarity, but the searcher needs one.
    """
    if similarity is None:
        if searcher.calls_similarity:
            raise DataError(f"--search {type(searcher).__name__} needs a similarity: give --checkpoint")
        return Scorer(lambda *_: np.empty(0), len(collection.queries), len(collection.items))  # never called
    calls = queries * min(searcher.budget or len(collection.items), len(collection.items))
    plan(
        "plan",
        {
            "data": f"{collection.name}: {len(collection.items):,} items, {queries:,} queries",
            "search": f"{type(searcher).__name__}, at most {calls:,} scored pairs besides indexing",
            **estimated(similarity, collection, calls),
        },
    )
    return similarity_scorer(similarity, collection, store, dtype)


def card(checkpoint: Path, runs: list[Path], about: About) -> None:
    """Writes the card (README.md), metrics.json and manifest.json of a checkpoint from its evaluation runs.

    Args:
        checkpoint: a checkpoint folder.
        runs: output folders of ``evaluate.py run`` with this checkpoint.
        about: what no file says: data, recipe, limits, and the example's texts.
    """
    write_card(checkpoint, runs, about)
    print(f"written: {checkpoint / 'README.md'}")


def single(data: RetrievalData) -> Collection:
    """The one collection of the test split.

    Raises:
        DataError: there are several.
    """
    collections = data.collections("test")
    if len(collections) != 1:
        names = ", ".join(collection.name for collection in collections)
        raise DataError(f"the test split holds {names}; choose one of them, for example with --data.world noun.event")
    return collections[0]


def estimated(similarity: LearnedSimilarity, collection: Collection, calls: int) -> dict[str, str]:
    """Bytes of the representations and time, extrapolated from a few queries and items."""
    few = min(64, len(collection.items)), min(8, len(collection.queries))
    start = time.perf_counter()
    items = encode_items(similarity, collection.items[: few[0]])
    queries = encode_queries(similarity, collection.queries[: few[1]])
    scorer = Scorer.from_similarity(similarity, queries, items)
    encoded = time.perf_counter()
    scorer.score_lists(np.arange(few[1]), np.tile(np.arange(few[0]), (few[1], 1)))
    scored = time.perf_counter()
    if similarity.text is not None:
        similarity.text.truncated = 0  # these records come again
    share = (len(collection.items) + len(collection.queries)) / sum(few)
    seconds = share * (encoded - start) + calls * (scored - encoded) / (few[0] * few[1])
    return {
        "representations": f"about {share * scorer.representation_bytes / 1e6:,.1f} MB",
        "time": f"about {timedelta(seconds=round(seconds))} on this machine",
    }


def settings(searcher: Searcher) -> dict[str, Any]:
    """The searcher's plain settings and the names of its parts."""
    return {
        name: value if isinstance(value, (int, float, str, bool, type(None))) else type(value).__name__
        for name, value in vars(searcher).items()
        if name not in ("task", "index_seconds", "index_calls")
        and not name.startswith("_")
        and (
            isinstance(value, (int, float, str, bool, type(None)))
            or hasattr(value, "search")
            or hasattr(value, "alpha")
        )
    }


def show(described: dict[str, Any]) -> None:
    """Prints the means with their intervals."""
    table = Table("metric", "mean", "95 % interval")
    for name, value in {**described["metrics"], **described["cost"]}.items():
        table.add_row(name, f"{value['mean']:.4f}", f"{value['low']:.4f} to {value['high']:.4f}")
    Console().print(table)


COMMANDS: tuple[Callable[..., None], ...] = (run, compare, search, matrix, teach, card)


def parser() -> ArgumentParser:
    """The command line: one subcommand a function; a misspelt option is refused by name."""
    for package in (datamodules, retrieval):  # so that their classes are known by name
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            importlib.import_module(module.name)
    set_parsing_settings(docstring_parse_attribute_docstrings=True)
    described = (__doc__ or "").split("\n")[0]
    top = ArgumentParser(prog="evaluate.py", description=described, allow_abbrev=False)
    commands = top.add_subcommands(dest="command")
    for function in COMMANDS:
        positional = {"compare": "runs", "search": "query"}.get(function.__name__)
        summary = (function.__doc__ or "").split("\n")[0]
        command = ArgumentParser(description=summary, allow_abbrev=False)
        command.add_argument("--config", action="config", help="YAML file with these options")
        if positional == "runs":
            command.add_argument("runs", nargs="+", type=Path, help="output folders of evaluate.py run")
        elif positional == "query":
            command.add_argument("query", type=str, help="the query's text")
        command.add_function_arguments(function, as_positional=False, skip={positional} if positional else None)
        commands.add_subcommand(function.__name__, command, help=summary)
    return top


def main(args: list[str] | None = None) -> None:
    """Runs the command line."""
    quiet: Any = transformers.utils.logging.disable_progress_bar
    quiet()
    top = parser()
    chosen = top.instantiate(top.parse_args(args))
    options = dict(chosen[chosen.command])
    options.pop("config")
    {function.__name__: function for function in COMMANDS}[chosen.command](**options)


if __name__ == "__main__":
    try:
        main()
    except (FloatingPointError, OSError, TypeError, ValueError) as error:
        sys.exit(f"error: {error}")
