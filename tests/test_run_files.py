"""Output folders: what is written can be read, what is damaged says where, nothing is left half written."""

from __future__ import annotations

import errno
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ir_measures
import numpy as np
import pytest
import torch

from simzoo.core.records import Collection, DataError, Item, Query
from simzoo.retrieval.results import run_files
from simzoo.retrieval.results.metrics import ir_metrics
from simzoo.retrieval.searcher import Ranking


def description(values: dict[str, list[float]], fingerprint: str = "f" * 64) -> dict[str, Any]:
    known = {name: [v for v in column if np.isfinite(v)] for name, column in values.items()}
    means = {name: float(np.mean(column)) for name, column in known.items()}
    return {
        "checkpoint": {"name": "m", "sha256": "0" * 64},
        "data": {"name": "c", "fingerprint": fingerprint},
        "searcher": {"name": "Exact"},
        "queries": len(next(iter(values.values()))),
        "metrics": {
            name: {"mean": mean, "low": mean - 0.1, "high": mean + 0.1, "queries": len(known[name])}
            for name, mean in means.items()
        },
        "cost": {"calls": {"mean": 10.0, "low": 9.0, "high": 11.0}},
        "index_seconds": {"first stage": 0.5},
        "index_calls": 0,
        "command": "python evaluate.py run --x '<y>'",
        "commit": None,
        "versions": {"python": "3.11"},
    }


def write_run(
    folder: Path, values: dict[str, list[float]], fingerprint: str = "f" * 64, ids: list[str] | None = None
) -> Path:
    """An output folder with the metrics, and a cost that is 10 calls a query."""
    described = description(values, fingerprint)
    names = ids or [f"q{i}" for i in range(described["queries"])]
    run_files.write_per_query(folder, names, {**values, "calls": [10.0] * len(names)})
    run_files.write_metrics(folder, described)
    return folder


def test_round_trip(tmp_path: Path) -> None:
    """What comes back is what was written, to the last bit, whatever characters an id has."""
    values = {"accuracy": [0.1 + 0.2, 1 / 3, float("nan")]}
    ids = ["q é", "line\u2028separator\n", '"quoted"']
    folder = write_run(tmp_path / "new" / "run", values, ids=ids)
    run = run_files.read_run(folder)
    assert run.described == description(values)
    assert run.columns == {"id": ids, "accuracy": [0.1 + 0.2, 1 / 3, None], "calls": [10.0] * 3}


def test_numbers_that_json_lacks_become_null(tmp_path: Path) -> None:
    """NaN and Infinity are no JSON: other programs refuse the whole file."""

    def refuse(name: str) -> None:
        raise AssertionError(name)

    described = description({"accuracy": [1.0]}) | {"searcher": {"name": "CUR", "cut": float("inf"), "of": [np.nan, 2]}}
    run_files.write_metrics(tmp_path, described)
    found = json.loads((tmp_path / "metrics.json").read_text(), parse_constant=refuse)
    assert found["searcher"] == {"name": "CUR", "cut": None, "of": [None, 2]}


