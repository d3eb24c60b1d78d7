"""The sources that recipes and commands name: which collections there are, a class a layout over the readers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Literal

from simzoo.core.records import Collection, DataError, Item, Query
from simzoo.datamodules.readers.anchors import pseudo_queries
from simzoo.datamodules.readers.beir import generated_queries, load_beir, load_beir_hub, load_corpus, split_queries
from simzoo.datamodules.readers.beir_files import BeirFiles, Folder, Hub
from simzoo.datamodules.readers.blink import load_blink, load_entities
from simzoo.datamodules.readers.dstc7 import load_dstc7
from simzoo.datamodules.readers.json_lines import read_json_lines
from simzoo.datamodules.readers.msmarco import load_msmarco
from simzoo.datamodules.readers.pairs import Columns, collections_of, read_hub_pairs, read_pairs
from simzoo.datamodules.readers.wordnet import DEV_WORLDS, TEST_WORLDS, TRAIN_WORLDS, find_wordnet, load_wordnet
from simzoo.datamodules.readers.wsd import WSD_SETS, load_wsd, pooled
from simzoo.datamodules.readers.zeshel import ZESHEL_SPLITS, load_zeshel

__all__ = ["BEIR", "BLINK", "DSTC7", "MSMARCO", "WSD", "Pairs", "Source", "WordNet", "ZeShEL"]

Split = Literal["train", "dev", "test"]


class Source(ABC):
    """Which collections there are."""

    @abstractmethod
    def read(self, split: Split) -> list[Collection]:
        """Reads the collections of a split."""

    @property
    def item_ids(self) -> list[str]:
        """Every item's id, by row, where all splits have the same items: the command line hands them to a model that
        has a row for each. Empty for other sources.
        """
        return []

    @property
    def query_ids(self) -> list[str]:
        """Every training query's id, by row, for a model that has a row for each; empty for other sources."""
        return []

    def anchors(self, given: str) -> list[Query]:
        """Queries that an index may learn from, so that no test query is spent on it; see `with_anchors`.

        Args:
            given: ``train``: those of the train split; ``generated``: those that the data set's authors generated;
                otherwise a file of JSON lines with the key text, plain or gzipped.

        Raises:
            DataError: there are none, or the file is missing or damaged.
        """
        if given == "train":
            return self.train_queries()
        if given == "generated":
            return self.generated_queries()
        if not any(Path(f"{given}{end}").is_file() for end in ("", ".gz")):
            raise DataError(f"anchors {given!r} are neither train, generated nor items, and there is no such file")
        return pseudo_queries(read_json_lines(Path(given)))

    def train_queries(self) -> list[Query]:
        """The queries of the train split."""
        return [query for collection in self.collections("train") for query in collection.queries]

    def generated_queries(self) -> list[Query]:
        """Pseudo-queries that belong to the data set.

        Raises:
            DataError: there are none.
        """
        raise DataError(f"{type(self).__name__} has no generated queries; name a file of queries, or train, or items")

    def collections(self, split: Split) -> list[Collection]:
        """The collections of a split that have queries, read once."""
        known: dict[str, list[Collection]] = self.__dict__.setdefault("_known", {})
        if split not in known:
            known[split] = [collection for collection in self.read(split) if collection.queries]
        return known[split]


class WordNet(Source):
    """Entity linking on WordNet: from a word in a usage example to its synset. See docs/wordnet.md.

    Args:
        root: folder with data.noun, index.noun, ...; None: the usual places.
        world: lexicographer file that is the test split, for example noun.artifact; None: the four test worlds.
        titles: show an item's lemmas; without them only the meaning helps, which is the harder task.
        train_worlds: the worlds of the train split.
        dev_worlds: the worlds of the dev split.
    """

    def __init__(
        self,
        root: str | None = None,
        world: str | None = None,
        titles: bool = True,
        train_worlds: tuple[str, ...] = TRAIN_WORLDS,
        dev_worlds: tuple[str, ...] = DEV_WORLDS,
    ) -> None:
        self.root = root
        self.world = world
        self.titles = titles
        self.train_worlds = train_worlds
        self.dev_worlds = dev_worlds

    def read(self, split: Split) -> list[Collection]:
        """The worlds of a split; train, dev and test worlds are disjoint."""
        names = {"train": self.train_worlds, "dev": self.dev_worlds, "test": TEST_WORLDS}[split]
        if self.world is not None and split == "test":
            names = (self.world,)
        held_out = set(self.train_worlds) & {*self.dev_worlds, *TEST_WORLDS}
        if split == "train" and held_out:
            raise ValueError(f"train_worlds holds {', '.join(sorted(held_out))}, which is for validation or testing")
        worlds = load_wordnet(find_wordnet(self.root), self.titles, only=names)
        shown = "with titles" if self.titles else "without titles"
        return [replace(worlds[name], name=f"WordNet {name} {shown}") for name in names]


