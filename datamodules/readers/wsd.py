"""The unified evaluation framework for word-sense disambiguation (Raganato et al., 2017): which sense has the word?

Layout: ``<set>/<set>.data.xml``, sentences of ``wf`` and ``instance`` elements, the latter to be disambiguated, and
``<set>/<set>.gold.key.txt``, a line an instance: its id and WordNet's sense keys. SemCor, the training set, has it too.

Query = sentence with the word marked, item = synset, candidates = the senses of lemma and part of speech in WordNet's
``index.sense``, the most frequent first. Every instance is answered, so F1 is accuracy: `Collection.relevant` holds
every gold sense, and one of them is enough.
"""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from xml.parsers import expat

from simzoo.core.records import Collection, DataError, Item, Query
from simzoo.datamodules.readers.json_lines import existing, numbered_lines, whole_number
from simzoo.datamodules.readers.notes import Notes
from simzoo.datamodules.readers.wordnet import load_synsets

WSD_SETS = ("senseval2", "senseval3", "semeval2007", "semeval2013", "semeval2015")
"""The five test sets; systems that are tuned on semeval2007 leave it out."""

NOT_LISTED = "instances none of whose gold senses belongs to lemma and part of speech, kept as misses"
OTHER_SENSE = "gold senses of another lemma or part of speech, left out"

HOW_TO_GET_SENSES = (
    "install Debian's package `wordnet-sense-index`, or fetch a WordNet that has it with `python -m "
    "simzoo.datamodules.readers.wordnet fetch --to FOLDER`: it must be of the same build as the data files"
)

_POS = {"NOUN": "n", "VERB": "v", "ADJ": "a", "ADV": "r"}
_INSIDE = {"corpus": None, "text": "corpus", "sentence": "text", "wf": "sentence", "instance": "sentence"}
LONGEST = 1 << 20  # characters of a sentence, and bytes of a tag or a comment
_KINDS = {"1": "n", "2": "v", "3": "a", "4": "r", "5": "a"}  # 5: an adjective that is another one's satellite


@dataclass(frozen=True, slots=True)
class _Instance:
    """A word to be disambiguated, and where it stands."""

    name: str
    lemma: str
    pos: str
    text: str
    span: tuple[int, int]
    line: int


class _Senses:
    """WordNet's index.sense: the synset of every key, and the synsets of every lemma in the order of its senses."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "index.sense"
        if not self.path.is_file():
            raise DataError(f"expected index.sense here; {HOW_TO_GET_SENSES}", folder)
        self.synsets: dict[str, str] = {}
        numbered: dict[str, dict[int, str]] = {}
        for number, line in numbered_lines(self.path):
            key, alias, synset, place = self._parsed(line, number)
            self.synsets[key] = synset
            if numbered.setdefault(alias, {}).setdefault(place, synset) != synset:
                raise DataError(f"{alias} has two senses of number {place}", self.path, number)
        self.by_alias = {alias: [found[place] for place in sorted(found)] for alias, found in numbered.items()}

    def _parsed(self, line: str, number: int) -> tuple[str, str, str, int]:
        """Key, lemma#pos, synset and number of a sense, as in senseidx(5WN)."""
        fields = line.split()
        lemma, _, rest = fields[0].partition("%")
        pos = _KINDS.get(rest.partition(":")[0])
        numbers = [whole_number(field) for field in fields[1:]]
        if len(fields) != 4 or not lemma or pos is None or None in numbers:
            raise DataError(
                f"expected a sense key, an offset, the sense's number and a count, got {line[:60]!r}", self.path, number
            )
        return fields[0], f"{lemma}#{pos}", f"{pos}-{fields[1]}", int(fields[2])