@pytest.mark.parametrize("name", ["metrics.json", "per_query.jsonl"])
def test_a_file_that_was_cut_is_refused_wherever_it_was_cut(tmp_path: Path, name: str) -> None:
    """Also at the end of a line: half of the queries would be compared as if they were all."""
    folder = write_run(tmp_path, {"accuracy": [0.5, 0.5, 0.5]})
    whole = (folder / name).read_bytes()
    for length in range(len(whole) - 1):
        (folder / name).write_bytes(whole[:length])
        with pytest.raises(DataError, match=rf"{name}"):
            run_files.read_run(folder)
    (folder / name).write_bytes(whole)
    assert run_files.read_run(folder).columns["accuracy"] == [0.5, 0.5, 0.5]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{oops", r"per_query\.jsonl:2: broken JSON .*run the evaluation again"),
        ("[1]", r"per_query\.jsonl:2: expected an object with an id, got '\[1\]'"),
        ('{"id": 3, "accuracy": 1, "calls": 1}', r":2: expected an object with an id"),
        ('{"id": "q1", "calls": 1}', r":2: has the values \['calls', 'id'\], expected \['accuracy', 'calls', 'id'\]"),
        ('{"id": "q1", "accuracy": "1", "calls": 1}', r":2: 'accuracy' is '1', expected a number or null"),
        ('{"id": "q0", "accuracy": 1, "calls": 1}', r":2: query 'q0' stands in line 1 already"),
        ('{"id": "q1", "accuracy": 0, "calls": 1}', r"values of 'accuracy' do not have the mean .* two runs"),
    ],
)
def test_damaged_lines_say_where(tmp_path: Path, line: str, message: str) -> None:
    """The file, the line and the cure, not a KeyError."""
    folder = write_run(tmp_path, {"accuracy": [0.5, 1.0]})
    first = (folder / "per_query.jsonl").read_text().splitlines()[0]
    (folder / "per_query.jsonl").write_text(f"{first}\n{line}\n")
    with pytest.raises(DataError, match=message):
        run_files.read_run(folder)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda d: d.pop("queries"), "'queries' is missing or of another kind"),
        (lambda d: d.update(metrics=[]), "'metrics' is missing or of another kind"),
        (lambda d: d["data"].pop("fingerprint"), "'data' has no 'fingerprint'"),
        (lambda d: d["metrics"].update(accuracy=0.5), "'accuracy' is 0.5, expected numbers mean, low, high"),
        (lambda d: d["cost"]["calls"].update(mean=None), "'calls' is .*expected numbers"),
    ],
)
def test_metrics_of_another_make_are_refused(
    tmp_path: Path, change: Callable[[dict[str, Any]], object], message: str
) -> None:
    """A checkpoint's metrics.json, or an old one, must not end in a KeyError somewhere else."""
    described = description({"accuracy": [1.0]})
    change(described)
    run_files.write_metrics(tmp_path, described)
    with pytest.raises(DataError, match=message):
        run_files.read_metrics(tmp_path)


def test_files_that_are_no_text(tmp_path: Path) -> None:
    """Missing, binary, empty, broken in the middle: by name, and by line where there is one."""
    with pytest.raises(DataError, match=r"none/metrics\.json: is missing; is this the output folder"):
        run_files.read_run(tmp_path / "none")
    folder = write_run(tmp_path, {"accuracy": [1.0]})
    (folder / "metrics.json").write_text('{"data":\n oops}')
    with pytest.raises(DataError, match=r"metrics\.json:2: broken JSON"):
        run_files.read_metrics(folder)
    (folder / "metrics.json").write_bytes(b'{"a": "\xff"}')
    with pytest.raises(DataError, match=r"metrics\.json: is not UTF-8 text \(byte 7\)"):
        run_files.read_metrics(folder)
    (folder / "per_query.jsonl").write_text("\n")
    with pytest.raises(DataError, match="holds no queries"):
        run_files.read_per_query(folder)


def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A full disk must not cost the figures that were there, nor leave scratch files that fill it for good."""
    run_files.write_text(tmp_path / "a.txt", "old")

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        run_files.write_text(tmp_path / "a.txt", "new")
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [("a.txt", "old")]


def test_columns_that_do_not_fit_the_queries(tmp_path: Path) -> None:
    """Values of one query too many would stand beside the wrong ids."""
    with pytest.raises(ValueError, match="'RR@10' has 3 values for 2 queries"):
        run_files.write_per_query(tmp_path, ["a", "b"], {"RR@10": [1.0, 0.0, 1.0]})


def ranked(scores: list[list[float]], item_ids: list[str]) -> tuple[Collection, Ranking]:
    collection = Collection(
        "c",
        [Item(name, "text") for name in item_ids],
        [Query(f"q{n}", "a boat") for n in range(len(scores) + 1)],
        [{0: 1}] * (len(scores) + 1),
    )
    rows = np.tile(np.arange(len(item_ids)), (len(scores), 1))
    return collection, Ranking(rows, np.array(scores, dtype=np.float32), np.zeros(len(scores), dtype=np.int64))


def test_trec_run_layout(tmp_path: Path) -> None:
    """Six columns, ranks from 1, ids rather than rows; a blank in an id must not make a seventh."""
    collection, ranking = ranked([[2.5, 1.0]], ["i 3", "i1"])
    run_files.write_trec(tmp_path, collection, np.array([1]), ranking, "AXN")
    assert (tmp_path / "run.trec").read_text() == "q1 Q0 i%203 1 2.5 AXN\nq1 Q0 i1 2 1 AXN\n"
    assert run_files.read_trec(tmp_path / "run.trec") == {"q1": [("i 3", 2.5), ("i1", 1.0)]}


def test_no_two_ids_become_one_in_a_run(tmp_path: Path) -> None:
    """Two items under one id: whoever reads the run counts one of them twice and the other never."""
    ids = ["d 2", "d%202", "d%25202", "d%2", "100%", "d\u00a02", "d%C2%A02", "d\t2", "d%092", "d%"]
    collection, ranking = ranked([[float(-n) for n in range(len(ids))]], ids)
    run_files.write_trec(tmp_path, collection, np.array([1]), ranking, "AXN")
    written = [line.split(" ")[2] for line in (tmp_path / "run.trec").read_text().splitlines()]
    assert len(set(written)) == len(ids)
    assert not any(chr(code).isspace() for code in range(0x3001, sys.maxunicode + 1))
    assert [name for name, column in zip(ids, written, strict=True) if name == column] == [
        "d%2",
        "100%",
        "d%",
    ]  # plain ids stay as they are
    assert [name for name, _ in run_files.read_trec(tmp_path / "run.trec")["q1"]] == ids


@pytest.mark.parametrize("text", ["[" * 100_000, "9" * 5000])
def test_json_that_no_evaluation_writes(tmp_path: Path, text: str) -> None:
    """Python's own errors for these name neither the file nor what to do."""
    (tmp_path / "metrics.json").write_text(text)
    with pytest.raises(DataError, match=r"metrics\.json:1: JSON that cannot be read"):
        run_files.read_metrics(tmp_path)


