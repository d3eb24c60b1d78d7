"""What a loss is told about a (B, K) matrix of scores."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


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
            where the loss does not ask for them.
    """

    labels: Tensor
    mask: Tensor
    teacher: Tensor | None = None
    others: Tensor | None = None
    retriever: Tensor | None = None
