"""The BEIR reader, on small folders, and on Cranfield and Vaswani where SIMZOO_DATA names a folder that holds them."""

from __future__ import annotations

import gzip
import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from simzoo.core.records import DataError
from simzoo.datamodules.readers import beir
from simzoo.datamodules.readers import notes as reader_notes
from simzoo.datamodules.readers.beir import load_beir, load_beir_hub, load_corpus
from simzoo.datamodules.readers.beir_files import Folder

CORPUS: list[dict[str, Any]] = [
    {"_id": "d1", "title": "Wings", "text": "lift of a wing", "metadata": {}},
    {"_id": "d2", "title": "", "text": "heat in slabs"},
    {"_id": "d3", "title": "Only a title", "text": ""},
    {"_id": "d4", "title": "", "text": "  "},
    {"_id": "q2", "title": "On heat", "text": "How  is heat conducted ? A debate ."},
    {"_id": "q1", "title": "", "text": "unrelated to the query of the same number"},
]
QUERIES = [
    {"_id": "q1", "text": "what lifts wings"},
    {"_id": "q2", "text": "how is heat conducted ?"},
    {"_id": "q3", "text": "judged elsewhere"},
    {"_id": "q4", "text": "nothing is relevant"},
]
QRELS = [
    ("q1", "d1", 2),
    ("q1", "d2", 0),
    ("q1", "d4", 1),
    ("q1", "q1", 1),
    ("q2", "q2", 1),
    ("q2", "d2", 1),
    ("q4", "d1", -1),
]


def lines(records: list[dict[str, Any]]) -> str:
    return "".join(json.dumps(record) + "\n" for record in records)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / "slabs"
    (folder / "qrels").mkdir(parents=True)
    (folder / "corpus.jsonl").write_text(lines(CORPUS))
    (folder / "queries.jsonl").write_text(lines(QUERIES))
    rows = "".join(f"{query}\t{item}\t{grade}\n" for query, item, grade in QRELS)
    (folder / "qrels" / "test.tsv").write_text("query-id\tcorpus-id\tscore\n" + rows)
    return folder


def test_folder(root: Path) -> None:
    """Judgements shifted by a dropped item would count other items as relevant; grades must survive."""
    data = load_beir(root)
    assert data.name == "slabs"
    assert [item.id for item in data.items] == ["d1", "d2", "d3", "q2", "q1"]
    assert [query.id for query in data.queries] == ["q1", "q2", "q4"]
    named = [{data.items[row].id: grade for row, grade in judged.items()} for judged in data.judgements]
    assert named == [{"d1": 2, "d2": 0, "q1": 1}, {"q2": 1, "d2": 1}, {"d1": -1}]
    assert data.notes == {
        beir.EMPTY_ITEM: 1,
        beir.EMPTY_ITEM_JUDGED: 1,
        beir.EMPTY_TITLE: 2,
        beir.UNJUDGED: 1,
        beir.ONLY_IRRELEVANT: 1,
    }


def test_no_judgement_is_lost_unless_it_is_asked_for(root: Path) -> None:
    """Sets that number queries and items apart, or pair titles with their texts, must not lose a judgement."""
    pairs = [{"_id": f"p{n}", "text": f"the title {n} and the text below it"} for n in range(9)]
    (root / "corpus.jsonl").write_text(lines(pairs))
    (root / "queries.jsonl").write_text(lines([{"_id": f"p{n}", "text": f"title {n}"} for n in range(9)]))
    (root / "qrels" / "test.tsv").write_text("".join(f"p{n}\tp{n}\t1\n" for n in range(9)))
    data = load_beir(root)
    assert data.judgements == [{n: 1} for n in range(9)]
    assert [data.seen(row) for row in range(9)] == [[]] * 9
    assert beir.OWN_ITEM not in data.notes


