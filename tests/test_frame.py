"""The repository's own rules: import directions, file sizes, safe loading, docstrings, packaging."""

from __future__ import annotations

import ast
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from itertools import chain
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
PACKAGES = ("core", "losses", "models", "datamodules", "retrieval")
SCRIPTS = ("train.py", "evaluate.py")
SOURCES = sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))
MB = 1_000_000


def _lint_imports(folder: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", "from importlinter.cli import lint_imports_command as run; run()", "--no-cache"]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=120)


@pytest.fixture(scope="module")
def scratch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the sources, to break."""
    folder = tmp_path_factory.mktemp("scratch")
    for package in (*PACKAGES, "simzoo"):
        skip = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / package, folder / package, symlinks=True, ignore=skip)
    for name in SCRIPTS:
        shutil.copy(ROOT / name, folder)
    shutil.copy(ROOT / "pyproject.toml", folder)
    return folder


def test_imports_run_one_way(scratch: Path) -> None:
    """Prevents a model that quietly depends on a searcher, after which neither can be used without the other."""
    done = _lint_imports(scratch)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "0 broken" in done.stdout


@pytest.mark.parametrize(
    ("package", "line"),
    [
        ("core", "from simzoo.losses import Loss"),
        ("losses", "import simzoo.models"),
        ("losses", "import simzoo.retrieval"),
        ("datamodules", "from simzoo.models.similarity import LearnedSimilarity"),
        ("datamodules", "from simzoo.retrieval import searcher"),
        ("models", "import simzoo.retrieval"),
        ("models", "from simzoo.datamodules.sources import Source"),
        ("models", "from simzoo.train import main"),
        ("models", "from simzoo.models.formats import load"),
        ("models/parts", "from simzoo.models.similarity import LearnedSimilarity"),
        ("models/parts", "from benchmarks import zoo"),
        ("retrieval", "from simzoo.models.cross_encoder import CrossEncoder"),
        ("retrieval/searchers", "from simzoo.models.formats import own"),
        ("retrieval", "import simzoo.evaluate"),
    ],
)
def test_import_rules_hold_for_a_new_file(scratch: Path, package: str, line: str) -> None:
    """Prevents import rules that list today's files and let tomorrow's file do anything."""
    new = scratch / package / "new_system.py"
    new.write_text(f'"""New."""\n\n{line}\n', encoding="utf-8")
    try:
        done = _lint_imports(scratch)
    finally:
        new.unlink()
    assert done.returncode == 1, done.stdout + done.stderr
    assert f"simzoo.{package.replace('/', '.')}.new_system" in done.stdout


def _tracked() -> list[Path]:
    if not (ROOT / ".git").exists():
        pytest.skip("not a git checkout: there are no tracked files to measure")
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return [ROOT / name for name in listed.split("\0") if name and (ROOT / name).is_file()]


def test_repository_stays_small() -> None:
    """Prevents a checkpoint or a score matrix that makes every later clone slow for good."""
    sizes = {path.relative_to(ROOT).as_posix(): path.stat().st_size for path in _tracked()}
    assert not {name: size for name, size in sizes.items() if size > 15 * MB}
    assert sum(size for name, size in sizes.items() if name.startswith("checkpoints/")) <= 60 * MB


def _keywords(call: ast.Call) -> dict[str, object]:
    return {k.arg: getattr(k.value, "value", k.value) for k in call.keywords if k.arg}


def unsafe_loads(source: str) -> Iterator[str]:
    """The calls in a source text that can run code from a file or from the Hub."""
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.Call):
            continue
        name, keywords = ast.unparse(node.func), _keywords(node)
        if name in {"torch.load", "load_from_checkpoint"} or name.endswith(".load_from_checkpoint"):
            bad = keywords.get("weights_only") is not True
        elif name.split(".")[0] in {"pickle", "dill", "joblib", "cloudpickle", "marshal", "shelve"}:
            bad = name.split(".")[-1] in {"load", "loads", "Unpickler", "open"}
        elif name in {"np.load", "numpy.load"}:
            bad = keywords.get("allow_pickle", False) is not False
        elif re.fullmatch(r"(transformers\.)?Auto\w+\.from_(pretrained|config)", name):
            bad = keywords.get("trust_remote_code") is not False  # left out, it asks
        else:
            bad = keywords.get("trust_remote_code", False) is not False
        if bad:
            yield f"line {node.lineno}: {ast.unparse(node)}"


@pytest.mark.parametrize(
    "path",
    [*SOURCES, *(ROOT / name for name in SCRIPTS), *sorted(ROOT.glob("benchmarks/**/*.py"))],
    ids=lambda path: path.stem,
)
def test_nothing_unsafe_is_loaded(path: Path) -> None:
    """Prevents a downloaded checkpoint that runs code on the machine that opens it."""
    assert list(unsafe_loads(path.read_text(encoding="utf-8"))) == []


@pytest.mark.parametrize(
    ("line", "count"),
    [
        ("torch.load(path)", 1),
        ("torch.load(path, weights_only=False)", 1),
        ("torch.load(path, map_location='cpu', weights_only=True)", 0),
        ("Model.load_from_checkpoint(path)", 1),
        ("pickle.loads(data)", 1),
        ("pickle.dumps(data)", 0),
        ("numpy.load(path, allow_pickle=True)", 1),
        ("np.load(path, mmap_mode='r')", 0),
        ("AutoModel.from_pretrained(name, trust_remote_code=True)", 1),
        ("AutoModel.from_pretrained(name, trust_remote_code=False)", 0),
        ("AutoModel.from_pretrained(name)", 1),
        ("transformers.AutoTokenizer.from_pretrained(name)", 1),
        ("AutoModel.from_config(config)", 1),
    ],
)
def test_unsafe_loads_are_seen(line: str, count: int) -> None:
    """Prevents a search for unsafe calls that finds nothing because it looks for nothing."""
    assert len(list(unsafe_loads(line))) == count


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: f"{path.parent.name}.{path.stem}")
def test_every_module_says_what_it_is(path: Path) -> None:
    """Prevents modules whose place in the design has to be guessed; a name alone is not a description."""
    text = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    assert len(text.split()) >= 2, f"{path.relative_to(ROOT)}: expected a module docstring, got {text!r}"


def test_every_folder_is_a_package() -> None:
    """Prevents a new folder that works in this checkout and is missing from the wheel, whose search needs a package."""
    packages = {path.parent for path in SOURCES if path.name == "__init__.py"}
    assert {path.parent for path in SOURCES} == packages


def test_every_room_is_linked() -> None:
    """Prevents a room that `import simzoo` does not reach."""
    links = {path.name: path.readlink().as_posix() for path in (ROOT / "simzoo").iterdir() if path.is_symlink()}
    assert links == {name: f"../{name}" for name in (*PACKAGES, *SCRIPTS)}


@pytest.mark.parametrize("name", [*PACKAGES, *(script.removesuffix(".py") for script in SCRIPTS)])
def test_a_room_is_refused_by_its_bare_name(name: str) -> None:
    """Prevents a class that exists twice: as models.x.Y and as simzoo.models.x.Y, each unknown to the other."""
    done = subprocess.run(
        [sys.executable, "-c", f"import {name}"], cwd=ROOT, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == (
        f"ImportError: {name} is a part of simzoo: import simzoo.{name} instead of {name}"
    )


def test_a_checkout_without_links_says_what_to_do(tmp_path: Path) -> None:
    """Prevents a bare ModuleNotFoundError on Windows, where git writes symbolic links as text files by default."""
    shutil.copytree(ROOT / "simzoo", tmp_path / "simzoo", symlinks=True)
    for name in (*PACKAGES, *SCRIPTS):
        (tmp_path / "simzoo" / name).unlink()
        (tmp_path / "simzoo" / name).write_text(f"../{name}")
    done = subprocess.run(
        [sys.executable, "-c", "import simzoo"], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False
    )
    assert "core.symlinks=true" in done.stderr.splitlines()[-1]


def test_every_dependency_is_pinned() -> None:
    """Prevents a release whose set-up works today and installs something else tomorrow."""
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pins = dict(line.split("==") for line in lines if line and not line.startswith("#"))
    pinned = {name.lower().replace("_", "-") for name in pins}
    project = PROJECT["project"]
    named = list(chain(project["dependencies"], *project["optional-dependencies"].values()))
    names = {line.split("[")[0].split(">")[0].split("=")[0].lower().replace("_", "-") for line in named} - {"simzoo"}
    assert names <= pinned, f"not in constraints.txt: {sorted(names - pinned)}"
    assert not [name for name, version in pins.items() if "+" in version or "@" in version]


def test_changelog_knows_this_version() -> None:
    """Prevents a release that no entry describes."""
    assert f"## [{PROJECT['project']['version']}]" in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
