"""Tuning: what is tried, what wins, where it is written, and that no reported query has a say."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from numpy.typing import NDArray

from simzoo import evaluate
from simzoo.core.command_line import prepared
from simzoo.core.records import Query
from simzoo.models.cross_encoder import CrossEncoder
from simzoo.models.dual_encoder import DualEncoder
from simzoo.models.formats import save
from simzoo.retrieval.corpus import Corpus
from simzoo.retrieval.engine import Engine
from simzoo.retrieval.first_stages.dense import Dense
from simzoo.retrieval.first_stages.vector_index import HNSW
from simzoo.retrieval.judge import CallableJudge, MatrixJudge
from simzoo.retrieval.results.metrics import topk_recall
from simzoo.retrieval.searcher import Searcher
from simzoo.retrieval.searchers.adacur import AdaCUR
from simzoo.retrieval.searchers.axn import AXN
from simzoo.retrieval.searchers.cur import CUR
from simzoo.retrieval.searchers.exact import Rerank
from simzoo.retrieval.searchers.solvers import LeastNorm, Ridge
from simzoo.retrieval.tuning import recipe, settings, tuned
from tests.test_recipes import collection as write_collection
from tests.test_searchers import problem, task_of

GRID: dict[str, Sequence[float]] = {"weights": [0.0, 0.5], "strengths": [0.1, 10.0], "rconds": [1e-6, 0.05]}


def test_the_settings_that_are_tried() -> None:
    """A setting that is shown under another's name is chosen for what it is not."""
    made = dict(settings(AXN(Dense("x"), budget=30, rounds=3), **GRID))
    found = {name: (one.weight, one.solver, one.budget) for name, one in made.items() if isinstance(one, AXN)}
    assert found == {
        "as given": (0.0, LeastNorm(), 30),
        "weight 0, least norm": (0.0, LeastNorm(), 30),
        "weight 0, ridge 0.1": (0.0, Ridge(0.1, False), 30),
        "weight 0, ridge 10": (0.0, Ridge(10.0, False), 30),
        "weight 0.5, least norm": (0.5, LeastNorm(), 30),
        "weight 0.5, ridge 0.1": (0.5, Ridge(0.1, False), 30),
        "weight 0.5, ridge 10": (0.5, Ridge(10.0, False), 30),
        "ridge 0.1 around the dual encoder's vector": (0.0, Ridge(0.1, True), 30),
        "ridge 10 around the dual encoder's vector": (0.0, Ridge(10.0, True), 30),
    }
    for searcher in (CUR(20, 5, 8), AdaCUR(budget=20, anchor_queries=5)):
        assert [one.rcond for _, one in settings(searcher, **GRID)] == [searcher.rcond, 1e-6, 0.05]  # type: ignore[attr-defined]
    with pytest.raises(TypeError, match="nothing to tune"):
        list(settings(Rerank(), **GRID))


class Counting:
    """A function of texts over a known matrix, which counts how often each pair is asked for."""

    def __init__(self, matrix: NDArray[np.float32], items: int) -> None:
        self.matrix = matrix
        self.asked = np.zeros(matrix.shape, dtype=np.int64)

    def __call__(self, pairs: list[tuple[str, str]]) -> NDArray[np.float32]:
        rows = np.array([int(query.split()[-1]) for query, _ in pairs])
        columns = np.array([int(item.split()[-1]) for _, item in pairs])
        np.add.at(self.asked, (rows, columns), 1)
        return np.asarray(self.matrix[rows, columns])


@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize("kind", ["AXN", "CUR"])
def test_the_best_setting_wins_and_no_pair_is_paid_for_twice(kind: str, known: bool) -> None:
    """A winner by recall that is not the recall reported; twenty settings that cost twenty times one."""
    matrix, vectors = problem(3, 40, 90, 12, 0.5)
    task = task_of(matrix, 10)
    items = [type(item)(item.id, f"text {row}") for row, item in enumerate(task.corpus.items)]
    every = [Query(query.id, f"query {row}") for row, query in enumerate([*task.queries, *task.corpus.anchors])]
    counting = Counting(matrix, 90)
    corpus = Corpus(items, CallableJudge(counting, items), anchors=every[10:])
    given: Searcher = AXN(vectors, budget=36, rounds=6) if kind == "AXN" else CUR(36, 20, 15)
    trials = tuned(settings(given, **GRID), corpus, every[:10], 10, matrix[:10] if known else None)
    assert counting.asked.max() == 1
    means = [trial.mean for trial in trials]
    assert means == sorted(means, reverse=True) and means[0] > means[-1]
    plain = Corpus(items, MatrixJudge(matrix, [query.id for query in every]), anchors=every[10:])
    for trial in trials:
        trial.searcher.index(plain)
        found = trial.searcher.search(every[:10], 10).items
        wanted = topk_recall(found, matrix[:10], 10)
        if known:
            np.testing.assert_allclose(trial.recall, wanted)
        else:
            assert (trial.recall >= wanted - 1e-9).all()
    with pytest.raises(ValueError, match="anchors as well"):
        tuned(settings(given, **GRID), corpus, every[5:15], 10)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tune")
    data = write_collection(folder / "data")
    (data / "qrels" / "test.tsv").write_bytes((data / "qrels" / "dev.tsv").read_bytes())
    save(CrossEncoder.tiny(), folder / "ce")
    save(DualEncoder.tiny(), folder / "de")
    return folder


