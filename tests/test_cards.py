"""The released checkpoints: whole, with cards whose example runs and whose figures are theirs."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from benchmarks.zoo import measure as zoo
from simzoo.retrieval.hub.card import SECTIONS, empty_sections, render
from simzoo.retrieval.hub.citations import BY_CLASS
from simzoo.retrieval.hub.commands import verify

ROOT = Path(__file__).resolve().parents[1]
CHECKPOINTS = sorted(path.parent for path in (ROOT / "checkpoints").glob("*/config.json"))


@pytest.fixture(autouse=True)
def at_the_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)


@pytest.mark.parametrize("folder", CHECKPOINTS, ids=lambda path: path.name)
def test_the_five_lines_of_every_card_run(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A stranger's first try is what stands on the card; if that fails there is no second."""
    (code,) = re.findall(r"```python\n(.*?)```", (folder / "README.md").read_text(), flags=re.DOTALL)
    assert len([line for line in code.splitlines() if line]) == 5
    exec(compile(code, str(folder), "exec"), {"__name__": "card"})
    assert capsys.readouterr().out.strip()


@pytest.mark.parametrize("folder", CHECKPOINTS, ids=lambda path: path.name)
def test_every_checkpoint_passes_verify(folder: Path) -> None:
    """Weights that were changed after they were measured have figures that are not theirs."""
    assert verify(str(folder)) == folder
    assert (folder / "README.md").read_text() == render(folder, f"checkpoints/{folder.name}"), (
        "the card is not what its figures make: run `python evaluate.py card` anew"
    )


def test_cards_name_what_they_must() -> None:
    """A check of sections that finds none empty because it looks for none."""
    card = (CHECKPOINTS[0] / "README.md").read_text()
    assert empty_sections(card) == []
    assert empty_sections("") == list(SECTIONS)
    for name in SECTIONS:
        emptied = re.sub(rf"(## {name}\n).*?(?=\n## |\Z)", r"\1\n<!-- later -->\n", card, flags=re.DOTALL)
        assert empty_sections(emptied) == [name]
    results = card.split("---")[1]
    assert "model-index:" in results and "command: python evaluate.py run" in results


def test_every_similarity_has_a_citation() -> None:
    """Without one the card has an empty section, which nothing but a change of the code could fill."""
    recipes = "".join(path.read_text() for path in (ROOT / "configs").rglob("*.yaml"))
    assert set(re.findall(r"class_path: simzoo\.models\.\w+\.(\w+)", recipes)) <= BY_CLASS.keys()


def test_citations_are_those_of_the_readme() -> None:
    """Two lists of papers drift apart; the one that is copied is then the wrong one."""
    readme = (ROOT / "README.md").read_text()
    assert [name for name, text in BY_CLASS.items() if text not in readme] == []


def test_the_zoos_pages_are_as_measured() -> None:
    """A leaderboard that is edited, or not made anew, is trusted all the same."""
    for path, text in zoo.pages().items():
        assert (ROOT / path).read_text(encoding="utf-8") == text, f"{path} is stale: run `make zoo`"
    rows = zoo.figures()
    assert {row["system"] for row in rows} >= {folder.name for folder in CHECKPOINTS if _ranks_texts(folder)}
    for row in rows:
        folder = ROOT / "checkpoints" / row["system"]
        if folder.is_dir():
            known = json.loads((folder / "metrics.json").read_text())["sha256"]
            assert row["checkpoint"]["sha256"] == known, f"{row['system']} was measured with other weights"
        for name, values in row["per_query"].items():
            known_values = [value for value in values if value is not None]
            assert sum(known_values) / len(known_values) == pytest.approx(row["metrics"][name]["mean"], abs=1e-5)


def _ranks_texts(folder: Path) -> bool:
    return "tokens" in json.loads((folder / "config.json").read_text())["arguments"]
