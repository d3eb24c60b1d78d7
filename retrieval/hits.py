"""What a search of an engine returns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, overload

from simzoo.core.records import Item

__all__ = ["Hit", "Hits"]


@dataclass(frozen=True)
class Hit:
    """One result.

    Attributes:
        id: of the item.
        score: of the similarity; where the searcher never calls one, of the first stage.
        text: of the item.
        item: whole.
    """

    id: str
    score: float
    text: str
    item: Item


@dataclass(frozen=True)
class Hits(Sequence[Hit]):
    """The results of one query, best first.

    Attributes:
        hits: fewer than k where there are not so many.
        calls: pairs that the similarity has scored for it (lists, if it compares candidates with each other).
        milliseconds: of the search; of several queries at once, its share.
        steps: milliseconds by step.
        found: how: the searcher and its settings, whether the vector index is exact, and over how many items.

    Examples:
        >>> hits = Hits((Hit("i0", 2.0, "a boat", Item("i0", "a boat")),), calls=100, milliseconds=12.5)
        >>> len(hits), hits[0].id, hits.calls
        (1, 'i0', 100)
    """

    hits: tuple[Hit, ...]
    calls: int
    milliseconds: float
    steps: Mapping[str, float] = field(default_factory=dict)
    found: Mapping[str, Any] = field(default_factory=dict)

    @overload
    def __getitem__(self, place: int) -> Hit: ...
    @overload
    def __getitem__(self, place: slice) -> tuple[Hit, ...]: ...
    def __getitem__(self, place: int | slice) -> Hit | tuple[Hit, ...]:
        return self.hits[place]

    def __len__(self) -> int:
        return len(self.hits)
