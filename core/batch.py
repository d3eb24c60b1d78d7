"""One training or validation batch."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from simzoo.core.reps import Reps
from simzoo.core.targets import Targets


@dataclass
class Batch:
    """B queries and their candidates among M items, tokenised.

    Attributes:
        queries: tokens of B queries, as the model's `collate_queries` made them.
        items: tokens of M items, as the model's `collate_items` made them.
        candidates: (B, K) or (1, K) rows of ``items``, -1 for no candidate.
        targets: labels, mask and teacher scores, (B, K) each.
        query_ids: to name a batch that goes wrong.
        every_position: the queries are sequences, and each of their positions is a query of its own: ``candidates`` and
            ``targets`` have a row for each position, sequence after sequence.
        shared: (S,) rows of ``items`` that are candidates of every position, behind its own: their scores are one
            matrix product. ``targets`` have K + S columns then. None without them.
    """

    queries: Reps
    items: Reps
    candidates: Tensor
    targets: Targets
    query_ids: list[str]
    every_position: bool = False
    shared: Tensor | None = None
