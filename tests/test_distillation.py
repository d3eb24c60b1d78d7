"""Teachers' files: written, streamed, trained on."""

from __future__ import annotations

import gzip
import json
import math
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from lightning import Trainer

from simzoo.core.records import DataError
from simzoo.core.targets import Targets
from simzoo.datamodules.lists import FromFiles, HalvesFromFiles, OtherPositives
from simzoo.datamodules.lists.files import Lessons
from simzoo.datamodules.loading import Loading
from simzoo.datamodules.readers.lessons import read_lessons
from simzoo.datamodules.training_data import TrainingData
from simzoo.losses import MarginMSE, MatchLoss, OtherPositivesCrossEntropy, PairLoss, SumOfLosses
from simzoo.models.cross_encoder import CrossEncoder
from simzoo.models.dual_encoder import DualEncoder
from simzoo.models.formats import load, save
from simzoo.models.training import Optimization
from simzoo.retrieval import teaching
from simzoo.retrieval.first_stages.lexical import BM25
from simzoo.retrieval.judge import SimilarityJudge
from simzoo.retrieval.teaching import write_lessons
from tests.test_training import trainer
from tests.toy import ToySource, toy_collection


def fit_without_validation(folder: Path, **settings: Any) -> Trainer:
    """A trainer without candidates to mine, for streams alone."""
    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False, "limit_val_batches": 0}
    return Trainer(
        accelerator="cpu",
        default_root_dir=folder,
        enable_checkpointing=False,
        num_sanity_val_steps=0,
        **quiet,
        **settings,
    )


def record(query: str, *items: tuple[str, float | None, str]) -> dict[str, Any]:
    listed = [{"id": i, "content": f"text of {i}", "score": s, "type": t} for i, s, t in items]
    return {"query": {"id": query, "content": f"what is {query}"}, "items": listed}


RECORDS = [
    record(f"q{n}", (f"p{n}", 5.0, "given"), (f"n{n}", 1.0, "bm25"), ("shared", None, "random")) for n in range(10)
]


def lines(path: Path, *records: dict[str, Any]) -> Path:
    path.write_text("".join(json.dumps(entry) + "\n" for entry in records))
    return path


def lessons(
    files: list[Path],
    place: tuple[int, int] = (0, 0),
    rank: int = 0,
    world: int = 1,
    batch_size: int = 3,
    others: bool = True,
    **settings: Any,
) -> Any:
    lists = FromFiles(files, **{"buffer": 4, **settings})
    joining = OtherPositives(lists) if others else lists
    found = Lessons(lists, joining, Loading(batch_size, 0, rank, world), DualEncoder.tiny(), {"teacher"})
    found.epoch, found.start = place
    return found


def streamed(*files: Path, **settings: Any) -> TrainingData:
    """The files' records, without validation."""
    return TrainingData(None, FromFiles(list(files)), **settings)


def test_layouts_read_alike(tmp_path: Path) -> None:
    """JSON lines, gzipped ones and Parquet hold the same records."""
    plain = lines(tmp_path / "a.jsonl", *RECORDS)
    packed = tmp_path / "b.jsonl.gz"
    packed.write_bytes(gzip.compress(plain.read_bytes()))
    table = tmp_path / "c.parquet"
    pq.write_table(pa.Table.from_pylist(RECORDS), table)
    found = [list(read_lessons(path, "given")) for path in (plain, packed, table)]
    assert [len(part) for part in found] == [10, 10, 10]
    for part in found:
        first = part[0]
        assert first.query.id == "q0" and [item.id for item in first.items] == ["p0", "n0", "shared"]
        assert list(first.positive) == [True, False, False]
        assert first.scores[:2] == [5.0, 1.0] and math.isnan(first.scores[2])
    assert list(next(read_lessons(plain)).positive) == [True, False, False]


