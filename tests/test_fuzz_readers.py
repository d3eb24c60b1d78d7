"""Random harm to the files that the readers of data layouts read; `make fuzz` does more of it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simzoo.core.records import DataError
from simzoo.datamodules.readers.beir import generated_queries, load_beir, load_corpus, split_queries
from simzoo.datamodules.readers.beir_files import Folder
from simzoo.datamodules.readers.blink import load_blink, load_entities
from simzoo.datamodules.readers.dstc7 import load_dstc7
from simzoo.datamodules.readers.interactions import load_interactions
from simzoo.datamodules.readers.lessons import read_lessons
from simzoo.datamodules.readers.msmarco import load_msmarco
from simzoo.datamodules.readers.pairs import Columns, collections_of, read_pairs
from simzoo.datamodules.readers.trec import read_judgements, read_run
from simzoo.datamodules.readers.wordnet import load_wordnet
from simzoo.datamodules.readers.wsd import load_wsd
from simzoo.datamodules.readers.zeshel import load_zeshel
from simzoo.retrieval.results.run_files import read_trec
from tests.layouts import json_lines, write_blink, write_dstc7, write_msmarco, write_zeshel
from tests.test_fuzz import EXAMPLES, fuzzed, harm
from tests.test_wordnet import write_wordnet
from tests.test_wsd import SENSES, write_set

Read = Callable[[Path], Any]
a_few = settings(fuzzed, max_examples=max(6, EXAMPLES // 4))  # there are some 80 tests of them


def write_beir(root: Path) -> None:
    json_lines(root / "corpus.jsonl", [{"_id": f"d{n}", "title": f"t{n}", "text": f"text {n}"} for n in range(3)])
    json_lines(root / "queries.jsonl", [{"_id": f"q{n}", "text": f"query {n}"} for n in range(3)])
    json_lines(root / "gen-queries.jsonl", [{"_id": f"g{n}", "text": f"generated {n}"} for n in range(3)])
    (root / "qrels").mkdir()
    (root / "qrels" / "test.tsv").write_text("query-id\tcorpus-id\tscore\nq0\td0\t1\nq1\td1\t2\n")


def write_actions(root: Path) -> None:
    (root / "sasrec.txt").write_text("1 9\n1 3\n2 3\n2 4\n")
    (root / "u.data").write_text("1\t2\t5\t10\n1\t3\t4\t20\n")
    (root / "ratings.csv").write_text("userId,movieId,rating,timestamp\n1,2,5,10\n1,3,4,20\n")
    (root / "toy.inter").write_text("user_id:token\titem_id:token\ttimestamp:float\nu\tb\t1\nu\ta\t2\n")
    (root / "toy.item").write_text("item_id:token\ttitle:token_seq\na\tAlien\nb\tBambi\n")
    json_lines(root / "r.jsonl", [{"user_id": "u", "parent_asin": f"a{n}", "timestamp": 1000 * n} for n in range(3)])


def write_wsd(root: Path) -> None:
    write_set(root, "toy")
    (write_wordnet(root / "wordnet") / "index.sense").write_text(SENSES)


def write_lessons(root: Path) -> None:
    items = [{"id": f"i{n}", "title": f"t{n}", "content": f"text {n}", "score": 0.5 * n} for n in range(3)]
    records = [{"query": {"id": f"q{n}", "content": "a boat", "mention": [2, 6]}, "items": items} for n in range(2)]
    json_lines(root / "lessons.jsonl", records)
    pq.write_table(pa.Table.from_pylist(records), root / "lessons.parquet")


def write_pairs(root: Path) -> None:
    texts = [
        {"query": f"query {n}", "positive": f"text {n}", "negatives": f"other {n}", "scores": None} for n in (1, 2)
    ]
    json_lines(root / "pairs.jsonl", [{**text, "scores": [2, -0.5]} for text in texts])
    pq.write_table(pa.Table.from_pylist(texts), root / "pairs.parquet")
    for ending, mark in (("csv", ","), ("tsv", "\t")):
        lines = [mark.join(["query", "positive", "negatives"]), *(mark.join(list(text.values())[:3]) for text in texts)]
        (root / f"pairs.{ending}").write_text("\n".join(lines) + "\n")


def write_trec(root: Path) -> None:
    (root / "run.trec").write_text("q1 Q0 b 2 0.5 tag\nq1 Q0 a 1 0.9 tag\n")
    (root / "qrels").write_text("q1 0 a 1\nq1 0 b 0\n")


def pairs_of(path: Path) -> object:
    return collections_of("pairs", read_pairs(path, Columns()), 0.0, 0)


LAYOUTS: dict[str, tuple[Callable[[Path], Any], dict[str, Read]]] = {
    "beir": (
        write_beir,
        {
            "corpus.jsonl": lambda root: load_corpus(Folder(root)),
            "queries.jsonl": load_beir,
            "qrels/test.tsv": lambda root: (load_beir(root), split_queries(Folder(root), "test")),
            "gen-queries.jsonl": lambda root: generated_queries(Folder(root)),
        },
    ),
    "msmarco": (
        lambda root: write_msmarco(root, passages=6, queries=2, depth=3),
        {
            **dict.fromkeys(
                ("collection.tsv", "queries.train.tsv", "qrels.train.tsv", "run.train.tsv"),
                lambda root: load_msmarco(root, "train", root / "run.train.tsv"),
            ),
            "top1000.dev.tsv": lambda root: load_msmarco(root, "dev", root / "top1000.dev.tsv"),
        },
    ),
    "dstc7": (
        lambda root: write_dstc7(root, dialogues=2, options=3),
        {
            "ubuntu_train_subtask_1.json": lambda root: load_dstc7(root / "ubuntu_train_subtask_1.json"),
            "ubuntu_responses_subtask_1.tsv": lambda root: load_dstc7(
                root / "ubuntu_test_subtask_1.json", root / "ubuntu_responses_subtask_1.tsv"
            ),
        },
    ),
    "blink": (
        lambda root: write_blink(root, entities=4, mentions=2),
        dict.fromkeys(
            ("entity.jsonl", "AIDA-YAGO2_testb.jsonl"),
            lambda root: load_blink(load_entities(root / "entity.jsonl"), root / "AIDA-YAGO2_testb.jsonl"),
        ),
    ),
    "zeshel": (
        lambda root: write_zeshel(root, "yugioh", "test", pages=4, queries=2),
        dict.fromkeys(("documents/yugioh.json", "mentions/test.json"), lambda root: load_zeshel(root, "yugioh")),
    ),
    "actions": (
        write_actions,
        {
            "sasrec.txt": lambda root: load_interactions(root / "sasrec.txt", "sasrec"),
            "u.data": lambda root: load_interactions(root / "u.data", "movielens"),
            "ratings.csv": lambda root: load_interactions(root / "ratings.csv", "movielens"),
            "toy.inter": lambda root: load_interactions(root / "toy.inter", "recbole"),
            "toy.item": lambda root: load_interactions(root / "toy.inter", "recbole"),
            "r.jsonl": lambda root: load_interactions(root / "r.jsonl", "amazon"),
        },
    ),
    "wsd": (
        write_wsd,
        dict.fromkeys(
            ("toy/toy.data.xml", "toy/toy.gold.key.txt", "wordnet/index.sense"),
            lambda root: load_wsd(root, root / "wordnet", ["toy"]),
        ),
    ),
    "wordnet": (
        lambda root: write_wordnet(root / "wordnet"),
        dict.fromkeys(
            ("wordnet/data.noun", "wordnet/index.noun", "wordnet/noun.exc"),
            lambda root: load_wordnet(root / "wordnet"),
        ),
    ),
    "lessons": (
        write_lessons,
        {
            "lessons.jsonl": lambda root: list(read_lessons(root / "lessons.jsonl")),
            "lessons.parquet": lambda root: list(read_lessons(root / "lessons.parquet")),
        },
    ),
    "pairs": (
        write_pairs,
        {
            f"pairs.{ending}": partial(lambda name, root: pairs_of(root / name), f"pairs.{ending}")
            for ending in ("jsonl", "csv", "tsv", "parquet")
        },
    ),
    "trec": (
        write_trec,
        {
            "run.trec": lambda root: (read_trec(root / "run.trec"), read_run(root / "run.trec")),
            "qrels": lambda root: read_judgements(root / "qrels"),
        },
    ),
}
FILES = [(layout, file) for layout, (_, files) in LAYOUTS.items() for file in files]
TEXTS = [(layout, file) for layout, file in FILES if not file.endswith(".parquet")]


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Every layout in order, in a folder of its name."""
    root = tmp_path_factory.mktemp("layouts")
    for name, (write, _) in LAYOUTS.items():
        (root / name).mkdir()
        write(root / name)
    return root


