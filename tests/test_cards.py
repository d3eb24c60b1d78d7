"""The released checkpoints: whole, with cards whose example runs and whose figures are theirs."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from benchmarks.zoo import measure as zoo
from benchmarks.zoo.systems import recipes, similarities
from simzoo.models.parts import papers
from simzoo.models.similarity import LearnedSimilarity
from simzoo.retrieval.hub.card import SECTIONS, empty_sections, render
from simzoo.retrieval.hub.commands import verify
from tests.toy import toy_collection

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


@pytest.mark.parametrize("cls", similarities(), ids=lambda cls: cls.__name__)
def test_every_similarity_brings_its_citation(cls: type[LearnedSimilarity]) -> None:
    """Without one the card has an empty section, and push refuses it."""
    assert re.fullmatch(
        r"@\w+\{[\w-]+,\n(  \w+ *= \{.*\},?\n)*  title *= \{.+\},?\n(  \w+ *= \{.*\},?\n)*\}", cls.citation
    )


def test_the_citation_file_names_every_paper_of_ours() -> None:
    """Two lists of papers drift apart; the one that is copied is then the wrong one."""
    listed = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))["references"]
    there = {one["title"]: one["url"].rpartition("/")[2] for one in listed}
    ours = [getattr(papers, name) for name in papers.__all__]
    (titles, numbers) = (
        [re.findall(form, text)[0] for text in ours] for form in (r"title *= \{(.+)\}", r"arXiv:([\d.]+)")
    )
    assert there == dict(zip(titles, numbers, strict=True))


def test_every_recipe_stands_in_the_table() -> None:
    """A table that finds the recipes by a form that they no longer have is empty, and nobody sees it."""
    listed = {path for cls in similarities() for path in recipes(cls)}
    files = {path: yaml.safe_load(path.read_text()) for path in Path("configs").rglob("*.yaml")}
    models = {path for path, recipe in files.items() if "class_path" in recipe.get("model", {})}
    assert len(models) > 20 and listed == models


SIXTH = """\
import json, sys
from pathlib import Path
from simzoo import evaluate
from benchmarks.zoo.systems import systems_page
from simzoo.models.formats import save
from simzoo.models.sixth import Sixth
from simzoo.retrieval.hub.commands import verify
save(Sixth.tiny(), "out/sixth")
data = ["--data", "BEIR", "--data.root", "data"]
evaluate.main(["run", "--checkpoint", "out/sixth", *data, "--output", "out/run", "--k", "5"])
about = ["--about.data", "None.", "--about.recipe", "None.", "--about.limits", "All."]
evaluate.main(["card", "--checkpoint", "out/sixth", "--runs", "[out/run]", *about])
verify("out/sixth")
Path("systems.md").write_text(systems_page())
"""


def test_a_sixth_system_is_one_file_and_one_recipe(tmp_path: Path) -> None:
    """A list that every new system has to be put into is forgotten: its card was empty, and push refused it."""
    source = (ROOT / "models" / "dual_encoder.py").read_text().replace("DualEncoder", "Sixth")
    own = "@misc{me2026sixth,\n  title = {A sixth <system>},\n  year  = {2026}\n}"
    source = re.sub(r"citation: .*", lambda _: f"citation = {own!r}", source)
    collection = toy_collection()
    for name in ("benchmarks", "core", "datamodules", "losses", "models", "retrieval", "simzoo"):
        shutil.copytree(ROOT / name, tmp_path / name, symlinks=True)
    for name in ("evaluate.py", "train.py"):
        shutil.copy(ROOT / name, tmp_path)
    for name, text in {
        "models/sixth.py": source,
        "configs/toy/sixth.yaml": "seed_everything: 0\nmodel:\n  class_path: Sixth\n",
        "data/corpus.jsonl": "".join(json.dumps({"_id": i.id, "text": i.text}) + "\n" for i in collection.items),
        "data/queries.jsonl": "".join(json.dumps({"_id": q.id, "text": q.text}) + "\n" for q in collection.queries),
        "data/qrels/test.tsv": f"query-id\tcorpus-id\tscore\n{collection.queries[0].id}\t{collection.items[0].id}\t1\n",
    }.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    there = {**os.environ, "PYTHONPATH": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", SIXTH], cwd=tmp_path, env=there, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    card = (tmp_path / "out" / "sixth" / "README.md").read_text()
    assert f"## Citation\n\n```bibtex\n{own}\n```" in card
    page = (tmp_path / "systems.md").read_text()
    (row,) = [line for line in page.splitlines() if line.startswith("| [Sixth]")]
    assert "`me2026sixth`" in row and "[toy/sixth](../configs/toy/sixth.yaml)" in row and own in page
    about = card.split("---")[1]
    assert "license:" not in about, "a license that nobody gave"
    assert "pipeline_tag: sentence-similarity" in about and "- feature-extraction" in about


def test_cards_claim_what_they_were_told(tmp_path: Path) -> None:
    """A license is a promise of the weights' owner; a wrong tag files a model where nobody looks for it."""
    tags = {}
    for folder in CHECKPOINTS:
        shutil.copytree(folder, tmp_path / folder.name)
        about = yaml.safe_load((folder / "README.md").read_text().split("---")[1])
        assert about["license"] == "apache-2.0"
        tags[folder.name] = about.get("pipeline_tag")
    assert tags["wordnet-de"] == "sentence-similarity" and tags["ml-100k-sasrec"] is None
    assert {tags[name] for name in tags if name.startswith("wordnet") and name != "wordnet-de"} == {"text-ranking"}
    path = tmp_path / "wordnet-de" / "metrics.json"
    told = json.loads(path.read_text())
    for given, line in (("mit", "license: mit\n"), ("", None)):
        path.write_text(json.dumps({**told, "about": {**told["about"], "license": given}}))
        card = render(tmp_path / "wordnet-de", "me/mine").split("---")[1]
        assert line in card if line else "license" not in card


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


def test_the_zoos_pages_lead_to_the_cards() -> None:
    """A name without its card leaves a reader with figures of he knows not what; a dead link as well."""
    page = (ROOT / "docs" / "zoo.html").read_text(encoding="utf-8")
    rows = json.loads(page.partition("const zoo = ")[2].partition(";\n")[0])["rows"]
    cards = {row["system"]: row["card"] for row in rows}
    text = (ROOT / "docs" / "zoo.md").read_text(encoding="utf-8")
    for name in (folder.name for folder in CHECKPOINTS if _ranks_texts(folder)):
        assert cards[name] == f"../checkpoints/{name}/README.md" and (ROOT / "docs" / cards[name]).is_file()
        assert f"| [{name}]({cards[name]}) |" in text
    assert cards["BM25"] is None
    assert {row["kept"] for row in rows if row["system"] == "BM25"} == {"0 bytes"}
    assert all(re.fullmatch(r"\d{1,3}(\.\d [kMG]B| bytes)", row["kept"]) for row in rows)


def _ranks_texts(folder: Path) -> bool:
    return "tokens" in json.loads((folder / "config.json").read_text())["arguments"]
