"""Metrics over rankings: per query, aligned with the queries, with intervals over them."""

from __future__ import annotations

from collections.abc import Sequence

import ir_measures
import numpy as np
from numpy.typing import NDArray

from datamodules.records import Collection
from retrieval.scorer import Rows, Scores

Values = NDArray[np.float64]


def topk_recall(found: Rows, exact_scores: Scores, k: int) -> Values:
    """Top-k-Recall@m: the share of the exact top k among the m items found (ANNCUR §3).

    An item that ties with the k-th exact score is as good as any other that does, so the found items are compared by
    their exact scores; the share never exceeds 1.

    Args:
        found: (B, m) rows of the items found, distinct in each row.
        exact_scores: (B, N) scores of all items.
        k: how many exact neighbours count.

    Returns:
        (B,) in [0, 1].

    Raises:
        ValueError: k is larger than N.
    """
    if not 1 <= k <= exact_scores.shape[1]:
        raise ValueError(f"Top-{k}-Recall over {exact_scores.shape[1]} items: k must be between 1 and their number")
    threshold = -np.partition(-exact_scores, k - 1, axis=1)[:, k - 1 : k]
    hits = (np.take_along_axis(exact_scores, found, axis=1) >= threshold).sum(axis=1)
    shares: Values = np.minimum(hits, k) / k
    return shares


def accuracy(first: Rows, collection: Collection, query_rows: Rows) -> Values:
    """1 where the first item (B,) is relevant: unnormalised, a gold item that was not retrieved is a miss."""
    pairs = zip(first.tolist(), query_rows.tolist(), strict=True)
    return np.array([float(collection.judgements[row].get(item, 0) > 0) for item, row in pairs])


def retrieved(candidates: Rows, collection: Collection, query_rows: Rows) -> NDArray[np.bool_]:
    """Whether a relevant item is among the candidates (B, m): normalised accuracy is the mean over these queries."""
    gold = [collection.relevant(row) for row in query_rows.tolist()]
    return np.array([bool(np.isin(rows, found).any()) for rows, found in zip(gold, candidates, strict=True)])


def ir_metrics(items: Rows, collection: Collection, query_rows: Rows, names: Sequence[str]) -> dict[str, Values]:
    """Metrics by ir-measures' names (nDCG@10, RR@10, R@100, Success@1, ...).

    Args:
        items: (B, k) rows, best first.
        collection: with the judgements.
        query_rows: (B,) the queries.
        names: what to compute.

    Returns:
        For each name (B,) values, 0 where a query has nothing relevant.

    Raises:
        ValueError: ir-measures does not know a name.
    """
    measures = {name: _measure(name) for name in names}
    qrels = [
        ir_measures.Qrel(str(i), str(item), grade)
        for i, row in enumerate(query_rows.tolist())
        for item, grade in collection.judgements[row].items()
    ]
    # The trec_eval behind it sorts anew by score: strictly falling scores keep our order through ties.
    run = [
        ir_measures.ScoredDoc(str(i), str(item), float(-place))
        for i, row in enumerate(items.tolist())
        for place, item in enumerate(row)
    ]
    values = {name: np.zeros(len(query_rows)) for name in names}
    by_measure = {measure: name for name, measure in measures.items()}
    if qrels and run:
        for found in ir_measures.iter_calc(list(measures.values()), qrels, run):
            values[by_measure[found.measure]][int(found.query_id)] = found.value
    return values


def interval(values: Values, seed: int = 0, samples: int = 10_000) -> tuple[float, float, float]:
    """Mean, and its 95 % percentile bootstrap interval over queries.

    Raises:
        ValueError: there are no values.
    """
    if not len(values):
        raise ValueError("an interval needs at least one query")
    rng = np.random.default_rng(seed)
    # Counts of a multinomial draw are a bootstrap sample's weights; blocks bound the memory.
    means = np.concatenate(
        [
            rng.multinomial(len(values), np.full(len(values), 1 / len(values)), size=block) @ values / len(values)
            for block in [1000] * (samples // 1000) + [samples % 1000] * bool(samples % 1000)
        ]
    )
    low, high = np.quantile(means, [0.025, 0.975])
    return float(values.mean()), float(low), float(high)


def _measure(name: str) -> ir_measures.measures.Measure:
    try:
        return ir_measures.parse_measure(name)
    except (NameError, ValueError, KeyError) as error:
        raise ValueError(
            f"{name!r} is no metric that ir-measures knows ({error}); for example nDCG@10, RR@10, R@100, Success@1, AP"
        ) from error
