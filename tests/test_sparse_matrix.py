"""Sampled score matrices: which pairs, the same bytes after kills and errors, bad scores, normalisation."""

from __future__ import annotations

import json
import tracemalloc
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from simzoo.core.locks import InUse, locked
from simzoo.core.records import DataError, Item, Query
from simzoo.datamodules.readers.score_entries import read_entries
from simzoo.evaluate import main
from simzoo.models.cross_encoder import CrossEncoder
from simzoo.models.dual_encoder import DualEncoder
from simzoo.models.formats import save
from simzoo.retrieval.corpus import Corpus
from simzoo.retrieval.first_stages.first_stage import FirstStage
from simzoo.retrieval.first_stages.lexical import BM25
from simzoo.retrieval.judge import CallableJudge, MatrixJudge
from simzoo.retrieval.pair_sampling import ItemsToQueries, PairSampling, QueriesToItems, Uniform
from simzoo.retrieval.sparse_matrix import build_sparse_matrix
from simzoo.retrieval.topk import Rows, Scores
from tests.killed import killed_at
from tests.test_recipes import collection as write_collection
from tests.toy import toy_collection

TOY = toy_collection(num_items=60, num_queries=20)
MATRIX = np.random.default_rng(0).normal(size=(20, 60)).astype(np.float32)


def corpus_of(matrix: NDArray[np.float32] = MATRIX) -> Corpus:
    return Corpus(TOY.items, MatrixJudge(matrix, [query.id for query in TOY.queries]))


def build(folder: Path, sampling: PairSampling, corpus: Corpus | None = None, **settings: Any) -> None:
    build_sparse_matrix(corpus or corpus_of(), TOY.queries, sampling, folder, "data", "weights", **settings)


def pairs_in(folder: Path) -> dict[tuple[int, int], float]:
    entries = read_entries(folder)
    rows = np.repeat(np.arange(len(entries.query_ids)), np.diff(entries.offsets)).tolist()
    found = dict(zip(zip(rows, entries.items.tolist(), strict=True), entries.scores.tolist(), strict=True))
    assert len(found) == len(entries.items)
    return found


