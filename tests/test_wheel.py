"""The wheel and the sdist: whole, and usable beside a user's own `models` package and evaluate.py.

`SIMZOO_WHEEL=1` (which `make wheel` sets) installs the wheel with the smallest extras into a fresh environment, which
needs the network or a cache of pip's, and minutes.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
ROOMS = ("core", "losses", "models", "datamodules", "retrieval")
BUILD = "import sys; from setuptools import build_meta as b; print(getattr(b, sys.argv[1])(sys.argv[2]))"
SOURCES = {f"simzoo/{path.relative_to(ROOT).as_posix()}" for room in ROOMS for path in (ROOT / room).rglob("*.py")}
EXTRAS = "cpu,offline-backbone"
"""The smallest set that the README's lines run with where the Hub is out of reach."""


def _build(kind: str, source: Path, output: Path) -> Path:
    command = [sys.executable, "-c", BUILD, f"build_{kind}", str(output)]
    done = subprocess.run(command, cwd=source, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return output / done.stdout.splitlines()[-1]


@pytest.fixture(scope="module")
def sdist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from a copy, because setuptools writes beside the sources."""
    source = tmp_path_factory.mktemp("source") / "simzoo"
    kept = shutil.ignore_patterns(".*", "out", "build", "__pycache__", "*.egg-info", "docs", "benchmarks")
    shutil.copytree(ROOT, source, symlinks=True, ignore=kept)
    return _build("sdist", source, tmp_path_factory.mktemp("sdist"))


@pytest.fixture(scope="module")
def wheel(sdist: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from the sdist, as an installer does."""
    folder = tmp_path_factory.mktemp("unpacked")
    with tarfile.open(sdist) as archive:
        archive.extractall(folder, filter="data")
    return _build("wheel", next(folder.iterdir()), tmp_path_factory.mktemp("wheel"))


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A user's project: packages and files of its own with the names of ours, and a checkpoint."""
    for package in ("models", "losses"):
        (tmp_path / package).mkdir()
        (tmp_path / package / "__init__.py").write_text("MINE = True\n")
    (tmp_path / "evaluate.py").write_text("MINE = True\n")
    for name in ("wordnet-emb-ce", "wordnet-de"):
        shutil.copytree(ROOT / "checkpoints" / name, tmp_path / "checkpoints" / name)
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    block = re.search(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    assert block is not None
    own = "import evaluate, losses, models\nassert evaluate.MINE and losses.MINE and models.MINE\n"
    (tmp_path / "main.py").write_text(f"{own}{block[1]}import simzoo\nprint(simzoo.__file__)\n")
    return tmp_path


def test_both_hold_every_module(sdist: Path, wheel: Path) -> None:
    """A folder that only the clone's links reach would be missing for everybody who installs."""
    with tarfile.open(sdist) as archive:
        packed = {name.partition("/")[2] for name in archive.getnames()}
        links = [member.name for member in archive.getmembers() if member.issym() or member.islnk()]
    expected = SOURCES | {f"simzoo/{name}" for name in ("__init__.py", "py.typed", "released.json", "train.py")}
    assert expected <= packed and links == []
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    assert expected <= names
    assert {name.split("/")[0] for name in names if not name.startswith("simzoo-")} == {"simzoo"}


def test_the_wheel_runs_the_readme_beside_other_packages(wheel: Path, project: Path, tmp_path: Path) -> None:
    """A user's own `models` package must neither be taken for ours nor be hidden by it."""
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path / "installed")
    env = {**os.environ, "PYTHONPATH": str(tmp_path / "installed"), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "main.py"], cwd=project, env=env, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert str(tmp_path / "installed") in done.stdout.splitlines()[-1]
    done = subprocess.run(
        [sys.executable, "-m", "simzoo", "evaluate", "run", "--output", "x", "--data", "BEIR", "--search", "rerank"],
        cwd=project, env=env, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert "did you mean Rerank?" in done.stderr


@pytest.mark.skipif(os.environ.get("SIMZOO_WHEEL") != "1", reason="installs for minutes; set SIMZOO_WHEEL=1 to run it")
def test_the_wheel_with_the_smallest_extras(wheel: Path, project: Path, tmp_path: Path) -> None:
    """A package that is imported but belongs to an extra, which every developer's environment has."""
    python = tmp_path / "fresh" / "bin" / "python"
    subprocess.run([sys.executable, "-m", "venv", str(tmp_path / "fresh")], check=True)
    install = [str(python), "-m", "pip", "install", "--quiet", "-c", str(ROOT / "constraints.txt")]
    subprocess.run([*install, f"{wheel}[{EXTRAS}]"], check=True)
    env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run([str(python), "main.py"], cwd=project, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert str(tmp_path / "fresh") in done.stdout.splitlines()[-1]
    missing = subprocess.run([str(python), "-c", "import matplotlib"], cwd=tmp_path, capture_output=True, check=False)
    assert missing.returncode, "this environment has more than the smallest extras"
    simzoo = tmp_path / "fresh" / "bin" / "simzoo"
    for words in (["--help"], ["search", "--help"], ["evaluate", "run", "--help"], ["train", "fit", "--help"],
                  ["hub", "list"]):  # fmt: skip
        done = subprocess.run([str(simzoo), *words], cwd=project, env=env, capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"{words}: {done.stderr}"
