"""One training or validation batch."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any, Self

from torch import Tensor

from simzoo.core.reps import Ragged, Reps
from simzoo.core.targets import Targets

__all__ = ["Batch"]


@dataclass
class Batch:
    """B queries and their candidates among M items, tokenised.

    Attributes:
        queries: tokens of B queries, as the model's `collate_queries` made them.
        items: tokens of M items, as the model's `collate_items` made them.
        candidates: (B, K) or (1, K) rows of ``items``, -1 for no candidate.
        targets: labels, mask and teacher scores, (B, K) each.
        query_ids: to name a batch that goes wrong; none where the batch has no queries, which a rank gets in validation
            that has one batch fewer than the others.
        every_position: the queries are sequences, and each of their positions is a query of its own: ``candidates`` and
            ``targets`` have a row for each position, sequence after sequence.
        shared: (S,) rows of ``items`` that are candidates of every position, behind its own: their scores are one
            matrix product. ``targets`` have K + S columns then. None without them.
        shares: where the ranks that train together have the same ``items``: how many of them, in order, each rank
            encodes. None: each encodes all of its own.
    """

    queries: Reps
    items: Reps
    candidates: Tensor
    targets: Targets
    query_ids: list[str]
    every_position: bool = False
    shared: Tensor | None = None
    shares: list[int] | None = None

    def pin_memory(self) -> Self:
        """A copy in page-locked memory; torch's loader calls it."""
        targets = {part.name: _maybe_pinned(getattr(self.targets, part.name)) for part in fields(self.targets)}
        return replace(
            self,
            queries=_pinned(self.queries),
            items=_pinned(self.items),
            candidates=self.candidates.pin_memory(),
            targets=replace(self.targets, **targets),
            shared=_maybe_pinned(self.shared),
        )


def _maybe_pinned(part: Tensor | None) -> Any:
    return None if part is None else part.pin_memory()


def _pinned(reps: Reps) -> Reps:
    pinned: Reps = {}
    for name, part in reps.items():
        if isinstance(part, Ragged):
            pinned[name] = Ragged(part.values.pin_memory(), part.offsets.pin_memory())
        else:
            pinned[name] = part.pin_memory()
    return pinned