def test_trec_run_keeps_our_order_in_other_programs(tmp_path: Path) -> None:
    """trec_eval sorts by score and breaks ties by id: our order among equal scores would be lost."""
    inf = float("inf")
    scores = [[0.7] * 4, [3.0, 0.0, 0.0, 0.0], [1e-7, 0.9e-7, 0.8e-7, -inf], [2.0, 2.0, -inf, -inf]]
    collection, ranking = ranked(scores, ["b", "d", "a", "c"])
    run_files.write_trec(tmp_path, collection, np.arange(4), ranking, "x")
    read_by_others: Callable[[str], Any] = ir_measures.read_trec_run
    run = list(read_by_others(str(tmp_path / "run.trec")))
    for item in range(4):
        collection = Collection(collection.name, collection.items, collection.queries, [{item: 1}] * 5)
        qrels = [ir_measures.Qrel(f"q{n}", "bdac"[item], 1) for n in range(4)]
        for measure in (ir_measures.RR, ir_measures.RR @ 10):  # two programs, which break ties in two ways
            theirs = {m.query_id: m.value for m in ir_measures.iter_calc([measure], qrels, run)}
            ours = ir_metrics(ranking.items, collection, np.arange(4), [str(measure)])[str(measure)]
            assert [theirs[f"q{n}"] for n in range(4)] == ours.tolist() == [1 / (item + 1)] * 4
    read = run_files.read_trec(tmp_path / "run.trec")
    np.testing.assert_allclose([score for _, score in read["q1"]], scores[1], atol=1e-30)
    np.testing.assert_allclose([score for _, score in read["q0"]], scores[0], rtol=1e-6)


def test_trec_runs_of_others(tmp_path: Path) -> None:
    """The ranks give the order, not the lines; a line that is none of a run is named."""
    path = tmp_path / "run.trec"
    path.write_text("q1 Q0 b 2 0.5 tag\nq1\tQ0\ta\t1\t0.9\ttag\n\nq2 Q0 a 1 3 tag\n")
    assert run_files.read_trec(path) == {"q1": [("a", 0.9), ("b", 0.5)], "q2": [("a", 3.0)]}
    for line in ("q1 Q0 b 2 0.5", "q1 Q0 b 2 high tag", "q1 Q0 a b 2 0.5 tag"):
        path.write_text(f"q1 Q0 a 1 0.9 tag\n{line}\n")
        with pytest.raises(DataError, match=r"run\.trec:2: expected `query Q0 item rank score tag`, got"):
            run_files.read_trec(path)
    path.write_text("")
    with pytest.raises(DataError, match="holds no results"):
        run_files.read_trec(path)


def test_versions_and_commit(monkeypatch: pytest.MonkeyPatch) -> None:
    """The torch that runs is the one that is named; without git, evaluation goes on and the commit is null."""
    assert run_files.versions()["torch"] == torch.__version__
    monkeypatch.setenv("PATH", "")
    assert run_files.commit() is None
