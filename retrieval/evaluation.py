"""One evaluation: a similarity, a collection and a searcher, to metrics, costs and examples."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simzoo.core.progress import progress
from simzoo.core.records import Collection
from simzoo.models.similarity import LearnedSimilarity
from simzoo.retrieval.results.metrics import accuracy, interval, ir_metrics, retrieved, topk_recall
from simzoo.retrieval.scorer import Rows, Scorer, Scores
from simzoo.retrieval.searcher import Ranking, Searcher, SearchTask
from simzoo.retrieval.storage.encoding import encode_items, encode_queries

BLOCK = 32  # queries searched together


@dataclass(frozen=True)
class Evaluation:
    """What came out of a run.

    Attributes:
        task: what was searched.
        ranking: of the evaluated queries.
        values: per-query values by metric.
        summary: means with intervals, costs and seconds, ready for metrics.json.
    """

    task: SearchTask
    ranking: Ranking
    values: dict[str, NDArray[np.float64]]
    summary: dict[str, Any]


def similarity_scorer(
    similarity: LearnedSimilarity, collection: Collection, store: Path | None = None, dtype: str = "float32"
) -> Scorer:
    """A scorer over all queries and items of a collection, each tokenised and encoded once.

    Args:
        similarity: the model.
        collection: queries and items.
        store: folder that keeps the items' representations from run to run; None: in memory only.
        dtype: what the model computes in; representations of one are not taken for those of another.
    """
    queries = encode_queries(similarity, collection.queries)
    items = encode_items(similarity, collection.items, store, f"{similarity.weights_sha256} {dtype}")
    return Scorer.from_similarity(similarity, queries, items)


def split_queries(collection: Collection, queries: int | None, seed: int) -> tuple[Rows, Rows]:
    """Rows of a fixed random sample of the queries, and of the others.

    Raises:
        ValueError: more queries are asked for than there are.
    """
    total = len(collection.queries)
    if queries is not None and not 1 <= queries <= total:
        raise ValueError(f"{collection.name} has {total} queries, cannot evaluate {queries} of them")
    order = np.random.default_rng(seed).permutation(total)
    chosen = order[: queries or total]
    return np.sort(chosen), np.sort(order[len(chosen) :])


def evaluate(
    task: SearchTask,
    searcher: Searcher,
    k: int,
    metrics: Sequence[str],
    exact: Scores | None = None,
    recalls: Sequence[int] = (1, 10, 100),
) -> Evaluation:
    """Indexes, searches every evaluated query and measures.

    A query is not given an item that it is itself, nor a user what the user's history holds (`Collection.seen`): the
    searcher is asked for so many more, and they are taken out of its ranking.

    Args:
        task: what to search.
        searcher: how.
        k: results a query; metrics look no deeper, but for normalised accuracy, which looks at all items scored.
        metrics: ir-measures' names.
        exact: (B, N) exact scores of the evaluated queries with all items, for Top-k-Recall; None: without.
        recalls: the k of Top-k-Recall; those above the results' number are left out.
    """
    searcher.index(task)
    banned = _banned(task)
    depth = searcher.budget or min(k + max(map(len, banned), default=0), len(task.collection.items))
    blocks = [task.query_rows[start : start + BLOCK] for start in range(0, len(task.query_rows), BLOCK)]
    parts, seconds = [], []
    for rows in progress(blocks, f"searching {len(task.query_rows):,} queries"):
        start = time.perf_counter()
        parts.append(searcher.search(rows, depth))
        seconds += [(time.perf_counter() - start) / len(rows)] * len(rows)
        task.scorer.forget(rows)
    steps: dict[str, float] = {}
    for part in parts:
        for name, spent in part.seconds.items():
            steps[name] = steps.get(name, 0.0) + spent
    items, scores, calls = (np.concatenate([getattr(p, name) for p in parts]) for name in ("items", "scores", "calls"))
    recall = {}
    if exact is not None:
        recall = {f"Top-{n}-Recall": topk_recall(items[:, :n], exact, n) for n in recalls if n <= items.shape[1]}
    items, scores = _without(banned, items, scores)
    notes = {name: np.concatenate([part.notes[name] for part in parts]) for name in parts[0].notes} if parts else {}
    ranking = Ranking(items[:, :k], scores[:, :k], calls, steps, notes)
    values = accuracies(items, task.collection, task.query_rows, known_candidates=searcher.budget is not None)
    values |= ir_metrics(ranking.items, task.collection, task.query_rows, metrics) | recall
    costs = {"calls": calls.astype(float), "milliseconds": 1000 * np.array(seconds)}
    summary = {
        "metrics": {name: _described(column) for name, column in values.items()},
        "cost": {name: _described(column) for name, column in costs.items()},
        "search_seconds": steps,
        "index_seconds": searcher.index_seconds,
        "index_calls": searcher.index_calls,
        "bytes": {"representations": task.scorer.representation_bytes},
        **({"notes": {name: _described(column) for name, column in notes.items()}} if notes else {}),
        **({"stages": stages} if (stages := searcher.stage_costs()) else {}),
    }
    return Evaluation(task, ranking, values | costs, summary)


def _banned(task: SearchTask) -> list[Rows]:
    """For each of the B evaluated queries the rows of the items that are no results of it."""
    return [np.array(task.collection.seen(row), dtype=np.int64) for row in task.query_rows.tolist()]


def _without(banned: Sequence[Rows], items: Rows, scores: Scores) -> tuple[Rows, Scores]:
    """Rankings (B, m) without banned items: as many columns fewer as the query with the most of them has."""
    found = np.stack([np.isin(row, out) for row, out in zip(items, banned, strict=True)])
    if not found.any():
        return items, scores
    order = np.argsort(found, axis=1, kind="stable")[:, : items.shape[1] - int(found.sum(axis=1).max())]
    return np.take_along_axis(items, order, axis=1), np.take_along_axis(scores, order, axis=1)


def accuracies(
    items: Rows, collection: Collection, query_rows: Rows, known_candidates: bool
) -> dict[str, NDArray[np.float64]]:
    """Accuracy over all queries; normalised, over those whose gold is a candidate; and of ambiguous mentions.

    A mention is ambiguous when the alias table lists at least two items for it. Queries that do not count are NaN.

    Args:
        items: (B, m) rows, best first.
        collection: with the judgements.
        query_rows: (B,) the queries.
        known_candidates: ``items`` are all candidates that were scored; without them nothing can be normalised.
    """
    hits = accuracy(items[:, 0], collection, query_rows)
    found = {"accuracy": hits}
    if known_candidates:
        found["accuracy (normalised)"] = np.where(retrieved(items, collection, query_rows), hits, np.nan)
    if collection.aliases:
        aliases = [collection.queries[row].alias for row in query_rows.tolist()]
        ambiguous = np.array([alias is not None and len(collection.aliases.get(alias, ())) > 1 for alias in aliases])
        found["accuracy (ambiguous)"] = np.where(ambiguous, hits, np.nan)
    return {name: column for name, column in found.items() if np.isfinite(column).any()}


def _described(values: NDArray[np.float64]) -> dict[str, float]:
    known = values[np.isfinite(values)]
    mean, low, high = interval(known)
    return {"mean": mean, "low": low, "high": high, "queries": len(known)}
