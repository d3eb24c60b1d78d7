"""The evaluation of one data set, and of several in one run, with their averages."""

from __future__ import annotations

import copy
import hashlib
import re
import shlex
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from simzoo.core.records import Collection, DataError, Query
from simzoo.datamodules.readers.anchors import item_queries, with_anchors
from simzoo.retrieval.commands.parts import dtype_of, judge_of
from simzoo.retrieval.corpus import Corpus
from simzoo.retrieval.evaluation import evaluate, split_queries
from simzoo.retrieval.results import run_files
from simzoo.retrieval.results.averages import Averages, split_summary
from simzoo.retrieval.results.examples import Example
from simzoo.retrieval.results.metrics import Values, chosen_metrics, recall_curve
from simzoo.retrieval.results.output import check_folder
from simzoo.retrieval.results.report import RunReport, write_report
from simzoo.retrieval.searcher import Searcher
from simzoo.retrieval.settings import described
from simzoo.retrieval.storage.score_matrix import ScoreMatrix

if TYPE_CHECKING:
    from simzoo.models.similarity import LearnedSimilarity

ABOUT = (
    "Each data set is searched by itself; its rankings and examples are in its own folder. The macro average is the "
    "mean of the data sets' means, in which each counts alike; the micro average is the mean over all queries."
)

PER_WORLD = ("queries", "metrics", "cost")


@dataclass(frozen=True)
class Asked:
    """What is asked of each data set; see `simzoo.retrieval.commands.run.run`.

    Attributes:
        anchors: queries to learn from besides the test split's; None: made of the items, or none were asked for.
        anchors_from: where they come from, or should; None: nobody said.
    """

    checkpoint: str | None
    searcher: Searcher
    queries: int | None
    k: int | None
    metrics: list[str] | None
    seed: int
    bf16: bool
    overwrite: bool
    anchors: Sequence[Query] | None
    anchors_from: str | None
    most_anchors: int | None

    def depth(self, collection: Collection) -> int:
        """Results a query.

        Raises:
            DataError: more are asked for than there can be.
        """
        most = min(len(collection.items), self.searcher.budget or len(collection.items))
        if self.k is not None and not 1 <= self.k <= most:
            raise DataError(f"--k {self.k}: with these items and this budget there are between 1 and {most} results")
        return self.k or min(100, most)

    def names(self, collection: Collection) -> list[str]:
        """Metrics, checked."""
        return chosen_metrics(self.metrics, self.depth(collection), len(collection.items))


@dataclass(frozen=True)
class Outcome:
    """What an evaluation of one data set has written: metrics.json, the queries' ids, and values by metric."""

    described: dict[str, Any]
    ids: list[str]
    values: dict[str, Values]


def folder_names(collections: Sequence[Collection]) -> list[str]:
    """A folder's name for each data set.

    Raises:
        DataError: two data sets have one name.
    """
    names = [re.sub(r"[^\w.-]+", "-", collection.name) for collection in collections]
    if len(set(names)) < len(names):
        raise DataError(f"two data sets have one name, and would be written into one folder: {', '.join(names)}")
    return names


