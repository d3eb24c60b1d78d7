"""Searchers and their parts as JSON: a class's name and its arguments, read back by the names of our own classes."""

from __future__ import annotations

import inspect
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields
from importlib import import_module
from pathlib import Path
from typing import Any, get_args, get_type_hints

from simzoo.core.files import read_object, replacing
from simzoo.core.locks import locked
from simzoo.core.records import DataError, History, Query
from simzoo.core.registry import choice, subclasses
from simzoo.retrieval.searcher import Searcher

SETTINGS = "settings.json"
FORMAT = 1
KEPT = ({"checkpoint", "sha256", "class"}, {"function"})  # what is said of a model
MODELS = {"similarity": "similarity", "embedder": "embedder"}  # folders of models at hand


def written(part: Any, *bases: type) -> Any:
    """A searcher, or a part of one, as JSON.

    Args:
        part: what is written.
        bases: what a class must be one of, so that `read` will take it.

    Raises:
        TypeError: a part is no class of this project, or was given something that a file cannot hold.
    """
    if part is None or isinstance(part, bool | int | float | str):
        return part
    if isinstance(part, Path):
        return {"path": str(part)}
    if isinstance(part, list | tuple):
        return [written(one, *bases) for one in part]
    kind = type(part)
    name = kind.__name__
    if _class(name, bases) is not kind:
        raise TypeError(
            f"{kind.__module__}.{name} cannot be written into an index; only these can: {', '.join(_choices(bases))}"
        )
    arguments = {}
    for argument, named_by_hint in _parameters(kind).items():
        if not hasattr(part, argument):
            raise TypeError(f"{name} does not keep its argument {argument!r}, so it cannot be written into an index")
        arguments[argument] = written(getattr(part, argument), *named_by_hint)
    return {"class": name, "arguments": arguments}


def read(value: Any, path: Path, *bases: type) -> Any:
    """What `written` wrote.

    Args:
        value: JSON.
        path: of the file, for messages.
        bases: what a class that is named must be one of. Names are looked up in `simzoo.core.registry`, and those of
            the arguments by the hints of the constructor: nothing else is imported.

    Raises:
        DataError: it names another class, or arguments that the class does not take.
    """
    if isinstance(value, list):
        return [read(one, path, *bases) for one in value]
    if not isinstance(value, dict):
        return value
    if value.keys() == {"path"} and isinstance(value["path"], str):
        place = Path(value["path"]).resolve()
        if not place.is_relative_to(path.parent.resolve()):
            raise DataError(
                f"names {place}, to be written to, which lies outside of the index; if you know it, hand over the "
                "searcher: Engine.load(folder, search=...)",
                path,
            )
        return Path(value["path"])
    name, arguments = value.get("class"), value.get("arguments")
    kind = _class(name, bases) if isinstance(name, str) else None
    if kind is None or not isinstance(arguments, dict):
        raise DataError(f"names the class {name!r}; expected one of {', '.join(_choices(bases)) or 'none'}", path)
    hints = _parameters(kind)
    try:
        return kind(**{key: read(one, path, *hints.get(key, ())) for key, one in arguments.items()})
    except (TypeError, ValueError) as error:
        raise DataError(f"{name} cannot be made of its settings: {error}", path) from error


def _choices(bases: Iterable[type]) -> list[str]:
    return sorted({known.name for base in bases for known in subclasses(base.__name__)})


def _class(name: str, bases: Iterable[type]) -> type | None:
    """The class of that name which is one of the bases or below one; None: there is none that a file may name."""
    for base in bases:
        known = choice(name, base.__name__)
        found = None if known is None else getattr(import_module(known.module), name)
        if isinstance(found, type) and issubclass(found, base) and not getattr(found, "calls_out", False):
            return found
    return None


def _parameters(kind: type) -> dict[str, tuple[type, ...]]:
    """The parameters of a class's constructor, and the classes of this room that the hint of each names."""
    hints = get_type_hints(getattr(kind, "__init__"))  # noqa: B009  mypy's rule
    names = list(inspect.signature(kind).parameters)
    return {name: tuple(_of_this_room(hints.get(name))) for name in names}


def _of_this_room(hint: Any) -> Iterator[type]:
    if isinstance(hint, type) and hint.__module__.startswith("simzoo.retrieval."):
        yield hint
    for inner in get_args(hint):
        yield from _of_this_room(inner)


