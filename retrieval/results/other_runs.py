"""Metrics of a run that any program has written, against any judgements: what trec_eval would say, with intervals."""

from __future__ import annotations

import hashlib
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TypeVar

import ir_measures
import numpy as np

from simzoo.core.records import DataError
from simzoo.datamodules.readers.trec import read_judgements, read_run
from simzoo.retrieval.results.metrics import DEFAULT, Values, cutoff, measured, parse_measures
from simzoo.retrieval.results.run_files import decoded

__all__ = ["ScoredRun", "score_run"]

Results = Mapping[str, tuple[float, int]]
"""Score and rank by item."""

_Value = TypeVar("_Value")


@dataclass(frozen=True)
class ScoredRun:
    """The metrics of a run.

    Attributes:
        tag: what the run calls itself.
        fingerprint: sha256 over the judgements: two runs with the same one were judged alike.
        queries: ids of the judged queries, in the judgements' order; all of them count.
        values: by metric, (B,) values of these; 0 where the run does not have the query, or nothing is relevant.
        notes: what a reader of the figures should know.
    """

    tag: str
    fingerprint: str
    queries: list[str]
    values: dict[str, Values]
    notes: list[str]


def score_run(trec: Path, qrels: Path, metrics: Sequence[str] | None = None) -> ScoredRun:
    """Reads a run and judgements, and measures every judged query.

    Results are ordered as trec_eval orders them: by score, in single precision; of equal scores the greater id first.
    The ranks in the file are not looked at.

    Args:
        trec: the run, in TREC's layout.
        qrels: the judgements, in TREC's layout or BEIR's.
        metrics: ir-measures' names; None: nDCG@10, RR@10, R@1, R@10, R@64 and R@100, as deep as the run is.

    Raises:
        DataError: a file cannot be read, or run and judgements have no query in common, or no metric is named.
        ValueError: ir-measures does not know a name, or cannot compute it here.
    """
    if metrics is not None and not metrics:
        raise DataError("--metrics is empty; name at least one, for example nDCG@10, or leave it out")
    parsed = parse_measures(DEFAULT if metrics is None else metrics)
    run, judged = read_run(trec), read_judgements(qrels)
    results = {
        query: _named(one, judged.get(query, {}), trec) for query, one in _named(run.results, judged, trec).items()
    }
    if results.keys().isdisjoint(judged):
        raise DataError(
            f"has no query of {qrels}: it has {_some(list(results))}, the judgements have {_some(list(judged))}", trec
        )
    depth = max(map(len, results.values()))
    names = [name for name in parsed if metrics is not None or cutoff(parsed[name]) <= depth]
    graded, found = [], []
    for place, (query, grades) in enumerate(judged.items()):
        graded += [ir_measures.Qrel(str(place), item, grade) for item, grade in grades.items()]
        order = _ordered(results.get(query, {}))
        found += [ir_measures.ScoredDoc(str(place), item, float(-rank)) for rank, item in enumerate(order)]
    digest = hashlib.sha256()
    for query, grades in sorted(judged.items()):
        digest.update(f"{query}\0{sorted(grades.items())}\n".encode())
    notes = _notes(results, judged)
    if deep := [name for name in names if cutoff(parsed[name]) > depth]:
        notes.append(f"{', '.join(deep)}: the run has at most {depth:,} results a query")
    return ScoredRun(run.tag, digest.hexdigest(), list(judged), measured(names, graded, found, len(judged)), notes)


def _named(values: Mapping[str, _Value], known: Container[str], path: Path) -> dict[str, _Value]:
    """Values by the judgements' ids: our own runs percent-encode blanks in ids, which a column cannot hold."""
    found = {name if name in known else decoded(name): value for name, value in values.items()}
    if len(found) < len(values):
        raise DataError("has an id both plainly and percent-encoded", path)
    return found


def _ordered(results: Results) -> list[str]:
    with np.errstate(over="ignore"):
        single = {item: np.float32(score) for item, (score, _) in results.items()}
    return sorted(single, key=lambda item: (single[item], item), reverse=True)


def _notes(results: Mapping[str, Results], judged: Mapping[str, Mapping[str, int]]) -> list[str]:
    lacking = [query for query in judged if query not in results]
    unjudged = [query for query in results if query not in judged]
    empty = [query for query, grades in judged.items() if max(grades.values()) <= 0]
    other = [query for query, one in results.items() if _disagree(one)]
    told = [
        (lacking, "judged queries that are not in the run, counted as 0"),
        (unjudged, "queries of the run that are not judged, left out"),
        (empty, "judged queries with nothing relevant, counted as 0"),
        (other, "queries whose ranks are another order than their scores; scores count, as in trec_eval"),
    ]
    return [f"{what}: {len(queries):,} ({_some(queries)})" for queries, what in told if queries]


def _disagree(results: Results) -> bool:
    falling = [score for score, _ in sorted(results.values(), key=lambda pair: pair[1])]
    return any(after > before for before, after in pairwise(falling))


def _some(names: Sequence[str]) -> str:
    return ", ".join(map(repr, names[:3])) + (", ..." if len(names) > 3 else "")