def test_bad_records_are_named(tmp_path: Path) -> None:
    """A teacher's NaN, a list without a positive, an item twice: each would train, on nonsense."""
    bad = {
        "NaN is no JSON number": record("q", ("a", math.nan, "given")),
        "expected a finite number under 'score', got 1000": record("q", ("a", 10**400, "given")),
        "has no item of type 'given'; its types are 'bm25'": record("q", ("a", 1.0, "bm25")),
        "lists an item more than once": record("q", ("a", 1.0, "given"), ("a", 2.0, "bm25")),
        "items, a list that is not empty": record("q"),
        "'q' is empty": {**record("q", ("a", 1.0, "given")), "query": {"id": "q", "content": " "}},
        "expected a string under 'content'": {**RECORDS[0], "items": [{"id": "a", "type": "given"}]},
        r"expected \[start, end\] under 'mention'": {**RECORDS[0], "query": {"id": "q", "content": "x", "mention": 3}},
    }
    for message, broken in bad.items():
        path = lines(tmp_path / "bad.jsonl", RECORDS[0], broken)
        with pytest.raises(DataError, match=message) as caught:
            list(read_lessons(path, "given"))
        assert f"{path}:2: " in str(caught.value)
    with pytest.raises(DataError, match="no such file"):
        list(read_lessons(tmp_path / "none.parquet"))
    (tmp_path / "blank.jsonl").write_text("\n \n\n")
    pq.write_table(pa.Table.from_pylist([], schema=pa.Table.from_pylist(RECORDS).schema), tmp_path / "none.parquet")
    for name, message in (("blank.jsonl", "holds blank lines only"), ("none.parquet", "holds no rows")):
        with pytest.raises(DataError, match=message):  # an epoch of nothing would end at once, and train nothing
            list(read_lessons(tmp_path / name))
    cut = tmp_path / "cut.parquet"
    pq.write_table(pa.Table.from_pylist(RECORDS), cut)
    cut.write_bytes(cut.read_bytes()[:-20])
    with pytest.raises(DataError, match="not a whole Parquet file"):
        list(read_lessons(cut))


def test_epochs_are_shuffled_whole_and_resumable(tmp_path: Path) -> None:
    """Every record once an epoch, in another order, and a resumed epoch goes on behind what was seen."""
    files = [lines(tmp_path / "a.jsonl", *RECORDS[:4]), lines(tmp_path / "b.jsonl", *RECORDS[4:])]
    orders = [[name for batch in lessons(files, (epoch, 0)) for name in batch.query_ids] for epoch in range(3)]
    for order in orders:
        assert sorted(order) == sorted(entry["query"]["id"] for entry in RECORDS)
    assert orders[0] != orders[1]
    whole, rest = list(lessons(files, (1, 0))), list(lessons(files, (1, 2)))
    assert [batch.query_ids for batch in rest] == [batch.query_ids for batch in whole[2:]]
    for one, other in zip(rest, whole[2:], strict=True):
        torch.testing.assert_close(one.candidates, other.candidates)
    ranks = [[name for b in lessons(files, (0, 0), rank, 2) for name in b.query_ids] for rank in range(2)]
    assert len(ranks[0]) == len(ranks[1]) == 5 and not set(ranks[0]) & set(ranks[1])


def test_lists_are_the_records(tmp_path: Path) -> None:
    """A score beside the wrong item teaches the opposite."""
    [*batches] = lessons([lines(tmp_path / "a.jsonl", *RECORDS)], positive_type="given")
    by_query = {entry["query"]["id"]: entry for entry in RECORDS}
    for batch in batches:
        size = len(batch.query_ids)
        assert batch.candidates.shape == (size, 3 + size)
        assert batch.targets.others is not None and batch.targets.teacher is not None
        for row, name in enumerate(batch.query_ids):
            scores = [math.nan if item["score"] is None else item["score"] for item in by_query[name]["items"]]
            np.testing.assert_allclose(batch.targets.teacher[row, :3], scores)
            assert batch.targets.labels[row].tolist() == [1, 0, 0] + [0] * size
            others = batch.candidates[row, 3:]
            assert (others >= 0).sum() == size - 1 and batch.candidates[row, 0] not in others
            assert batch.targets.mask[row].equal(batch.candidates[row] >= 0)
    [drawn] = lessons([lines(tmp_path / "a.jsonl", RECORDS[0])], max_negatives=1, others=False)
    assert drawn.candidates.shape == (1, 2) and drawn.targets.others is None


