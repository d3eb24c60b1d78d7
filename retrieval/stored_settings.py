"""Searchers and their parts as JSON: a class's name and its arguments, read back by a table of our own classes."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from simzoo.core.records import DataError, History, Query

SETTINGS = "settings.json"
FORMAT = 1
MODELS = {"similarity": "similarity", "embedder": "embedder"}  # folders of models at hand

PLACES = {
    "first_stages.dense": ("Dense",),
    "first_stages.lexical": ("BM25", "TFIDF"),
    "first_stages.offered": ("AliasTable", "Given", "Random"),
    "first_stages.vector_index": ("Auto", "Flat", "HNSW", "IVF", "IVFPQ"),
    "searchers.adacur": ("AdaCUR",),
    "searchers.axn": ("AXN",),
    "searchers.cur": ("CUR",),
    "searchers.exact": ("Exact", "Rerank", "Retrieve"),
    "searchers.fixed_item": ("FixedItem",),
    "searchers.graph_reranking": ("GAR", "LADR"),
    "searchers.graph_search": ("GraphSearch", "RandomItems", "Retrieved"),
    "searchers.item_cur": ("ItemCUR",),
    "searchers.linear_search": ("LinearSearch",),
    "searchers.rank_prior": ("RankPrior",),
    "searchers.solvers": ("LeastNorm", "Ridge"),
    "searchers.tour": ("TourCE", "TourMSE"),
    "searchers.mol.topk": ("BruteForce", "CombTopK", "ExactMoL", "TopKAvg", "TopKGate", "TopKPerEmbd"),
    "searchers.pipeline": ("Pipeline", "Stage"),
    "storage.graph": ("GraphConfig",),
}
"""Modules of `simzoo.retrieval` and the classes that a settings file may name: nothing else is looked up."""

_MODULES = {name: module for module, names in PLACES.items() for name in names}


def written(part: Any) -> Any:
    """A searcher, or a part of one, as JSON.

    Raises:
        TypeError: a part is no class of this project, or was given something that a file cannot hold.
    """
    if part is None or isinstance(part, bool | int | float | str):
        return part
    if isinstance(part, Path):
        return {"path": str(part)}
    if isinstance(part, list | tuple):
        return [written(one) for one in part]
    name = type(part).__name__
    if name not in _MODULES or type(part) is not _class(name):
        raise TypeError(
            f"{type(part).__module__}.{name} cannot be written into an index; only these can: "
            f"{', '.join(sorted(_MODULES))}"
        )
    arguments = {}
    for argument in _arguments(part):
        if not hasattr(part, argument):
            raise TypeError(f"{name} does not keep its argument {argument!r}, so it cannot be written into an index")
        arguments[argument] = written(getattr(part, argument))
    return {"class": name, "arguments": arguments}


def read(value: Any, path: Path) -> Any:
    """What `written` wrote.

    Args:
        value: JSON.
        path: of the file, for messages.

    Raises:
        DataError: it names a class that is not in the table, or arguments that the class does not take.
    """
    if isinstance(value, list):
        return [read(one, path) for one in value]
    if not isinstance(value, dict):
        return value
    if value.keys() == {"path"} and isinstance(value["path"], str):
        return Path(value["path"])
    name, arguments = value.get("class"), value.get("arguments")
    if not isinstance(name, str) or name not in _MODULES or not isinstance(arguments, dict):
        raise DataError(f"names the class {name!r}; expected one of {', '.join(sorted(_MODULES))}", path)
    try:
        return _class(name)(**{key: read(one, path) for key, one in arguments.items()})
    except (TypeError, ValueError) as error:
        raise DataError(f"{name} cannot be made of its settings: {error}", path) from error


def _class(name: str) -> Callable[..., Any]:
    found: Callable[..., Any] = getattr(import_module(f"simzoo.retrieval.{_MODULES[name]}"), name)
    return found


def _arguments(part: Any) -> Iterator[str]:
    if is_dataclass(part):
        yield from (field.name for field in fields(part) if field.init)
    else:
        yield from list(inspect.signature(type(part).__init__).parameters)[1:]


def written_or_name(searcher: Any) -> Any:
    """Its settings; the name alone of a searcher of the user's own."""
    try:
        return written(searcher)
    except TypeError:
        return {"class": type(searcher).__name__}


def settings_of(folder: Path) -> dict[str, Any]:
    """The settings of the index in a folder.

    Raises:
        DataError: there is none, or it is damaged.
    """
    path = folder / SETTINGS
    try:
        found = json.loads(path.read_text())
        if found["format"] != FORMAT:
            raise DataError("was written by another version of simzoo; build the index anew", path)
        missing = {"similarity", "embedder", "search", "index", "anchors"} - found.keys()
        if missing:
            raise DataError(f"lacks {', '.join(sorted(missing))}; build the index anew", path)
    except FileNotFoundError:
        raise DataError("holds no index; make one with Engine.add and Engine.save", folder) from None
    except (KeyError, TypeError, json.JSONDecodeError) as error:
        raise DataError(f"is damaged ({error!r}); build the index anew", path) from error
    return dict(found)


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
        arguments: dict[str, Any] = {
            key: tuple(one) if isinstance(one, list) else one for key, one in value.items() if key != "class"
        }
        return kind(**arguments)
    except (KeyError, TypeError, ValueError) as error:
        raise DataError(f"holds an anchor that is no query ({error}); build the index anew", path) from error
