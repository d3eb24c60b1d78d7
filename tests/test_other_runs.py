"""Runs and judgements of other programs: read strictly, and measured as trec_eval measures them."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import pytrec_eval

from simzoo import evaluate
from simzoo.core.records import DataError
from simzoo.datamodules.readers.trec import read_judgements, read_run
from simzoo.retrieval.results.other_runs import score_run

RUN = "q1 Q0 a 1 3.0 mine\nq1 Q0 b 2 2.0 mine\nq2 Q0 c 1 1.0 mine\n"
QRELS = "q1 0 b 1\nq1 0 a 0\nq2 0 c 2\n"


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path]:
    """A run and judgements of it."""
    (tmp_path / "run.trec").write_text(RUN)
    (tmp_path / "qrels").write_text(QRELS)
    return tmp_path / "run.trec", tmp_path / "qrels"


def test_figures_are_those_of_trec_eval(tmp_path: Path) -> None:
    """Ties, scores that only doubles tell apart, ranks that lie, and queries on one side only: each moves the mean."""
    rng = np.random.default_rng(0)
    run: dict[str, dict[str, float]] = {}
    judged: dict[str, dict[str, int]] = {}
    for number in range(40):
        items = [f"d{n}" for n in rng.permutation(60)[:30]]
        scores = rng.integers(0, 8, size=30) + rng.choice([0.0, 1e-9], size=30)
        run[f"q{number}"] = dict(zip(items, scores.tolist(), strict=True))
        judged[f"q{number + 5}"] = {f"d{n}": int(rng.integers(0, 3)) for n in rng.permutation(60)[:20]}
    lines = [f"{q} Q0 {d} {n} {s!r} x" for q, found in run.items() for n, (d, s) in enumerate(found.items())]
    (tmp_path / "run").write_text("\n".join(lines) + "\n")
    (tmp_path / "qrels").write_text("".join(f"{q} 0 {d} {g}\n" for q, one in judged.items() for d, g in one.items()))
    theirs = pytrec_eval.RelevanceEvaluator(judged, {"ndcg_cut.10", "recall.10", "map", "success.1"}).evaluate(run)
    found = score_run(tmp_path / "run", tmp_path / "qrels", ["nDCG@10", "R@10", "AP", "Success@1"])
    assert found.queries == list(judged)
    names = {"nDCG@10": "ndcg_cut_10", "R@10": "recall_10", "AP": "map", "Success@1": "success_1"}
    for name, key in names.items():
        wanted = [theirs[query][key] if query in theirs else 0.0 for query in judged]
        np.testing.assert_allclose(found.values[name], wanted, atol=1e-9)
    assert len(theirs) == 35 and any("not in the run, counted as 0: 5 " in note for note in found.notes)
    assert any("not judged, left out: 5 ('q0', 'q1', 'q2', ...)" in note for note in found.notes)
    assert any("scores count, as in trec_eval: 40 " in note for note in found.notes)


def test_a_metric_deeper_than_the_run_is_said(files: tuple[Path, Path]) -> None:
    """R@100 of two results is R@2 by another name."""
    assert list(score_run(*files).values) == ["R@1"]
    found = score_run(*files, ["R@100"])
    assert found.notes == ["R@100: the run has at most 2 results a query"]


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("q1 Q0 a 1 3.0", "expected 6 columns, `query Q0 item rank score tag`, got 5"),
        ("q1 Q0 a 1 3.0 my tag", "expected 6 columns"),
        ("q1 Q0 z one 3.0 mine", "expected a whole number as rank, got 'one'"),
        ("q1 Q0 z 3 nan mine", "expected a finite number as score, got 'nan'"),
        ("q1 Q0 z 3 high mine", "expected a finite number as score, got 'high'"),
        ("q1 Q0 a 3 1.0 mine", "query 'q1' has item 'a' already"),
    ],
)
def test_a_damaged_run_is_refused_by_line(files: tuple[Path, Path], line: str, said: str) -> None:
    """Other readers skip or misread such a line, and the figure is of another run."""
    files[0].write_text(f"{RUN}{line}\n")
    with pytest.raises(DataError, match=r"run\.trec:4: ") as refused:
        read_run(files[0])
    assert said in str(refused.value)


@pytest.mark.parametrize(
    ("text", "line", "said"),
    [
        (f"{QRELS}q2 0 d\n", 4, "expected `query 0 item grade`"),
        (f"{QRELS}q2 0 d high\n", 4, "expected `query 0 item grade`"),
        (f"{QRELS}q2 0 c 1\n", 4, "item 'c' has grade 1 for query 'q2', but had 2 before"),
        ("q1\tb\t1\n", 1, "three columns need the header query-id corpus-id score"),
        ("query-id\tcorpus-id\tscore\nq1\tb\n", 2, "expected query id, item id and a whole-number grade"),
    ],
)
def test_damaged_judgements_are_refused_by_line(files: tuple[Path, Path], text: str, line: int, said: str) -> None:
    """A judgement that is not read as it was meant changes every run's figure alike, so that none looks wrong."""
    files[1].write_text(text)
    with pytest.raises(DataError, match=rf"qrels:{line}: ") as refused:
        read_judgements(files[1])
    assert said in str(refused.value)


def test_files_of_two_collections_are_refused(files: tuple[Path, Path]) -> None:
    """Every metric would be 0, which looks like a bad run."""
    files[1].write_text("301 0 b 1\n")
    with pytest.raises(DataError, match=r"has no query of .*it has 'q1', 'q2', the judgements have '301'"):
        score_run(*files)
    with pytest.raises(DataError, match="--metrics is empty"):
        score_run(*files, [])


def test_ids_with_blanks_are_found(files: tuple[Path, Path]) -> None:
    """Our runs encode blanks, BEIR's judgements have them plainly: the item would count as not found."""
    files[0].write_text("q%201 Q0 a%20b 1 3.0 mine\nq%201 Q0 c%20d 2 2.0 mine\n")
    files[1].write_text("query-id\tcorpus-id\tscore\nq 1\ta b\t1\nq 1\tc%20d\t1\n")
    assert score_run(*files, ["R@1", "R@2"]).values["R@2"].tolist() == [1.0]


def test_two_runs_are_compared(files: tuple[Path, Path], capsys: pytest.CaptureFixture[str]) -> None:
    """The command is there, and what it writes is what `compare` reads; other judgements are refused."""
    run, qrels = files
    other, judged = run.with_name("other.trec"), qrels.with_name("judged")
    other.write_text("q1 Q0 b 1 3.0 other\nq2 Q0 d 1 1.0 other\n")
    judged.write_text("q1 0 b 1\nq2 0 c 1\n")
    folders = [run.parent / name for name in ("one", "two", "three")]
    for trec, grades, folder in zip([run, other, other], [qrels, qrels, judged], folders, strict=True):
        evaluate.main(["score", str(trec), str(grades), "--metrics", "[R@1,nDCG@10]", "--output", str(folder)])
    said = capsys.readouterr().out
    assert "2 judged queries" in said and "R@1" in said
    described = json.loads((folders[0] / "metrics.json").read_text())
    assert described["searcher"]["name"] == "mine" and described["metrics"]["R@1"]["mean"] == 0.5
    evaluate.main(["compare", *map(str, folders[:2]), "--metrics", "[R@1]"])
    assert "+0.0000" in capsys.readouterr().out
    with pytest.raises(DataError, match="was run on other data"):
        evaluate.main(["compare", str(folders[0]), str(folders[2])])
    with pytest.raises(DataError, match="holds results already"):
        evaluate.main(["score", str(run), str(qrels), "--output", str(folders[0])])
