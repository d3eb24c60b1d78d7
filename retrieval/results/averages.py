"""Averages over several data sets: macro, in which each data set counts alike, and micro, in which each query does."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from simzoo.retrieval.results.metrics import Values, interval, macro_interval

Summary = dict[str, dict[str, float]]
"""By metric: mean, low, high and queries."""


@dataclass(frozen=True)
class Averages:
    """Averages of per-query values over data sets.

    Attributes:
        macro: the mean of the data sets' means, as ZESHEL's papers report; its interval draws queries anew within each.
        micro: the mean over all queries.
        lacking: metrics without averages, and the data sets that lack them.
    """

    macro: Summary
    micro: Summary
    lacking: dict[str, list[str]]

    @classmethod
    def of(cls, values: Mapping[str, Mapping[str, Values]]) -> Averages:
        """Averages what every data set has.

        Args:
            values: by data set and metric (B,) values; NaN where a query does not count.
        """
        names = list(dict.fromkeys(name for columns in values.values() for name in columns))
        macro, micro, lacking = {}, {}, {}
        for name in names:
            known = {data: _counted(columns[name]) for data, columns in values.items() if name in columns}
            missing = [data for data in values if data not in known or not len(known[data])]
            if missing:
                lacking[name] = missing
                continue
            groups = list(known.values())
            queries = sum(map(len, groups))
            macro[name] = _summary(macro_interval(groups), queries)
            micro[name] = _summary(interval(np.concatenate(groups)), queries)
        return cls(macro, micro, lacking)


def _counted(values: Values) -> Values:
    return values[np.isfinite(values)]


def _summary(found: tuple[float, float, float], queries: int) -> dict[str, float]:
    mean, low, high = found
    return {"mean": mean, "low": low, "high": high, "queries": queries}


def split_summary(summary: Summary, costs: tuple[str, ...] = ("calls", "milliseconds")) -> dict[str, Any]:
    """A summary as metrics.json has it: ``metrics`` and ``cost`` apart."""
    return {
        "metrics": {name: value for name, value in summary.items() if name not in costs},
        "cost": {name: value for name, value in summary.items() if name in costs},
    }
