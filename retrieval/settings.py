"""Searchers and first stages as plain values: what metrics.json says of them, their parts included."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

from simzoo.retrieval.first_stages.first_stage import FirstStage
from simzoo.retrieval.searcher import Searcher

PLAIN = (int, float, str, bool, type(None))


def described(part: Any) -> dict[str, Any]:
    """``name`` of the class and its settings, those of its parts nested; a first stage adds what it says of itself."""
    found: dict[str, Any] = {"name": type(part).__name__}
    found |= {name: _plain(value) for name, value in _settings(part)}
    return found | (part.described() if isinstance(part, FirstStage) else {})


def first_stages(searcher: Searcher) -> list[FirstStage]:
    """All first stages of a searcher, those of its parts included, each once."""
    found: dict[int, FirstStage] = {}
    waiting: list[Any] = [searcher]
    while waiting:
        part = waiting.pop()
        if isinstance(part, FirstStage):
            found[id(part)] = part
        if isinstance(part, list | tuple):
            waiting += part
        waiting += [value for _, value in _settings(part) if not isinstance(value, PLAIN)]
    return list(found.values())


def _settings(part: Any) -> Iterator[tuple[str, Any]]:
    """What the constructor was given, as the object keeps it: under the same names."""
    if is_dataclass(part):
        yield from ((field.name, getattr(part, field.name)) for field in fields(part))
    elif isinstance(part, Searcher | FirstStage):
        for name in list(inspect.signature(type(part).__init__).parameters)[1:]:
            if hasattr(part, name):
                yield name, getattr(part, name)


def _plain(value: Any) -> Any:
    if isinstance(value, PLAIN):
        return value
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, Mapping):
        return {str(key): _plain(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    return described(value)
