"""Metrics over rankings: per query, aligned with the queries, with intervals over them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import ir_measures
import numpy as np
from numpy.typing import NDArray

from simzoo.core.records import Collection, DataError
from simzoo.retrieval.scorer import Rows, Scores

__all__ = [
    "accuracy",
    "chosen_metrics",
    "interval",
    "ir_metrics",
    "parse_measures",
    "recall_curve",
    "retrieved",
    "topk_recall",
]

Values = NDArray[np.float64]

EXAMPLES = "nDCG@10, RR@10, R@100, Success@1, AP"
DEFAULT = ("nDCG@10", "RR@10", "R@1", "R@10", "R@64", "R@100")
CELLS = 4_000_000  # numbers drawn at once: bounds the memory of resampling


def topk_recall(found: Rows, exact_scores: Scores, k: int) -> Values:
    """Top-k-Recall@m: the share of the exact top k among the m items found (ANNCUR §3).

    Where items tie with the k-th exact score there are several exact top k, and the one that agrees best counts: a tied
    item is as right as any other, but no more of them than there are places beside the items above, and none of them
    makes up for a missing item above. So the share never exceeds 1, and does not depend on how ties were broken.

    Args:
        found: (B, m) rows of the items found, distinct in each row; -1 for none.
        exact_scores: (B, N) scores of all items.
        k: how many exact neighbours count.

    Returns:
        (B,) in [0, 1].

    Raises:
        ValueError: k is larger than N, the shapes do not fit, a row is found twice or is no item, or a score is NaN.

    Examples:
        >>> exact = np.array([[0.1, 0.9, 0.5, 0.7]])
        >>> topk_recall(np.array([[1, 2]]), exact, k=2).tolist()  # of rows 1 and 3, row 1 was found
        [0.5]
    """
    queries, items = exact_scores.shape
    if not 1 <= k <= items:
        raise ValueError(f"Top-{k}-Recall over {items} items: k must be between 1 and their number")
    if found.ndim != 2 or len(found) != queries:
        raise ValueError(f"found items have the shape {found.shape}, expected ({queries}, m) as the exact scores have")
    if found.size and not -1 <= found.min() <= found.max() < items:
        raise ValueError(f"found items have rows from {found.min()} to {found.max()}, expected 0 to {items - 1}, or -1")
    ordered = np.sort(found, axis=1)
    if ((ordered[:, 1:] == ordered[:, :-1]) & (ordered[:, 1:] >= 0)).any():
        raise ValueError("an item was found twice for one query, which would count twice; a ranking has distinct items")
    if np.isnan(exact_scores).any():
        raise ValueError("the exact scores hold NaN: they do not cover these queries, or the similarity is broken")
    threshold = -np.partition(-exact_scores, k - 1, axis=1)[:, k - 1 : k]
    scores = np.where(found < 0, np.nan, np.take_along_axis(exact_scores, found.clip(min=0), axis=1))
    places = k - (exact_scores > threshold).sum(axis=1)
    hits = (scores > threshold).sum(axis=1) + np.minimum((scores == threshold).sum(axis=1), places)
    shares: Values = hits / k
    return shares


def accuracy(first: Rows, collection: Collection, query_rows: Rows) -> Values:
    """1 where the first item (B,) is relevant: unnormalised, a gold item that was not retrieved is a miss.

    Examples:
        >>> from simzoo import Collection, Item, Query
        >>> toy = Collection("toy", [Item("i0", "a boat")], [Query("q0", "ship")], judgements=[{0: 1}])
        >>> accuracy(np.array([0]), toy, np.array([0])).tolist()
        [1.0]
    """
    pairs = zip(first.tolist(), query_rows.tolist(), strict=True)
    return np.array([float(collection.judgements[row].get(item, 0) > 0) for item, row in pairs])


def retrieved(candidates: Rows, collection: Collection, query_rows: Rows) -> NDArray[np.bool_]:
    """Whether a relevant item is among the candidates (B, m): normalised accuracy is the mean over these queries."""
    gold = [collection.relevant(row) for row in query_rows.tolist()]
    return np.array([bool(np.isin(rows, found).any()) for rows, found in zip(gold, candidates, strict=True)])


def parse_measures(names: Sequence[str]) -> dict[str, ir_measures.measures.Measure]:
    """Measures by the names that were asked for; each is tried on one query, so that hours are not lost to a name.

    Raises:
        ValueError: ir-measures does not know a name, or cannot compute it here.
    """
    return {name: _measure(name) for name in names}


def cutoff(measure: ir_measures.measures.Measure) -> int:
    """How deep a measure looks; 0 where it looks at all results."""
    return int(measure.params.get("cutoff", 0))


def ir_metrics(items: Rows, collection: Collection, query_rows: Rows, names: Sequence[str]) -> dict[str, Values]:
    """Metrics by ir-measures' names (nDCG@10, RR@10, R@100, Success@1, ...).

    Args:
        items: (B, k) rows, best first, distinct in each row; -1 for none.
        collection: with the judgements.
        query_rows: (B,) the queries.
        names: what to compute; two names of one measure (RR@10, MRR@10) get the same values.

    Returns:
        For each name (B,) values, 0 where a query has nothing relevant.

    Raises:
        ValueError: ir-measures does not know a name, or cannot compute it here.

    Examples:
        >>> from simzoo import Collection, Item, Query
        >>> items = [Item("i0", "a boat"), Item("i1", "a house")]
        >>> toy = Collection("toy", items, [Query("q0", "ship")], judgements=[{0: 1}])
        >>> found = ir_metrics(np.array([[1, 0]]), toy, np.array([0]), ["RR@10", "R@2"])
        >>> {name: values.tolist() for name, values in found.items()}
        {'RR@10': [0.5], 'R@2': [1.0]}
    """
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
        if item >= 0
    ]
    return measured(names, qrels, run, len(query_rows))


def measured(
    names: Sequence[str], qrels: Sequence[ir_measures.Qrel], run: Sequence[ir_measures.ScoredDoc], queries: int
) -> dict[str, Values]:
    """For each name (B,) values of queries that are called "0", "1", ...; 0 where one has nothing relevant or found.

    Raises:
        ValueError: ir-measures does not know a name, or cannot compute it here.
    """
    measures = parse_measures(names)
    by_measure = {measure: np.zeros(queries) for measure in measures.values()}
    if qrels and run:
        for found in ir_measures.iter_calc(list(by_measure), qrels, run):
            by_measure[found.measure][int(found.query_id)] = found.value
    return {name: by_measure[measure].copy() for name, measure in measures.items()}


def interval(values: Values, seed: int = 0, samples: int = 10_000) -> tuple[float, float, float]:
    """Mean, and its 95 % percentile bootstrap interval over queries.

    Drawing queries with replacement is a multinomial draw over the distinct values; per-query values have few (R@10 of
    one relevant item: two), so the time depends on these and not on the number of queries.

    Raises:
        ValueError: there are no values, or one is not finite.
    """
    mean = _mean(values)
    low, high = np.quantile(_deviations(values, seed, samples), [0.025, 0.975])
    return mean, mean + float(low), mean + float(high)


def macro_interval(groups: Sequence[Values], seed: int = 0, samples: int = 10_000) -> tuple[float, float, float]:
    """The mean of the groups' means, and its 95 % interval: queries are drawn anew within each group.

    Raises:
        ValueError: there are no groups, or one has no values, or one that is not finite.
    """
    if not groups:
        raise ValueError("a macro average needs at least one group of queries")
    mean = float(np.mean([_mean(values) for values in groups]))
    drawn = [_deviations(values, seed + place, samples) for place, values in enumerate(groups)]
    low, high = np.quantile(np.mean(drawn, axis=0), [0.025, 0.975])
    return mean, mean + float(low), mean + float(high)


def _mean(values: Values) -> float:
    if not len(values):
        raise ValueError("an interval needs at least one query")
    if not np.isfinite(values).all():
        raise ValueError("an interval needs finite values; leave out the queries that do not count (NaN) first")
    return float(values.mean())


def _deviations(values: Values, seed: int, samples: int) -> Values:
    """(samples,): how far the means of values drawn with replacement are from the mean."""
    rng = np.random.default_rng(seed)
    distinct, counts = np.unique(values, return_counts=True)
    # Resampling the deviations leaves no rounding error between the mean and its interval where all values are equal.
    deviations = (distinct - float(values.mean())) if len(distinct) > 1 else np.zeros(1)
    drawn: Values = np.concatenate(
        [
            rng.multinomial(len(values), counts / len(values), size=block) @ deviations / len(values)
            for block in block_sizes(samples, len(distinct))
        ]
    )
    return drawn


def block_sizes(samples: int, width: int) -> list[int]:
    """``samples`` in blocks of rows that hold at most `CELLS` numbers of ``width`` a row."""
    block = max(1, min(samples, CELLS // max(1, width)))
    return [min(block, samples - start) for start in range(0, samples, block)]


def _measure(name: str) -> ir_measures.measures.Measure:
    try:
        measure = ir_measures.parse_measure(name)
    except (NameError, ValueError, KeyError) as error:
        raise ValueError(f"{name!r} is no metric that ir-measures knows ({error}); for example {EXAMPLES}") from error
    validate: Any = measure.validate_params
    try:
        validate()
    except AssertionError as error:
        takes = ", ".join(measure.SUPPORTED_PARAMS)
        raise ValueError(
            f"{name!r}: a parameter is missing or of the wrong kind; {type(measure).NAME} takes {takes}; for example "
            f"{EXAMPLES}"
        ) from error
    if measure.params.get("cutoff", 1) < 1:  # trec_eval would end the whole process
        raise ValueError(f"{name!r}: the cutoff must be at least 1; for example {EXAMPLES}")
    try:
        list(measure.iter_calc([ir_measures.Qrel("0", "0", 1)], [ir_measures.ScoredDoc("0", "0", 0.0)]))
    except Exception as error:  # each of the programs behind ir-measures fails in its own way
        reason = " ".join(str(error).split())
        raise ValueError(f"{name!r} cannot be computed here ({reason}); for example {EXAMPLES}") from error
    return measure


def chosen_metrics(names: list[str] | None, k: int, num_items: int) -> list[str]:
    """The metrics to compute over k results, checked before any work.

    Raises:
        DataError: a metric looks deeper than the results, so its value would be that of another metric; or none is
            named.
        ValueError: no such metric.
    """
    if names is not None and not names:
        raise DataError(f"--metrics is empty; name at least one, for example {EXAMPLES}, or leave it out")
    measures = parse_measures(DEFAULT if names is None else names)
    deep = [name for name, measure in measures.items() if cutoff(measure) > k and k < num_items]
    if names is None:
        return [name for name in measures if name not in deep]
    if deep:
        raise DataError(f"{deep[0]} looks deeper than the {k} results; raise --k, and --search.budget if there is one")
    return names


def recall_curve(items: Rows, exact: Scores) -> dict[int, list[tuple[float, float]]]:
    """(items looked at, mean Top-k-Recall) by k: how deep in the rankings (B, m) the exact neighbours stand."""
    depths = [depth for depth in (1, 2, 5, 10, 20, 50, 100, 200, 500) if depth <= items.shape[1]]
    return {
        k: [(depth, float(topk_recall(items[:, :depth], exact, k).mean())) for depth in depths if depth >= k]
        for k in (1, 10, 100)
        if k <= depths[-1]
    }
