"""Data sets of ir_datasets by name, in its own formats, on this disk; nothing is downloaded."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from simzoo.core.records import DataError
from simzoo.datamodules.published import IRDatasets
from simzoo.retrieval.corpus import Corpus
from simzoo.retrieval.first_stages.offered import Given

ir_datasets: Any = pytest.importorskip(
    "ir_datasets", reason="ir_datasets is not installed: pip install 'simzoo[ir-datasets]'"
)

Register = Callable[..., None]

DOCS = "d0\ta flat boat\nd1\tmoney in the bank\nd2\tthe river bank\n"
QUERIES = "q0\tship\nq1\tbank\nq2\tnobody judged me\n"
QRELS = "q0 0 d0 2\nq1 0 d2 1\nq1 0 d1 0\nq1 0 d9 1\nq9 0 d0 1\n"
SCORED = "q1 Q0 d0 1 0.5 x\nq1 Q0 d2 2 0.9 x\nq0 Q0 d1 1 3 x\nq1 Q0 d7 3 0.1 x\n"


@pytest.fixture
def register(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Register]:
    """Registers a data set for the time of a test; nothing is kept in the user's folder."""
    monkeypatch.setenv("IR_DATASETS_HOME", str(tmp_path / "home"))
    names = []

    def one(name: str, *parts: Any) -> None:
        names.append(name)
        ir_datasets.registry.register(name, ir_datasets.Dataset(*parts))

    yield one
    for name in names:
        del ir_datasets.registry._registered[name]


def files(folder: Path, **texts: str) -> dict[str, Any]:
    found = {}
    for name, text in texts.items():
        (folder / name).write_text(text)
        found[name] = ir_datasets.util.LocalDownload(folder / name)
    return found


def parts(folder: Path) -> dict[str, Any]:
    at = files(folder, docs=DOCS, queries=QUERIES, qrels=QRELS, scored=SCORED)
    return {
        "docs": ir_datasets.formats.TsvDocs(at["docs"]),
        "queries": ir_datasets.formats.TsvQueries(at["queries"]),
        "qrels": ir_datasets.formats.TrecQrels(at["qrels"], {0: "no", 1: "yes", 2: "very"}),
        "scored": ir_datasets.formats.TrecScoredDocs(at["scored"]),
    }


def test_a_data_set_is_what_its_files_say(
    register: Register, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Texts under other ids, grades cut to 0 and 1, or judgements lost without a word."""
    register("toy-plain", *[part for name, part in parts(tmp_path).items() if name != "scored"])
    (found,) = IRDatasets("toy-plain").collections("test")
    assert [(item.id, item.text) for item in found.items] == [tuple(line.split("\t")) for line in DOCS.splitlines()]
    assert [(query.id, query.text) for query in found.queries] == [("q0", "ship"), ("q1", "bank")]
    assert found.judgements == [{0: 2}, {2: 1, 1: 0}] and not found.candidates
    said = capsys.readouterr().err
    assert "judgements of items that are not in the data set, dropped: 1 ('d9')" in said
    assert "judgements of queries that are not in the data set, dropped: 1 ('q9')" in said
    assert found.notes["queries without judgements, dropped"] == 1


def test_scored_documents_are_candidates(register: Register, tmp_path: Path) -> None:
    """In the file's order, or another query's: `Given` would retrieve what nobody has found."""
    register("toy-scored", *parts(tmp_path).values())
    (found,) = IRDatasets("toy-scored").collections("test")
    assert list(found.candidates) == [[1], [2, 0]]
    assert found.notes["candidates that are no items, dropped"] == 1
    stage = Given()
    stage.index(Corpus.of(found))
    assert stage.search(found.queries, 2)[0].tolist() == [[1, -1], [2, 0]]
    (shallow,) = IRDatasets("toy-scored", depth=1).collections("test")
    assert list(shallow.candidates) == [[1], [2]]


def test_titles_and_topics_keep_their_fields(register: Register, tmp_path: Path) -> None:
    """A title twice in an item's text, or a topic's narrative where its description was asked for."""
    described = "<desc> Description:\nWhich ships are flat?\n<narr> Narrative:\nAny.\n"
    topics = f"<top>\n<num> Number: 1\n<title> ships\n{described}</top>\n"
    at = files(tmp_path, docs="d0\tBoats\thttp://x\tBoats are flat.\n", topics=topics, qrels="1 0 d0 1\n")
    docs = ir_datasets.formats.TsvDocs(at["docs"], doc_cls=ir_datasets.formats.trec.TitleUrlTextDoc)
    queries = ir_datasets.formats.TrecQueries(at["topics"])
    register("toy-topics", docs, queries, ir_datasets.formats.TrecQrels(at["qrels"], {}))
    (found,) = IRDatasets("toy-topics").collections("test")
    assert found.items[0].title == "Boats" and found.items[0].text == "Boats are flat."
    assert found.queries[0].text == "ships"
    (asked,) = IRDatasets("toy-topics", query="description").collections("test")
    assert asked.queries[0].text == "Which ships are flat?"
    with pytest.raises(DataError, match="title, description, narrative, not 'question'"):
        IRDatasets("toy-topics", query="question").read("test")


def test_documents_alone_are_searched(register: Register, tmp_path: Path) -> None:
    """Whoever types a query needs no judgements; whoever evaluates is told which data sets have some."""
    one = parts(tmp_path)
    register("toy-docs", one["docs"])
    register("toy-docs/judged", *one.values())
    register("toy-asked", one["docs"], one["queries"])
    register("toy-asked/judged", *one.values())
    (found,) = IRDatasets("toy-docs").read("test")
    assert len(found.items) == 3 and not found.queries
    with pytest.raises(DataError, match="has no judgements; name another, for example toy-asked/judged"):
        IRDatasets("toy-asked").read("test")


def test_splits_are_data_sets_that_are_named(register: Register, tmp_path: Path) -> None:
    """The test queries would serve for training, where no data set is named for it."""
    register("toy-test", *parts(tmp_path).values())
    data = IRDatasets("toy-test")
    for split in ("train", "dev"):
        with pytest.raises(DataError, match=rf"for the {split} split: give --data\.{split}"):
            data.read(split)  # type: ignore[arg-type]
    assert len(IRDatasets("toy-test", train="toy-test").train_queries()) == 2


def test_names_and_downloads_fail_in_one_line(
    register: Register, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A page of traceback hides a misspelt name, a missing network, and a line that is damaged."""
    with pytest.raises(DataError, match=r"no data set 'vaswany'; did you mean vaswani\?"):
        IRDatasets("vaswany").read("test")
    monkeypatch.setenv("NO_PROXY", "*")
    one = parts(tmp_path)
    source = ir_datasets.util.RequestsDownload("http://127.0.0.1:9/docs.tsv", tries=1)
    away = ir_datasets.util.Download([source], cache_path=str(tmp_path / "cached"))
    register("toy-away", ir_datasets.formats.TsvDocs(away), one["queries"], one["qrels"])
    with pytest.raises(DataError, match=r"^ir_datasets:toy-away/docs: .*127\.0\.0\.1.*IR_DATASETS_HOME") as refused:
        IRDatasets("toy-away").read("test")
    assert "\n" not in str(refused.value)
    (tmp_path / "docs").write_text("d0 without a tab\n")
    register("toy-damaged", *one.values())
    with pytest.raises(DataError, match="toy-damaged/docs: ir_datasets cannot read it: expected 2 fields, got 1"):
        IRDatasets("toy-damaged").read("test")
