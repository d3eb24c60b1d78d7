"""A user's own pairs: every layout reads alike, bad rows are named, and what is read trains."""

from __future__ import annotations

import csv
import json
import math
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from simzoo.core.records import DataError
from simzoo.datamodules.lists import GivenNegatives
from simzoo.datamodules.readers.pairs import Columns
from simzoo.datamodules.sources import Pairs
from simzoo.datamodules.training_data import TrainingData
from simzoo.losses import MarginMSE
from simzoo.models.dual_encoder import DualEncoder
from simzoo.retrieval.first_stages.lexical import BM25
from simzoo.retrieval.mining import MineCandidates
from tests.test_candidates import connected
from tests.test_training import trainer

ROWS = [{"query": f"what, is {n}", "positive": f'a "text" about {n}', "negatives": f"no {n}"} for n in range(12)]


def json_lines(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_layouts_read_alike(tmp_path: Path) -> None:
    """A comma or a quote in a text moves the columns of a table that is split by hand."""
    paths = [json_lines(tmp_path / "a.jsonl", ROWS), tmp_path / "a.csv", tmp_path / "a.tsv", tmp_path / "a.parquet"]
    for path in paths[1:3]:
        with path.open("w", newline="") as file:
            writer = csv.DictWriter(file, ROWS[0], delimiter="\t" if path.suffix == ".tsv" else ",")
            writer.writeheader()
            writer.writerows(ROWS)
    pq.write_table(pa.Table.from_pylist(ROWS), paths[3])
    found = []
    for path in paths:
        source = Pairs(str(path), validation=0.25)
        train, dev = (source.collections(split)[0] for split in ("train", "dev"))
        assert source.collections("test") == [dev] and train.items is dev.items
        found.append(
            [
                [(q.text, j, c) for q, j, c in zip(p.queries, p.judgements, p.candidates, strict=True)]
                for p in (train, dev)
            ]
        )
        texts = {query.text for part in (train, dev) for query in part.queries}
        assert texts == {row["query"] for row in ROWS} and len(train.queries) + len(dev.queries) == 12 and dev.queries
        for part in (train, dev):
            for query, judged, listed in zip(part.queries, part.judgements, part.candidates, strict=True):
                row = next(row for row in ROWS if row["query"] == query.text)
                assert [part.items[item].text for item in judged] == [row["positive"]]
                assert [part.items[item].text for item in listed] == [row["positive"], row["negatives"]]
    assert found.count(found[0]) == 4


def test_rows_of_one_query_are_put_together(tmp_path: Path) -> None:
    """Another row's positive as a negative teaches the opposite; one text as two items halves its score."""
    rows = [
        {"q": "a", "yes": ["one", "two"], "no": ["three"], "s": [3, 2, 1]},
        {"q": "a", "yes": "three", "no": None, "s": None},
        {"q": "b", "yes": "one", "no": [], "s": [5.5]},
    ]
    source = Pairs(str(json_lines(tmp_path / "a.jsonl", rows)), Columns("q", "yes", "no", "s"), validation=0)
    [found] = source.collections("train")
    assert [item.text for item in found.items] == ["one", "two", "three"]
    assert found.judgements == [{0: 1, 1: 1, 2: 1}, {0: 1}]
    assert found.candidates == [[0, 1, 2], [0]] and found.scores == [[3, 2, 1], [5.5]]
    assert source.collections("dev") == []


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"query": "a"}, r"a\.jsonl:2: expected a column 'positive', got 'query'; .*data\.source\.columns"),
        ({"query": " ", "positive": "b"}, r"a\.jsonl:2: expected a text under 'query', got ' '"),
        ({"query": "a", "positive": ["b", ""]}, r"a\.jsonl:2: expected a text, or a list of texts, under 'positive'"),
        ({"query": "a", "positive": []}, r"a\.jsonl:2: expected at least one text under 'positive'"),
        ({"query": "a", "positive": "b", "scores": [1, 2]}, r"a\.jsonl:2: expected 1 numbers under 'scores'"),
        ({"query": "a", "positive": "b", "scores": ["x"]}, r"a\.jsonl:2: expected 1 numbers under 'scores'"),
        ({"query": "a", "positive": "b", "scores": [10**400]}, r"a\.jsonl:2: expected 1 numbers under 'scores'"),
        ({"query": "a \ud800", "positive": "b"}, r"a\.jsonl:2: expected a text under 'query', got 'a \\ud800'"),
        ({"query": "a", "positive": "b", "scores": [math.nan]}, r"a\.jsonl:2: JSON that cannot be used: NaN"),
    ],
)
def test_bad_rows_are_named(row: dict[str, Any], message: str, tmp_path: Path) -> None:
    """One of a million rows is wrong; the number is what helps."""
    with pytest.raises(DataError, match=message):
        Pairs(str(json_lines(tmp_path / "a.jsonl", [ROWS[0], row]))).collections("train")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"query,positive,query\na,b,c\n", r"a\.csv:1: a name is there twice in the header"),  # the last one was taken
        (b"query,positive\na,b\nc,caf\xe9\n", r"a\.csv:3: is not UTF-8 text .* at byte 6 of the line"),
        (b'query,positive\na,b\nc,"d"e\n', r"a\.csv:3: broken table: "),
        (b"query,positive\na,b\nc," + 200_000 * b"d", r"a\.csv:3: broken table: field larger than field limit"),
        (b"query,positive\n", r"a\.csv: has a header, but no rows"),
    ],
)
def test_bad_tables_are_named(content: bytes, message: str, tmp_path: Path) -> None:
    """The message had no line, or the table was read with one column under another's name."""
    (tmp_path / "a.csv").write_bytes(content)
    with pytest.raises(DataError, match=message):
        Pairs(str(tmp_path / "a.csv")).collections("train")