def load_wsd(root: Path, wordnet: Path, names: Sequence[str] = WSD_SETS, titles: bool = True) -> dict[str, Collection]:
    """Read sets in the framework's layout.

    Args:
        root: the folder that holds a folder a set.
        wordnet: a complete folder (`find_wordnet`) that holds index.sense too, of version 3.0.
        names: of the sets, for example "senseval2", or "semcor".
        titles: whether items are titled with their lemmas; without, only meaning helps.

    Returns:
        The collections by name, all over the same items: the synsets that are a candidate of any instance of any set. A
        query's alias is its lemma with its part of speech ("art#n"), whose rows the aliases list in WordNet's order of
        senses; ``candidates`` are these rows. Ids of queries begin with the set's name, as in the framework's
        concatenation of all sets (`pooled`).

    Raises:
        DataError: a file is missing or empty; or, with file and line, XML that is broken, declares an entity or a
            document type or has another structure, a line that is malformed, an instance without a gold sense or
            without candidates, a gold sense of an unknown instance or that WordNet lacks; or index.sense and the data
            files are of two builds.
    """
    if not names:
        raise DataError(f"an empty list of sets; name at least one, such as {', '.join(WSD_SETS)}")
    senses = _Senses(wordnet)
    read = {name: _read(root / name, name, senses) for name in names}
    wanted = {
        synset for part in read.values() for query in part.queries for synset in senses.by_alias[str(query.alias)]
    }
    items = load_synsets(wordnet, wanted, titles)
    if missing := sorted(wanted - {item.id for item in items}):
        raise DataError(f"names synset {missing[0]}, which the data files lack: {HOW_TO_GET_SENSES}", senses.path)
    rows = {item.id: row for row, item in enumerate(items)}
    return {name: _collection(f"WSD {name}", part, items, rows, senses) for name, part in read.items()}


def pooled(collections: Mapping[str, Collection], name: str = "WSD") -> Collection:
    """The sets of one `load_wsd` as one collection, the framework's "ALL", whose parts they are."""
    parts = list(collections.values())
    aliases: dict[str, Sequence[int]] = {}
    notes: dict[str, int] = {}
    for part in parts:
        aliases |= part.aliases
        for reason, count in part.notes.items():
            notes[reason] = notes.get(reason, 0) + count
    return replace(
        parts[0],
        name=name,
        queries=[query for part in parts for query in part.queries],
        judgements=[judged for part in parts for judged in part.judgements],
        candidates=[listed for part in parts for listed in part.candidates],
        aliases=aliases,
        notes=notes,
        parts=[name for name, part in collections.items() for _ in part.queries],
    )


@dataclass
class _Part:
    """A set: its queries, the synsets that are right for each, and the counts."""

    queries: list[Query]
    gold: list[list[str]]
    notes: dict[str, int]


def _collection(name: str, part: _Part, items: Sequence[Item], rows: Mapping[str, int], senses: _Senses) -> Collection:
    listed = {str(query.alias): [rows[s] for s in senses.by_alias[str(query.alias)]] for query in part.queries}
    judgements = [{rows[synset]: 1 for synset in gold if synset in rows} for gold in part.gold]
    candidates = [listed[str(query.alias)] for query in part.queries]
    return Collection(name, items, part.queries, judgements, listed, part.notes, candidates)


def _read(folder: Path, name: str, senses: _Senses) -> _Part:
    path, notes = existing(folder / f"{name}.data.xml"), Notes()
    gold, place = _read_gold(existing(folder / f"{name}.gold.key.txt"), senses)
    queries: dict[str, Query] = {}
    right: list[list[str]] = []
    for found in _instances(path):
        if found.name in queries:
            raise DataError(f"instance {found.name!r} appears more than once", path, found.line)
        if found.name not in gold:
            raise DataError(f"instance {found.name!r} has no gold sense in {place.name}", path, found.line)
        alias = f"{found.lemma}#{found.pos}"
        if alias not in senses.by_alias:
            raise DataError(f"WordNet has no sense of {alias!r}; is it version 3.0?", path, found.line)
        queries[found.name] = Query(f"{name}.{found.name}", found.text, found.span, alias)
        keys = gold[found.name]
        known = [key for key in keys if senses.synsets[key] in senses.by_alias[alias]]
        for key in keys:
            if key not in known:
                notes.drop(OTHER_SENSE, f"{found.name} {key}")
        notes.keep(NOT_LISTED, not known)
        right.append([senses.synsets[key] for key in known])
    if unknown := next((key for key in gold if key not in queries), None):
        raise DataError(f"has a gold sense of instance {unknown!r}, which {path.name} lacks", place)
    return _Part(list(queries.values()), right, notes.told(name))


def _read_gold(path: Path, senses: _Senses) -> tuple[dict[str, list[str]], Path]:
    """The sense keys of every instance."""
    gold: dict[str, list[str]] = {}
    for number, line in numbered_lines(path):
        name, *keys = line.split()
        if not keys or name in gold:
            raise DataError(f"expected an instance, once, and its sense keys, got {line[:80]!r}", path, number)
        if unknown := next((key for key in keys if key not in senses.synsets), None):
            raise DataError(f"WordNet's index.sense has no sense key {unknown!r}; is it version 3.0?", path, number)
        gold[name] = keys
    return gold, path


