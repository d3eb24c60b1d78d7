"""Several data sets in one run, their averages, and anchors from elsewhere, on the command line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from simzoo import evaluate
from simzoo.core.records import Collection, DataError, Item, Query
from simzoo.datamodules.sources import Source, Split
from simzoo.models.cross_encoder import CrossEncoder
from simzoo.models.formats import save
from simzoo.retrieval.commands.run import run
from simzoo.retrieval.first_stages.lexical import BM25
from simzoo.retrieval.results.averages import Averages
from simzoo.retrieval.results.metrics import interval
from simzoo.retrieval.results.run_files import read_run
from simzoo.retrieval.results.significance import compare_runs
from simzoo.retrieval.searchers.exact import Retrieve

WORDS = ["oar", "sail", "mast", "keel", "hull", "rudder", "anchor", "deck", "bow", "stern"]


def world(name: str, queries: int, missed: int) -> Collection:
    """Ten items of one word each; ``missed`` of the queries are judged by another item than that of their word."""
    items = [Item(f"{name}-{row}", f"{word} {name}") for row, word in enumerate(WORDS)]
    asked = [Query(f"q{place}", WORDS[place]) for place in range(queries)]
    judged = [{(place + (place < missed)) % 10: 1} for place in range(queries)]
    return Collection(f"world {name}", items, asked, judged)


class Two(Source):
    """Eight queries of which six fail, and two that succeed."""

    def read(self, split: Split) -> list[Collection]:
        return [world("sea", 8, 6), world("lake", 2, 0)]


def test_macro_counts_worlds_and_micro_counts_queries(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """ZESHEL reports macro averages; a mean over all queries beside it is the largest world's figure."""
    run(Two(), tmp_path / "out", search=Retrieve(BM25()), k=10, metrics=["R@1"])
    about = json.loads((tmp_path / "out" / "metrics.json").read_text())
    accuracies = {
        name: np.mean([json.loads(line)["accuracy"] for line in path.read_text().splitlines()])
        for name in ("world-sea", "world-lake")
        if (path := tmp_path / "out" / name / "per_query.jsonl").is_file()
    }
    assert accuracies == {"world-sea": 0.25, "world-lake": 1.0}
    assert about["macro"]["metrics"]["accuracy"]["mean"] == pytest.approx((0.25 + 1.0) / 2)
    assert about["metrics"]["accuracy"]["mean"] == pytest.approx((2 + 2) / 10)
    assert {name: one["metrics"]["accuracy"]["mean"] for name, one in about["worlds"].items()} == accuracies
    assert about["queries"] == 10
    told = [line.split() for line in capsys.readouterr().out.replace("│", " ").splitlines()]
    rows = {" ".join(words[:2]): words[2:4] for words in told if len(words) > 4}
    assert rows["world sea"] == ["8", "0.2500"] and rows["world lake"] == ["2", "1.0000"]
    assert rows["macro average"] == ["10", "0.6250"] and rows["micro average"] == ["10", "0.4000"]
    page = (tmp_path / "out" / "report.html").read_text()
    assert all(f"<th>{name}</th>" in page for name in ("world sea", "world lake", "macro average", "micro average"))


def test_a_run_of_several_worlds_is_read_and_compared_as_one(tmp_path: Path) -> None:
    """Queries of two worlds have the same ids here: kept under these, one would stand for both."""
    for name in ("a", "b"):
        run(Two(), tmp_path / name, search=Retrieve(BM25()), k=10, metrics=["R@1"], queries=2)
    found = read_run(tmp_path / "a")
    assert found.columns["id"] == sorted(found.columns["id"], key=lambda one: "lake" in one)
    assert len(set(found.columns["id"])) == 4
    [row] = compare_runs([tmp_path / "a", tmp_path / "b"], ["R@1"]).rows
    assert (row.queries, row.difference, row.p) == (4, 0, 1)
    with pytest.raises(DataError, match="holds results already"):
        run(Two(), tmp_path / "a", search=Retrieve(BM25()))


