"""One evaluation: a similarity, a collection and a searcher, to metrics, costs and examples."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simzoo.core.progress import progress
from simzoo.core.records import Collection
from simzoo.retrieval.corpus import Corpus
from simzoo.retrieval.results.instructions import followed
from simzoo.retrieval.results.metrics import accuracy, interval, ir_metrics, retrieved, topk_recall
from simzoo.retrieval.searcher import Ranking, Searcher
from simzoo.retrieval.settings import first_stages
from simzoo.retrieval.topk import Rows, Scores

__all__ = ["Evaluation", "accuracies", "evaluate", "split_queries"]

BLOCK = 32  # queries searched together


@dataclass(frozen=True)
class Evaluation:
    """What came out of a run.

    Attributes:
        query_rows: (B,) the evaluated queries.
        ranking: of these.
        values: per-query values by metric.
        summary: means with intervals, costs and seconds, ready for metrics.json.
    """

    query_rows: Rows
    ranking: Ranking
    values: dict[str, NDArray[np.float64]]
    summary: dict[str, Any]


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
    searcher: Searcher,
    corpus: Corpus,
    collection: Collection,
    query_rows: Rows,
    k: int,
    metrics: Sequence[str],
    exact: Scores | None = None,
    recalls: Sequence[int] = (1, 10, 100),
) -> Evaluation:
    """Indexes, searches every evaluated query and measures. Only these queries and the anchors are encoded.

    A query is not given an item that it is itself, nor a user what the user's history holds (`Collection.seen`): the
    searcher is asked for so many more, and they are taken out of its ranking.

    Args:
        searcher: how to search.
        corpus: what to search: `Corpus.of` the collection.
        collection: with the queries and judgements.
        query_rows: (B,) the queries that are evaluated.
        k: results a query; metrics look no deeper, but for normalised accuracy, which looks at all candidates.
        metrics: ir-measures' names.
        exact: (B, N) exact scores of the evaluated queries with all items, for Top-k-Recall; None: without.
        recalls: the k of Top-k-Recall; those above the results' number are left out.

    Raises:
        ValueError: the corpus is not that of the collection, or a query is evaluated and an anchor at once.
    """
    _check(corpus, collection, query_rows)
    searcher.index(corpus)
    banned = _banned(collection, query_rows)
    spends = searcher.budget if searcher.spends_budget else None
    wanted = k + max(map(len, banned), default=0) if spends is None else spends
    depth = min(wanted, len(collection.items), searcher.budget or wanted)
    found, seconds = _searched(searcher, collection, query_rows, depth)
    recall = {}
    if exact is not None:
        width = found.items.shape[1]
        recall = {f"Top-{n}-Recall": topk_recall(found.items[:, :n], exact, n) for n in recalls if n <= width}
    items, scores = _without(banned, found.items, found.scores)
    ranking = replace(found, items=items[:, :k], scores=scores[:, :k])
    candidates = items if spends is not None else None
    candidates = candidates if found.retrieved is None else found.retrieved
    values = accuracies(items, collection, query_rows, candidates)
    values |= ir_metrics(ranking.items, collection, query_rows, metrics) | recall
    changes = followed(ranking.items, collection, query_rows)
    values |= {"p-MRR": changes} if np.isfinite(changes).any() else {}
    costs = {"calls": found.calls.astype(float), "milliseconds": 1000 * seconds}
    notes = found.notes
    summary = {
        "metrics": {name: _described(column) for name, column in values.items()},
        "cost": {name: _described(column) for name, column in costs.items()},
        "search_seconds": found.seconds,
        "index_seconds": searcher.index_seconds,
        "index_calls": searcher.index_calls,
        "bytes": _bytes(searcher, corpus, found),
        "truncated": _truncated(searcher, corpus),
        **({"notes": {name: _described(column) for name, column in notes.items()}} if notes else {}),
        **({"stages": stages} if (stages := searcher.stage_costs()) else {}),
    }
    return Evaluation(query_rows, ranking, values | costs, summary)


def _check(corpus: Corpus, collection: Collection, query_rows: Rows) -> None:
    if len(corpus) != len(collection.items):
        raise ValueError(f"the corpus has {len(corpus)} items, but {collection.name} has {len(collection.items)}")
    size = len(collection.queries)
    if not query_rows.size or not (query_rows.min() >= 0 and query_rows.max() < size):
        raise IndexError(f"evaluated query rows run from 0 to {size - 1}, at least one; got {query_rows}")
    anchors = {query.id for query in corpus.anchors}
    both = [row for row in query_rows.tolist() if collection.queries[row].id in anchors]
    if both:
        raise ValueError(f"{len(both)} queries are evaluated and anchors at once; anchors must be other queries")


def _searched(
    searcher: Searcher, collection: Collection, query_rows: Rows, depth: int
) -> tuple[Ranking, NDArray[np.float64]]:
    """The ranking, and (B,) seconds: a query's share of its block's time."""
    blocks = [query_rows[start : start + BLOCK] for start in range(0, len(query_rows), BLOCK)]
    parts, seconds, steps = [], [], dict[str, float]()
    for rows in progress(blocks, f"searching {len(query_rows):,} queries"):
        queries = [collection.queries[row] for row in rows.tolist()]
        start = time.perf_counter()
        parts.append(searcher.search(queries, depth))
        seconds += [(time.perf_counter() - start) / len(rows)] * len(rows)
        for name, spent in parts[-1].seconds.items():
            steps[name] = steps.get(name, 0.0) + spent
    return Ranking.joined(parts, steps), np.array(seconds)


def _bytes(searcher: Searcher, corpus: Corpus, found: Ranking) -> dict[str, int]:
    """What is kept to search: of items and evaluated queries; and the first stages' vectors."""
    vectors = sum(stage.representation_bytes for stage in first_stages(searcher))
    if corpus.judge is None or not searcher.calls_similarity:
        return {"representations": vectors}
    own = corpus.judge.representation_bytes + found.query_bytes
    return {"representations": own, "queries": found.query_bytes, "first stages": vectors}


