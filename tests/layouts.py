"""Small data sets in published layouts, for the tests of their readers and recipes."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.toy import WORDS


def json_lines(path: Path, records: Sequence[dict[str, Any]]) -> None:
    """One object a line."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(record) + "\n" for record in records))


def entity(number: int) -> dict[str, Any]:
    """A line of BLINK's catalogue."""
    url = f"https://en.wikipedia.org/wiki?curid={100 + number}"
    return {"idx": url, "title": f"{WORDS[number % 12].title()} {number}", "text": f" The {WORDS[(number + 1) % 12]} ."}


def mention(number: int, label: int) -> dict[str, Any]:
    """A line of one of BLINK's files of mentions."""
    left, right = f"they saw the {WORDS[label % 12]} and", "\u00a0there . Then they left ."
    return {
        "id": "947",
        "context_left": left,
        "mention": f"{WORDS[number % 12]} it",
        "context_right": right,
        "label_id": 100 + label,
    }


def write_blink(root: Path, entities: int = 80, mentions: int = 12) -> None:
    """entity.jsonl and AIDA's three files."""
    json_lines(root / "entity.jsonl", [entity(n) for n in range(entities)])
    for name in ("train", "testa", "testb"):
        json_lines(root / f"AIDA-YAGO2_{name}.jsonl", [mention(n, 3 * n % entities) for n in range(mentions)])


def write_msmarco(root: Path, passages: int = 90, queries: int = 12, depth: int = 70) -> None:
    """collection.tsv, and queries, qrels and candidates of train (a run) and dev (top1000)."""
    root.mkdir(parents=True, exist_ok=True)
    texts = [f"the {WORDS[n % 12]} and the {WORDS[n * 5 % 12]} {n}" for n in range(passages)]
    asked = [f"where is the {WORDS[n % 12]}" for n in range(queries)]
    (root / "collection.tsv").write_text("".join(f"{n}\t{text}\n" for n, text in enumerate(texts)))
    for split in ("train", "dev"):
        (root / f"queries.{split}.tsv").write_text("".join(f"q{n}\t{text}\n" for n, text in enumerate(asked)))
        (root / f"qrels.{split}.tsv").write_text("".join(f"q{n}\t0\t{n}\t1\n" for n in range(queries)))
    listed = [(n, (n + step) % passages, step + 1) for n in range(queries) for step in range(depth)]
    (root / "run.train.tsv").write_text("".join(f"q{n}\t{passage}\t{rank}\n" for n, passage, rank in listed))
    (root / "top1000.dev.tsv").write_text("".join(f"q{n}\t{p}\t{asked[n]}\t{texts[p]}\n" for n, p, _ in listed))


def dialogue(number: int, options: int, answered: bool = True) -> dict[str, Any]:
    """One of DSTC7's dialogues, with its options."""
    offered = [{"candidate-id": f"c{number}-{n}", "utterance": f"try the {WORDS[n % 12]} {n}"} for n in range(options)]
    messages = [
        {"speaker": "participant_1", "utterance": f"how do I find the {WORDS[number % 12]} ?"},
        {"speaker": "participant_2", "utterance": "which one ?"},
    ]
    answer = {"options-for-correct-answers": [offered[number % options]]} if answered else {}
    return {"example-id": number, "messages-so-far": messages, "options-for-next": offered, **answer}


def write_dstc7(root: Path, dialogues: int = 12, options: int = 100) -> None:
    """The arrays of the three splits, and the table of the test split's answers."""
    root.mkdir(parents=True, exist_ok=True)
    for split in ("train", "dev", "test"):
        found = [dialogue(n, options, split != "test") for n in range(dialogues)]
        (root / f"ubuntu_{split}_subtask_1.json").write_text(json.dumps(found, indent=4))
    answers = "".join(f"{n}\tc{n}-{n % options}\n" for n in range(dialogues))
    (root / "ubuntu_responses_subtask_1.tsv").write_text(answers)


def write_zeshel(root: Path, world: str, mentions: str, pages: int = 80, queries: int = 12) -> None:
    """One world's pages and the mentions that link to them, added to a file that may hold other worlds' too."""
    texts = [f"The {WORDS[n % 12]} lies by the {WORDS[n * 7 % 12]} ." for n in range(pages)]
    found = [
        {"document_id": f"{world}{n}", "title": f"{WORDS[n % 12]} {n}", "text": text} for n, text in enumerate(texts)
    ]
    json_lines(root / "documents" / f"{world}.json", found)
    path = root / "mentions" / f"{mentions}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        for n in range(queries):
            page, word = f"{world}{n}", texts[n].split()[1]
            record = {"mention_id": f"m-{page}", "corpus": world, "text": word, "start_index": 1, "end_index": 1}
            record |= {"context_document_id": page, "label_document_id": f"{world}{n + 1}"}
            file.write(json.dumps(record) + "\n")
