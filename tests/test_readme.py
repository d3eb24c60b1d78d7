"""README and docs are run: Python blocks are executed, command lines meet the real parsers, links lead somewhere.

A fenced block is executed when it is tagged `python` (README only), `python run` or `bash run`. A command line in a
block tagged `bash`, indented by four spaces, or in a sentence, is checked without running it: its targets, files and
options must exist.
"""

from __future__ import annotations

import io
import os
import re
import runpy
import shlex
import subprocess
import sys
import tomllib
import warnings
from collections.abc import Iterator
from contextlib import redirect_stdout
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import pytest

from simzoo.__main__ import COMMANDS

ROOT = Path(__file__).resolve().parents[1]
README = ROOT / "README.md"
DOCUMENTS = [README, ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
FENCE = re.compile(r"^```(?P<info>[^\n`]*)\n(?P<body>.*?)^```$", re.MULTILINE | re.DOTALL)
INLINE = re.compile(r"`((?:\.venv/bin/)?(?:python3?|make|pip|simzoo) [^`]+)`")
INDENTED = re.compile(r"^    (?=(?:\.venv/bin/)?(?:python3?|make|pip|simzoo) )", re.MULTILINE)
# What starts several processes of a command behind options of its own.
LAUNCHERS = {"srun", "torchrun"}
# Commands of other programs, which are taken on trust.
TRUSTED = {"apt-get", "cd", "curl", "export", "git", "pre-commit", "ruff"}


class Block(NamedTuple):
    """A piece of a document, with the line in front of it."""

    path: Path
    line: int
    info: str
    body: str

    def __str__(self) -> str:
        return f"{self.path.name}:{self.line}"


def blocks(path: Path) -> list[Block]:
    """The fenced blocks of a document; an indented command line, or one in a sentence, is a `bash` block of its own."""
    text = path.read_text(encoding="utf-8")
    found = [
        Block(path, text.count("\n", 0, m.start()) + 1, m["info"].strip(), m["body"]) for m in FENCE.finditer(text)
    ]
    blank = FENCE.sub(lambda m: "\n" * m[0].count("\n"), text)
    for match in INDENTED.finditer(blank):
        line = blank.count("\n", 0, match.start())
        found.append(Block(path, line, "bash", blank.splitlines()[line].strip() + "\n"))
    for match in INLINE.finditer(blank):
        found.append(Block(path, blank.count("\n", 0, match.start()), "bash", " ".join(match[1].split()) + "\n"))
    return found


BLOCKS = [block for path in DOCUMENTS if path.exists() for block in blocks(path)]
TUTORIAL = [block for block in BLOCKS if block.path.name == "tutorial.md" and block.info.endswith(" run")]
ALONE = [block for block in BLOCKS if block not in TUTORIAL]
PYTHON = [block for block in ALONE if block.info == "python run" or (block.path == README and block.info == "python")]
RUN = [block for block in ALONE if block.info == "bash run"]
BASH = [block for block in BLOCKS if block.info in {"bash", "bash run"}]


def commands(body: str) -> Iterator[list[str]]:
    """The words of each command in a shell text: no comments, no variables set in front, no redirections."""
    for line in body.replace("\\\n", " ").splitlines():
        lexer = shlex.shlex(line.strip().removeprefix("$ "), posix=True, punctuation_chars="&|;<>")
        lexer.whitespace_split = True
        words: list[str] = []
        for word in [*lexer, ";"]:
            if set(word) <= set("&|;"):
                words = words[: words.index(">")] if ">" in words else words
                while words and re.fullmatch(r"[A-Z_]+=.*", words[0]):
                    words = words[1:]
                if words:
                    yield words
                words = []
            else:
                words.append(word)


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that looks like the repository's root, and takes what is written."""
    for path in ROOT.iterdir():
        if path.name != "out" and not path.name.startswith("."):
            (tmp_path / path.name).symlink_to(path)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@lru_cache
def _help(*words: str) -> str:
    """What a program says of itself, in this process: imports that all of them share are paid once."""
    module, arguments = (words[1], words[2:]) if words[0] == "-m" else (None, words[1:])
    printed = io.StringIO()
    code: object = "it goes on after its help"
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(printed), warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # runpy, of a module that is imported already
        patch.setattr(sys, "argv", [module or words[0], *arguments, "--help"])
        patch.syspath_prepend(ROOT)
        try:
            if module is None:
                runpy.run_path(str(ROOT / words[0]), run_name="__main__")
            else:
                runpy.run_module(module, run_name="__main__", alter_sys=True)
        except SystemExit as end:
            code = end.code
        except Exception as error:
            code = error
    assert code in (0, None), f"{shlex.join(words)} --help fails: {code}"
    return printed.getvalue()


def _check_make(words: list[str]) -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    unknown = {word for word in words if "=" not in word and not word.startswith("-")} - targets
    assert not unknown, f"the Makefile has no target {sorted(unknown)}; it has {sorted(targets)}"


def _check_pip(words: list[str]) -> None:
    extras = set(
        tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    )
    named = {extra for word in words for part in re.findall(r"\[(.*?)\]", word) for extra in part.split(",")}
    assert named <= extras, f"pyproject.toml has no extra {sorted(named - extras)}"
    for option, value in pairwise(words):
        assert option != "-c" or (ROOT / value).is_file(), f"there is no file {value}"


def _check_parser(script: str, arguments: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Has the command line parsed by the script itself, which prints the configuration, or help, and stops."""
    asked = any(word.endswith(".help") for word in arguments)
    monkeypatch.setattr(sys, "argv", [script, *arguments, *([] if asked else ["--print_config"])])
    monkeypatch.syspath_prepend(ROOT)
    with pytest.raises(SystemExit) as stop:
        runpy.run_path(str(ROOT / script), run_name="__main__")
    assert stop.value.code in (0, None), f"{script} {shlex.join(arguments)} is refused: {stop.value.code}"


def _check_python(words: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    for word in words:
        if re.match(r"(configs|checkpoints|benchmarks|docs|tests)/", word):
            assert (ROOT / word).exists(), f"there is no {word}"
    if words[0] in {"train.py", "evaluate.py"}:
        if "--help" not in words:
            _check_parser(words[0], words[1:], monkeypatch)
        return
    if words[:2] == ["-m", "simzoo"]:
        _check_simzoo(words[2:], monkeypatch)
        return
    if words[0] == "-c" or words[:2] == ["-m", "pytest"]:
        return
    start = 2 if words[0] == "-m" else 1
    sub = [word for word in words[start : start + 1] if words[0] == "-m" and not word.startswith("-")]
    text = _help(*words[:start], *sub)
    unknown = [word for word in words if word.startswith("--") and word.split("=")[0] not in text]
    assert not unknown, f"{shlex.join(words[:start])} has no option {unknown}"


def _check_simzoo(words: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    assert words[0] in COMMANDS, f"simzoo has no command {words[0]!r}"
    script = {"train": ["train.py"], "evaluate": ["evaluate.py"], "search": ["evaluate.py", "search"]}.get(words[0])
    if script is not None:
        _check_python([*script, *words[1:]], monkeypatch)
        return
    text = _help("-m", "simzoo", *words[:2])
    unknown = [word for word in words if word.startswith("--") and word.split("=")[0] not in text]
    assert not unknown, f"simzoo {shlex.join(words[:2])} has no option {unknown}"


def check_command(words: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Fails unless what a command line names exists.

    Raises:
        AssertionError: says what is unknown.
    """
    program, rest = words[0].removeprefix(".venv/bin/"), words[1:]
    if program == "make":
        _check_make(rest)
    elif program in {"python", "python3"}:
        if rest[:3] == ["-m", "pip", "install"]:
            _check_pip(rest[3:])
        elif rest[:2] != ["-m", "venv"]:
            _check_python(rest, monkeypatch)
    elif program == "pip":
        _check_pip(rest)
    elif program in LAUNCHERS:
        start = next(place for place, word in enumerate(rest) if word in {"python", "-m"} or word.endswith(".py"))
        started = rest[start:]
        check_command(started if started[0] == "python" else ["python", *started], monkeypatch)
    elif program == "simzoo":
        _check_simzoo(rest, monkeypatch)
    else:
        assert program in TRUSTED, f"no check knows the command {program!r}: add one, or leave it out"


def test_readme_has_what_it_must() -> None:
    """Prevents the other tests here from passing because README's blocks were renamed or removed."""
    assert PYTHON, "README.md has no block tagged python"
    words = [tuple(command[:2]) for block in BASH if block.path == README for command in commands(block.body)]
    assert {("make", "demo"), ("python", "train.py"), ("python", "evaluate.py")} <= set(words)
    untagged = [str(block) for block in BLOCKS if not block.info]
    assert not untagged, f"blocks without a tag, so nobody knows whether they are to be checked: {untagged}"


@pytest.mark.parametrize("block", PYTHON, ids=str)
def test_python_block_runs(block: Block, here: Path) -> None:
    """Prevents a first example that does not run, which is where a new user stops."""
    code = compile("\n" * block.line + block.body, str(block.path), "exec")
    exec(code, {"__name__": "__main__"})


def run_shell(block: Block, folder: Path) -> None:
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    env = {**os.environ, "PATH": path, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", block.body], cwd=folder, env=env, capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, f"{block}: {done.stdout[-2000:]}{done.stderr[-2000:]}"


@pytest.mark.parametrize("block", RUN, ids=str)
def test_bash_run_block_runs(block: Block, here: Path) -> None:
    """Prevents commands whose options are right but which fail."""
    run_shell(block, here)


def test_the_tutorial_runs_from_its_first_block_to_its_last(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Prevents a step that needs what no step before it made."""
    text = (ROOT / "docs" / "tutorial.md").read_text(encoding="utf-8")
    assert len(TUTORIAL) == text.count("\n```") / 2, "it has a block that is not tagged to be run"
    names: dict[str, object] = {"__name__": "__main__"}
    for block in TUTORIAL:
        if block.info == "bash run":
            run_shell(block, here)
        else:
            exec(compile("\n" * block.line + block.body, str(block.path), "exec"), names)
    assert "8 pairs were scored" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("block", "words"),
    [
        pytest.param(block, words, id=f"{block} {shlex.join(words)[:70]}")
        for block in BASH
        for words in commands(block.body)
    ],
)
def test_command_line_is_real(block: Block, words: list[str], here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Prevents documents that name options, recipes and targets which no longer exist."""
    check_command(words, monkeypatch)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("make nosuch", "no target"),
        ("pip install -e '.[nosuch]'", "no extra"),
        ("pip install -c nosuch.txt .", "no file"),
        ("python train.py fit --config configs/nosuch.yaml", "no configs/nosuch.yaml"),
        ("python train.py fit --config configs/wordnet/dual_encoder.yaml --trainer.max_epoch 3", "is refused"),
        ("python train.py fit --config configs/wordnet/dual_encoder.yaml --trainer.max_epochs three", "is refused"),
        ("python -m simzoo.datamodules.readers.wordnet fetch --nosuch", "no option"),
        ("python -m datamodules.nosuch", "--help fails"),
        ("simzoo frobnicate", "no command 'frobnicate'"),
        ("simzoo hub pull org/name --nosuch", "no option"),
        ("torchrun --nproc_per_node 2 train.py fit --config configs/wordnet/demo.yaml --nosuch 3", "is refused"),
        ("X=1 frobnicate | tee log", "no check knows the command 'frobnicate'"),
    ],
)
def test_wrong_command_lines_are_seen(line: str, message: str, here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Prevents a check of the documents that lets everything pass."""
    first = next(commands(line))
    with pytest.raises(AssertionError, match=re.escape(message)):
        check_command(first, monkeypatch)


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_links_lead_somewhere(path: Path) -> None:
    """Prevents links to pages that were renamed."""
    targets = re.findall(r"\]\((?!https?://|#)([^)#\s]+)", path.read_text(encoding="utf-8"))
    assert not [target for target in targets if not (path.parent / target).exists()]


def test_index_lists_every_page() -> None:
    """Prevents a page that nobody finds."""
    index = (ROOT / "docs" / "README.md").read_text(encoding="utf-8")
    pages = {path.name for path in (ROOT / "docs").glob("*.md")} - {"README.md"}
    assert not {page for page in pages if f"({page})" not in index}
