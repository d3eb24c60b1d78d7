"""Data that brings its own candidates: MS MARCO, DSTC7, and the first stage that gives them out."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from simzoo.core.records import Collection, DataError, Item, Query
from simzoo.datamodules.readers import dstc7
from simzoo.datamodules.readers.dstc7 import ADDED, MISSED, load_dstc7
from simzoo.datamodules.readers.json_lines import read_json_array
from simzoo.datamodules.readers.msmarco import (
    NO_CANDIDATES,
    NO_JUDGEMENT,
    NOT_ASKED,
    REPEATED_CANDIDATE,
    REPEATED_JUDGEMENT,
    load_msmarco,
)
from simzoo.datamodules.sources import DSTC7
from simzoo.retrieval.corpus import Corpus
from simzoo.retrieval.evaluation import evaluate
from simzoo.retrieval.first_stages.offered import Given
from simzoo.retrieval.judge import MatrixJudge
from simzoo.retrieval.mined import mine
from simzoo.retrieval.results.examples import Example
from simzoo.retrieval.results.run_files import read_trec, write_trec
from simzoo.retrieval.searchers.exact import Rerank
from tests.layouts import dialogue, write_dstc7, write_msmarco


@pytest.fixture
def msmarco(tmp_path: Path) -> Path:
    write_msmarco(tmp_path, passages=20, queries=4, depth=5)
    return tmp_path


def test_msmarco(msmarco: Path) -> None:
    """Only what is needed is kept, and a list's order must be that of the ranks, not of the lines."""
    lines = (msmarco / "run.train.tsv").read_text().splitlines()
    (msmarco / "run.train.tsv").write_text("\n".join(reversed(lines)) + "\n")
    read = load_msmarco(msmarco, "train", msmarco / "run.train.tsv", depth=3)
    assert [query.id for query in read.queries] == ["q0", "q1", "q2", "q3"]
    ids = [[read.items[row].id for row in listed] for listed in read.candidates]
    assert ids == [[str(n + step) for step in range(3)] for n in range(4)]
    assert {item.id for item in read.items} == {str(n) for n in range(6)}
    assert [[read.items[row].id for row in read.relevant(n)] for n in range(4)] == [["0"], ["1"], ["2"], ["3"]]


def test_msmarcos_three_kinds_of_candidates(msmarco: Path) -> None:
    """A run, a top1000 file and a TREC run of the same lists must read alike."""
    kinds = [load_msmarco(msmarco, "dev", msmarco / name) for name in ("run.train.tsv", "top1000.dev.tsv")]
    rows = (line.split("\t") for line in (msmarco / "run.train.tsv").read_text().splitlines())
    (msmarco / "run.trec").write_text("".join(f"{q} Q0 {p} {rank} {-int(rank)}.5 bm25\n" for q, p, rank in rows))
    kinds.append(load_msmarco(msmarco, "dev", msmarco / "run.trec"))
    assert kinds[0] == kinds[1] == kinds[2]


def test_msmarco_counts_what_it_leaves_out(msmarco: Path) -> None:
    """Queries that vanish silently make two systems incomparable."""
    (msmarco / "qrels.dev.tsv").write_text("q0\t0\t0\t1\nq1\t0\t1\t0\nq2\t0\t2\t1\n")
    lines = [line for line in (msmarco / "run.train.tsv").read_text().splitlines() if not line.startswith("q2")]
    (msmarco / "run.train.tsv").write_text("\n".join(lines) + "\n")
    read = load_msmarco(msmarco, "dev", msmarco / "run.train.tsv")
    assert [query.id for query in read.queries] == ["q0"]
    assert read.notes == {NO_JUDGEMENT: 2, NO_CANDIDATES: 1}


