"""What the code imports against what pyproject.toml names: nothing is there because another package brings it."""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from collections.abc import Iterator
from functools import cache
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
ROOMS = ("core", "losses", "models", "datamodules", "retrieval", "simzoo", "train.py", "evaluate.py")
OURS = {"simzoo", "benchmarks", "tests"}
BY_HAND = {"rails"}
"""The released code of a paper, which a benchmark is run beside (benchmarks/mol/reference.py says how to get it)."""
OF_AN_EXTRA = {"retrieval/serving": "serve"}
"""Folders of which nobody wants anything without their extra: their files import it at the top."""
BY_NAME = {"extra", "import_module", "find_spec"}
"""Functions of ours and of Python that import the module that their first argument names."""


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _named(requirements: list[str]) -> set[str]:
    return {_normal(re.split(r"[^\w.-]", one, maxsplit=1)[0]) for one in requirements} - {"simzoo"}


NEEDED = _named(PROJECT["dependencies"])
OPTIONAL = _named([one for extra in PROJECT["optional-dependencies"].values() for one in extra])


def _imported(body: list[ast.stmt], always: bool) -> Iterator[tuple[str, bool]]:
    """Modules that a body imports, and whether it does so whenever its own module is imported."""
    for statement in body:
        for node in ast.walk(statement):
            plain = always and node is statement
            if isinstance(node, ast.Import):
                yield from ((alias.name, plain) for alias in node.names)
            elif isinstance(node, ast.ImportFrom) and node.level == 0:
                yield node.module or "", plain
            elif isinstance(node, ast.Call) and getattr(node.func, "id", "") in BY_NAME and node.args:
                name = getattr(node.args[0], "value", None)
                yield from [(name, False)] if isinstance(name, str) else []


@cache
def _distributions(*places: str) -> dict[str, bool]:
    """Third-party distributions that the files import; True: some file does so whenever it is imported itself."""
    found: dict[str, bool] = {}
    owners = packages_distributions()
    for place in places:
        for path in [ROOT / place] if place.endswith(".py") else sorted((ROOT / place).rglob("*.py")):
            tree = ast.parse(path.read_text(encoding="utf-8"))
            for module, always in _imported(tree.body, always=True):
                top = module.partition(".")[0]
                if top not in sys.stdlib_module_names | OURS | BY_HAND:
                    owner = _normal(owners.get(top, [top])[0])
                    owner = "faiss-cpu" if top == "faiss" else owner  # one of two that own the module
                    found[owner] = found.get(owner, False) or always
    return found


def test_what_is_imported_is_named() -> None:
    """A package that another one stops to bring: every import fails in a fresh environment, and here none does."""
    assert _distributions(*ROOMS).keys() <= NEEDED | OPTIONAL
    assert _distributions("tests", "benchmarks").keys() <= NEEDED | OPTIONAL


def test_what_a_file_imports_at_its_top_is_no_extra() -> None:
    """Without the extra the whole file could not be imported, whoever wants something else of it."""
    places = {
        path.relative_to(ROOT).as_posix() for room in ROOMS for path in [ROOT / room, *(ROOT / room).rglob("*.py")]
    }
    others = sorted(place for place in places if place.endswith(".py") and not place.startswith(tuple(OF_AN_EXTRA)))
    assert {name for name, always in _distributions(*others).items() if always} <= NEEDED


@pytest.mark.parametrize(("folder", "extra"), OF_AN_EXTRA.items())
def test_a_folder_that_is_an_extras_own_needs_nothing_else(folder: str, extra: str) -> None:
    """`pip install 'simzoo[serve]'` would bring a server that lacks a package."""
    brought = _named(PROJECT["optional-dependencies"][extra])
    assert {name for name, always in _distributions(folder).items() if always} <= NEEDED | brought
    assert _distributions(folder).keys() >= brought


def test_what_is_needed_is_imported() -> None:
    """A dependency that nothing needs any more is installed for good."""
    assert _distributions(*ROOMS).keys() >= NEEDED


@pytest.mark.parametrize("name", sorted(NEEDED))
def test_what_is_needed_is_pinned(name: str) -> None:
    """`make setup` would take another version tomorrow."""
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    assert name in {_normal(line.partition("==")[0]) for line in lines if "==" in line}
