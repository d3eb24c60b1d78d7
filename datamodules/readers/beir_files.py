"""Where the records of a collection in BEIR's layout come from: a folder, or data sets of the Hugging Face Hub."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol

from simzoo.core.records import DataError
from simzoo.datamodules.readers.json_lines import Record, existing, numbered_lines, read_json_lines, whole_number

__all__ = ["BeirFiles", "Folder", "Hub", "hub_rows", "read_qrels"]

GRADE_BITS = 32  # what trec_eval keeps a grade in
COLUMNS = ("query-id", "corpus-id", "score")
"""The header of a file of judgements, as BEIR writes it."""

# The Hub calls dev.tsv the validation split.
_SAME_SPLIT = {"dev": ("dev", "validation"), "validation": ("validation", "dev")}


class BeirFiles(Protocol):
    """The records of one collection."""

    name: str

    def items(self) -> Iterator[Record]:
        """``_id``, ``text`` and perhaps ``title`` of every item."""

    def queries(self) -> Iterator[Record]:
        """``_id`` and ``text`` of every query, of all splits."""

    def judgements(self, split: str) -> Iterator[Record]:
        """``query-id``, ``corpus-id`` and ``score`` of a split; "dev" and "validation" are the same split."""

    def generated(self) -> Iterator[Record]:
        """``text`` of the pseudo-queries that a model wrote for the items, with ``_id`` where they have one."""


class Folder:
    """corpus.jsonl, queries.jsonl, qrels/<split>.tsv and, if there are generated queries, gen-queries.jsonl.

    Raises:
        DataError: there is no such folder.
    """

    def __init__(self, root: Path | str) -> None:
        self.root = Path(root)
        if not self.root.is_dir():
            raise DataError("expected a folder with corpus.jsonl, queries.jsonl and qrels/, but there is none", root)
        self.name = self.root.resolve().name

    @property
    def corpus_alone(self) -> bool:
        """Whether the folder holds items, but neither queries nor judgements."""
        held = {entry.name.removesuffix(".gz") for entry in self.root.iterdir()}
        return "corpus.jsonl" in held and not held & {"queries.jsonl", "qrels"}

    def items(self) -> Iterator[Record]:
        """See `BeirFiles`."""
        return read_json_lines(self.root / "corpus.jsonl")

    def queries(self) -> Iterator[Record]:
        """See `BeirFiles`."""
        return read_json_lines(self.root / "queries.jsonl")

    def judgements(self, split: str) -> Iterator[Record]:
        """See `BeirFiles`."""
        names = [f"{name}.tsv" for name in _SAME_SPLIT.get(split, (split,))]
        folder = self.root / "qrels"
        there = [name for name in names if (folder / name).is_file() or (folder / f"{name}.gz").is_file()]
        return read_qrels(existing(folder / (there or names)[0]))

    def generated(self) -> Iterator[Record]:
        """See `BeirFiles`."""
        return read_json_lines(self.root / "gen-queries.jsonl")


class Hub:
    """The data sets ``<owner>/<name>``, ``<owner>/<name>-qrels`` and ``<owner>/<name>-generated-queries``.

    Args:
        name: "scifact", which is BeIR's, or with its owner: "BeIR/scifact".
        revision: a commit, tag or branch of the first of them; None for its newest.
    """

    def __init__(self, name: str, revision: str | None = None) -> None:
        self.repo = name if "/" in name else f"BeIR/{name}"
        self.name = self.repo.split("/")[-1]
        self.revision = revision

    def items(self) -> Iterator[Record]:
        """See `BeirFiles`."""
        return hub_rows(self.repo, "corpus", ("corpus",), self.revision)

    def queries(self) -> Iterator[Record]:
        """See `BeirFiles`."""
        return hub_rows(self.repo, "queries", ("queries",), self.revision)

    def judgements(self, split: str) -> Iterator[Record]:
        """See `BeirFiles`."""
        return hub_rows(f"{self.repo}-qrels", None, _SAME_SPLIT.get(split, (split,)), None)

    def generated(self) -> Iterator[Record]:
        """See `BeirFiles`; there ``_id`` is the item's, so it is left out, and the query is under ``query``."""
        for row in hub_rows(f"{self.repo}-generated-queries", None, ("train",), None):
            yield Record({"text": row.fields.get("query")}, row.path, row.line)


def hub_rows(repo: str, config: str | None, names: Sequence[str], revision: str | None) -> Iterator[Record]:
    """The rows of the first of the named splits that a data set of the Hub has.

    Raises:
        DataError: it cannot be loaded, or has none of these splits.
    """
    datasets = import_module("datasets")  # takes a second or two, which folders need not pay
    what = f"split {' or '.join(map(repr, names))}" + (f" of {config!r}" if config else "")
    try:
        splits: Mapping[str, Iterable[Mapping[str, Any]]] = datasets.load_dataset(repo, config, revision=revision)
    except (OSError, ValueError, datasets.exceptions.DatasetsError) as error:
        raise DataError(f"cannot load {what} from the Hub: {error}", repo) from error
    split = next((name for name in names if name in splits), None)
    if split is None:
        raise DataError(f"has no {what}; it has {', '.join(splits)}", repo)
    place = f"{repo}/{config or split}"
    return (Record(row, place, number) for number, row in enumerate(splits[split], start=1))


def read_qrels(path: Path) -> Iterator[Record]:
    """``query-id``, ``corpus-id`` and ``score`` of a table of judgements; the header may be missing.

    Raises:
        DataError: with file and line, a line is none of a table of judgements.
    """
    for number, line in numbered_lines(path):
        fields = tuple(field.strip() for field in line.split("\t"))
        if number == 1 and fields == COLUMNS:
            continue
        grade = whole_number(fields[2], GRADE_BITS) if len(fields) == 3 else None
        if grade is None:
            header = f" (a header is {' '.join(COLUMNS)})" if number == 1 else ""
            raise DataError(
                f"expected query id, item id and a whole-number grade of at most {GRADE_BITS} bits between tabs, got "
                f"{line.rstrip()[:80]!r}{header}",
                path,
                number,
            )
        yield Record({"query-id": fields[0], "corpus-id": fields[1], "score": grade}, path, number)