def parsed(words: list[str]) -> Any:
    """The searcher that the real parser makes of a command line."""
    words = prepared(words)
    parser = evaluate.parser(words)
    return parser.instantiate(parser.parse_args(words))[words[0]].search


def test_the_choice_is_a_file_that_run_takes(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A choice that is printed and lost, or that run reads as other settings."""
    words = ["--data", "BEIR", "--data.root", str(place / "data"), "--queries", "6", "--seed", "1"]
    judged = ["--checkpoint", str(place / "ce")]
    search = ["--search", "AXN", "--search.embeddings", "Dense", "--search.embeddings.checkpoint", str(place / "de")]
    budget = ["--search.budget", "6", "--search.rounds", "3"]
    file = place / "tuned.yaml"
    evaluate.main(
        [
            "tune",
            *words,
            *judged,
            *search,
            *budget,
            "--dev",
            "5",
            "--k",
            "3",
            "--strengths",
            "[0.1]",
            "--output",
            str(file),
        ]
    )
    shown = capsys.readouterr().out
    assert "5 dev queries" in shown and "weight 0.8, ridge 0.1" in shown
    found = yaml.safe_load(file.read_text())["search"]
    assert found["class_path"] == "AXN" and found["init_args"]["budget"] == 6
    evaluate.main(["run", "--config", str(file), *words, *judged, "--k", "3", "--output", str(place / "run")])
    assert (place / "run" / "metrics.json").exists()
    with pytest.raises(ValueError, match="there already"):
        evaluate.main(["tune", *words, *judged, "--dev", "5", "--output", str(file)])
    with pytest.raises(ValueError, match="--dev 11"):
        evaluate.main(["tune", *words, *judged, "--dev", "11", "--output", str(place / "other.yaml")])


def test_every_setting_is_read_back_as_it_was_chosen(tmp_path: Path) -> None:
    """A solver, a vector index or a shared first stage that does not survive the file is tuned in vain."""
    given = AXN(Dense("x", ann=HNSW(), queries="y"), budget=30, rounds=3, normalize=True, pool=50)
    for name, searcher in [*settings(given, **GRID)][::4]:  # least norm, a ridge, one around a vector
        (tmp_path / "one.yaml").write_text(yaml.safe_dump({"search": recipe(searcher)}))
        found = parsed(["run", "--config", str(tmp_path / "one.yaml"), "--data", "WordNet", "--output", "x"])
        assert isinstance(searcher, AXN) and isinstance(found, AXN), name
        for argument in ("weight", "solver", "budget", "rounds", "normalize", "pool", "query_batch"):
            assert getattr(found, argument) == getattr(searcher, argument), (name, argument)
        assert found.first_stage is found.embeddings
        assert (found.embeddings.checkpoint, found.embeddings.queries, found.embeddings.ann) == ("x", "y", HNSW())


def test_the_choice_is_written_into_an_index(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """An index that goes on searching with the settings from before the tuning."""
    folder = place / "index"
    search = AXN(budget=6, rounds=3)
    engine = Engine(str(place / "ce"), embedder=str(place / "de"), search=search, folder=folder)
    engine.add([f"d{row}" for row in range(16)], [f"a text about d{row}" for row in range(16)])
    words = ["tune", "--index", str(folder), "--data", "BEIR", "--data.root", str(place / "data"), "--queries", "6"]
    evaluate.main([*words, "--dev", "8", "--k", "3", "--weights", "[0.5]", "--strengths", "[0.1]"])
    best = capsys.readouterr().out.splitlines()
    searcher = Engine.load(folder).searcher
    assert isinstance(searcher, AXN) and searcher.budget == 6
    named = next(line for line in best if "weight" in line or "ridge" in line or "as given" in line)
    assert ("weight 0.5" in named) == (searcher.weight == 0.5)
    assert ("ridge" in named) == isinstance(searcher.solver, Ridge)
    assert len(Engine.load(folder).search("what is d3", 3)) == 3
