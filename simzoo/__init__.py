"""simzoo: train, evaluate, publish and search with learned similarities.

Everything named in `__all__` is imported at its first use, so that ``import simzoo`` costs nothing.
"""

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
    from simzoo.models.formats import load, save, save_onnx, save_sentence_transformer
    from simzoo.models.similarity import LearnedSimilarity
    from simzoo.retrieval.engine import Engine

__all__ = [
    "Collection",
    "Engine",
    "History",
    "Item",
    "LearnedSimilarity",
    "Query",
    "load",
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
    "Query": "core.records",
    "load": "models.formats",
    "save": "models.formats",
    "save_onnx": "models.formats",
    "save_sentence_transformer": "models.formats",
}


def __getattr__(name: str) -> Any:
    """Imports a public name at its first use."""
    if name not in _PLACES:
        raise AttributeError(f"simzoo has no {name!r}")
    return getattr(import_module(f"simzoo.{_PLACES[name]}"), name)


def __dir__() -> list[str]:
    """The public names."""
    return __all__
