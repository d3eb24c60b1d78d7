"""DSTC7, track 1, subtask 1 (Yoshino et al., 2019): the next utterance of a dialogue, among 100.

Layout: a JSON array of dialogues, each with example-id, messages-so-far, options-for-next and
options-for-correct-answers. The test file has no answers; they are in a table of example-id, candidate-id.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from simzoo.core.records import Collection, DataError, Item, Query
from simzoo.datamodules.readers.json_lines import Record, existing, numbered_lines, read_json_array, shown
from simzoo.datamodules.readers.notes import Notes

ADDED = "dialogues whose answer is not among their options, the answer added"
MISSED = "dialogues whose answer is not among their options, kept as misses"
REPEATED = "options that a dialogue offers twice, dropped"
REPEATED_ANSWER = "answers given twice, dropped"
NOT_ASKED = "answers to unknown dialogues, left out"


def load_dstc7(path: Path, answers: Path | None = None, words: int = 300, add_answer: bool = False) -> Collection:
    """Read a file of dialogues.

    Args:
        path: the array, for example ``ubuntu_train_subtask_1.json``.
        answers: the table of answers, if they are not in the array.
        words: last words of a dialogue to keep.
        add_answer: an answer that is not among a dialogue's options is added to them, as training needs it. To test,
            the options stay as they were published, and no system can find that answer. (The CMC paper, appendix B,
            says that the official candidates include the answer: then both are the same.)

    Returns:
        The collection. Items are all options once each; a query's ``candidates`` are its own options, in the file's
        order. A query's text is its messages, ``speaker: utterance`` each. Notes count what is missing or repeated.

    Raises:
        DataError: a file is missing or empty; or, with file and line, broken JSON, a missing key, a dialogue without
            words or options or answer, an id given twice with another utterance, or one that is not known.
    """
    if words < 1:
        raise DataError(f"words is the number of words of a dialogue to keep, at least 1; got {words}")
    notes = Notes()
    known = {} if answers is None else _answers(answers, notes)
    catalogue = _Catalogue()
    queries: dict[str, Query] = {}
    judgements, lists = [], []
    for record in read_json_array(path):
        name = record.identifier("example-id")
        options = _once([catalogue.row_of(option) for option in _records(record, "options-for-next")], name, notes)
        if answers is None:
            gold = {catalogue.row_of(option) for option in _records(record, "options-for-correct-answers")}
        else:
            gold = {catalogue.rows.get(answer, -1) for answer in known.get(name, ())}
        if not gold or -1 in gold:
            raise record.error(f"no answer is known for example-id {name!r}")
        if not gold & set(options):
            notes.keep(ADDED if add_answer else MISSED)
            options = [*options, *(sorted(gold) if add_answer else ())]
        if name in queries:
            raise record.error(f"example-id {name!r} appears more than once")
        queries[name] = _query(record, name, words)
        judgements.append(dict.fromkeys(sorted(gold), 1))
        lists.append(options)
    for name in known.keys() - queries.keys():
        notes.drop(NOT_ASKED, name)
    counts = notes.told(path.stem)
    return Collection(path.stem, catalogue.items, list(queries.values()), judgements, notes=counts, candidates=lists)


class _Catalogue:
    """The options of all dialogues, once each."""

    def __init__(self) -> None:
        self.rows: dict[str, int] = {}
        self.items: list[Item] = []

    def row_of(self, option: Record) -> int:
        item = Item(option.identifier("candidate-id"), option.text("utterance"))
        row = self.rows.setdefault(item.id, len(self.items))
        if row == len(self.items):
            self.items.append(item)
        elif self.items[row].text != item.text:
            raise option.error(f"candidate-id {item.id!r} appears with another utterance")
        return row


def _query(record: Record, name: str, words: int) -> Query:
    spoken = [
        (message.text("speaker", ""), message.text("utterance")) for message in _records(record, "messages-so-far")
    ]
    if not any(utterance.strip() for _, utterance in spoken):
        raise record.error(f"no message of example-id {name!r} has a word")
    whole = "\n".join(f"{speaker}: {utterance}" for speaker, utterance in spoken)
    return Query(name, " ".join(whole.split()[-words:]))


def _once(rows: list[int], name: str, notes: Notes) -> list[int]:
    kept = list(dict.fromkeys(rows))
    if len(kept) < len(rows):
        notes.drop(REPEATED, name, len(rows) - len(kept))
    return kept


def _records(record: Record, key: str) -> list[Record]:
    found: Any = record.fields.get(key)
    if not isinstance(found, list) or not found or not all(isinstance(entry, Mapping) for entry in found):
        raise record.error(f"expected a list of objects under {key!r}, got {shown(found)}")
    return [Record(entry, record.path, record.line) for entry in found]


def _answers(path: Path, notes: Notes) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    path = existing(path)
    for number, line in numbered_lines(path):
        fields = line.split()
        if len(fields) < 2:
            raise DataError(f"expected example-id and candidate-id, got {line.rstrip()[:80]!r}", path, number)
        answers = found.setdefault(fields[0], [])
        if fields[1] in answers:
            notes.drop(REPEATED_ANSWER, fields[0])
        else:
            answers.append(fields[1])
    return found