def test_the_query_itself_is_left_out_by_option(root: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """ArguAna and Quora: with the query itself among the results the first place says nothing."""
    reader_notes._said.clear()
    data = load_beir(root, drop_same_id=True)
    rows = {item.id: row for row, item in enumerate(data.items)}
    assert {data.queries[query].id: row for query, row in data.own.items()} == {"q1": rows["q1"], "q2": rows["q2"]}
    assert data.seen(1) == [rows["q2"]]
    assert [{data.items[row].id: grade for row, grade in judged.items()} for judged in data.judgements] == [
        {"d1": 2, "d2": 0},
        {"d2": 1},
        {"d1": -1},
    ]
    assert data.notes[beir.OWN_ITEM] == 2 and data.notes[beir.OWN_ITEM_JUDGED] == 2
    assert data.notes[beir.OTHER_TEXT] == 1  # q1 is another text than item q1
    told = capfd.readouterr().err
    assert f"slabs: {beir.OWN_ITEM_JUDGED}: 2 ('q1', 'q2')" in told
    assert f"slabs: {beir.OTHER_TEXT}: 1 ('q1')" in told and f"slabs: {beir.EMPTY_ITEM}: 1 ('d4')" in told
    assert data.with_queries([2, 1]).own == {1: rows["q2"]}
    load_beir(root, drop_same_id=True)
    assert capfd.readouterr().err == ""  # once is enough


def test_all_queries(root: Path) -> None:
    """Queries without judgements must stay when they are asked for, with no judgements of others."""
    data = load_beir(root, judged_only=False)
    assert [query.id for query in data.queries] == ["q1", "q2", "q3", "q4"]
    assert data.judgements[2] == {}


def test_layouts_read_the_same(root: Path, tmp_path: Path) -> None:
    """Without a header the first judgement must not be lost; gzipped files must read as plain ones."""
    expected = load_beir(root)
    qrels = root / "qrels" / "test.tsv"
    qrels.write_text(qrels.read_text().split("\n", 1)[1])
    assert load_beir(root) == expected
    packed = tmp_path / "packed" / "slabs"
    (packed / "qrels").mkdir(parents=True)
    for name in ("corpus.jsonl", "queries.jsonl", "qrels/test.tsv"):
        with gzip.open(packed / f"{name}.gz", "wb") as stream:
            stream.write((root / name).read_bytes())
    assert load_beir(packed) == expected


def test_duplicates(root: Path) -> None:
    """The same line twice is harmless and counted; the same id with other content is a mistake in the data."""
    expected = load_beir(root)
    for name in ("corpus.jsonl", "queries.jsonl", "qrels/test.tsv"):
        file = root / name
        last = file.read_text().splitlines(keepends=True)[-1]
        with file.open("a") as stream:
            stream.write(last)
    data = load_beir(root)
    assert data.notes == {**expected.notes, beir.REPEATED: 3}
    assert data.fingerprint == expected.fingerprint


@pytest.mark.parametrize(
    ("file", "line", "message"),
    [
        ("corpus.jsonl", '{"_id": "d9", "text": ', r"corpus\.jsonl:7: broken JSON"),
        ("corpus.jsonl", '["d9"]', r"corpus\.jsonl:7: expected a JSON object"),
        ("corpus.jsonl", '{"_id": "d9", "_id": "d8", "text": "x"}', r"corpus\.jsonl:7: .* key '_id' is there twice"),
        ("corpus.jsonl", '{"_id": "d9", "text": "x"} {}', r"corpus\.jsonl:7: broken JSON: text behind the value"),
        ("corpus.jsonl", '{"_id": "d9", "text": NaN}', r"corpus\.jsonl:7: .* NaN is no JSON number"),
        ("corpus.jsonl", '{"_id": "d9", "text": 1e999}', r"corpus\.jsonl:7: expected a string under 'text', got inf"),
        ("corpus.jsonl", '{"_id": "d9", "text": "\\ud83d"}', r"corpus\.jsonl:7: .* half of a character"),
        ("corpus.jsonl", '{"_id": ' + "9" * 5000 + "}", r"corpus\.jsonl:7: JSON that cannot be used: .*digits"),
        ("corpus.jsonl", '{"_id": "d9", "text": ' + "[" * 100_000, r"corpus\.jsonl:7: JSON that is nested too deeply"),
        ("queries.jsonl", '{"_id": [[' + "[" * 500 + "]" * 500 + "]]}", r"queries\.jsonl:5: expected a string under"),
        ("qrels/test.tsv", f"q1\td3\t{10**40}", r"test\.tsv:9: .* whole-number grade of at most 32 bits"),
        ("qrels/test.tsv", f"q1\td3\t{'9' * 5000}", r"test\.tsv:9: .* whole-number grade of at most 32 bits"),
        (
            "corpus.jsonl",
            '{"id": "d9", "text": "x"}',
            r"corpus\.jsonl:7: expected a string under '_id', got no such key",
        ),
        ("corpus.jsonl", '{"_id": " ", "text": "x"}', r"corpus\.jsonl:7: expected an id"),
        ("corpus.jsonl", '{"_id": "d1", "text": "other"}', r"corpus\.jsonl:7: id 'd1' was given before"),
        ("corpus.jsonl", '{"_id": "d4", "text": "no longer empty"}', r"corpus\.jsonl:7: id 'd4' was given before"),
        ("queries.jsonl", '{"_id": "q1", "text": "other"}', r"queries\.jsonl:5: id 'q1' was given before"),
        ("queries.jsonl", '{"_id": "q9", "text": " "}', r"queries\.jsonl:5: query 'q9' is empty"),
        ("queries.jsonl", '{"_id": "q9"}', r"queries\.jsonl:5: expected a string under 'text'"),
        ("qrels/test.tsv", "q1\td9\t1", r"test\.tsv:9: a judgement of item 'd9', which is not in the corpus"),
        ("qrels/test.tsv", "q9\td1\t1", r"test\.tsv:9: a judgement for query 'q9', which is not among the queries"),
        ("qrels/test.tsv", "q1\td1\t1", r"test\.tsv:9: id 'd1' was given before with other content"),
        ("qrels/test.tsv", "q1\td3\thigh", r"test\.tsv:9: expected query id, item id and a whole-number grade"),
        ("qrels/test.tsv", "q1 0 d3 1", r"test\.tsv:9: expected query id, item id and a whole-number grade"),
    ],
)
def test_bad_line_is_named(root: Path, file: str, line: str, message: str) -> None:
    """A line that is skipped gives figures on another data set than the one that was named."""
    with (root / file).open("a") as stream:
        stream.write(line + "\n")
    with pytest.raises(DataError, match=message):
        load_beir(root)


@pytest.mark.parametrize(
    "line", ["q1\td1\t1.5", "q1 0 d1 1", "q1\td1", "q1\td1\tx", "q1\td1\tscore", "query-id\tcorpus-id\t1_000"]
)
def test_a_bad_first_judgement_is_no_header(root: Path, line: str) -> None:
    """A first line that is taken for a header takes a judgement away."""
    qrels = root / "qrels" / "test.tsv"
    qrels.write_text(line + "\n" + qrels.read_text().split("\n", 1)[1])
    with pytest.raises(DataError, match=r"test\.tsv:1: expected query id, item id and a whole-number grade"):
        load_beir(root)


def test_missing_files(root: Path, tmp_path: Path) -> None:
    """A mistyped folder or split must say what is there."""
    with pytest.raises(DataError, match="expected a folder with corpus"):
        load_beir(tmp_path / "nothing")
    (tmp_path / "texts").mkdir()
    (tmp_path / "texts" / "note.txt").write_text("a text")
    with pytest.raises(DataError, match=r"expected corpus\.jsonl .* holds note\.txt"):
        load_beir(tmp_path / "texts")
    with pytest.raises(DataError, match=r"expected dev\.tsv .* holds test\.tsv"):
        load_beir(root, split="dev")
    (root / "corpus.jsonl").write_text("")
    with pytest.raises(DataError, match=r"corpus\.jsonl: is empty"):
        load_beir(root)
    (root / "corpus.jsonl").unlink()
    with pytest.raises(DataError, match=r"expected corpus\.jsonl .* holds qrels, queries\.jsonl"):
        load_beir(root)


def test_a_byte_order_mark_is_no_part_of_the_first_id(root: Path) -> None:
    """Windows writes one: the first judgement's query would be unknown, or the first record lost."""
    expected = load_beir(root)
    for name in ("corpus.jsonl", "queries.jsonl", "qrels/test.tsv"):
        (root / name).write_bytes(b"\xef\xbb\xbf" + (root / name).read_bytes().replace(b"\n", b"\r\n"))
    assert load_beir(root) == expected


def test_a_file_of_blank_lines(root: Path) -> None:
    """Without a line there is nothing to read, and nothing would say so."""
    (root / "corpus.jsonl").write_text("\n \n")
    with pytest.raises(DataError, match=r"corpus\.jsonl: holds blank lines only"):
        load_beir(root)


def test_a_corpus_alone(root: Path) -> None:
    """Who wants to search has no judgements; the items must be those of the whole collection."""
    expected = load_beir(root)
    (root / "queries.jsonl").unlink()
    shutil.rmtree(root / "qrels")
    found = load_corpus(Folder(root))
    assert found.items == expected.items and not found.queries
    assert found.notes == {beir.EMPTY_ITEM: 1, beir.EMPTY_TITLE: 2}


def test_a_line_that_fills_the_memory(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A gzip file of a few kilobytes can hold one line of gigabytes."""
    monkeypatch.setattr("simzoo.datamodules.readers.json_lines.LONGEST", 1 << 20)
    (root / "corpus.jsonl").unlink()
    with gzip.open(root / "corpus.jsonl.gz", "wb") as stream:
        stream.write(b'{"_id": "d1", "text": "x"}\n' + b"0" * (1 << 21))
    with pytest.raises(DataError, match=r"corpus\.jsonl\.gz:2: is longer than 1 MiB"):
        load_beir(root)


def test_damaged_files(root: Path) -> None:
    """A download that broke off must not end in a bare traceback, nor be read in part."""
    whole = gzip.compress((root / "corpus.jsonl").read_bytes())
    (root / "corpus.jsonl").unlink()
    (root / "corpus.jsonl.gz").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(DataError, match=r"corpus\.jsonl\.gz:\d+: is no whole gzip file"):
        load_beir(root)
    (root / "corpus.jsonl.gz").unlink()
    (root / "corpus.jsonl").write_bytes(b'{"_id": "d1", "text": "caf\xe9"}\n')
    with pytest.raises(DataError, match=r"corpus\.jsonl:1: is not UTF-8 text .* at byte 27 of the line"):
        load_beir(root)
    (root / "corpus.jsonl").write_text(lines(CORPUS), encoding="utf-16")
    with pytest.raises(DataError, match=r"corpus\.jsonl:1: is not UTF-8 text .* is it UTF-16\? save it as UTF-8"):
        load_beir(root)
    (root / "corpus.jsonl").unlink()
    (root / "corpus.jsonl.gz").write_bytes(b"no gzip")
    with pytest.raises(DataError, match=r"corpus\.jsonl\.gz: is no whole gzip file"):
        load_beir(root)


def test_no_judged_query(root: Path) -> None:
    """A mean over no queries is no figure."""
    (root / "qrels" / "test.tsv").write_text("query-id\tcorpus-id\tscore\n")
    with pytest.raises(DataError, match="'slabs' has no query that the split 'test' judges"):
        load_beir(root)


def test_hub_reads_as_the_folder(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The Hub's columns must give the same collection; an unknown id there must name data set and row."""
    datasets = pytest.importorskip("datasets")
    qrels = [{"query-id": q, "corpus-id": i, "score": grade} for q, i, grade in QRELS]
    corpus = [{"_id": r["_id"], "title": r["title"], "text": r["text"]} for r in CORPUS]
    tables = {
        ("BeIR/slabs", "corpus"): {"corpus": corpus},
        ("BeIR/slabs", "queries"): {"queries": [record | {"title": ""} for record in QUERIES]},
        ("BeIR/slabs-qrels", None): {"test": qrels},
    }

    def load(repo: str, config: str | None, revision: str | None) -> Any:
        return {name: datasets.Dataset.from_list(rows) for name, rows in tables[repo, config].items()}

    monkeypatch.setattr(datasets, "load_dataset", load)
    assert load_beir_hub("slabs") == load_beir(root)
    assert load_beir_hub("BeIR/slabs", judged_only=False) == load_beir(root, judged_only=False)
    with pytest.raises(DataError, match="BeIR/slabs-qrels: has no split 'dev' or 'validation'; it has test"):
        load_beir_hub("slabs", split="dev")
    qrels.append({"query-id": "q1", "corpus-id": "d9", "score": 1})
    with pytest.raises(DataError, match="BeIR/slabs-qrels/test:8: a judgement of item 'd9'"):
        load_beir_hub("slabs")


def test_numeric_ids(root: Path) -> None:
    """Ids that some sets give as numbers must still meet those of the judgements."""
    (root / "corpus.jsonl").write_text(lines([{"_id": 7, "title": None, "text": "heat"}]))
    (root / "queries.jsonl").write_text(lines([{"_id": 1, "text": "heat"}]))
    (root / "qrels" / "test.tsv").write_text("1\t7\t1\n")
    data = load_beir(root)
    assert (data.items[0].id, data.items[0].title, data.queries[0].id) == ("7", "", "1")
    assert data.judgements == [{0: 1}]


def real(name: str) -> Path:
    if not (folder := os.environ.get("SIMZOO_DATA")):
        pytest.skip("SIMZOO_DATA is not set; let it name a folder that holds cranfield and vaswani in BEIR's layout")
    if not (Path(folder) / name).is_dir():
        pytest.skip(f"SIMZOO_DATA holds no {name}")
    return Path(folder) / name


def test_cranfield() -> None:
    """1,400 documents, two of them empty and one of these judged; item 225 is not query 225."""
    data = load_beir(real("cranfield"))
    assert (len(data.items), len(data.queries), sum(map(len, data.judgements))) == (1_398, 225, 1_611)
    assert data.notes == {beir.EMPTY_ITEM: 2, beir.EMPTY_ITEM_JUDGED: 1}
    grades = [grade for judged in data.judgements for grade in judged.values()]
    assert {grade: grades.count(grade) for grade in set(grades)} == {1: 363, 2: 733, 3: 387, 4: 128}
    row = next(i for i, query in enumerate(data.queries) if query.id == "225")
    assert "225" in {data.items[i].id for i in data.judgements[row]}
    assert data.own == {}


def test_vaswani() -> None:
    """The counts that its makers state; every title is empty."""
    data = load_beir(real("vaswani"))
    assert (len(data.items), len(data.queries), sum(map(len, data.judgements))) == (11_426, 93, 2_083)
    assert data.notes == {beir.EMPTY_TITLE: 11_426}


def test_a_damaged_copy_of_cranfield(tmp_path: Path) -> None:
    """On a real file too the line of a broken record must be the right one."""
    copy = tmp_path / "cranfield"
    shutil.copytree(real("cranfield"), copy, copy_function=shutil.copyfile)
    for folder in (copy, copy / "qrels"):
        folder.chmod(0o755)
    text = (copy / "corpus.jsonl").read_text().splitlines(keepends=True)
    text[699] = text[699][:40] + "\n"
    (copy / "corpus.jsonl").write_text("".join(text))
    with pytest.raises(DataError, match=r"corpus\.jsonl:700: broken JSON"):
        load_beir(copy)
