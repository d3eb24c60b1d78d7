"""The command line of evaluate.py, on a tiny model and a small collection in BEIR's layout."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ir_measures
import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from simzoo import evaluate
from simzoo.core.records import DataError
from simzoo.models.cross_encoder import CrossEncoder
from simzoo.models.dual_encoder import DualEncoder
from simzoo.models.formats import load, save
from tests.toy import toy_collection

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with data/, ce/ and de/."""
    folder = tmp_path_factory.mktemp("world")
    collection = toy_collection()
    (folder / "data" / "qrels").mkdir(parents=True)
    items = [{"_id": i.id, "title": i.title, "text": i.text} for i in collection.items]
    queries = [{"_id": q.id, "text": q.text} for q in collection.queries]
    for name, rows in (("corpus", items), ("queries", queries)):
        (folder / "data" / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    lines = ["query-id\tcorpus-id\tscore"]
    for query, judged in zip(collection.queries, collection.judgements, strict=True):
        lines += [f"{query.id}\t{collection.items[row].id}\t{grade}" for row, grade in judged.items()]
    (folder / "data" / "qrels" / "test.tsv").write_text("\n".join(lines) + "\n")
    save(CrossEncoder.tiny(), folder / "ce")
    save(DualEncoder.tiny(), folder / "de")
    return folder


def run(world: Path, output: str, *options: str, model: str | None = "ce") -> dict[str, Any]:
    given = ["--checkpoint", str(world / model)] if model else []
    data = ["--data", "BEIR", "--data.root", str(world / "data")]
    evaluate.main(["run", *given, *data, "--output", str(world / output), "--k", "10", *options])
    found: dict[str, Any] = json.loads((world / output / "metrics.json").read_text())
    return found


def test_run_writes_what_it_promises(world: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Figures without their data, weights, versions and command cannot be made again."""
    found = run(world, "exact")
    assert found["data"]["fingerprint"] and found["checkpoint"]["sha256"] and found["versions"]["torch"]
    assert found["cost"]["calls"]["mean"] == 40
    assert found["searcher"]["name"] == "Exact"
    for value in found["metrics"].values():
        assert value["low"] <= value["mean"] <= value["high"]
    rows = [json.loads(line) for line in (world / "exact" / "per_query.jsonl").read_text().splitlines()]
    assert len(rows) == 24
    assert np.mean([row["nDCG@10"] for row in rows]) == pytest.approx(found["metrics"]["nDCG@10"]["mean"])
    assert len((world / "exact" / "run.trec").read_text().splitlines()) == 240
    assert (
        "<mark>" in (world / "exact" / "report.html").read_text()
        or "boat" in (world / "exact" / "report.html").read_text()
    )
    assert "40 items, 24 queries" in capsys.readouterr().err


def test_matrix_compare_and_search(world: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The whole circle: exact scores, two searchers against them, their comparison, one query."""
    data = ["--data", "BEIR", "--data.root", str(world / "data"), "--checkpoint", str(world / "ce")]
    evaluate.main(["matrix", *data, "--output", str(world / "m.safetensors"), "--queries", "12"])
    exact = ["--exact", str(world / "m.safetensors")]
    stage = ["--search.first_stage", "BM25"]
    rerank = run(world, "rerank", "--search", "Rerank", *stage, "--search.budget", "10", *exact)
    embeddings = [
        "--search.embeddings",
        "simzoo.retrieval.first_stages.dense.Dense",
        "--search.embeddings.checkpoint",
        str(world / "de"),
    ]
    axn = run(world, "axn", "--search", "AXN", *embeddings, "--search.budget", "10", "--search.rounds", "2", *exact)
    assert rerank["cost"]["calls"]["mean"] == axn["cost"]["calls"]["mean"] == 10
    assert 0 < axn["metrics"]["Top-10-Recall"]["mean"] < 1
    assert "Top-k-Recall" in (world / "axn" / "report.html").read_text()
    full = run(world, "full", "--search", "Rerank", *stage, "--search.budget", "40", *exact)
    assert full["metrics"]["Top-10-Recall"]["mean"] == 1
    capsys.readouterr()
    evaluate.main(["compare", str(world / "rerank"), str(world / "axn"), "--metrics", "[Top-10-Recall]"])
    assert "Holm" in capsys.readouterr().out
    evaluate.main(["search", *data, "--k", "3", "--search", "Rerank", "--search.budget", "5", "boat river"])
    assert "5 calls" in capsys.readouterr().out


def test_a_corpus_alone_is_searched(world: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Who types a query has neither queries nor judgements; to evaluate, both are asked for."""
    root = tmp_path / "texts"
    root.mkdir()
    (root / "corpus.jsonl").write_bytes((world / "data" / "corpus.jsonl").read_bytes())
    given = ["--checkpoint", str(world / "ce"), "--data", "BEIR", "--data.root", str(root)]
    evaluate.main(["search", *given, "--k", "3", "boat river"])
    assert "40 calls" in capsys.readouterr().out
    with (root / "corpus.jsonl").open("a") as file:
        file.write(json.dumps({"_id": "[/b]", "title": "[red]", "text": "boat river [/b] \x1b[31m"}) + "\n")
    evaluate.main(["search", *given, "--k", "41", "boat [/b] [bold]river"])  # which rich would take for its markup
    out = capsys.readouterr().out
    assert "41 calls" in out and "[/b]" in out and "\x1b[31m" not in out
    with pytest.raises(DataError, match="the test split has no queries"):
        evaluate.main(["run", *given, "--output", str(tmp_path / "out")])


def test_metrics_are_checked_before_the_search(world: Path) -> None:
    """R@100 of 10 results would be R@10 under another name; a misspelt metric must not cost the hours of a search."""
    found = run(world, "shallow")
    assert "R@10" in found["metrics"] and "R@64" not in found["metrics"]
    with pytest.raises(DataError, match="R@20 looks deeper than the 10 results"):
        run(world, "deep", "--metrics", "[R@20]")
    with pytest.raises(DataError, match="between 1 and 5 results"):
        run(world, "deep", "--search", "Rerank", "--search.budget", "5")
    with pytest.raises(ValueError, match="no metric"):
        run(world, "unknown", "--metrics", "[Rcall@5]")
    with pytest.raises(ValueError, match="name at least one, for example"):
        run(world, "none", "--metrics", "[]")
    assert not (world / "none").exists()
    assert not (world / "deep").exists() and not (world / "unknown").exists()


def test_bfloat16_is_close_and_said(world: Path) -> None:
    """Half the bytes a weight must move the scores only by rounding, and nobody may take them for exact ones."""
    exact = run(world, "fp32", "--search", "Rerank", "--search.first_stage", "BM25", "--search.budget", "12")
    half = run(
        world, "half", "--search", "Rerank", "--search.first_stage", "BM25", "--search.budget", "12", "--bf16", "true"
    )
    assert (exact["bf16"], half["bf16"]) == (False, True)
    read: Callable[[str], Any] = ir_measures.read_trec_run
    runs = [read(str(world / name / "run.trec")) for name in ("fp32", "half")]
    a, b = ({(line.query_id, line.doc_id): line.score for line in one} for one in runs)
    common = sorted(a.keys() & b.keys())
    difference = np.abs([a[key] - b[key] for key in common])
    assert len(common) > 200 and 0 < difference.max() < 0.05 * np.std([a[key] for key in common]) + 0.2


def test_retrieve_needs_no_checkpoint(world: Path) -> None:
    """A baseline is a first stage alone: no calls, and no model to load."""
    found = run(world, "bm25", "--search", "Retrieve", "--search.first_stage", "BM25", model=None)
    assert found["cost"]["calls"]["mean"] == 0
    assert found["metrics"]["R@10"]["mean"] > 0.5
    with pytest.raises(DataError, match="give --checkpoint"):
        run(world, "none", model=None)


def test_a_first_stages_encoder_is_named(world: Path) -> None:
    """Without its weights' hash and bytes a dense baseline is a figure that nobody can make again."""
    dense = ["--search.first_stage", "Dense", "--search.first_stage.checkpoint", str(world / "de")]
    found = run(world, "dense", "--search", "Retrieve", *dense, model=None)
    stage = found["searcher"]["first_stage"]
    assert stage["name"] == "Dense" and stage["checkpoint"] == str(world / "de") and stage["ann"] == {"name": "Flat"}
    assert stage["sha256"] == load(world / "de").weights_sha256
    assert found["bytes"]["representations"] == stage["bytes"] == 4 * 16 * 40


def test_nested_settings_are_kept(world: Path) -> None:
    """Two runs that differ in their graph, entry points or budget looked the same in metrics.json."""
    search = ["--search", "GraphSearch", "--search.budget", "30", "--search.breadth", "3"]
    search += ["--search.vectors", "Dense", "--search.vectors.checkpoint", str(world / "de")]
    search += [
        "--search.graph.degree",
        "5",
        "--search.entry_points",
        "RandomItems",
        "--search.entry_points.count",
        "12",
    ]
    settings = run(world, "graph", *search)["searcher"]
    assert (settings["name"], settings["budget"], settings["breadth"]) == ("GraphSearch", 30, 3)
    assert settings["graph"] == {"name": "GraphConfig", "degree": 5, "metric": "l2", "folder": None}
    assert settings["entry_points"] == {"name": "RandomItems", "count": 12, "seed": 0}
    assert settings["vectors"]["checkpoint"] == str(world / "de") and settings["vectors"]["sha256"]
    stages = json.dumps([{"checkpoint": str(world / "ce"), "keep": 4}])
    found = run(world, "pipeline", "--search", "Pipeline", "--search.depth", "9", "--search.stages", stages, "--k", "4")
    assert found["searcher"]["stages"] == [{"name": "Stage", "checkpoint": str(world / "ce"), "keep": 4}]
    assert found["searcher"]["first_stage"] == {"name": "BM25", "k1": 1.5, "b": 0.75, "store": None}
    assert "BM25 (k1 1.5, b 0.75, store None)" in (world / "pipeline" / "report.html").read_text()


def command(*options: str) -> str:
    done = subprocess.run([sys.executable, "evaluate.py", *options], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode != 0
    return done.stderr


def test_errors_end_in_one_line(world: Path) -> None:
    """A user who gets a traceback for a missing folder reports a bug; one who gets the reason mends it."""
    where = ["--checkpoint", str(world / "ce"), "--output", str(world / "bad"), "--data", "BEIR"]
    message = command("run", *where, "--data.root", str(world / "nowhere"))
    assert "Traceback" not in message
    assert "nowhere" in message.splitlines()[-1]


def test_misspelt_options_are_refused(world: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """An option that is silently ignored makes a wrong figure."""
    where = ["--checkpoint", str(world / "ce"), "--output", "x", "--data", "BEIR", "--data.root", str(world / "data")]
    for options in (["--querys", "3"], ["--search", "AXM"], ["--search", "Rerank", "--search.buget", "3"]):
        with pytest.raises(SystemExit):
            evaluate.main(["run", *where, *options])
        assert options[-2].removeprefix("--").rpartition(".")[2] in capsys.readouterr().err


def damaged(world: Path, folder: Path, name: str, content: bytes) -> Path:
    shutil.copytree(world / "ce", folder)
    (folder / name).write_bytes(content)
    (folder / "manifest.json").unlink()  # who damages a file on purpose writes the manifest that fits
    return folder


def test_damaged_checkpoints_are_refused(world: Path, tmp_path: Path) -> None:
    """Truncated, of another system, a pickle in disguise, a class from elsewhere: each by name, nothing is run."""
    whole = (world / "ce" / "model.safetensors").read_bytes()
    config = json.loads((world / "ce" / "config.json").read_text())
    with pytest.raises(ValueError, match="not a whole safetensors file"):
        load(damaged(world, tmp_path / "cut", "model.safetensors", whole[: len(whole) // 2]))
    torch.save({"a": torch.zeros(1)}, tmp_path / "pickle")
    with pytest.raises(ValueError, match="not a whole safetensors file"):
        load(damaged(world, tmp_path / "p", "model.safetensors", (tmp_path / "pickle").read_bytes()))
    save_file({"other.weight": torch.zeros(2)}, tmp_path / "other")
    with pytest.raises(ValueError, match=r"missing .*unknown \['other\.weight'\]"):
        load(damaged(world, tmp_path / "o", "model.safetensors", (tmp_path / "other").read_bytes()))
    for number, path in enumerate(
        (
            "os.system",
            "simzoo.models.formats.own.save",
            "simzoo.models.parts.tiny.Path",
            "simzoo.models.parts.backbone.Encoder",
            7,
        )
    ):
        evil = json.dumps({**config, "class": path}).encode()
        with pytest.raises(ValueError, match="is not a similarity of this project"):
            load(damaged(world, tmp_path / f"evil{number}", "config.json", evil))
    extra = json.dumps({**config, "arguments": {**config["arguments"], "scorring": "emb"}}).encode()
    with pytest.raises(ValueError, match="scorring"):
        load(damaged(world, tmp_path / "extra", "config.json", extra))
    with pytest.raises(ValueError, match=r"config\.json:1: broken JSON"):
        load(damaged(world, tmp_path / "json", "config.json", b"{oops"))
    with pytest.raises(ValueError, match="which its files do not hold"):
        load(damaged(world, tmp_path / "bert", "config.json", b'{"model_type": "bert"}'))
    with pytest.raises(FileNotFoundError, match="neither a folder nor"):
        load(tmp_path / "nothing-here")
    (tmp_path / "empty").mkdir()
    with pytest.raises(FileNotFoundError, match=r"no config\.json"):
        load(tmp_path / "empty")


def test_card_is_made_from_runs(world: Path) -> None:
    """A card whose figures are of other weights lies about the model."""
    run(world, "for-card")
    about = ["--about.data", "None.", "--about.recipe", "Random weights.", "--about.limits", "All."]
    evaluate.main(["card", "--checkpoint", str(world / "ce"), "--runs", f"[{world / 'for-card'}]", *about])
    text = (world / "ce" / "README.md").read_text()
    assert "model-index" in text and "Random weights." in text and "| Exact | 24 |" in text
    kept = json.loads((world / "ce" / "metrics.json").read_text())
    assert kept["runs"][0]["metrics"]["nDCG@10"]["mean"] == pytest.approx(
        json.loads((world / "for-card" / "metrics.json").read_text())["metrics"]["nDCG@10"]["mean"]
    )
    with pytest.raises(DataError, match="other weights"):
        evaluate.main(["card", "--checkpoint", str(world / "de"), "--runs", f"[{world / 'for-card'}]", *about])


def test_a_run_scored_as_another_systems_has_the_same_figures(world: Path) -> None:
    """Judgements, queries or order read in another way by `score` than by `run`: two truths about one ranking."""
    ours = run(world, "scored", "--search", "Retrieve", model=None)
    files = [str(world / "scored" / "run.trec"), str(world / "data" / "qrels" / "test.tsv")]
    evaluate.main(["score", *files, "--output", str(world / "rescored")])
    theirs = json.loads((world / "rescored" / "metrics.json").read_text())
    assert {"nDCG@10", "RR@10", "R@10"} <= theirs["metrics"].keys()
    for name, value in theirs["metrics"].items():
        assert value == pytest.approx(ours["metrics"][name])