@pytest.mark.parametrize(
    ("name", "line", "message"),
    [
        ("collection.tsv", "21\n", r"collection\.tsv:21: expected an id and a text, 2 columns"),
        ("collection.tsv", "21 text\n", r"collection\.tsv:21: expected an id and a text, 2 columns"),
        ("collection.tsv", "3\tagain\n", r"collection\.tsv:21: passage '3' appears more than once"),
        ("queries.train.tsv", "q1\tagain\n", r"queries\.train\.tsv:5: query 'q1' appears more than once"),
        ("queries.train.tsv", "q9\t \n", r"queries\.train\.tsv:5: query 'q9' is empty"),
        ("qrels.train.tsv", "q1\t0\t1\tyes\n", r"qrels\.train\.tsv:5: expected a whole-number grade .* got 'yes'"),
        ("qrels.train.tsv", f"q1\t0\t3\t{10**40}\n", r"qrels\.train\.tsv:5: .* of at most 32 bits, got '1000"),
        ("qrels.train.tsv", "q1\t0\t1\t0\n", r"qrels\.train\.tsv:5: passage '1' has grade 0 .* had 1 before"),
        ("qrels.train.tsv", "q1\t0\t77\t1\n", r"qrels\.train\.tsv:5: passage '77' is not in collection"),
        ("run.train.tsv", "q1\t77\t6\n", r"run\.train\.tsv:21: passage '77' is not in collection"),
        ("run.train.tsv", "q1\t3\tfirst\n", r"run\.train\.tsv:21: expected lines of MS MARCO's run"),
        ("run.train.tsv", "q1\n", r"run\.train\.tsv:21: expected lines of MS MARCO's run"),
        ("run.train.tsv", "q1 Q0 9 6 0.5 tag\n", r"run\.train\.tsv:21: .* all of one kind"),
        ("run.train.tsv", "q1\t1\t6\n", r"run\.train\.tsv:21: passage '1' is a candidate of query 'q1' already"),
        ("run.train.tsv", "q1\t9\t5\n", r"run\.train\.tsv:21: passages '5' and '9' both have rank 5 for query 'q1'"),
        ("run.train.tsv", "q7\t1\t1\n", r"run\.train\.tsv:21: candidates of query 'q7', which is not in queries"),
    ],
)
def test_msmarcos_bad_lines_are_named(msmarco: Path, name: str, line: str, message: str) -> None:
    """Among eight million lines, the number is what helps."""
    with (msmarco / name).open("a") as file:
        file.write(line)
    with pytest.raises(DataError, match=message):
        load_msmarco(msmarco, "train", msmarco / "run.train.tsv")


@pytest.mark.parametrize("depth", [0, -1])
def test_msmarcos_depth(msmarco: Path, depth: int) -> None:
    """With 0 every list is empty, with -1 each lacks its last candidate."""
    with pytest.raises(DataError, match=f"at least 1; got {depth}"):
        load_msmarco(msmarco, "train", msmarco / "run.train.tsv", depth)


def test_msmarco_with_a_byte_order_mark(msmarco: Path) -> None:
    """The first query, passage, judgement and candidate have it in their ids, and are lost."""
    for name in ("run.train.tsv", "top1000.dev.tsv"):
        split = name.split(".")[1]
        expected = load_msmarco(msmarco, split, msmarco / name)
        for file in (name, "collection.tsv", f"queries.{split}.tsv", f"qrels.{split}.tsv"):
            (msmarco / file).write_bytes(b"\xef\xbb\xbf" + (msmarco / file).read_bytes())
        assert load_msmarco(msmarco, split, msmarco / name) == expected


def test_a_carriage_return_inside_a_passage(msmarco: Path) -> None:
    """It is no end of a line: what follows would be cut off, or taken for another passage."""
    path = msmarco / "collection.tsv"
    path.write_bytes(path.read_bytes().replace(b"0\t", b"0\tone\rtwo\x0b\xc2\x85three \r", 1).replace(b"\n", b"\r\n"))
    read = load_msmarco(msmarco, "train", msmarco / "run.train.tsv")
    assert read.items[0].text.startswith("one\rtwo\x0b\x85three \r") and len(read.items) == 8
    assert not any(item.text.endswith("\r") for item in read.items)


def test_what_msmarco_has_twice_is_counted(msmarco: Path) -> None:
    """A candidate twice in a list takes the place of another, and a judgement counts double."""
    expected = load_msmarco(msmarco, "train", msmarco / "run.train.tsv")
    for name, line in (("run.train.tsv", "q1\t1\t1\n"), ("qrels.train.tsv", "q1 0 1 1\nq9 0 1 1\n")):
        with (msmarco / name).open("a") as file:
            file.write(line)
    read = load_msmarco(msmarco, "train", msmarco / "run.train.tsv")
    assert read.fingerprint == expected.fingerprint
    assert read.notes == {REPEATED_CANDIDATE: 1, REPEATED_JUDGEMENT: 1, NOT_ASKED: 1}


def test_dstc7(tmp_path: Path) -> None:
    """Options of other dialogues must not become a dialogue's own, nor the answer another's."""
    write_dstc7(tmp_path, dialogues=3, options=4)
    train = load_dstc7(tmp_path / "ubuntu_train_subtask_1.json")
    answers = tmp_path / "ubuntu_responses_subtask_1.tsv"
    test = load_dstc7(tmp_path / "ubuntu_test_subtask_1.json", answers)
    for read in (train, test):
        assert [query.id for query in read.queries] == ["0", "1", "2"] and len(read.items) == 12
        ids = [[read.items[row].id for row in listed] for listed in read.candidates]
        assert ids == [[f"c{n}-{option}" for option in range(4)] for n in range(3)]
        assert [[read.items[row].id for row in read.relevant(n)] for n in range(3)] == [["c0-0"], ["c1-1"], ["c2-2"]]
    assert train.queries[1].text == "participant_1: how do I find the river ? participant_2: which one ?"
    short = load_dstc7(tmp_path / "ubuntu_train_subtask_1.json", words=3)
    assert short.queries[1].text == "which one ?"