def refused_by_name_or_read(root: Path, layout: str, file: str, content: bytes) -> None:
    """Either a value, or an error of the data that says which file: nothing else may come out."""
    path = root / layout / file
    good = path.read_bytes()
    path.write_bytes(content)
    try:
        LAYOUTS[layout][1][file](root / layout)
    except DataError as error:
        said = str(error)
        assert str(root / layout) in said, f"does not say where: {said}"
        assert f"{file}:0:" not in said, f"there is no line 0: {said}"
        assert len(said) < 5000, f"longer than anybody reads: {said[:200]}"
        said.encode()
    finally:
        path.write_bytes(good)


@pytest.mark.parametrize(("layout", "file"), FILES)
@a_few
@given(data=st.data())
def test_any_harm_is_refused_or_read(layout: str, file: str, data: st.DataObject, written: Path) -> None:
    """A traceback names neither the file nor the line."""
    content = data.draw(harm((written / layout / file).read_bytes()))
    refused_by_name_or_read(written, layout, file, content)


TOKENS = [
    "\ufeff", "\r", "\x0b", "\x85", "\u2028", "\t", " ", "\0", "-1", str(2**31), str(2**63), str(10**40), "9" * 400,
    "9" * 5000, "1e999", "NaN", "\\ud800", "[" * 100_000, '{"a":' * 100_000, "\u0661", "1_0", "", "x" * 100_000,
]  # fmt: skip