def test_averages_against_plain_resampling() -> None:
    """An interval of a macro average over all queries together would be that of the micro average."""
    rng = np.random.default_rng(0)
    values = {"a": rng.random(400) * 0.1, "b": (rng.random(9) < 0.5).astype(float)}
    found = Averages.of({name: {"m": column, "n": column} for name, column in values.items()} | {})
    drawn = [np.mean([rng.choice(column, len(column)).mean() for column in values.values()]) for _ in range(4000)]
    low, high = np.quantile(drawn, [0.025, 0.975])
    macro = found.macro["m"]
    assert macro["mean"] == pytest.approx(np.mean([column.mean() for column in values.values()]))
    assert (macro["low"], macro["high"]) == pytest.approx((low, high), abs=0.02)
    micro = np.concatenate(list(values.values()))
    assert tuple(found.micro["m"][key] for key in ("mean", "low", "high")) == interval(micro)
    assert high - low > 5 * (found.micro["m"]["high"] - found.micro["m"]["low"])


def test_what_a_world_lacks_has_no_average() -> None:
    """A mean over the worlds that have a figure, under the name of all of them, is a better one than they earned."""
    none = np.full(3, np.nan)
    found = Averages.of({"a": {"m": np.ones(3), "n": np.ones(3)}, "b": {"m": np.array([0.0, np.nan]), "n": none}})
    assert found.lacking == {"n": ["b"]} and set(found.macro) == set(found.micro) == {"m"}
    assert found.macro["m"]["mean"] == 0.5 and found.micro["m"] == found.micro["m"] | {"mean": 0.75, "queries": 4}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A BEIR folder with a train split and generated queries, and a tiny cross-encoder beside it."""
    data = tmp_path / "data"
    (data / "qrels").mkdir(parents=True)

    def write(name: str, rows: list[dict[str, Any]]) -> None:
        (data / name).write_text("".join(json.dumps(row) + "\n" for row in rows))

    write("corpus.jsonl", [{"_id": f"d{row}", "title": "", "text": f"a {word}"} for row, word in enumerate(WORDS)])
    write("queries.jsonl", [{"_id": f"q{row}", "text": f"the {word}"} for row, word in enumerate(WORDS)])
    write("gen-queries.jsonl", [{"text": f"which {word}"} for word in WORDS[:4]] + [{"text": "the oar"}])
    for split, rows in (("test", range(3)), ("train", range(3, 9))):
        lines = ["query-id\tcorpus-id\tscore", *(f"q{row}\td{row}\t1" for row in rows)]
        (data / "qrels" / f"{split}.tsv").write_text("\n".join(lines) + "\n")
    save(CrossEncoder.tiny(), tmp_path / "ce")
    return tmp_path


@pytest.mark.parametrize(
    ("options", "from_", "number"),
    [
        (["--anchors", "train"], "train", 6),
        (["--anchors", "train", "--most_anchors", "5"], "train", 5),
        (["--anchors", "generated"], "generated", 4),
        (["--anchors", "items"], "items", 10),
        (["--anchors", "FILE"], "FILE", 4),
    ],
)
def test_anchors_spare_the_test_queries(root: Path, options: list[str], from_: str, number: int) -> None:
    """The papers' figures are of all test queries; with anchors among them, each anchor is one query less."""
    file = str(root / "data" / "gen-queries.jsonl")
    options, from_ = [file if word == "FILE" else word for word in options], from_.replace("FILE", file)
    given = ["--checkpoint", str(root / "ce"), "--data", "BEIR", "--data.root", str(root / "data")]
    search = ["--search", "CUR", "--search.budget", "4", "--search.anchor_queries", "4", "--search.anchor_items", "2"]
    evaluate.main(["run", *given, *search, *options, "--k", "3", "--output", str(root / "out")])
    about = json.loads((root / "out" / "metrics.json").read_text())
    assert about["queries"] == 3 and about["anchors"] == {"from": from_, "queries": number}
    assert about["index_calls"] == 4 * len(WORDS)


def test_anchors_that_are_not_there_are_refused(root: Path) -> None:
    """Anchors taken from the test queries instead would be other figures under the same options."""
    given = ["run", "--data", "BEIR", "--data.root", str(root / "data"), "--output", str(root / "out")]
    given += ["--search", "Retrieve", "--search.first_stage", "BM25"]
    with pytest.raises(DataError, match=r"anchors 'trian' are neither train, generated nor items"):
        evaluate.main([*given, "--anchors", "trian"])
    with pytest.raises(DataError, match="give --anchors too"):
        evaluate.main([*given, "--most_anchors", "5"])
    with pytest.raises(DataError, match=r"Two has no generated queries; name a file of queries, or train, or items"):
        run(Two(), root / "out", search=Retrieve(BM25()), anchors="generated")
    with pytest.raises(DataError, match="there is no such score matrix"):
        run(Two(), root / "out", search=Retrieve(BM25()), exact=root / "none.safetensors")
