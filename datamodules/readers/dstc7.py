"""DSTC7, track 1, subtask 1 (Yoshino et al., 2019): the next utterance of a dialogue, among 100.

Layout: a JSON array of dialogues, each with example-id, messages-so-far, options-for-next and
options-for-correct-answers. The test file has no answers; they are in a table of example-id, candidate-id.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from simzoo.core.records import Collection, DataError, Item, Query
from simzoo.datamodules.readers.json_lines import Record, existing, numbered_lines, read_json_array

ADDED = "dialogues whose answer is not among their options, the answer added"


def load_dstc7(path: Path, answers: Path | None = None, words: int = 300) -> Collection:
    """Read a file of dialogues.

    Args:
        path: the array, for example ``ubuntu_train_subtask_1.json``.
        answers: the table of answers, if they are not in the array.
        words: last words of a dialogue to keep.

    Returns:
        The collection. Items are all options once each; a query's ``candidates`` are its own options, in the file's
        order. A query's text is its messages, ``speaker: utterance`` each.

    Raises:
        DataError: a file is missing or empty; or, with file and line, broken JSON, a missing key, a dialogue without
            messages or options or answer, an id given twice with another utterance, or one that is not known.
    """
    if words < 1:
        raise DataError(f"words is the number of words of a dialogue to keep, at least 1; got {words}")
    known = {} if answers is None else _answers(answers)
    rows: dict[str, int] = {}
    items: list[Item] = []
    notes: Counter[str] = Counter()
    queries, judgements, lists = [], [], []

    def row_of(option: Record) -> int:
        item = Item(option.identifier("candidate-id"), option.text("utterance"))
        row = rows.setdefault(item.id, len(items))
        if row == len(items):
            items.append(item)
        elif items[row].text != item.text:
            raise option.error(f"candidate-id {item.id!r} appears with another utterance")
        return row

    for record in read_json_array(path):
        options = [row_of(option) for option in _records(record, "options-for-next")]
        if answers is None:
            gold = {row_of(option) for option in _records(record, "options-for-correct-answers")}
        else:
            gold = {rows.get(answer, -1) for answer in known.get(record.identifier("example-id"), ())}
        if not gold or -1 in gold:
            raise record.error(f"no answer is known for example-id {record.identifier('example-id')!r}")
        if not gold & set(options):
            notes[ADDED] += 1
            options = [*options, *sorted(gold)]
        messages = [f"{m.text('speaker', '')}: {m.text('utterance')}" for m in _records(record, "messages-so-far")]
        text = " ".join("\n".join(messages).split()[-words:])
        queries.append(Query(record.identifier("example-id"), text))
        judgements.append(dict.fromkeys(sorted(gold), 1))
        lists.append(options)
    return Collection(path.stem, items, queries, judgements, notes=dict(notes), candidates=lists)


def _records(record: Record, key: str) -> list[Record]:
    found: Any = record.fields.get(key)
    if not isinstance(found, list) or not found or not all(isinstance(entry, Mapping) for entry in found):
        raise record.error(f"expected a list of objects under {key!r}, got {str(found)[:60]!r}")
    return [Record(entry, record.path, record.line) for entry in found]


def _answers(path: Path) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    path = existing(path)
    for number, line in numbered_lines(path):
        fields = line.split()
        if len(fields) < 2:
            raise DataError(f"expected example-id and candidate-id, got {line.rstrip()[:80]!r}", path, number)
        found.setdefault(fields[0], []).append(fields[1])
    return found