@pytest.mark.parametrize(("layout", "file"), TEXTS)
@a_few
@given(data=st.data())
def test_any_value_is_refused_or_read(layout: str, file: str, data: st.DataObject, written: Path) -> None:
    """One field of a line that is otherwise in order: huge numbers, depth, half characters, other line ends."""
    text = (written / layout / file).read_text()
    words = [place for place, character in enumerate(text) if not character.isspace()]
    start = data.draw(st.sampled_from(words))
    end = data.draw(st.integers(start, min(len(text), start + 8)))
    token = data.draw(st.sampled_from(TOKENS))
    refused_by_name_or_read(written, layout, file, (text[:start] + token + text[end:]).encode())


JSON_FILES = [(layout, file) for layout, file in FILES if file.endswith(".jsonl") or layout in ("zeshel", "dstc7")]
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.sampled_from([2**31, 2**63, 10**40, 10**400, -1, 0, 1.5, 1e300, "", " ", "\ud800", "x" * 10_000])
    | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)


@pytest.mark.parametrize(("layout", "file"), [pair for pair in JSON_FILES if not pair[1].endswith(".tsv")])
@a_few
@given(data=st.data())
def test_any_json_is_refused_or_read(layout: str, file: str, data: st.DataObject, written: Path) -> None:
    """A key of any type, at any depth."""
    text = (written / layout / file).read_text()
    whole = json.loads(text) if text.startswith("[") else [json.loads(line) for line in text.splitlines()]
    place = data.draw(st.sampled_from(whole))
    while True:
        key = data.draw(st.sampled_from(sorted(place) if isinstance(place, dict) else range(len(place))))
        if not isinstance(place[key], (dict, list)) or not place[key] or data.draw(st.booleans()):
            place[key] = data.draw(VALUES)
            break
        place = place[key]
    content = json.dumps(whole) if text.startswith("[") else "".join(json.dumps(entry) + "\n" for entry in whole)
    refused_by_name_or_read(written, layout, file, content.encode())


def test_the_layouts_are_in_order(written: Path, tmp_path: Path) -> None:
    """Fuzzing what is broken from the start would find nothing."""
    shutil.copytree(written, tmp_path / "copy")
    for layout, (_, files) in LAYOUTS.items():
        for read in files.values():
            assert read(tmp_path / "copy" / layout)