def test_dstc7s_answer_outside_the_options(tmp_path: Path) -> None:
    """It is added and counted: otherwise no model could answer, and no figure would say so."""
    found = dialogue(0, 3) | {"options-for-correct-answers": [{"candidate-id": "none", "utterance": "none of them"}]}
    (tmp_path / "a.json").write_text(json.dumps([found]))
    read = load_dstc7(tmp_path / "a.json", add_answer=True)
    assert [read.items[row].id for row in read.candidates[0]] == ["c0-0", "c0-1", "c0-2", "none"]
    assert read.notes == {ADDED: 1}


def test_dstc7s_test_lists_stay_as_they_were_published(tmp_path: Path) -> None:
    """With the answer put into its list a system finds what it never could."""
    write_dstc7(tmp_path, dialogues=2, options=3)
    found = dialogue(0, 3) | {"options-for-correct-answers": [{"candidate-id": "none", "utterance": "none of them"}]}
    for split in ("train", "dev"):
        (tmp_path / f"ubuntu_{split}_subtask_1.json").write_text(json.dumps([found]))
    data = DSTC7(tmp_path)
    train, dev = data.collections("train")[0], data.collections("dev")[0]
    assert (len(train.candidates[0]), train.notes) == (4, {ADDED: 1})
    assert (len(dev.candidates[0]), dev.notes) == (3, {MISSED: 1})
    assert [dev.items[row].id for row in dev.relevant(0)] == ["none"]


def test_what_dstc7_has_twice_is_counted(tmp_path: Path) -> None:
    """An option that stands twice in a list has two places, one of which another option should have."""
    write_dstc7(tmp_path, dialogues=2, options=3)
    path, answers = tmp_path / "ubuntu_test_subtask_1.json", tmp_path / "ubuntu_responses_subtask_1.tsv"
    expected = load_dstc7(path, answers)
    dialogues = json.loads(path.read_text())
    dialogues[1]["options-for-next"].insert(1, dialogues[1]["options-for-next"][0])
    path.write_text(json.dumps(dialogues))
    answers.write_text(answers.read_text() * 2 + "77\tc0-0\n")
    read = load_dstc7(path, answers)
    assert read.fingerprint == expected.fingerprint
    assert read.notes == {dstc7.REPEATED: 1, dstc7.REPEATED_ANSWER: 2, dstc7.NOT_ASKED: 1}


