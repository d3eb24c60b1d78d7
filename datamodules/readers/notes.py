"""What readers drop, keep or repair: counted by reason; what is dropped is printed once, with the first ids."""

from __future__ import annotations

import sys
from collections import Counter

FIRST = 3  # ids that are printed for a reason

_said: set[str] = set()  # several splits and worlds drop the same: a line comes once in a process


class Notes:
    """The counts of one reading."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()
        self._first: dict[str, list[str]] = {}

    def keep(self, reason: str, count: int = 1) -> None:
        """Counts what is unusual but stays."""
        self._counts[reason] += count

    def drop(self, reason: str, name: str, count: int = 1) -> None:
        """Counts what is left out; ``name`` tells which, by an id or a place."""
        self._counts[reason] += count
        first = self._first.setdefault(reason, [])
        if len(first) < FIRST:
            first.append(name)

    def told(self, name: str) -> dict[str, int]:
        """The counts by reason; prints on standard error what was dropped.

        Args:
            name: of the data.
        """
        for reason, first in self._first.items():
            more = ", ..." if self._counts[reason] > len(first) else ""
            say(f"{name}: {reason}: {self._counts[reason]:,} ({', '.join(map(repr, first))}{more})")
        return dict(+self._counts)


def say(line: str) -> None:
    """Prints a line on standard error, the first time only."""
    if line not in _said:
        _said.add(line)
        print(line, file=sys.stderr, flush=True)
