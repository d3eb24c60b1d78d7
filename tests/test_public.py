"""What `import simzoo` offers: every name, at its first use; and the examples in docstrings."""

from __future__ import annotations

import ast
import doctest
import importlib
import re
import subprocess
import sys
from pathlib import Path

import pytest

import simzoo
from simzoo import _BASES, _PLACES, _classes
from simzoo.__main__ import COMMANDS, TRAINING, usage
from simzoo.core.registry import known_classes

ROOT = Path(__file__).parents[1]
ROOMS = ("core", "losses", "models", "datamodules", "retrieval", "simzoo")
EXAMPLES = sorted(
    {path for room in ROOMS for path in (ROOT / room).glob("**/*.py") if ">>> " in path.read_text(encoding="utf-8")}
)

OFFERED = tuple(
    f"simzoo.{module}"
    for module in (
        *("core.batch", "core.candidates", "core.reps", "core.targets", "datamodules.loading"),
        *("datamodules.training_data", "losses.mixture", "losses.ranking", "models.parts.backbone"),
        *("models.parts.mixture", "models.parts.pooling", "models.parts.q_net", "models.parts.sequence"),
        *("models.parts.tokenizing", "models.training", "retrieval.corpus", "retrieval.embedder"),
        *("retrieval.evaluation", "retrieval.hits", "retrieval.judge", "retrieval.remote", "retrieval.results.metrics"),
        *("retrieval.results.significance", "retrieval.scorer", "retrieval.searchers.solvers"),
        *("retrieval.storage.graph",),
    )
)
"""Modules of what the public classes take, give back, or are written with."""


def run(code: str, cwd: Path = ROOT) -> str:
    done = subprocess.run([sys.executable, "-c", code], cwd=cwd, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_every_public_name_is_there() -> None:
    """A name in `__all__` that fails when it is used, or one that only the documents have."""
    for name in dir(simzoo):
        assert getattr(simzoo, name).__name__ == name
    assert set(simzoo.__all__) <= set(dir(simzoo))
    assert {"load", "save", "push", "pull", "CMC", "MarginMSE", "AXN", "BM25"} <= set(dir(simzoo))


def test_public_names_are_those_of_one_class() -> None:
    """Two classes of one name: which one `simzoo.Name` is would depend on the order of files."""
    names = [name for name in dir(simzoo) if name in known_classes()]
    assert {name for name in names if len(known_classes()[name]) > 1} == set()


def test_importing_costs_nothing() -> None:
    """A program that only asks for a version must not wait for torch."""
    assert (
        run("import sys, simzoo; dir(simzoo); print({'torch', 'numpy', 'lightning'} & set(sys.modules))") == "set()\n"
    )


def test_a_misspelt_name_is_told_the_nearest() -> None:
    """`from simzoo import Axn` would end in a bare "cannot import name"."""
    with pytest.raises(AttributeError, match="no part of simzoo 'Axn'; did you mean AXN"):
        _ = simzoo.Axn
    assert not hasattr(simzoo, "__wrapped__")


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_examples_in_docstrings_are_true(path: Path) -> None:
    """An example that no longer runs is worse than none."""
    module = importlib.import_module(_module(path))
    found = doctest.testmod(module, optionflags=doctest.ELLIPSIS)
    assert found.attempted and not found.failed


def _module(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(part for part in ("simzoo", *parts) if part != "__init__").replace("simzoo.simzoo", "simzoo")


def _public_modules() -> dict[str, set[str]]:
    """Modules that users import, and the names that they must offer: what `simzoo` and the documents name."""
    public: dict[str, set[str]] = {module: set() for module in OFFERED}
    for name, module in [*_classes().items(), *((name, f"simzoo.{place}") for name, place in _PLACES.items())]:
        public.setdefault(module, set()).add(name)
    for base in _BASES:
        (known,) = known_classes()[base]
        public.setdefault(known.module, set()).add(base)
    for page in (ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").glob("*.md")):
        text = page.read_text(encoding="utf-8")
        for module, names in re.findall(r"from (simzoo\.[\w.]+) import (\w+(?: as \w+)?(?:, \w+(?: as \w+)?)*)", text):
            public.setdefault(module, set()).update(name.split(" as ")[0] for name in names.split(", "))
    adding = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8").split("## Adding a similarity")[1]
    for path in re.findall(r"`((?:core|losses|models|datamodules|retrieval)/[\w/]+\.py)`", adding):
        public.setdefault(_module(ROOT / path), set())
    return public


def test_public_modules_say_what_is_public() -> None:
    """A name that is meant for the inside would be taken for a promise, and one that was promised would go unseen."""
    for module, names in _public_modules().items():
        path = ROOT.joinpath(*module.split(".")[1:])
        path = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
        tree = ast.parse(path.read_text(encoding="utf-8"))
        defined, listed = set(), None
        for node in tree.body:
            if isinstance(node, ast.ClassDef | ast.FunctionDef):
                defined.add(node.name)
            elif isinstance(node, ast.ImportFrom) and path.name == "__init__.py":
                defined |= {alias.asname or alias.name for alias in node.names}
            elif isinstance(node, ast.Assign | ast.AnnAssign):
                target = node.targets[0] if isinstance(node, ast.Assign) else node.target
                defined.add(ast.unparse(target))
                if ast.unparse(target) == "__all__" and node.value is not None:
                    listed = ast.literal_eval(node.value)
        assert listed is not None, f"{module} is public and needs an __all__ with {sorted(names)}"
        assert names <= set(listed) <= defined, f"{module}: __all__ is {listed}; it must have {sorted(names)}"


def test_public_names_have_an_example() -> None:
    """Without one a user has to read the code; what is abstract, or talks to the Hub, has none that runs."""
    exempt = {"LearnedSimilarity", "pull", "push", "save_onnx", "save_sentence_transformer"}
    assert [name for name in set(simzoo.__all__) - exempt if ">>> " not in (getattr(simzoo, name).__doc__ or "")] == []


def test_help_of_the_command_is_written_without_importing_what_it_names() -> None:
    """Help that takes seconds is not asked for."""
    loaded = run("import sys; from simzoo.__main__ import main; main(['--help']); main(['train', '--help']); "
                 "print(*sys.modules)")  # fmt: skip
    assert "torch" not in loaded.split() and "jsonargparse" not in loaded.split()
    assert all(name in usage() for name in COMMANDS)


def test_help_of_training_names_the_real_subcommands(capsys: pytest.CaptureFixture[str]) -> None:
    """It is written out by hand."""
    with pytest.raises(SystemExit):
        importlib.import_module("simzoo.train").main(["--help"])
    real = capsys.readouterr().out
    for name in ("fit", "validate", "test"):
        assert f"\n  {name} " in TRAINING and f"    {name} " in real
