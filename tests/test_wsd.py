"""The word-sense framework's layout, on small files, and on the five test sets where SIMZOO_DATA has them."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import numpy as np
import pytest

from benchmarks.wsd import measure
from simzoo import evaluate
from simzoo.core.records import Collection, DataError
from simzoo.datamodules.readers.wordnet import load_synsets, load_wordnet
from simzoo.datamodules.readers.wordnet_files import find_wordnet
from simzoo.datamodules.readers.wsd import NOT_LISTED, OTHER_SENSE, load_wsd, pooled
from simzoo.datamodules.sources import WSD
from simzoo.models.dual_encoder import DualEncoder
from simzoo.models.formats import save
from simzoo.retrieval.searchers.rank_prior import prior_scores
from tests.test_wordnet import write_wordnet

# Keys in the order of the file, which is not that of the senses: the dish is boat's first one.
SENSES = """boat%1:06:00:: 00000100 2 3
boat%1:06:01:: 00000200 1 9
gaze_up%2:38:00:: 00000200 1 0
gravy_boat%1:06:00:: 00000200 1 1
look_up%2:38:00:: 00000100 1 5
look_up%2:38:01:: 00000200 2 0
galore%5:00:00:abundant:00 00000100 1 0
wet%3:00:00:: 00000200 1 8
well%4:02:00:: 00000100 1 2
"""
XML = """<?xml version="1.0" encoding="UTF-8" ?>
<corpus lang="en" source="toy">
<text id="d000">
<sentence id="d000.s000">
<wf lemma="the" pos="DET">The</wf>
<instance id="d000.s000.t000" lemma="boat" pos="NOUN">boats</instance>
<wf lemma="do" pos="VERB">do</wf>
<wf lemma="n&apos;t" pos="ADV">n&apos;t</wf>
<instance id="d000.s000.t001" lemma="look_up" pos="VERB">look up</instance>
<wf lemma="." pos=".">.</wf>
</sentence>
<sentence id="d000.s001">
<instance id="d000.s001.t000" lemma="Boat" pos="NOUN">Boats</instance>
<instance id="d000.s001.t001" lemma="galore" pos="ADJ">galore</instance>
<wf lemma="caf&#233;" pos="NOUN">caf&#233;</wf>
</sentence>
</text>
</corpus>
"""
GOLD = """d000.s000.t000 boat%1:06:00:: boat%1:06:01::
d000.s000.t001 gaze_up%2:38:00::
d000.s001.t000 boat%1:06:00::
d000.s001.t001 galore%5:00:00:abundant:00
"""


def write_set(root: Path, name: str, xml: str = XML, gold: str = GOLD) -> None:
    (root / name).mkdir(exist_ok=True)
    (root / name / f"{name}.data.xml").write_text(xml)
    (root / name / f"{name}.gold.key.txt").write_text(gold)


@pytest.fixture
def wordnet(tmp_path: Path) -> Path:
    folder = write_wordnet(tmp_path / "wordnet")
    (folder / "index.sense").write_text(SENSES)
    return folder


@pytest.fixture
def root(tmp_path: Path) -> Path:
    write_set(tmp_path, "toy")
    return tmp_path


def ids(collection: Collection, lists: list[list[int]]) -> list[list[str]]:
    return [[collection.items[row].id for row in rows] for rows in lists]


def test_small_set(root: Path, wordnet: Path) -> None:
    """A mark on another word, or senses in the order of the file, changes the task without an error."""
    found = load_wsd(root, wordnet, ["toy"])["toy"]
    assert [query.id for query in found.queries] == [
        f"toy.d000.s00{n}" for n in ("0.t000", "0.t001", "1.t000", "1.t001")
    ]
    text = "The boats do n't look up ."
    assert [query.text for query in found.queries] == [text, text, "Boats galore café", "Boats galore café"]
    marked = [query.text[slice(*query.mention)] for query in found.queries if query.mention]
    assert marked == ["boats", "look up", "Boats", "galore"]
    assert [query.alias for query in found.queries] == ["boat#n", "look_up#v", "boat#n", "galore#a"]
    boats, looks = ["n-00000200", "n-00000100"], ["v-00000100", "v-00000200"]
    assert ids(found, [list(rows) for rows in found.candidates]) == [boats, looks, boats, ["a-00000100"]]
    relevant = [found.relevant(row) for row in range(4)]
    assert ids(found, relevant) == [["n-00000100", "n-00000200"], ["v-00000200"], ["n-00000100"], ["a-00000100"]]
    assert {item.id: (item.title, item.text) for item in found.items}["n-00000200"] == (
        "gravy boat, boat",
        "a dish for gravy",
    )
    assert not any(item.title for item in load_wsd(root, wordnet, ["toy"], titles=False)["toy"].items)


def test_sets_share_their_items(root: Path, wordnet: Path) -> None:
    """Two sets with items of their own would encode most synsets twice, and their rows could not be pooled."""
    first = XML.replace("look_up", "wet").replace('"VERB">look up', '"ADJ">wet')
    write_set(root, "other", first, GOLD.replace("gaze_up%2:38:00::", "wet%3:00:00::"))
    sets = load_wsd(root, wordnet, ["toy", "other"])
    assert sets["toy"].items is sets["other"].items
    whole = pooled(sets)
    assert len(whole.queries) == 8 and len({query.id for query in whole.queries}) == 8
    assert [whole.relevant(4 + n) for n in range(4)] == [sets["other"].relevant(n) for n in range(4)]
    assert set(whole.aliases) == {"boat#n", "look_up#v", "galore#a", "wet#a"}


def test_gold_senses_of_another_lemma_are_counted(root: Path, wordnet: Path) -> None:
    """No candidate is right there: left out in silence, the instance would raise the figure."""
    write_set(root, "toy", gold=GOLD.replace("gaze_up%2:38:00::", "wet%3:00:00::"))
    found = load_wsd(root, wordnet, ["toy"])["toy"]
    assert found.notes == {NOT_LISTED: 1, OTHER_SENSE: 1}
    assert len(found.queries) == 4 and found.relevant(1) == []


@pytest.mark.parametrize(
    ("file", "old", "new", "message"),
    [
        ("toy.data.xml", "</text>", "", r"data\.xml:18: broken XML: mismatched tag at column 3"),
        ("toy.data.xml", "</corpus>", "", r"data\.xml:\d+: broken XML: no element found"),
        ("toy.data.xml", "wf lemma", "word lemma", r"data\.xml:5: expected corpus, text, sentence, .* got <word>"),
        ("toy.data.xml", "<text id", "<sentence id", r"data\.xml:3: expected corpus, text, sentence"),
        ("toy.data.xml", "<text id", "some words <text id", r"data\.xml:\d: expected no text outside of words"),
        ("toy.data.xml", 'pos="VERB">look', 'pos="X">look', r"data\.xml:9: expected id, lemma and pos, one of NOUN"),
        ("toy.data.xml", 'lemma="look_up"', "", r"data\.xml:9: expected id, lemma and pos"),
        ("toy.data.xml", ">look up<", "> <", r"data\.xml:9: instance 'd000\.s000\.t001' is empty"),
        ("toy.data.xml", '"look_up"', '"boating"', r"data\.xml:9: WordNet has no sense of 'boating#v'"),
        ("toy.data.xml", "s001.t000", "s000.t000", r"data\.xml:13: instance 'd000\.s000\.t000' appears more than once"),
        ("toy.data.xml", "s001.t000", "s009.t000", r"data\.xml:13: instance 'd000\.s009\.t000' has no gold sense"),
        ("toy.gold.key.txt", "gaze_up%2:38:00::", "x", r"key\.txt:2: WordNet's .* sense key 'x'"),
        ("toy.gold.key.txt", "s001.t000", "s000.t000", r"key\.txt:3: expected an instance, once"),
        ("toy.gold.key.txt", "d000.s001", "y.0 wet%3:00:00::\nd000.s001", r"key\.txt: .* instance 'y\.0', which toy"),
        ("toy.gold.key.txt", " gaze_up%2:38:00::", "", r"key\.txt:2: expected an instance, once, and its sense keys"),
    ],
)  # fmt: skip
def test_bad_places_are_named(root: Path, wordnet: Path, file: str, old: str, new: str, message: str) -> None:
    """What is passed over gives a figure over other instances than the published ones."""
    path = root / "toy" / file
    assert old in path.read_text()
    path.write_text(path.read_text().replace(old, new, 1))
    with pytest.raises(DataError, match=message):
        load_wsd(root, wordnet, ["toy"])


LAUGHS = "".join(f'<!ENTITY a{n + 1} "{f"&a{n};" * 10}">' for n in range(9))


@pytest.mark.parametrize(
    "declared",
    [
        '<!DOCTYPE corpus SYSTEM "http://127.0.0.1:9/wsd.dtd">',
        '<!DOCTYPE corpus [<!ENTITY a SYSTEM "file:///etc/hostname">]>',
        f'<!DOCTYPE corpus [<!ENTITY a0 "ha">{LAUGHS}]>',
    ],
)
def test_entities_are_refused(root: Path, wordnet: Path, declared: str) -> None:
    """One names a file of this machine, whose text would stand in a query; nine in one another fill the memory."""
    xml = XML.replace("<corpus", f"{declared}\n<corpus").replace(">look up<", ">&a9;&a;<")
    write_set(root, "toy", xml)
    with pytest.raises(DataError, match=r"data\.xml:2: declares a document type or an entity, which is not read"):
        load_wsd(root, wordnet, ["toy"])


@pytest.mark.parametrize(
    ("big", "message"),
    [
        ("<wf>" + "x" * 2_000_000 + "</wf>", "a sentence of more than 1,048,576 characters"),
        ("<wf/>" * 2_000_000, "a sentence of more than 1,048,576 characters"),
        ("<wf a='" + "x" * 4_000_000 + "'/>", "of more than 1,048,576"),
        ("<!--" + "x" * 4_000_000 + "-->", "a tag or a comment of more than 1,048,576 bytes"),
    ],
    ids=["text", "words", "attribute", "comment"],
)
def test_small_files_do_not_grow(root: Path, wordnet: Path, big: str, message: str) -> None:
    """A gzip file of some kilobytes can hold gigabytes."""
    packed = gzip.compress(XML.replace("<wf", f"{big}<wf", 1).encode())
    assert len(packed) < 20_000
    (root / "toy" / "toy.data.xml").unlink()
    (root / "toy" / "toy.data.xml.gz").write_bytes(packed)
    with pytest.raises(DataError, match=message):
        load_wsd(root, wordnet, ["toy"])


def test_gzipped_files_read_alike(root: Path, wordnet: Path) -> None:
    """SemCor is large."""
    expected = load_wsd(root, wordnet, ["toy"])
    for file in list((root / "toy").iterdir()):
        file.with_name(file.name + ".gz").write_bytes(gzip.compress(file.read_bytes()))
        file.unlink()
    assert load_wsd(root, wordnet, ["toy"]) == expected


def test_wordnet_of_another_build(root: Path, wordnet: Path) -> None:
    """Debian's offsets are others than Princeton's: with the wrong ones senses would be exchanged."""
    (wordnet / "index.sense").write_text(SENSES.replace("00000100 2 3", "00000199 2 3"))
    with pytest.raises(DataError, match=r"index\.sense: names synset n-00000199, which the data files lack: install"):
        load_wsd(root, wordnet, ["toy"])
    (wordnet / "index.sense").write_text(SENSES.replace("00000100 2 3", "00000100 1 3"))
    with pytest.raises(DataError, match=r"index\.sense:2: boat#n has two senses of number 1"):
        load_wsd(root, wordnet, ["toy"])
    (wordnet / "index.sense").write_text(SENSES + f"x%1:06:00:: 00000100 {'9' * 5000} 0\n")
    with pytest.raises(DataError, match=r"index\.sense:10: expected a sense key, an offset"):
        load_wsd(root, wordnet, ["toy"])
    (wordnet / "index.sense").unlink()
    with pytest.raises(DataError, match=r"expected index\.sense here; install Debian's package `wordnet-sense-index`"):
        load_wsd(root, wordnet, ["toy"])
    with pytest.raises(DataError, match="an empty list of sets"):
        load_wsd(root, wordnet, [])


def test_synsets_are_those_of_the_worlds(wordnet: Path) -> None:
    """A synset must look alike in training and here."""
    items = {item.id: item for world in load_wordnet(wordnet).values() for item in world.items}
    assert {item.id: item for item in load_synsets(wordnet, items)} == items


def other_set(root: Path) -> None:
    """A second set, in which the gold of the first "boat" is its first sense alone."""
    write_set(root, "other", gold=GOLD.replace("boat%1:06:00:: boat%1:06:01::", "boat%1:06:01::"))


def test_f1_by_set_on_the_command_line(root: Path, wordnet: Path) -> None:
    """F1 of all sets hides a set in which a model fails; words with one sense are right for everybody.

    By hand: the first senses are the dish, 100 of look up and galore. In "toy" the first boat may be either and the
    second is not the dish, look up is 200, galore is right: 2 of 4, and 1 of the 3 with several senses. In "other" the
    same, the dish being right alone.
    """
    other_set(root)
    data = ["--data", "WSD", "--data.root", str(root), "--data.wordnet", str(wordnet)]
    data += ["--data.test_sets", "[toy, other]"]
    first = ["--search", "Retrieve", "--search.first_stage", "Given"]
    evaluate.main(["run", *data, *first, "--k", "2", "--output", str(root / "first")])
    found = json.loads((root / "first" / "metrics.json").read_text())["metrics"]
    assert {name: found[name]["mean"] for name in found if name.startswith("accuracy")} == pytest.approx(
        {"accuracy": 1 / 2, "accuracy (toy)": 1 / 2, "accuracy (other)": 1 / 2, "accuracy (ambiguous)": 1 / 3}
    )
    assert found["accuracy (toy)"]["queries"] == 4 and found["accuracy (ambiguous)"]["queries"] == 6
    save(DualEncoder.tiny(), root / "de")
    model = ["--checkpoint", str(root / "de"), "--search", "RankPrior"]
    evaluate.main(["run", *data, *model, "--search.weight", "1e6", "--k", "2", "--output", str(root / "prior")])
    trec = [[line.split()[:3] for line in (root / name / "run.trec").open()] for name in ("first", "prior")]
    assert trec[0] == trec[1]


def test_splits_of_the_source(root: Path, wordnet: Path) -> None:
    """A dev set that is also trained on, or sampled parts under the names of others, give figures that mean nothing."""
    other_set(root)
    source = WSD(root, str(wordnet), False, ("toy", "other"), ("other",), ("toy",))
    (dev,), (train,) = source.collections("dev"), source.collections("train")
    assert dev.queries[0].id.startswith("other.") and train.queries[0].id.startswith("toy.")
    (whole,) = source.collections("test")
    some = whole.with_queries([6, 0])
    assert (whole.parts[0], list(some.parts)) == ("toy", ["other", "toy"])
    assert not any(item.title for item in whole.items)
    with pytest.raises(DataError, match="names the parts of 8"):
        type(whole)(whole.name, whole.items, some.queries, some.judgements, parts=whole.parts)


def test_the_prior_by_hand() -> None:
    """A prior of places from 0 would be infinite at the first one, and one of the row order would be none."""
    scores = np.array([[0.0, 1.0, 1.5, -np.inf]], dtype=np.float32)
    expected = [0.0, 1 - 2 * np.log(2), 1.5 - 2 * np.log(3), -np.inf]
    np.testing.assert_allclose(prior_scores(scores, 2.0)[0], expected, rtol=1e-6)


def test_the_weight_is_chosen_on_its_set_alone(root: Path, wordnet: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A weight that is chosen on the test sets flatters them: here these want none, and the set for it a large one."""
    other_set(root)
    sets = load_wsd(root, wordnet, ["toy", "other"])
    monkeypatch.setattr(measure, "DEV", "other")
    whole = pooled(sets)
    columns = measure.senses(whole)
    # The second sense scores higher everywhere: wrong for the first boat of "other", right or free in "toy".
    scores = np.where(columns >= 0, np.arange(columns.shape[1]), -np.inf).astype(np.float32)
    scores[4:] /= 10
    only_boat = whole.with_queries([0, 2, 3, 4])
    kept = scores[[0, 2, 3, 4]]
    weight = measure.chosen_weight(kept, only_boat)
    assert weight > 0
    right = measure.f1(prior_scores(kept, weight), only_boat)["accuracy (other)"]
    assert np.nanmean(right) == 1
    monkeypatch.setattr(measure, "DEV", "semeval2007")
    with pytest.raises(ValueError, match="chosen on semeval2007"):
        measure.chosen_weight(scores, whole)


