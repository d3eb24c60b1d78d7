"""Command lines: bare names, refusals of one line, and code that a recipe may not name."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from simzoo import evaluate, train
from simzoo.core import command_line
from simzoo.core.command_line import ALLOW, prepared
from simzoo.core.refusals import refusal
from simzoo.core.registry import subclasses

ROOT = Path(__file__).parents[1]
DATA = ["--data", "BEIR", "--data.root", "/nowhere"]
RECIPE = str(ROOT / "configs" / "wordnet" / "dual_encoder.yaml")
PAYLOAD = "import os\nopen(os.environ['SIMZOO_RAN'], 'w')\nfrom simzoo.retrieval.searchers.exact import Exact\n\n\n"


@pytest.fixture
def ran(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file that is there once the code of a module, which can be imported, has run."""
    (tmp_path / "simzoo_payload.py").write_text(PAYLOAD + "class Mine(Exact):\n    pass\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("SIMZOO_RAN", str(tmp_path / "ran"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "simzoo_payload", raising=False)
    return tmp_path / "ran"


def parsed(*words: str) -> Any:
    given = prepared(["run", "--output", "out/x", *DATA, *words])
    return evaluate.parser(given).parse_args(given).run


def refused(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    capsys.readouterr()
    with pytest.raises(SystemExit) as stop:
        parsed(*words)
    said = capsys.readouterr().err
    assert stop.value.code == 2 and said.count("\n") == 1 and said.startswith("error: ")
    return said


@pytest.mark.parametrize(
    "words",
    [
        ["--search", "ExactMoL"],
        ["--search=ExactMoL"],
        ["--search", "simzoo.retrieval.searchers.mol.topk.ExactMoL"],
        ["--search", "{class_path: ExactMoL, init_args: {}}"],
        ["--config", "all.yaml"],
        ["--search=search.yaml"],
    ],
)
def test_what_is_named_is_imported(words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A class whose module nobody imported is unknown to the parser by its bare name."""
    (tmp_path / "search.yaml").write_text("class_path: ExactMoL  # a comment\n")
    (tmp_path / "all.yaml").write_text("k: 3\nsearch: search.yaml\n")
    imported: list[str] = []
    monkeypatch.setattr(command_line, "import_module", imported.append)
    monkeypatch.chdir(tmp_path)
    prepared(["run", "--output", "out/x", *DATA, *words])
    assert sorted(imported) == ["simzoo.datamodules.sources", "simzoo.retrieval.searchers.mol.topk"]


def test_a_bare_name_is_enough(tmp_path: Path) -> None:
    """In a process of its own, where nothing has imported the class before."""
    code = (
        "import sys\nfrom simzoo import evaluate\nfrom simzoo.core.command_line import prepared\n"
        "words = prepared(sys.argv[1:])\nprint(evaluate.parser(words).parse_args(words).run.search.class_path)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, "run", "--output", "out/x", *DATA, "--search", "ExactMoL"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout.strip() == "simzoo.ExactMoL", done.stderr


def test_only_what_is_named_is_imported() -> None:
    """A package that only one searcher needs would be needed by all, and help would take as long as all together."""
    code = (
        "import sys\nfrom simzoo import evaluate\ntry:\n    evaluate.main(['search', '--help'])\nexcept SystemExit:\n"
        "    print(*sys.modules, file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    loaded = set(done.stderr.split())
    assert "simzoo.retrieval.searcher" in loaded
    unwanted = {"faiss", "lightning", "matplotlib", "qdrant_client", "sklearn", "simzoo.retrieval.searchers.axn"}
    assert not unwanted & loaded
    for known in subclasses("Searcher"):
        assert re.search(rf"\b{known.name}\b", done.stdout), f"help does not list {known.name}"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--search", "rerank"], "--search: there is no Searcher 'rerank'; did you mean Rerank? Choose one of AXN,"),
        (["--search", "FirstStage"], "--search: there is no Searcher 'FirstStage'. Choose one of AXN,"),
        (
            ["--search", "Rerank", "--search.first_stage", "bm25"],
            "--search.first_stage: there is no FirstStage 'bm25'; did you mean BM25?",
        ),
        (["--search", "Rerank", "--search.budgett", "3"], "Rerank has no option 'budgett'; did you mean budget?"),
        (["--search", "Rerank", "--search.budget", "three"], "--search.budget: expected int, got 'three'"),
        (["--search", "simzoo.retrieval.searchers.axn.AXM"], "did you mean AXN?"),
        (["--search", "lightning.pytorch.callbacks.Timer"], "there is no Searcher 'lightning.pytorch.callbacks.Timer'"),
        (["--data.splitt", "dev"], "BEIR has no option 'splitt'; did you mean split?"),
        (["--queries", "many"], "--queries: expected int, got 'many'"),
        (["--outputt", "x"], "unrecognized arguments: --outputt x; did you mean --output?"),
    ],
)
def test_what_is_refused_is_told_in_one_line(words: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A dump of all types that a value could have had hides the one word that is wrong."""
    assert said in refused(capsys, *words)


def test_a_message_of_an_unknown_form_is_kept() -> None:
    """A refusal without its reason."""
    assert refusal("something\n  quite new", {}) == "something quite new"


@pytest.mark.parametrize(
    "path",
    ["os.system", "posix.system", "simzoo_payload.Mine", "simzoo.core.command_line.os.system", "subprocess.Popen",
     "simzoo.models.formats.own.save", "lightning.pytorch.callbacks.timer.re.compile", "torch.load"],
)  # fmt: skip
def test_other_code_is_not_imported(path: str, ran: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A recipe from somebody else ran what it named, already when it was only printed."""
    said = refused(capsys, "--search", path)
    name = path.rpartition(".")[2]
    assert name in said
    (ran.parent / "evil.yaml").write_text(yaml.safe_dump({"search": {"class_path": path}}))
    assert name in refused(capsys, "--config", "evil.yaml")
    assert not ran.exists()


def test_the_user_allows_a_module(
    ran: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A searcher of one's own must be usable, and what was allowed once must not stay so."""
    assert parsed("--allow", "simzoo_payload", "--search", "simzoo_payload.Mine").search.class_path.endswith("Mine")
    assert ran.exists()
    assert "add --allow simzoo_payload" in refused(capsys, "--search", "simzoo_payload.Mine")
    monkeypatch.setenv(ALLOW, "other, simzoo_payload")
    assert parsed("--search", "simzoo_payload.Mine").search.class_path.endswith("Mine")
    with pytest.raises(ValueError, match="--allow expects a module's name"):
        prepared(["--allow", "a/b"])
    with pytest.raises(ValueError, match="--allow expects a module's name"):
        prepared(["--allow"])


def test_a_recipe_cannot_allow_itself(ran: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The choice is the user's, not the file's."""
    text = "allow: simzoo_payload\nsearch:\n  class_path: simzoo_payload.Mine\n"
    (ran.parent / "evil.yaml").write_text(text)
    refused(capsys, "--config", "evil.yaml")
    assert not ran.exists()


def test_a_recipe_of_training_names_no_other_code(ran: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A class of a module in the current folder ran under --print_config."""
    for option in (
        "--trainer.callbacks+=simzoo_payload.Mine",
        "--model=simzoo_payload.Mine",
        "--data.source=os.system",
    ):
        capsys.readouterr()
        with pytest.raises(SystemExit) as stop:
            train.main(["fit", "--config", RECIPE, option, "--print_config"])
        said = capsys.readouterr().err
        assert stop.value.code == 2 and said.count("\n") == 1
        assert "is not imported" in said
    assert not ran.exists()


def test_parts_of_a_trainer_may_be_named(capsys: pytest.CaptureFixture[str]) -> None:
    """What recipes need of Lightning: by name and in full."""
    options = ["--trainer.callbacks+=EarlyStopping", "--trainer.callbacks.monitor=val/mrr"]
    options += ["--trainer.logger=lightning.pytorch.loggers.CSVLogger", "--trainer.logger.save_dir=out"]
    with pytest.raises(SystemExit) as stop:
        train.main(["fit", "--config", RECIPE, *options, "--print_config"])
    assert stop.value.code == 0
    printed = capsys.readouterr().out
    assert "lightning.pytorch.callbacks.EarlyStopping" in printed and "CSVLogger" in printed


def test_a_recipe_that_is_printed_is_one_that_is_taken(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A saved configuration names classes in full, which must be allowed again."""
    with pytest.raises(SystemExit):
        train.main(["fit", "--config", RECIPE, "--print_config"])
    first = capsys.readouterr().out
    (tmp_path / "again.yaml").write_text(first)
    with pytest.raises(SystemExit) as stop:
        train.main(["fit", "--config", str(tmp_path / "again.yaml"), "--print_config"])
    assert stop.value.code == 0
    assert capsys.readouterr().out == first


@pytest.mark.parametrize("value", ["http://127.0.0.1:9/evil.ckpt", "file:///tmp/evil.ckpt", "s3://bucket/evil.ckpt"])
def test_a_training_checkpoint_is_no_address(value: str, tmp_path: Path) -> None:
    """Lightning unpickles what it fetches from an address."""
    (tmp_path / "evil.yaml").write_text(f"base: {RECIPE}\nckpt_path: {value}\n")
    with pytest.raises(ValueError, match=r"this machine's disks only"):
        train.main(["fit", "--config", str(tmp_path / "evil.yaml")])


def test_training_checkpoints_are_read_as_data(ran: Path) -> None:
    """A checkpoint's own class path was imported, whatever --weights_only said."""
    torch.save({"hyper_parameters": {"_class_path": "simzoo_payload.Mine"}}, ran.parent / "evil.ckpt")
    with pytest.raises(ValueError, match=r"evil\.ckpt"):  # it is no whole checkpoint, and that is all
        train.main(["validate", "--config", RECIPE, f"--ckpt_path={ran.parent / 'evil.ckpt'}"])
    assert not ran.exists() and "simzoo_payload" not in sys.modules


def test_a_configuration_is_a_file_of_this_machine(capsys: pytest.CaptureFixture[str]) -> None:
    """Lightning's parser reads a recipe from an address, too."""
    with pytest.raises(SystemExit) as stop:
        train.main(["fit", "--config", "http://127.0.0.1:9/recipe.yaml"])
    assert stop.value.code == 2
    assert "File does not exist" in capsys.readouterr().err


def test_names_in_a_query_import_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that a query happens to name is not read, and a sentence is no class."""
    imported: list[str] = []
    monkeypatch.setattr(command_line, "import_module", imported.append)
    prepared(["search", "--data", "BEIR", "Exact match of CMC and AXN"])
    assert imported == ["simzoo.datamodules.sources"]
