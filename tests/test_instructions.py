"""p-MRR against mteb's own function, and FollowIR's layout from a folder and from a Hub."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from simzoo import evaluate as command
from simzoo.core.records import Collection, DataError, Item, Query
from simzoo.datamodules.published import FollowIR
from simzoo.retrieval.results.instructions import followed, p_mrr
from tests.hub_client import Client, client, hub, process, server  # noqa: F401
from tests.loopback_hub import Hub

NAME = "mteb/ToyInstructionRetrieval"
ITEMS = ["a flat boat", "a boat on the river", "a house by the river", "the sea"]
PARTS: dict[str, list[dict[str, Any]]] = {
    "corpus": [{"_id": f"d{n}", "title": "", "text": text} for n, text in enumerate(ITEMS)],
    "queries": [{"_id": f"1-{kind}", "text": "boat"} for kind in ("og", "changed")],
    "instruction": [
        {"query-id": "1-og", "instruction": "flat boat"},
        {"query-id": "1-changed", "instruction": "boat on the river"},
    ],
    "top_ranked": [{"query-id": f"1-{kind}", "corpus-ids": ["d2", "d1", "d0"]} for kind in ("og", "changed")],
}
QRELS = [("1-og", "d0", 1), ("1-og", "d1", 1), ("1-changed", "d0", 0), ("1-changed", "d1", 1)]


def lines(records: list[dict[str, Any]]) -> str:
    return "".join(json.dumps(record) + "\n" for record in records)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, records in PARTS.items():
        (tmp_path / f"{name}.jsonl").write_text(lines(records))
    (tmp_path / "qrels").mkdir()
    rows = "".join(f"{query}\t{item}\t{grade}\n" for query, item, grade in QRELS)
    (tmp_path / "qrels" / "test.tsv").write_text(f"query-id\tcorpus-id\tscore\n{rows}")
    return tmp_path


def test_p_mrr_is_that_of_mteb() -> None:
    """A sign, a rank counted from 0, or an item that was not found at another place: the figure changes its meaning."""
    pytest.importorskip("mteb", reason="mteb is not installed: pip install 'simzoo[mteb]'")
    from mteb._evaluators.retrieval_metrics import calculate_pmrr

    rng = np.random.default_rng(0)
    items = [Item(f"d{n:02}", "a text") for n in range(30)]
    queries, judgements, changed, rankings = [], [], {}, []
    for number in range(20):
        judged = {int(row): int(rng.integers(0, 2)) for row in rng.permutation(30)[:20]}
        judged[0] = 1
        later = {row: grade if rng.random() < 0.5 else 0 for row, grade in judged.items()}
        later[0] = 0
        changed[2 * number] = 2 * number + 1
        for kind, grades in (("og", judged), ("changed", later)):
            queries.append(Query(f"{number}-{kind}", "query"))
            judgements.append(grades)
            rankings.append(rng.permutation(30)[:12])
    collection = Collection("toy", items, queries, judgements, changed=changed)
    run = {
        query.id: {items[row].id: float(-place) for place, row in enumerate(rows)}
        for query, rows in zip(queries, rankings, strict=True)
    }
    gone = {
        f"{number}": [
            items[row].id for row, grade in judgements[one].items() if grade > 0 and judgements[other][row] == 0
        ]
        for number, (one, other) in enumerate(changed.items())
    }
    found = followed(np.array(rankings), collection, np.arange(40))
    assert np.isnan(found[1::2]).all() and np.isfinite(found[::2]).all()
    assert found[::2].mean() == pytest.approx(calculate_pmrr(run, run, gone), abs=1e-12)


def test_p_mrr_by_hand() -> None:
    """Without mteb the sign is held too: what falls counts for the model."""
    assert p_mrr(np.array([1]), np.array([4])) == 0.75
    assert p_mrr(np.array([4]), np.array([1])) == -0.75
    with pytest.raises(ValueError, match="counted from 1"):
        p_mrr(np.array([0]), np.array([1]))
    with pytest.raises(ValueError, match=r"\(1,\) and \(2,\)"):
        p_mrr(np.array([1]), np.array([1, 2]))


def test_a_sample_keeps_the_pairs(folder: Path) -> None:
    """Rows of other queries after `with_queries`: p-MRR of two queries that have nothing to do with each other."""
    (whole,) = FollowIR(folder).read("test")
    assert dict(whole.with_queries([1, 0]).changed) == {1: 0}
    assert not whole.with_queries([0]).changed
    ranking = np.array([[0, 1], [1, 0]])
    assert followed(ranking[:1], whole, np.array([0])).tolist() == pytest.approx([np.nan], nan_ok=True)


def test_a_run_reports_p_mrr(folder: Path, tmp_path: Path) -> None:
    """d0, first for the original instruction, is second for the changed one: 1 - 1/2. Instructions must be read."""
    data = ["--data", "FollowIR", "--data.root", str(folder)]
    search = ["--search", "Retrieve", "--search.first_stage", "BM25"]
    command.main(["run", *data, *search, "--output", str(tmp_path / "out")])
    found = json.loads((tmp_path / "out" / "metrics.json").read_text())["metrics"]["p-MRR"]
    assert found["mean"] == 0.5 and found["queries"] == 1
    (collection,) = FollowIR(folder).collections("test")
    assert [query.text for query in collection.queries] == ["boat flat boat", "boat boat on the river"]
    assert list(collection.candidates) == [[2, 1, 0], [2, 1, 0]]


def test_what_is_missing_is_named(folder: Path) -> None:
    """A query without instruction, or without its pair, would take part in no comparison and nobody would know."""
    (folder / "instruction.jsonl").write_text(lines(PARTS["instruction"][:1]))
    with pytest.raises(DataError, match="query '1-changed' has no instruction"):
        FollowIR(folder).read("test")
    (folder / "instruction.jsonl").write_text(lines(PARTS["instruction"]))
    (folder / "top_ranked.jsonl").write_text('{"query-id": "1-og", "corpus-ids": "d0"}\n')
    with pytest.raises(DataError, match=r"top_ranked\.jsonl:1: expected a list of ids"):
        FollowIR(folder).read("test")
    (folder / "qrels" / "test.tsv").write_text("1-og\td0\t1\n")
    with pytest.raises(DataError, match="both as <id>-og and as <id>-changed"):
        FollowIR(folder).read("test")


def test_the_hub_has_the_same(folder: Path, hub: Hub, client: Client) -> None:  # noqa: F811
    """Parts under other names than mteb's would not be found, and only whoever has a network would notice."""
    parts = {name: f"{name}.jsonl" for name in PARTS} | {"default": "test.jsonl"}
    splits = {name: "test" if name == "default" else name for name in parts}
    card = "".join(
        f"- config_name: {name}\n  data_files: [{{split: {splits[name]}, path: {path}}}]\n"
        for name, path in parts.items()
    )
    judged = [{"query-id": query, "corpus-id": item, "score": grade} for query, item, grade in QRELS]
    files = {"README.md": f"---\nconfigs:\n{card}---\n".encode(), "test.jsonl": lines(judged).encode()}
    hub.add(f"datasets/{NAME}", files | {f"{name}.jsonl": lines(PARTS[name]).encode() for name in PARTS})
    found = client.run(
        "from simzoo.datamodules.published import FollowIR\n"
        f"(one,) = FollowIR(name={NAME!r}).read('test')\n"
        "value = [one.fingerprint, dict(one.changed)]"
    )
    (ours,) = FollowIR(folder).read("test")
    assert found == [ours.fingerprint, {"0": 1}]