def test_a_byte_order_mark_is_no_part_of_the_first_name(tmp_path: Path) -> None:
    """What spreadsheets write was refused, for want of a column that everybody sees."""
    (tmp_path / "a.csv").write_text("query,positive\na,b\nc,d\n", encoding="utf-8-sig")
    [found] = Pairs(str(tmp_path / "a.csv"), validation=0.0).collections("train")
    assert [query.text for query in found.queries] == ["a", "c"]


def test_bad_tables_and_shares_are_named(tmp_path: Path) -> None:
    """A short row shifts columns; a share that leaves no query trains or validates on nothing."""
    (tmp_path / "a.csv").write_text('query,positive\n"a\nb",c\nd\n')
    with pytest.raises(DataError, match=r"a\.csv:4: expected 2 cells"):
        Pairs(str(tmp_path / "a.csv")).collections("train")
    (tmp_path / "a.txt").write_text("x")
    with pytest.raises(DataError, match=r"a\.txt: expected a file ending in \.jsonl"):
        Pairs(str(tmp_path / "a.txt")).collections("train")
    with pytest.raises(DataError, match=r"expected none\.jsonl \(or \.gz\) here"):
        Pairs(str(tmp_path / "none.jsonl")).collections("train")
    path = str(json_lines(tmp_path / "a.jsonl", ROWS[:2]))
    with pytest.raises(DataError, match=r"leaves 2 of 2 queries to train on and 0 to validate with"):
        Pairs(path, validation=1e-9).collections("train")
    with pytest.raises(ValueError, match="validation is a share"):
        Pairs(path, validation=1.0)


def test_given_negatives_and_scores_train(tmp_path: Path) -> None:
    """Scores beside the wrong text teach the opposite; without scores MarginMSE would train on nothing."""
    rows = [{**row, "scores": [n + 0.5, -n]} for n, row in enumerate(ROWS)]
    source = Pairs(str(json_lines(tmp_path / "a.jsonl", rows)), validation=0.25)
    model = DualEncoder.tiny()
    model.loss = MarginMSE()
    data = TrainingData(source, GivenNegatives(negatives=3), MineCandidates(BM25(), depth=5), batch_size=4)
    trainer(tmp_path, epochs=1).fit(model, datamodule=data)
    [collection], part = data.collections("train"), data.part("train", 0)
    batch = part.batch([0, 1], 0)
    assert batch.targets.teacher is not None
    for row in range(2):
        n = int(collection.queries[row].text.split()[-1])
        assert batch.targets.teacher[row, :2].tolist() == [n + 0.5, -n]
        assert torch.isnan(batch.targets.teacher[row, 2:]).all() and batch.targets.teacher.shape == (2, 4)
    plain = TrainingData(Pairs(str(json_lines(tmp_path / "b.jsonl", ROWS)), validation=0), GivenNegatives(3))
    connected(plain, tmp_path, model)
    with pytest.raises(DataError, match="the loss needs a teacher's scores, but query 'q0' has none"):
        plain.part("train", 0).batch([0], 0)
