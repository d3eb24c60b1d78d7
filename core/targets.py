"""What a loss is told about a (B, K) matrix of scores."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

__all__ = ["Targets"]

NEEDS: Mapping[str, str] = {
    "teacher": "a teacher's scores",
    "halves": "a teacher's top items and as many hard negatives that it did not score",
    "retriever": "a retriever's scores",
    "others": "the positives of the batch's other queries",
    "batch_log_q": "the log of each item's probability to be in the batch",
}
"""What a loss may need besides labels, and lists may give, in words."""


@dataclass
class Targets:
    """Targets of B queries over K candidates each.

    Attributes:
        labels: (B, K) relevance grades, 0 for a negative.
        mask: (B, K) bool, False where there is no candidate or where it must not be counted (a false negative).
        teacher: (B, K) scores of a teacher, NaN where it did not score the pair; None without a teacher.
        others: (B, K) bool, True at the positives of the batch's other queries, which are added behind a query's own
            candidates; None where they are not.
        retriever: (B, K) scores of the retriever that mined the candidates, NaN where it did not find the item; None
            where there are none.
        log_q: (B, K) log of the probability with which each candidate came into the query's list, the relevant ones
            included as if they were candidates like the others; -inf where it could not. None: the same for all.
        batch_log_q: (B, K) log of the probability with which each candidate is in the batch at all. None: not known.
    """

    labels: Tensor
    mask: Tensor
    teacher: Tensor | None = None
    others: Tensor | None = None
    retriever: Tensor | None = None
    log_q: Tensor | None = None
    batch_log_q: Tensor | None = None