class WSD(Source):
    """The unified word-sense evaluation framework: which synset is the marked word's? See docs/wsd.md.

    A query's candidates are the senses of its word, the most frequent first (first stage `Given`). All of them are
    answered, so that accuracy is F1; it is reported of each set, and of the words with several senses ("ambiguous").

    Args:
        root: the folder that holds a folder a set.
        wordnet: a folder with WordNet 3.0 and its index.sense; None: the usual places.
        titles: show a synset's lemmas; without them only the meaning helps.
        test_sets: the sets of the test split, pooled.
        dev_sets: those of the dev split: figures of settings that were chosen on it leave it out.
        train_sets: those of the train split; SemCor has the same layout.
    """

    def __init__(
        self,
        root: Path,
        wordnet: str | None = None,
        titles: bool = True,
        test_sets: tuple[str, ...] = WSD_SETS,
        dev_sets: tuple[str, ...] = ("semeval2007",),
        train_sets: tuple[str, ...] = ("semcor",),
    ) -> None:
        self.root = root
        self.wordnet = wordnet
        self.titles = titles
        self.sets: dict[Split, tuple[str, ...]] = {"train": train_sets, "dev": dev_sets, "test": test_sets}

    def read(self, split: Split) -> list[Collection]:
        """The sets of a split as one collection."""
        names, shown = self.sets[split], "with titles" if self.titles else "without titles"
        found = load_wsd(self.root, find_wordnet(self.wordnet), names, self.titles)
        return [pooled(found, f"WSD {' + '.join(names)} {shown}")]


class ZeShEL(Source):
    """Zero-shot entity linking on Fandom wikis: documents/<world>.json and mentions/<split>.json.

    Args:
        root: folder of the data set.
        world: the world that the test split consists of, for example yugioh; None: the four test worlds.
        context_tokens: words of context on each side of a mention.
    """

    def __init__(self, root: Path, world: str | None = None, context_tokens: int = 128) -> None:
        self.root = root
        self.world = world
        self.context_tokens = context_tokens

    def read(self, split: Split) -> list[Collection]:
        """The worlds of a split."""
        names = ZESHEL_SPLITS["val" if split == "dev" else split]
        if self.world is not None and split == "test":
            names = (self.world,)
        return [load_zeshel(self.root, name, context_tokens=self.context_tokens) for name in names]


class BEIR(Source):
    """A collection in BEIR's layout: corpus.jsonl, queries.jsonl and qrels/<split>.tsv.

    Args:
        root: folder of the collection; give this or ``name``.
        name: name of a BEIR data set on the Hub, for example fiqa.
        split: the qrels to evaluate with: the test split. Training and validation take train and dev, on the Hub train
            and validation.
        drop_same_id: for ArguAna and Quora, whose queries are items too: see `load_beir`.
    """

    def __init__(
        self,
        root: Path | None = None,
        name: str | None = None,
        split: str = "test",
        drop_same_id: bool = False,
    ) -> None:
        if (root is None) == (name is None):
            raise ValueError("BEIR needs either a folder (root) or the name of a data set on the Hub (name)")
        self.root = root
        self.name = name
        self.split = split
        self.drop_same_id = drop_same_id

    def read(self, split: Split) -> list[Collection]:
        """The collection with the qrels of a split; ``split`` names those of the test split.

        A folder with corpus.jsonl alone has a test split without queries, in which a typed query can be searched.
        """
        qrels = self.split if split == "test" else split
        if split == "dev" and self.name is not None:
            qrels = "validation"
        if self.root is not None and split == "test" and Folder(self.root).corpus_alone:
            return [load_corpus(Folder(self.root))]
        if self.root is not None:
            return [load_beir(self.root, qrels, drop_same_id=self.drop_same_id)]
        assert self.name is not None
        return [load_beir_hub(self.name, qrels, drop_same_id=self.drop_same_id)]

    def train_queries(self) -> list[Query]:
        """See `Source.train_queries`; the items are not read."""
        return split_queries(self._files(), "train")

    def generated_queries(self) -> list[Query]:
        """See `Source.generated_queries`: gen-queries.jsonl, or ``<name>-generated-queries`` on the Hub."""
        return generated_queries(self._files())

    def _files(self) -> BeirFiles:
        if self.root is not None:
            return Folder(self.root)
        assert self.name is not None
        return Hub(self.name)


