"""Names of classes, found in the files: against what Python itself finds by importing them."""

from __future__ import annotations

import ast
import importlib
import inspect
import subprocess
import sys
from pathlib import Path

import pytest

from simzoo.core import registry
from simzoo.core.registry import ROOMS, UnknownNameError, find, is_abstract, known_classes, nearest, subclasses, unknown
from simzoo.losses import Loss
from simzoo.models.similarity import LearnedSimilarity
from simzoo.retrieval.first_stages.first_stage import FirstStage
from simzoo.retrieval.first_stages.vector_index import IndexKind
from simzoo.retrieval.searcher import Searcher
from tests.test_similarities import registered

ROOT = Path(__file__).parents[1]


def _public(name: str) -> bool:
    return not name.startswith("_")


def test_the_files_say_what_a_parser_reads_in_them() -> None:
    """A class statement of a form that the search does not know is a class that no command line can name."""
    found = {
        (known.module, known.name, known.bases)
        for same in known_classes().values()
        for known in same
        if _public(known.name)
    }
    expected = set()
    for room in ROOMS:
        for path in (ROOT / room).rglob("*.py"):
            parts = ("simzoo", *path.relative_to(ROOT).with_suffix("").parts)
            module = ".".join(part for part in parts if part != "__init__")
            for node in ast.parse(path.read_text(encoding="utf-8")).body:
                if isinstance(node, ast.ClassDef) and _public(node.name):
                    bases = [base.value if isinstance(base, ast.Subscript) else base for base in node.bases]
                    names = tuple(ast.unparse(base).rpartition(".")[2] for base in bases)
                    expected.add((module, node.name, names))
    assert found == expected
    assert len(found) > 100


@pytest.mark.parametrize("base", [LearnedSimilarity, Loss, Searcher, FirstStage, IndexKind])
def test_subclasses_are_those_that_python_knows(base: type) -> None:
    """A list of choices that lacks a class, or names one that cannot be made, misleads."""
    for known in subclasses(base.__name__, abstract=True):
        importlib.import_module(known.module)

    def below(cls: type) -> set[type]:
        return {cls}.union(*(below(one) for one in cls.__subclasses__()))

    expected = {one.__name__ for one in below(base) if one.__module__.startswith("simzoo.") and _public(one.__name__)}
    concrete = {
        one.__name__ for one in below(base) if one.__module__.startswith("simzoo.") and not inspect.isabstract(one)
    }
    named = {known.name for known in subclasses(base.__name__, abstract=True) if _public(known.name)}
    assert named == expected
    assert {known.name for known in subclasses(base.__name__)} == {name for name in concrete if _public(name)}


def test_a_class_is_found_by_every_name_that_imports_it() -> None:
    """Bare, in full, and from the package that offers it."""
    paths = {find(name).path for name in ("MarginMSE", "simzoo.losses.MarginMSE", "simzoo.losses.modules.MarginMSE")}  # type: ignore[union-attr]
    assert paths == {"simzoo.losses.modules.MarginMSE"}
    for nothing in ("os.system", "MarginMS", "losses.MarginMSE", "simzoo.models.MarginMSE", "simzoo.losses.rank.Loss"):
        assert find(nothing) is None
    assert find("MarginMSE", ("models",)) is None


def test_a_name_of_two_classes_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """The one whose file comes first in the alphabet would be taken without a word."""
    twice = {"CMC": (known_classes()["CMC"][0], known_classes()["CMC"][0]._replace(module="simzoo.losses.cmc"))}
    monkeypatch.setattr(registry, "known_classes", lambda: twice)
    with pytest.raises(UnknownNameError, match=r"simzoo\.models\.cmc\.CMC, simzoo\.losses\.cmc\.CMC"):
        find("CMC")
    assert find("simzoo.models.cmc.CMC") is not None


def test_a_new_file_is_a_new_choice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A sixth system is one model file: no list may have to be changed."""
    for room in ROOMS:
        (tmp_path / room).mkdir()
    (tmp_path / "models" / "sixth.py").write_text(
        "class Base(LearnedSimilarity, ABC):\n    pass\n\n"
        "class Sixth(\n    parts.Base[int],\n    metaclass=X,\n):\n    pass\n"
    )
    monkeypatch.setattr(registry, "ROOT", tmp_path)
    known_classes.cache_clear()
    registry._missing.cache_clear()
    try:
        assert [known.path for known in subclasses("LearnedSimilarity")] == ["simzoo.models.sixth.Sixth"]
        assert is_abstract(find("Base"))  # type: ignore[arg-type]
    finally:
        known_classes.cache_clear()
        registry._missing.cache_clear()


def test_recipes_name_every_system() -> None:
    """A class that no recipe names is under no contract test."""
    assert {cls.__name__ for cls in registered()} == {known.name for known in subclasses("LearnedSimilarity")}


def test_a_misspelt_name_is_told_the_nearest() -> None:
    """Without regard to capitals, which is how a name is misspelt most often."""
    assert nearest("rerank", ["Retrieve", "Rerank"]) == "Rerank"
    assert nearest("quite other", ["Retrieve", "Rerank"]) is None
    said = unknown("exactmol", "Searcher", ["Exact", "ExactMoL"])
    assert said == "there is no Searcher 'exactmol'; did you mean ExactMoL? Choose one of Exact, ExactMoL"


def test_nothing_is_imported_to_find_a_name() -> None:
    """Help would take seconds, and what a downloaded file names would run."""
    code = "import sys; from simzoo.core.registry import find; find('CMC'); print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    loaded = done.stdout.split()
    assert [name for name in loaded if name.startswith("simzoo")] == ["simzoo", "simzoo.core", "simzoo.core.registry"]
    assert not {"torch", "numpy", "jsonargparse"} & set(loaded)