def bytes_of(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


SAMPLINGS: dict[str, Callable[[], PairSampling]] = {
    "queries": lambda: QueriesToItems(5, 3),
    "items": lambda: ItemsToQueries(2, 2),
    "random": lambda: QueriesToItems(0, 60),
    "uniform": lambda: Uniform(333),
}


@pytest.mark.parametrize("kind", SAMPLINGS)
def test_every_pair_is_sampled_once_and_has_its_own_score(kind: str, tmp_path: Path) -> None:
    """Scores that land at other pairs train a model on noise; a pair that stands twice is paid for twice."""
    build(tmp_path, SAMPLINGS[kind](), shard=50)
    found = pairs_in(tmp_path)
    assert all(score == MATRIX[pair] for pair, score in found.items())
    queries = np.bincount([query for query, _ in found], minlength=20)
    items = np.bincount([item for _, item in found], minlength=60)
    if kind == "queries":
        assert set(queries) == {8}
        stage = BM25()
        stage.index(corpus_of())
        top, _ = stage.search(TOY.queries, 5)
        assert all((row, item) in found for row in range(20) for item in top[row][top[row] >= 0].tolist())
    elif kind == "items":
        assert set(items) == {4}
    elif kind == "random":
        assert len(found) == 20 * 60
    else:
        assert len(found) == 333 and queries.min() >= 15  # 16.65 expected: strata are even over the queries


@pytest.mark.parametrize("kind", SAMPLINGS)
def test_a_killed_build_goes_on_and_ends_with_the_same_bytes(kind: str, tmp_path: Path) -> None:
    """A matrix that depends on when the machine went down cannot be compared with another."""
    build(tmp_path / "whole", SAMPLINGS[kind](), shard=100)
    step, kills = 3, 0
    while killed_at(step, lambda: build(tmp_path / "killed", SAMPLINGS[kind](), shard=100)):
        kills, step = kills + 1, step + 2
    assert kills >= 3
    assert bytes_of(tmp_path / "killed") == bytes_of(tmp_path / "whole")


class Failing:
    """A function of texts that raises, or gives bad scores, from some number of pairs on; counts what it was asked."""

    def __init__(self, after: int, bad: Any = None) -> None:
        self.after = after
        self.bad = bad
        self.pairs: list[tuple[str, str]] = []

    def __call__(self, pairs: Sequence[tuple[str, str]]) -> NDArray[np.float32]:
        if len(self.pairs) + len(pairs) > self.after and self.bad is None:
            raise ConnectionError("the service is gone")
        scores = np.array([len(query) - len(item) + 0.5 * ord(item[0]) for query, item in pairs], dtype=np.float32)
        self.pairs += pairs
        if len(self.pairs) > self.after:
            return np.asarray(self.bad(scores))
        return scores


def test_what_was_scored_before_an_error_is_kept_and_not_paid_for_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A service that fails in the last minute of a night must not cost the night."""
    monkeypatch.setattr("simzoo.retrieval.sparse_matrix.CHUNK", 32)
    sampling, shard = Uniform(400, seed=1), 200
    whole, first, second = Failing(10**9), Failing(290), Failing(10**9)
    build(tmp_path / "whole", sampling, Corpus(TOY.items, CallableJudge(whole, TOY.items)), shard=shard)
    with pytest.raises(ConnectionError):
        build(tmp_path / "failed", sampling, Corpus(TOY.items, CallableJudge(first, TOY.items)), shard=shard)
    assert len(first.pairs) == 200 + 2 * 32
    build(tmp_path / "failed", sampling, Corpus(TOY.items, CallableJudge(second, TOY.items)), shard=shard)
    assert len(first.pairs) + len(second.pairs) == len(whole.pairs) == 400
    assert bytes_of(tmp_path / "failed") == bytes_of(tmp_path / "whole")


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_score_that_is_no_number_names_its_pair(value: float, tmp_path: Path) -> None:
    """One NaN in a matrix makes all vectors NaN in one step of training."""
    matrix = MATRIX.copy()
    matrix[7, 31] = value
    with pytest.raises(FloatingPointError, match=f"query '{TOY.queries[7].id}', item '{TOY.items[31].id}'"):
        build(tmp_path, QueriesToItems(0, 60), corpus_of(matrix), shard=100)
    build(tmp_path, QueriesToItems(0, 60), shard=100)
    assert pairs_in(tmp_path)[7, 31] == MATRIX[7, 31]


def test_scores_of_another_shape_are_refused(tmp_path: Path) -> None:
    """Scores of two columns, flattened, would shift every later one."""
    judge = CallableJudge(Failing(0, lambda scores: scores[:, None]), TOY.items)
    with pytest.raises(ValueError, match="shape"):
        build(tmp_path, Uniform(40), Corpus(TOY.items, judge))
    with pytest.raises(DataError, match="not finished"):
        read_entries(tmp_path)


def test_other_settings_and_second_writers_are_refused(tmp_path: Path) -> None:
    """Shards of two runs in one folder are a matrix of neither."""
    build(tmp_path, Uniform(40))
    for sampling in (Uniform(41), Uniform(40, seed=1), QueriesToItems(0, 2)):
        with pytest.raises(DataError, match="another run"):
            build(tmp_path, sampling)
    with pytest.raises(DataError, match=r"another run \(queries"):
        build_sparse_matrix(corpus_of(), TOY.queries[::-1], Uniform(40), tmp_path, "data", "weights")
    with locked(tmp_path), pytest.raises(InUse):
        build(tmp_path, Uniform(40))


@pytest.mark.parametrize("sampling", [QueriesToItems(50, 11), ItemsToQueries(0, 21), Uniform(1201)])
def test_more_than_there_is_is_refused(sampling: PairSampling, tmp_path: Path) -> None:
    """A draw without replacement from too few would raise after the index was built, or never end."""
    with pytest.raises(ValueError, match="there are"):
        build(tmp_path, sampling)


def test_damaged_shards_are_named(tmp_path: Path) -> None:
    """A shard that is cut short, or gone, must not become a smaller matrix."""
    build(tmp_path, Uniform(400), shard=100)
    shard = tmp_path / "shard-000001.safetensors"
    whole = shard.read_bytes()
    shard.write_bytes(whole[:-40])
    with pytest.raises(DataError, match="damaged"):
        read_entries(tmp_path)
    shard.unlink()
    with pytest.raises(DataError, match="missing"):
        read_entries(tmp_path)


def test_normalised_scores_have_the_dual_encoders_mean_and_deviation(tmp_path: Path) -> None:
    """Factors that start from a dual encoder and are fitted to raw scores unlearn it in the first steps (AXN A.4)."""
    dense = np.random.default_rng(1).normal(0.3, 0.1, size=MATRIX.shape)

    def known(few: Sequence[Query], query_rows: Rows, item_rows: Rows) -> NDArray[Any]:
        assert list(few) == TOY.queries
        return np.asarray(dense[query_rows, item_rows])

    build(tmp_path, Uniform(300), corpus_of(5 + 7 * MATRIX), normalize=known)
    entries, pairs = read_entries(tmp_path), list(pairs_in(tmp_path))
    wanted = np.array([dense[pair] for pair in pairs])
    np.testing.assert_allclose(entries.normalized.mean(), wanted.mean(), rtol=1e-4)
    np.testing.assert_allclose(entries.normalized.std(), wanted.std(), rtol=1e-4)
    with pytest.raises(ValueError, match="same score to every pair"):
        build(tmp_path / "constant", Uniform(30), corpus_of(np.ones_like(MATRIX)), normalize=known)


class Wide(Sequence[Item]):
    """Made-up items, none of which is kept."""

    def __init__(self, size: int) -> None:
        self.size = size

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, row: Any) -> Any:
        return Item(f"i{row}", "text")


class Near(FirstStage):
    """Made-up neighbours."""

    def prepare(self) -> None:
        pass

    def find(self, queries: Sequence[Query], k: int) -> tuple[Rows, Scores]:
        starts = np.array([int(query.id[1:]) * 977 for query in queries])
        rows = (starts[:, None] + 7919 * np.arange(k)) % len(self.corpus)
        return rows, np.zeros(rows.shape, dtype=np.float32)


def test_memory_does_not_grow_with_the_matrix(tmp_path: Path) -> None:
    """A builder that holds all pairs works in every test and dies at five million items."""
    judge = CallableJudge(lambda pairs: np.zeros(len(pairs), dtype=np.float32), Wide(5_000_000))
    peaks = []
    for number in (40, 160):
        queries = [Query(f"q{row}", "asked") for row in range(number)]
        corpus = Corpus(judge.items, judge)
        tracemalloc.start()
        build_sparse_matrix(corpus, queries, QueriesToItems(80, 20, Near()), tmp_path / str(number), "", "", shard=1000)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] < 1.2 * peaks[0]


def test_the_command_holds_out_what_run_evaluates(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A matrix that holds scores of the queries that are reported on flatters every factorization."""
    data = write_collection(tmp_path / "data")
    save(CrossEncoder.tiny(), tmp_path / "ce")
    save(DualEncoder.tiny(), tmp_path / "de")
    (data / "qrels" / "test.tsv").write_bytes((data / "qrels" / "dev.tsv").read_bytes())
    words = ["--checkpoint", str(tmp_path / "ce"), "--data", "BEIR", "--data.root", str(data), "--queries", "6"]
    sampled = ["--sampling", "QueriesToItems", "--sampling.top", "3", "--sampling.random", "2"]
    dense = ["--vectors", "Dense", "--vectors.checkpoint", str(tmp_path / "de"), "--normalize", "true"]
    main(["sparse_matrix", *words, *sampled, *dense, "--output", str(tmp_path / "entries")])
    main(["run", *words, "--search", "Rerank", "--search.budget", "4", "--k", "4", "--output", str(tmp_path / "run")])
    evaluated = {line.split()[0] for line in (tmp_path / "run" / "run.trec").read_text().splitlines()}
    entries = read_entries(tmp_path / "entries")
    assert len(evaluated) == 6 and len(entries.query_ids) == 10
    assert evaluated.isdisjoint(entries.query_ids)
    assert set(np.diff(entries.offsets)) == {5}
    assert np.load(tmp_path / "entries" / "items.npy").shape == (16, 16)
    assert np.load(tmp_path / "entries" / "queries.npy").shape == (10, 16)
    assert json.loads((tmp_path / "entries" / "finished.json").read_text())["beta"] not in (0.0, 1.0)