def _instances(path: Path) -> Iterator[_Instance]:
    """The instances of a file, sentence by sentence.

    expat resolves no external entities unless it is told how to. Declarations of entities, whose expansion can fill the
    memory, are refused, and with them every document type.
    """
    reader = _Sentences(path)
    try:
        with gzip.open(path, "rb") if path.suffix == ".gz" else path.open("rb") as stream:
            while block := stream.read(1 << 16):
                reader.parse(block)
                yield from reader.taken()
            reader.parser.Parse(b"", True)
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise DataError(f"is no whole gzip file ({error}); fetch it again", path) from error
    except expat.ExpatError as error:
        message = expat.ErrorString(error.code)
        raise DataError(f"broken XML: {message} at column {error.offset + 1}", path, error.lineno) from error
    yield from reader.taken()


class _Sentences:
    """What expat calls: keeps the words of one sentence, and the instances of those that have ended."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.parser = expat.ParserCreate("utf-8")
        self.parser.buffer_text = True
        self.parser.StartElementHandler = self._begin
        self.parser.EndElementHandler = self._end
        self.parser.CharacterDataHandler = self._characters
        self.parser.StartDoctypeDeclHandler = self._refuse
        self.parser.EntityDeclHandler = self._refuse
        self._open: list[str] = []
        self._words: list[str] = []
        self._asked: list[tuple[int, Mapping[str, str], int]] = []  # place of the word, attributes, line
        self._size = 0
        self._unheard = 0
        self._done: list[_Instance] = []

    def parse(self, block: bytes) -> None:
        """The next block of the file; expat keeps a tag or a comment in memory until it ends."""
        self._unheard += len(block)
        self.parser.Parse(block)
        if self._unheard > LONGEST:
            raise self._error(f"a tag or a comment of more than {LONGEST:,} bytes")

    def taken(self) -> list[_Instance]:
        """The instances of the sentences that have ended since the last call."""
        done, self._done = self._done, []
        return done

    def _error(self, message: str) -> DataError:
        return DataError(message, self.path, self.parser.CurrentLineNumber)

    def _refuse(self, *declared: object) -> None:
        raise self._error("declares a document type or an entity, which is not read: it can name other files or grow")

    def _begin(self, tag: str, attributes: dict[str, str]) -> None:
        self._unheard = 0
        self._grow(1 + sum(len(key) + len(value) for key, value in attributes.items()))
        inside = self._open[-1] if self._open else None
        if tag not in _INSIDE or _INSIDE[tag] != inside:
            raise self._error(f"expected corpus, text, sentence, and wf or instance in one another, got <{tag[:40]}>")
        self._open.append(tag)
        if tag == "sentence":
            self._words, self._asked = [], []
        elif tag in ("wf", "instance"):
            if tag == "instance":
                lacking = [key for key in ("id", "lemma", "pos") if not attributes.get(key, "").strip()]
                if lacking or attributes["pos"] not in _POS:
                    raise self._error(
                        f"expected id, lemma and pos, one of {', '.join(_POS)}, got {str(attributes)[:80]}"
                    )
                self._asked.append((len(self._words), attributes, self.parser.CurrentLineNumber))
            self._words.append("")

    def _characters(self, text: str) -> None:
        self._unheard = 0
        self._grow(len(text))
        if self._open and self._open[-1] in ("wf", "instance"):
            self._words[-1] += text
        elif text.strip():
            raise self._error(f"expected no text outside of words, got {text.strip()[:40]!r}")

    def _grow(self, size: int) -> None:
        self._size += size
        if self._size > LONGEST:
            raise self._error(f"a sentence of more than {LONGEST:,} characters")

    def _end(self, tag: str) -> None:
        self._open.pop()
        if tag != "sentence":
            return
        self._size = 0
        words = [" ".join(word.split()) for word in self._words]
        text = " ".join(words)
        for place, attributes, line in self._asked:
            if not words[place]:
                raise DataError(f"instance {attributes['id']!r} is empty", self.path, line)
            start = sum(len(word) + 1 for word in words[:place])
            span = (start, start + len(words[place]))
            lemma, pos = attributes["lemma"].lower(), _POS[attributes["pos"]]
            self._done.append(_Instance(attributes["id"], lemma, pos, text, span, line))