def written_or_name(searcher: Searcher) -> Any:
    """Its settings; the name alone of a searcher of the user's own."""
    try:
        return written(searcher, Searcher)
    except TypeError:
        return {"class": type(searcher).__name__}


def settings_of(folder: Path) -> dict[str, Any]:
    """The settings of the index in a folder.

    Raises:
        DataError: there is none, or it is damaged.
    """
    path = folder / SETTINGS
    try:
        found = read_object(path, "build the index anew")
    except FileNotFoundError:
        raise DataError("holds no index; make one with Engine.add and Engine.save", folder) from None
    if found.get("format") != FORMAT:
        raise DataError("was written by another version of simzoo; build the index anew", path)
    if missing := {*MODELS, "search", "index", "anchors"} - found.keys():
        raise DataError(f"lacks {', '.join(sorted(missing))}; build the index anew", path)
    for name in MODELS:
        kept = found[name]
        if not (kept is None or (isinstance(kept, dict) and kept.keys() in KEPT and all_texts(kept.values()))):
            raise DataError(f"{name} is {kept!r:.80}, expected what was loaded; build the index anew", path)
    if not isinstance(found["anchors"], list):
        raise DataError(f"anchors is {found['anchors']!r:.80}, expected a list; build the index anew", path)
    return found


def all_texts(values: Iterable[object]) -> bool:
    """Whether each is a text."""
    return all(isinstance(value, str) for value in values)


def rewrite_search(folder: Path, searcher: Any) -> None:
    """Makes another searcher that of the index in a folder.

    Raises:
        DataError: there is no index.
        InUse: another process writes to it.
        TypeError: the searcher cannot be written.
    """
    with locked(folder):
        changed = {**settings_of(folder), "search": written(searcher, Searcher)}
        with replacing(folder / SETTINGS) as file:
            file.write(json.dumps(changed, indent=1).encode())


def named(folder: Path, name: str, kept: Mapping[str, str]) -> str | Path:
    """The checkpoint of a model that the settings name.

    Raises:
        DataError: it was a function.
    """
    if "function" in kept:
        raise DataError(
            f"was made with the function {kept['function']!r} as its {name}, which a file cannot hold: hand it over, "
            f"Engine.load(folder, {name}=...)",
            folder / SETTINGS,
        )
    return kept["checkpoint"] or folder / MODELS[name]


def _said(identity: Mapping[str, str] | None) -> str:
    if identity is None:
        return "none"
    shown = identity.get("function") or identity.get("checkpoint") or identity.get("class", "?")
    return f"{shown} {identity.get('sha256', '')[:12]}".strip()


def compare(folder: Path, name: str, mine: Mapping[str, str] | None) -> None:
    """Refuses a model that has not made what the index keeps of its items.

    Args:
        folder: of the index.
        name: similarity or embedder.
        mine: identity of the one at hand.

    Raises:
        DataError: it is another one.
    """
    kept = settings_of(folder)[name]
    if mine is None or kept is None:
        same = mine is kept
    elif "function" in mine or "function" in kept:
        same = "function" in mine and "function" in kept
    else:
        same = all(kept[key] == mine[key] for key in ("sha256", "class") if kept[key] and mine[key])
    if not same:
        raise DataError(
            f"was made with the {name} {_said(kept)}, but is given {_said(mine)}: what is kept of the items would not "
            "fit; load it as it is, or build another index",
            folder / SETTINGS,
        )


def plain_query(query: Query) -> dict[str, Any]:
    """A query as JSON."""
    return {"class": type(query).__name__, **{field.name: getattr(query, field.name) for field in fields(query)}}


def query_of(value: Mapping[str, Any], path: Path) -> Query:
    """What `plain_query` wrote.

    Raises:
        DataError: it is none.
    """
    try:
        kind = {"Query": Query, "History": History}[value["class"]]
        if not all_texts((value["id"], value["text"])):
            raise TypeError("its id and text are no texts")
        arguments: dict[str, Any] = {
            key: tuple(one) if isinstance(one, list) else one for key, one in value.items() if key != "class"
        }
        return kind(**arguments)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise DataError(f"holds an anchor that is no query ({error}); build the index anew", path) from error