BAD: list[tuple[Callable[[str], str], str]] = [
    (lambda text: text.replace('"messages-so-far"', '"messages"', 2), r"a\.json:2: expected a list of objects"),
    (lambda text: text[: len(text) // 2], r"a\.json:\d+: broken JSON"),
    (lambda text: "{}", r"a\.json:1: expected a JSON array, got '{}'"),
    (lambda text: text.replace("[", "[\n\n 7,", 1), r"a\.json:3: expected a JSON object, got '7'"),
    (lambda text: text + " []", r"a\.json:\d+: expected nothing behind the array, got '\[\]'"),
    (lambda text: text[:-1].rstrip() + ", ]", r"a\.json:\d+: broken JSON: expected ',' and an object, or '\]'"),
    (lambda text: text.replace('"example-id": 1', '"example-id": 0'), r"a\.json:\d+: example-id '0' appears more"),
    (
        lambda text: text.replace('"example-id": 1', '"example-id": 1, "example-id": 2'),
        r"the key 'example-id' is there",
    ),
    (lambda text: text.replace("how do I find", "\\ud800"), r"a\.json:2: .* half of a character"),
    (lambda text: text.replace("[", "[" * 100_000, 1), r"a\.json:1: JSON that is nested too deeply"),
    (lambda text: text.replace(": 0", ": " + "9" * 5000, 1), r"a\.json:2: JSON that cannot be used: .*digits"),
    (lambda text: text.replace('"c1-0"', '"c0-1"', 1), r"candidate-id 'c0-1' appears with another utterance"),
]


@pytest.mark.parametrize(("change", "message"), BAD)
def test_dstc7s_bad_records_are_named(change: Callable[[str], str], message: str, tmp_path: Path) -> None:
    """The array is one value to JSON: its own errors would name no record."""
    (tmp_path / "a.json").write_text(change(json.dumps([dialogue(0, 3), dialogue(1, 3)], indent=1)))
    with pytest.raises(DataError, match=message):
        load_dstc7(tmp_path / "a.json")


def test_dstc7_without_answers(tmp_path: Path) -> None:
    """The test file has none: they must be asked for, not guessed."""
    write_dstc7(tmp_path, dialogues=2, options=3)
    with pytest.raises(DataError, match="expected a list of objects under 'options-for-correct-answers'"):
        load_dstc7(tmp_path / "ubuntu_test_subtask_1.json")
    (tmp_path / "ubuntu_responses_subtask_1.tsv").write_text("0\tc0-0\n")
    with pytest.raises(DataError, match="no answer is known for example-id '1'"):
        load_dstc7(tmp_path / "ubuntu_test_subtask_1.json", tmp_path / "ubuntu_responses_subtask_1.tsv")


def test_an_arrays_lines(tmp_path: Path) -> None:
    """Against line numbers counted by eye."""
    (tmp_path / "a.json").write_text('\n[ {"a": 1},\n\n{"a":\n2}\n , {"a": 3} ]\n')
    assert [(r.line, r.fields["a"]) for r in read_json_array(tmp_path / "a.json")] == [(2, 1), (4, 2), (6, 3)]


def offered(*lists: list[int]) -> Collection:
    items = [Item(f"i{n}", "text") for n in range(6)]
    return Collection(
        "c", items, [Query(f"q{n}", "text") for n in range(len(lists))], [{0: 1}] * len(lists), candidates=lists
    )


def test_given_candidates_keep_their_order() -> None:
    """A first stage that sorted them by row would undo the retriever's work."""
    stage = Given()
    collection = offered([4, 2, 0], [1, 5, 3])
    stage.index(Corpus.of(collection))
    rows, scores = stage.search(collection.queries[::-1], 2)
    assert rows.tolist() == [[1, 5], [4, 2]] and np.isnan(scores).all()
    assert mine(Given(), offered([4, 2, 0], [1, 5, 3]), 3).items.tolist() == [[4, 2, 0], [1, 5, 3]]


def test_fewer_candidates_than_asked_for() -> None:
    """MS MARCO's top1000.dev has fewer for some queries; filling up with any item would make the task easier."""
    stage, collection = Given(), offered([4, 2, 0], [1, 5], [])
    stage.index(Corpus.of(collection))
    rows, scores = stage.search([*collection.queries, Query("new", "text")], 3)
    assert rows.tolist() == [[4, 2, 0], [1, 5, -1], [-1, -1, -1], [-1, -1, -1]]
    assert np.array_equal(np.isneginf(scores), rows == -1) and np.isnan(scores[rows >= 0]).all()
    with pytest.raises(ValueError, match=r"3 candidates .* but Given finds 2 for query 'q1'; every query has 0"):
        mine(Given(), collection, 3)
    with pytest.raises(ValueError, match="c offers no candidates"):
        stage.index(Corpus.of(offered()))


def test_lists_of_any_length_are_reranked_and_measured(tmp_path: Path) -> None:
    """A place that no candidate fills must be no result: not in the metrics, not in the run, not among the calls."""
    collection = replace(offered([4, 2, 0], [1, 5], [3]), judgements=[{0: 1}, {3: 1}, {3: 1}])
    matrix = np.arange(18, dtype=np.float32).reshape(3, 6)
    judge = MatrixJudge(matrix, ["q0", "q1", "q2"])
    found = evaluate(
        Rerank(Given(), 3), Corpus.of(collection, judge), collection, np.arange(3), 3, ["R@3", "RR@3"], exact=matrix
    )
    assert found.ranking.items.tolist() == [[4, 2, 0], [5, 1, -1], [3, -1, -1]]
    assert found.ranking.calls.tolist() == [3, 2, 1]
    assert found.values["R@3"].tolist() == [1, 0, 1]
    assert found.values["RR@3"].tolist() == pytest.approx([1 / 3, 0, 1])
    assert found.values["accuracy (normalised)"].tolist() == pytest.approx([0, np.nan, 1], nan_ok=True)
    assert found.values["Top-1-Recall"].tolist() == [0, 1, 0]
    write_trec(tmp_path, collection, np.arange(3), found.ranking, "given")
    run = read_trec(tmp_path / "run.trec")
    assert {query: [item for item, _ in items] for query, items in run.items()} == {
        "q0": ["i4", "i2", "i0"],
        "q1": ["i5", "i1"],
        "q2": ["i3"],
    }
    assert [one.id for one in Example.of(collection, np.arange(3), found.ranking, 1).found] == ["i5", "i1"]


def test_a_sample_keeps_its_own_lists() -> None:
    """Lists that stay behind would be those of other queries."""
    whole = offered([0], [1], [2], [3])
    few = whole.sample(2, seed=1)
    assert [[int(query.id[1:])] for query in few.queries] == [list(listed) for listed in few.candidates]
    assert whole.fingerprint != offered([0], [1], [2], [4]).fingerprint
    with pytest.raises(DataError, match="2 queries but 1 candidate lists"):
        Collection("c", whole.items, whole.queries[:2], [{}, {}], candidates=[[0]])
