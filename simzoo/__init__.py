"""simzoo: train, evaluate, publish and search with learned similarities.

Everything is imported at its first use, so that ``import simzoo`` costs nothing: what `__all__` names, and every
similarity, loss, searcher, first stage, source of data and list of candidates by its own name.

>>> import simzoo
>>> simzoo.MarginMSE.__module__
'simzoo.losses.modules'
>>> simzoo.AXM
Traceback (most recent call last):
    ...
AttributeError: there is no part of simzoo 'AXM'; did you mean AXN?
"""

from functools import cache
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

if not (Path(__file__).parent / "models").is_dir():
    raise ImportError(
        "simzoo's rooms are symbolic links, and this checkout has none: git wrote them as text files, as it does on "
        "Windows by default. Install the wheel, or clone anew with `git clone -c core.symlinks=true`."
    )

if TYPE_CHECKING:
    from simzoo.core.records import Collection, History, Item, Query
    from simzoo.losses import MutualInformation, UserL2
    from simzoo.models.formats import load, save, save_onnx, save_sentence_transformer
    from simzoo.models.similarity import LearnedSimilarity
    from simzoo.retrieval.engine import Engine
    from simzoo.retrieval.hub.commands import pull, push
    from simzoo.retrieval.mteb_model import MTEBModel

__all__ = [
    "Collection",
    "Engine",
    "History",
    "Item",
    "LearnedSimilarity",
    "MTEBModel",
    "MutualInformation",
    "Query",
    "UserL2",
    "load",
    "pull",
    "push",
    "save",
    "save_onnx",
    "save_sentence_transformer",
]

_PLACES = {
    "Collection": "core.records",
    "Engine": "retrieval.engine",
    "History": "core.records",
    "Item": "core.records",
    "LearnedSimilarity": "models.similarity",
    "MTEBModel": "retrieval.mteb_model",
    "MutualInformation": "losses",
    "Query": "core.records",
    "load": "models.formats",
    "pull": "retrieval.hub.commands",
    "push": "retrieval.hub.commands",
    "save": "models.formats",
    "save_onnx": "models.formats",
    "save_sentence_transformer": "models.formats",
    "UserL2": "losses",
}

_BASES = (
    "LearnedSimilarity",
    "Loss",
    "Searcher",
    "FirstStage",
    "IndexKind",
    "Source",
    "TrainingLists",
    "Teacher",
    "Miner",
)
"""Whose subclasses are public under their own names: a new one is so without a line here."""


def __getattr__(name: str) -> Any:
    """Imports a public name at its first use."""
    if name.startswith("__"):
        raise AttributeError(f"simzoo has no {name!r}")
    if name in _PLACES:
        return getattr(import_module(f"simzoo.{_PLACES[name]}"), name)
    classes = _classes()
    if name in classes:
        return getattr(import_module(classes[name]), name)
    raise AttributeError(_unknown(name))


# jsonargparse asks for the shortest import of every class of a command line: hundreds of times for the same few.
@cache
def _unknown(name: str) -> str:
    from simzoo.core.registry import nearest

    near = nearest(name, __dir__())
    return f"there is no part of simzoo {name!r}" + (f"; did you mean {near}?" if near else "")


@cache
def _classes() -> dict[str, str]:
    """Module by name of the public classes that are found in the files of the rooms."""
    from simzoo.core.registry import subclasses

    return {known.name: known.module for base in _BASES for known in subclasses(base)}


def __dir__() -> list[str]:
    """The public names."""
    return sorted({*__all__, *_classes()})
