"""Arguments that had other names when a checkpoint was released; the table grows, and an entry stays for good."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

__all__ = ["RENAMED", "Renamed", "brought_forward"]


@dataclass(frozen=True)
class Renamed:
    """What became of one argument.

    Attributes:
        name: now.
        values: those that have other names now, by the old one.
    """

    name: str
    values: Mapping[str, str] = field(default_factory=dict)


RENAMED: Mapping[str, Mapping[str, Renamed]] = {
    "CrossEncoder": {"layout": Renamed("item_position", {"packed": "after_query"})},  # 0.1.0
    "Hypencoder": {"cosine": Renamed("begin_as_cosine")},  # 0.1.0
    "PolyEncoder": {"cosine": Renamed("cosine_scale")},  # 0.1.0
}
"""By class and by the argument's name in an older version."""


def brought_forward(cls: type, given: Mapping[str, Any], where: str) -> dict[str, Any]:
    """The arguments of a config.json of any version, by the names that they have now.

    Args:
        cls: of the similarity.
        given: arguments by name.
        where: file and key, for messages.

    Raises:
        ValueError: an argument stands there by both names.
    """
    table = RENAMED.get(cls.__name__, {})
    found = {name: value for name, value in given.items() if name not in table}
    for old in given.keys() & table.keys():
        now, value = table[old], given[old]
        if now.name in found:
            raise ValueError(f"{where}: has {old} and {now.name}, which is its name now; leave {old} out")
        found[now.name] = now.values.get(value, value) if isinstance(value, str) else value
    return found