def test_teaching_writes_what_the_teacher_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From a cross-encoder to files and back; a killed run goes on with the same bytes."""
    save(CrossEncoder.tiny(), tmp_path / "teacher")
    teacher, collection = load(tmp_path / "teacher"), toy_collection()
    monkeypatch.setattr(teaching, "BLOCK", 10)
    files = write_lessons(teacher, collection, BM25(), tmp_path / "out", 5, 3, 0)
    found = [lesson for path in files for lesson in read_lessons(path, "positive")]
    exact = SimilarityJudge.of(teacher, collection.items).scorer(collection.queries)
    rows = {item.id: row for row, item in enumerate(collection.items)}
    assert len(files) == 3 and [lesson.query for lesson in found] == list(collection.queries)
    for row, lesson in enumerate(found):
        chosen = np.array([rows[item.id] for item in lesson.items])
        assert len(set(chosen.tolist())) == 9
        np.testing.assert_allclose(lesson.scores, exact(np.full(9, row), chosen), atol=1e-5)
        assert [i for i, p in zip(chosen.tolist(), lesson.positive, strict=True) if p] == collection.relevant(row)
    before = {path: path.read_bytes() for path in files}
    files[1].unlink()
    write_lessons(teacher, collection, BM25(), tmp_path / "out", 5, 3, 0)
    assert {path: path.read_bytes() for path in files} == before
    with pytest.raises(DataError, match="was made with other top"):
        write_lessons(teacher, collection, BM25(), tmp_path / "out", 6, 3, 0)
    # Of a collection with fewer items than are asked for, all: one small world must not end a run over many.
    for file in write_lessons(teacher, collection, BM25(), tmp_path / "more", 40, 3, 0):
        assert all(len({item.id for item in lesson.items}) == len(rows) for lesson in read_lessons(file, "positive"))


def test_training_on_files(tmp_path: Path) -> None:
    """The whole way: files in, validation from a source, a loss that falls."""
    save(CrossEncoder.tiny(), tmp_path / "teacher")
    teacher = load(tmp_path / "teacher")
    files = write_lessons(teacher, toy_collection("a"), BM25(), tmp_path / "out", 5, 3, 0)
    model = DualEncoder.tiny()
    model.loss, model.optimization = SumOfLosses([MarginMSE(), OtherPositivesCrossEntropy(0.1)]), Optimization(lr=1e-2)
    fit = trainer(tmp_path, epochs=2, max_steps=8)
    lists = OtherPositives(FromFiles(files, positive_type="positive"))
    fit.fit(model, datamodule=TrainingData(ToySource(), lists, batch_size=4))
    assert fit.global_step == 8 and 0 < float(fit.callback_metrics["val/mrr"]) <= 1


def test_a_large_file_is_streamed(tmp_path: Path) -> None:
    """A reader that keeps what it has read fits every test and fails on 100 GB."""
    path = tmp_path / "large.jsonl"
    long = "word " * 400
    with path.open("w") as file:
        for n in range(3000):
            entry = record(f"q{n}", (f"p{n}", 5.0, "given"), (f"n{n}", 1.0, "bm25"))
            entry["items"][0]["content"] = long
            file.write(json.dumps(entry) + "\n")
    batches = lessons([path], buffer=16, batch_size=8).batches(np.random.default_rng(0))
    tracemalloc.start()
    count = sum(len(batch) for batch in batches)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert count == 3000
    assert peak < path.stat().st_size / 10


@pytest.mark.parametrize(
    ("settings", "optimization"),
    [
        ({"max_epochs": 1}, Optimization(lr=1e-2)),
        ({"max_epochs": -1, "max_time": {"seconds": 1}}, Optimization(lr=1e-2, schedule="cosine", warmup=0.0)),
        ({"max_epochs": 1}, Optimization(lr=1e-2, schedule="constant_with_warmup", warmup=0.1)),
    ],
)
def test_a_schedule_over_unknown_steps_is_refused(settings: Any, optimization: Optimization, tmp_path: Path) -> None:
    """A stream has no length: Lightning's -1 steps made a rate of 0, and a whole training moved no weight."""
    model = DualEncoder.tiny()
    model.loss, model.optimization = MarginMSE(), optimization
    data = streamed(lines(tmp_path / "a.jsonl", *RECORDS), batch_size=5)
    with pytest.raises(ValueError, match=r"needs the number of steps, .* Set trainer\.max_steps"):
        fit_without_validation(tmp_path, **settings).fit(model, datamodule=data)