def evaluated(
    collection: Collection,
    similarity: LearnedSimilarity | None,
    asked: Asked,
    output: Path,
    store: Path | None,
    known: ScoreMatrix | None = None,
) -> Outcome:
    """Evaluates on one data set and writes metrics.json, run.trec, per_query.jsonl and report.html."""
    import torch

    from simzoo.models.similarity import fastest_device

    k, names = asked.depth(collection), asked.names(collection)
    searcher = copy.deepcopy(asked.searcher)  # nothing of an index reaches the next data set
    rows, others = split_queries(collection, asked.queries, asked.seed)
    if known is not None:
        rows = known.of(collection)
        others = np.setdiff1d(np.arange(len(collection.queries)), rows)
    anchors, from_ = _anchors(collection, others.tolist(), asked)
    check_folder(output, asked.overwrite, room=100 * len(rows) * k)
    text = getattr(similarity, "text", None)
    before = text.truncated if text is not None else 0
    start = time.perf_counter()
    judge = judge_of(similarity, searcher, collection, len(rows), store, dtype_of(asked.bf16))
    encoding = time.perf_counter() - start
    corpus = Corpus.of(collection, judge, anchors=anchors)
    result = evaluate(searcher, corpus, collection, rows, k, names, None if known is None else known.scores)
    about = {
        "checkpoint": {"name": asked.checkpoint, "sha256": similarity and similarity.weights_sha256},
        "data": {"name": collection.name, "fingerprint": collection.fingerprint, "notes": dict(collection.notes)},
        "searcher": described(searcher),
        **({"anchors": {"from": from_, "queries": len(anchors)}} if anchors else {}),
        "queries": len(rows),
        "k": k,
        "seed": asked.seed,
        **result.summary,
        "truncated": result.summary["truncated"] - before,
        "index_seconds": {"tokens and representations": encoding, **result.summary["index_seconds"]},
        "command": shlex.join(["python", *sys.argv]),
        "commit": run_files.commit(),
        "versions": run_files.versions(),
        "threads": torch.get_num_threads(),
        "device": fastest_device() if similarity is None else similarity.device.type,
        "bf16": asked.bf16,
    }
    ids = [collection.queries[row].id for row in rows]
    run_files.write_trec(output, collection, rows, result.ranking, type(searcher).__name__)
    run_files.write_per_query(output, ids, {name: column.tolist() for name, column in result.values.items()})
    run_files.write_metrics(output, about)
    examples = Example.chosen(collection, rows, result.ranking, 5)
    curves = {} if known is None else {type(searcher).__name__: recall_curve(result.ranking.items, known.scores)}
    write_report(output / "report.html", [RunReport(output.name, about)], curves, examples, "results looked at")
    return Outcome(about, ids, result.values)


def _anchors(collection: Collection, others: list[int], asked: Asked) -> tuple[list[Query], str]:
    """The queries that an index may learn from, and where they come from; a tested query is none of them."""
    if asked.anchors_from is not None:
        given = item_queries(collection.items) if asked.anchors is None else asked.anchors
        chosen = with_anchors(collection, given, asked.most_anchors, asked.seed)
        return list(chosen.anchors), asked.anchors_from
    if collection.anchors:  # the data's own spare the test queries
        return list(collection.anchors), "the data"
    return [collection.queries[row] for row in others], "the test split's other queries"


def joined(outcomes: dict[str, Outcome], output: Path) -> dict[str, Any]:
    """Writes the averages over several data sets: metrics.json, per_query.jsonl and report.html.

    metrics.json has the micro averages where that of a single data set has its means, so that everything that reads one
    reads the other; and ``macro``, ``worlds`` and ``lacking`` besides.

    Args:
        outcomes: by folder; at least two.
        output: the folder above.

    Returns:
        metrics.json.
    """
    first = next(iter(outcomes.values())).described
    found = Averages.of({one.described["data"]["name"]: one.values for one in outcomes.values()})
    prints = "".join(one.described["data"]["fingerprint"] for one in outcomes.values())
    shared = ("checkpoint", "searcher", "seed", "command", "commit", "versions", "threads", "device", "bf16")
    about = {
        "checkpoint": first["checkpoint"],
        "data": {"name": f"{len(outcomes)} data sets", "fingerprint": hashlib.sha256(prints.encode()).hexdigest()},
        **{name: first[name] for name in shared},
        "queries": sum(one.described["queries"] for one in outcomes.values()),
        **split_summary(found.micro),
        "macro": split_summary(found.macro),
        "lacking": found.lacking,
        "worlds": {
            name: {
                "data": one.described["data"]["name"],
                **{key: one.described[key] for key in PER_WORLD},
            }
            for name, one in outcomes.items()
        },
        **{name: _added([one.described[name] for one in outcomes.values()]) for name in ("index_seconds", "bytes")},
        **{name: sum(one.described[name] for one in outcomes.values()) for name in ("index_calls", "truncated")},
    }
    ids = [f"{name}/{query}" for name, one in outcomes.items() for query in one.ids]
    columns = {name: np.concatenate([one.values[name] for one in outcomes.values()]).tolist() for name in found.micro}
    run_files.write_per_query(output, ids, columns)
    macro = {**about, **about["macro"], "index_seconds": {}, "bytes": {}}
    runs = [
        *(RunReport(one.described["data"]["name"], one.described) for one in outcomes.values()),
        RunReport("macro average", macro),
        RunReport("micro average", about),
    ]
    write_report(output / "report.html", runs, {}, [], about=[ABOUT])
    run_files.write_metrics(output, about)
    return about


def _added(parts: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Numbers of the same name added up."""
    names = dict.fromkeys(name for part in parts for name in part)
    return {name: sum(part.get(name, 0) for part in parts) for name in names}