FIRST_SENSE = {"senseval2": 66.8, "senseval3": 66.2, "semeval2007": 55.2, "semeval2013": 63.0, "semeval2015": 67.8}


@pytest.mark.shared
def test_the_first_sense_has_its_published_figures(shared_data: Path) -> None:
    """Raganato et al. (2017), table 2, and 65.2 on all: any mistake in reading gives others."""
    if not (shared_data / "wsd").is_dir():
        pytest.skip("SIMZOO_DATA holds no wsd")
    try:
        folder = find_wordnet()
    except DataError as error:
        pytest.skip(f"needs WordNet 3.0: {error}")
    if not (folder / "index.sense").is_file():
        pytest.skip(f"{folder} holds no index.sense: Debian's package wordnet-sense-index has it")
    sets = load_wsd(shared_data / "wsd", folder)
    (whole,) = WSD(shared_data / "wsd").collections("test")
    sets["ALL"] = whole
    assert {name: len(found.queries) for name, found in sets.items()}["ALL"] == 7253
    for name, figure in {**FIRST_SENSE, "ALL": 65.2}.items():
        found = sets[name]
        first = [listed[0] in found.relevant(row) for row, listed in enumerate(found.candidates)]
        assert round(100 * float(np.mean(first)), 1) == figure
        assert not found.notes