class BLINK(Source):
    """Wikipedia entity linking in BLINK's layout: AIDA, MSNBC, WNED; see `simzoo.datamodules.readers.blink`.

    Args:
        root: folder of the files.
        entities: the catalogue's file in it.
        train: the training mentions' file.
        dev: the validation mentions' file.
        test: the test mentions' file: AIDA-YAGO2_testb.jsonl, msnbc_questions.jsonl, wnedwiki_questions.jsonl, ...
        context_words: words of context on each side of a mention.
    """

    def __init__(
        self,
        root: Path,
        entities: str = "entity.jsonl",
        train: str = "AIDA-YAGO2_train.jsonl",
        dev: str = "AIDA-YAGO2_testa.jsonl",
        test: str = "AIDA-YAGO2_testb.jsonl",
        context_words: int = 64,
    ) -> None:
        self.root = root
        self.entities = entities
        self.files: dict[Split, str] = {"train": train, "dev": dev, "test": test}
        self.context_words = context_words

    @cached_property
    def catalogue(self) -> list[Item]:
        """The entities, read once for all splits."""
        return load_entities(self.root / self.entities)

    def read(self, split: Split) -> list[Collection]:
        """The mentions of a split."""
        return [load_blink(self.catalogue, self.root / self.files[split], self.context_words)]


class MSMARCO(Source):
    """MS MARCO passages with given candidates; see `simzoo.datamodules.readers.msmarco`.

    Args:
        root: folder of the files.
        train_candidates: run or top1000 file of the train split.
        dev_candidates: that of the dev split, which is the test split too: MS MARCO publishes no other judgements.
        depth: most candidates to keep for a query; None: all.
    """

    def __init__(
        self,
        root: Path,
        train_candidates: Path,
        dev_candidates: Path,
        depth: int | None = None,
    ) -> None:
        self.root = root
        self.candidates = {"train": train_candidates, "dev": dev_candidates}
        self.depth = depth

    def read(self, split: Split) -> list[Collection]:
        """The split's queries and their candidates."""
        name = "train" if split == "train" else "dev"
        return [load_msmarco(self.root, name, self.candidates[name], self.depth)]


class DSTC7(Source):
    """DSTC7's next utterance among 100; see `simzoo.datamodules.readers.dstc7`.

    Args:
        root: folder of the files.
        train: the training dialogues' file.
        dev: the validation dialogues' file.
        test: the test dialogues' file.
        answers: table of the test dialogues' answers.
        words: last words of a dialogue to keep.
    """

    def __init__(
        self,
        root: Path,
        train: str = "ubuntu_train_subtask_1.json",
        dev: str = "ubuntu_dev_subtask_1.json",
        test: str = "ubuntu_test_subtask_1.json",
        answers: str | None = "ubuntu_responses_subtask_1.tsv",
        words: int = 300,
    ) -> None:
        self.root = root
        self.files: dict[Split, str] = {"train": train, "dev": dev, "test": test}
        self.answers = answers
        self.words = words

    def read(self, split: Split) -> list[Collection]:
        """The dialogues of a split."""
        answers = self.root / self.answers if split == "test" and self.answers is not None else None
        return [load_dstc7(self.root / self.files[split], answers, self.words, add_answer=split == "train")]


class Pairs(Source):
    r"""Your own pairs of a query and a text that answers it; see docs/pairs.md.

    Items are all texts of the data, each once. Rows with the same query are put together. Validation and evaluation
    take the queries that are held out of training.

    Args:
        data: a file ending in .jsonl, .jsonl.gz, .csv, .tsv or .parquet; or the name of a data set on the Hub.
        columns: names of the columns.
        validation: share of the queries held out; 0: none.
        split: of a data set on the Hub.
        config: of a data set on the Hub that has several.
        split_seed: which queries are held out; not the training's seed, so that its runs are compared on the same.

    Examples:
        >>> from pathlib import Path
        >>> from tempfile import TemporaryDirectory
        >>> from simzoo import Pairs
        >>> with TemporaryDirectory() as folder:
        ...     path = Path(folder, "pairs.csv")
        ...     _ = path.write_text("query,positive\nship,a flat boat\nriver,water that flows\n")
        ...     (collection,) = Pairs(str(path), validation=0).read("train")
        >>> [query.text for query in collection.queries], collection.items[collection.relevant(0)[0]].text
        (['ship', 'river'], 'a flat boat')
    """

    def __init__(
        self,
        data: str,
        columns: Columns | None = None,
        validation: float = 0.1,
        split: str = "train",
        config: str | None = None,
        split_seed: int = 0,
    ) -> None:
        if not 0 <= validation < 1:
            raise ValueError(f"validation is a share in [0, 1), got {validation}")
        self.data = data
        self.columns = columns or Columns()
        self.validation = validation
        self.split = split
        self.config = config
        self.split_seed = split_seed

    @cached_property
    def parts(self) -> tuple[Collection, Collection]:
        """The queries to train on and those held out, read once for all splits."""
        path = Path(self.data)
        if path.suffix in (".gz", ".jsonl", ".csv", ".tsv", ".parquet") or path.exists():
            pairs = read_pairs(path, self.columns)
        else:
            pairs = read_hub_pairs(self.data, self.config, self.split, self.columns)
        return collections_of(self.data, pairs, self.validation, self.split_seed)

    def read(self, split: Split) -> list[Collection]:
        """The queries of a split."""
        return [self.parts[0 if split == "train" else 1]]