@pytest.mark.parametrize(
    ("settings", "optimization"),
    [
        ({"max_epochs": 1}, Optimization(lr=1e-2, schedule="constant_with_warmup", warmup=0.0)),
        ({"max_epochs": 1, "max_steps": 2}, Optimization(lr=1e-2, warmup=0.0)),
        ({"max_epochs": 1, "limit_train_batches": 2}, Optimization(lr=1e-2, warmup=0.0)),
    ],
)
def test_streams_train_where_the_rate_is_known(settings: Any, optimization: Optimization, tmp_path: Path) -> None:
    """A refusal that goes too far: a constant rate needs no number of steps, a limit gives one."""
    model = DualEncoder.tiny()
    model.loss, model.optimization = MarginMSE(), optimization
    before = {name: value.clone() for name, value in model.trained_state().items()}
    fit = fit_without_validation(tmp_path, **settings)
    fit.fit(model, datamodule=streamed(lines(tmp_path / "a.jsonl", *RECORDS), batch_size=5))
    assert fit.global_step == 2
    rates = {"constant_with_warmup": 1e-2, "linear": 0.0}  # after the last step
    assert fit.optimizers[0].param_groups[0]["lr"] == pytest.approx(rates[optimization.schedule])
    assert any(not torch.equal(value, before[name]) for name, value in model.trained_state().items())


def test_halves_by_hand(tmp_path: Path) -> None:
    """Halves that overlap, a relevant item as a negative, or scores beside the wrong items teach another order."""
    entry = record(
        "q0",
        ("p", 0.5, "positive"),
        ("a", 3.0, "n"),
        ("b", 1.0, "n"),
        ("c", 2.0, "n"),
        ("d", -1.0, "n"),
        ("e", 0.0, "n"),
    )
    lists = HalvesFromFiles([lines(tmp_path / "a.jsonl", entry)], top=2, positive_type="positive")
    assert lists.gives(frozenset()) == {"teacher", "halves"}
    (lesson,) = read_lessons(tmp_path / "a.jsonl", "positive")
    places, scores = lists.chosen(lesson, np.random.default_rng(0))
    assert [lesson.items[place].id for place in places] == ["a", "c", "b", "d"]
    np.testing.assert_array_equal(scores, np.array([3, 2, np.nan, np.nan], dtype=np.float32))
    model = DualEncoder.tiny()
    (batch,) = Lessons(lists, lists, Loading(1), model, PairLoss().needs)
    values = model.list_scores(batch)[0]
    expected = torch.nn.functional.softplus(values[2:] - values[:2]).mean()
    torch.testing.assert_close(PairLoss()(values[None], batch.targets), expected)
    with pytest.raises(DataError, match=r"'q0' has 6 items, 6 of them with a score; 3 top ones"):
        HalvesFromFiles(lists.records, top=3, positive_type="positive").chosen(lesson, np.random.default_rng(0))
    unscored = lines(tmp_path / "b.jsonl", *RECORDS[:1])
    with pytest.raises(DataError, match="3 items, 2 of them with a score"):
        lists.chosen(next(iter(read_lessons(unscored))), np.random.default_rng(0))


def test_a_folder_of_records(tmp_path: Path) -> None:
    """`teach` writes a file a block: a recipe that names one of hundreds would train on it alone."""
    whole = lines(tmp_path / "whole.jsonl", *RECORDS)
    folder = tmp_path / "parts"
    folder.mkdir()
    with pytest.raises(DataError, match="parts: is a folder without files of records"):
        list(lessons([folder]))
    for start in range(0, 10, 2):
        lines(folder / f"{start:03d}.jsonl", *RECORDS[start : start + 2])
    (folder / "made_by.json").write_text("{}")
    ids = [[batch.query_ids for batch in lessons([path])] for path in (whole, folder)]
    assert ids[0] == ids[1] and sum(map(len, ids[0])) == 10


def test_match_tempers_its_teacher() -> None:
    """A teacher whose softmax has all its weight on one item teaches a label, not an order."""
    teacher, scores = torch.tensor([[8.0, 4.0, 0.0]]), torch.tensor([[0.3, 0.1, 0.2]])
    targets = Targets(torch.zeros(1, 3), torch.ones(1, 3, dtype=torch.bool), teacher=teacher)
    expected = -(torch.softmax(teacher / 4, 1) * torch.log_softmax(scores / 0.1, 1)).sum()
    torch.testing.assert_close(MatchLoss(0.1, 4.0)(scores, targets), expected)
