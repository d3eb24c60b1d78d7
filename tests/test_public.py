"""What `import simzoo` offers: every name, at its first use; and the examples in docstrings."""

from __future__ import annotations

import doctest
import importlib
import subprocess
import sys
from pathlib import Path

import pytest

import simzoo
from simzoo.__main__ import COMMANDS, TRAINING, usage
from simzoo.core.registry import known_classes

ROOT = Path(__file__).parents[1]
ROOMS = ("core", "losses", "models", "datamodules", "retrieval", "simzoo")
EXAMPLES = sorted(
    {path for room in ROOMS for path in (ROOT / room).glob("**/*.py") if ">>> " in path.read_text(encoding="utf-8")}
)


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
    parts = path.relative_to(ROOT).with_suffix("").parts
    name = ".".join(part for part in parts if part != "__init__")
    module = importlib.import_module(name if name.startswith("simzoo") else f"simzoo.{name}")
    assert doctest.testmod(module, optionflags=doctest.ELLIPSIS) == (0, doctest.testmod(module).attempted)


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
