"""Settings of a searcher, chosen on queries that are not reported on."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simzoo.core.records import Query
from simzoo.retrieval.corpus import Corpus
from simzoo.retrieval.judge import Judge
from simzoo.retrieval.results.metrics import interval
from simzoo.retrieval.scorer import Scorer
from simzoo.retrieval.searcher import Searcher
from simzoo.retrieval.searchers.solvers import LeastNorm, Ridge
from simzoo.retrieval.topk import Rows, Scores


@dataclass(frozen=True)
class Trial:
    """One setting on the dev queries.

    Attributes:
        named: what was set.
        searcher: with these settings, indexed.
        recall: (B,) Top-k-Recall.
        mean, low, high: of it, with the 95 % interval over queries.
    """

    named: str
    searcher: Searcher
    recall: NDArray[np.float64]
    mean: float
    low: float
    high: float


def settings(
    searcher: Searcher, weights: Sequence[float], strengths: Sequence[float], rconds: Sequence[float]
) -> Iterator[tuple[str, Searcher]]:
    """Searchers to try, beginning with the given one.

    Where a searcher has a ``weight`` and a ``solver`` (AXN): every weight with the least norm and with each ridge
    around 0, and, in the place of a weight, each ridge around the dual encoder's vector. Where it has an ``rcond``
    (CUR, ADACUR and their like): each of these.

    Raises:
        TypeError: it has neither.
    """
    yield "as given", searcher
    known = set(inspect.signature(type(searcher).__init__).parameters)
    if {"weight", "solver"} <= known:
        solvers: list[LeastNorm | Ridge] = [LeastNorm(), *(Ridge(strength, centred=False) for strength in strengths)]
        for weight in weights:
            for solver in solvers:
                shown = "least norm" if isinstance(solver, LeastNorm) else f"ridge {solver.strength:g}"
                yield f"weight {weight:g}, {shown}", changed(searcher, weight=weight, solver=solver)
        for strength in strengths:
            other = changed(searcher, weight=0.0, solver=Ridge(strength, centred=True))
            yield f"ridge {strength:g} around the dual encoder's vector", other
    elif "rcond" in known:
        for rcond in rconds:
            yield f"rcond {rcond:g}", changed(searcher, rcond=rcond)
    else:
        raise TypeError(
            f"{type(searcher).__name__} has no weight and solver, nor an rcond: there is nothing to tune; tune takes "
            "AXN, CUR, AdaCUR, ItemCUR"
        )


def changed(searcher: Searcher, **values: Any) -> Searcher:
    """A searcher of the same settings and parts, but for some."""
    names = list(inspect.signature(type(searcher).__init__).parameters)[1:]
    return type(searcher)(**{name: getattr(searcher, name) for name in names} | values)


def tuned(
    trials: Iterator[tuple[str, Searcher]],
    corpus: Corpus,
    queries: Sequence[Query],
    k: int,
    exact: Scores | None = None,
) -> list[Trial]:
    """Each setting's Top-k-Recall on the dev queries, best first; of equal ones the one that was tried first.

    A pair that one setting has scored costs the next ones nothing: all scores are held, 12 bytes each.

    Args:
        trials: of `settings`.
        corpus: the items, a judge, and anchors that are none of the queries.
        queries: B dev queries.
        k: how many of the exact best items count.
        exact: (B, N) scores of all items. None: the best k are those among all that any setting has returned, which
            makes recall too high, but compares the settings.

    Raises:
        ValueError: a dev query is an anchor.
    """
    both = {query.id for query in queries} & {query.id for query in corpus.anchors}
    if both:
        raise ValueError(f"dev queries are anchors as well, for example {sorted(both)[0]!r}; name other ones")
    assert corpus.judge is not None
    shared = replace(corpus, judge=Remembering(corpus.judge))
    found: list[tuple[str, Searcher, Rows, Scores]] = []
    for named, searcher in trials:
        searcher.index(shared)
        ranking = searcher.search(queries, min(k, len(corpus.live)))
        found.append((named, searcher, ranking.items, ranking.scores))
    edges = _edges([(rows, scores) for _, _, rows, scores in found], k, exact)
    results = []
    for named, searcher, _, scores in found:
        recall = (scores >= edges[:, None]).sum(axis=1) / scores.shape[1]
        results.append(Trial(named, searcher, recall, *interval(recall)))
    return sorted(results, key=lambda trial: -trial.mean)


def _edges(found: Sequence[tuple[Rows, Scores]], k: int, exact: Scores | None) -> NDArray[np.float32]:
    """(B,) the k-th best score of each query."""
    if exact is not None:
        k = min(k, exact.shape[1])
        every: NDArray[np.float32] = -np.partition(-exact, k - 1, axis=1)[:, k - 1]
        return every
    edges = []
    for row in range(len(found[0][0])):
        items = np.concatenate([rows[row] for rows, _ in found])
        scores = np.concatenate([part[row] for _, part in found])
        _, first = np.unique(items, return_index=True)
        edges.append(np.sort(scores[first])[::-1][: found[0][0].shape[1]][-1])
    return np.array(edges, dtype=np.float32)


class Remembering(Judge):
    """A judge whose scores are kept from one search to the next.

    Args:
        judge: what scores; pairs that it has scored for the same batch of queries are not asked for again.
    """

    def __init__(self, judge: Judge) -> None:
        self._judge = judge
        self._scorers: dict[tuple[Query, ...], Scorer] = {}
        self.num_items = judge.num_items
        self.representation_bytes = judge.representation_bytes

    @property
    def pointwise(self) -> bool:
        """See `Judge.pointwise`."""
        return self._judge.pointwise

    def scorer(self, queries: Sequence[Query]) -> Scorer:
        """See `Judge.scorer`."""
        asked = tuple(queries)
        if asked not in self._scorers:
            self._scorers[asked] = self._judge.scorer(asked)
        return _Kept(self._scorers[asked])


class _Kept(Scorer):
    """Over another scorer, which keeps all; its calls are counted as if nothing were known."""

    def __init__(self, inner: Scorer) -> None:
        super().__init__(inner, inner.num_queries, inner.num_items, inner.chunk)
        self.queries = inner.queries


def recipe(part: Any) -> Any:
    """A searcher, or a part of one, as a configuration file has it; arguments that are None are left out."""
    if part is None or isinstance(part, bool | int | float | str):
        return part
    if isinstance(part, Path):
        return str(part)
    if isinstance(part, list | tuple):
        return [recipe(one) for one in part]
    if is_dataclass(part):
        named = [field.name for field in fields(part) if field.init]
    else:
        named = list(inspect.signature(type(part).__init__).parameters)[1:]
    held: list[Any] = []
    arguments = {}
    for name in named:
        value = getattr(part, name)
        if value is None or any(value is one for one in held):  # AXN's first stage may be its dual encoder
            continue
        held += [] if isinstance(value, bool | int | float | str) else [value]
        arguments[name] = recipe(value)
    return {"class_path": type(part).__name__, "init_args": arguments}