def _truncated(searcher: Searcher, corpus: Corpus) -> int:
    """Texts that were longer than the models take: the similarity's, the stages' and the first stages'."""
    judged = corpus.judge.truncated if corpus.judge is not None and searcher.calls_similarity else 0
    return judged + searcher.truncated + sum(stage.truncated for stage in first_stages(searcher))


def _banned(collection: Collection, query_rows: Rows) -> list[Rows]:
    """For each of the B evaluated queries the rows of the items that are no results of it."""
    return [np.array(collection.seen(row), dtype=np.int64) for row in query_rows.tolist()]


def _without(banned: Sequence[Rows], items: Rows, scores: Scores) -> tuple[Rows, Scores]:
    """Rankings (B, m) without banned items: as many columns fewer as the query with the most of them has."""
    found = np.stack([np.isin(row, out) for row, out in zip(items, banned, strict=True)])
    if not found.any():
        return items, scores
    order = np.argsort(found, axis=1, kind="stable")[:, : items.shape[1] - int(found.sum(axis=1).max())]
    return np.take_along_axis(items, order, axis=1), np.take_along_axis(scores, order, axis=1)


def accuracies(
    items: Rows, collection: Collection, query_rows: Rows, candidates: Rows | None
) -> dict[str, NDArray[np.float64]]:
    """Accuracy over all queries; normalised, over those whose gold is a candidate; of ambiguous mentions; of each part.

    A mention is ambiguous when the alias table lists at least two items for it. Queries that do not count are NaN.

    Args:
        items: (B, m) rows, best first, -1 for none.
        collection: with the judgements.
        query_rows: (B,) the queries.
        candidates: (B, d) all items that the first retriever found, or that were scored; without them (None) nothing
            can be normalised.
    """
    hits = accuracy(items[:, 0], collection, query_rows)
    found = {"accuracy": hits}
    if candidates is not None:
        found["accuracy (normalised)"] = np.where(retrieved(candidates, collection, query_rows), hits, np.nan)
    if collection.aliases:
        aliases = [collection.queries[row].alias for row in query_rows.tolist()]
        ambiguous = np.array([alias is not None and len(collection.aliases.get(alias, ())) > 1 for alias in aliases])
        found["accuracy (ambiguous)"] = np.where(ambiguous, hits, np.nan)
    if collection.parts:
        of = np.array([collection.parts[row] for row in query_rows.tolist()])
        found |= {f"accuracy ({part})": np.where(of == part, hits, np.nan) for part in dict.fromkeys(collection.parts)}
    return {name: column for name, column in found.items() if np.isfinite(column).any()}


def _described(values: NDArray[np.float64]) -> dict[str, float]:
    known = values[np.isfinite(values)]
    mean, low, high = interval(known)
    return {"mean": mean, "low": low, "high": high, "queries": len(known)}
