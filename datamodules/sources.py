"""The data modules that recipes and commands name: one short class a layout over the readers."""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

from simzoo.core.records import Collection, Item
from simzoo.datamodules.lists import RetrievalData, Split
from simzoo.datamodules.readers.beir import load_beir, load_beir_hub, load_corpus
from simzoo.datamodules.readers.beir_files import Folder
from simzoo.datamodules.readers.blink import load_blink, load_entities
from simzoo.datamodules.readers.dstc7 import load_dstc7
from simzoo.datamodules.readers.msmarco import load_msmarco
from simzoo.datamodules.readers.wordnet import DEV_WORLDS, TEST_WORLDS, TRAIN_WORLDS, find_wordnet, load_wordnet
from simzoo.datamodules.readers.zeshel import ZESHEL_SPLITS, load_zeshel


class WordNet(RetrievalData):
    """Entity linking on WordNet: from a word in a usage example to its synset. See docs/wordnet.md.

    Args:
        root: folder with data.noun, index.noun, ...; None: the usual places.
        world: lexicographer file that is the test split, for example noun.artifact; None: the four test worlds.
        titles: show an item's lemmas; without them only the meaning helps, which is the harder task.
        train_worlds: the worlds of the train split.
        dev_worlds: the worlds of the dev split.
        **kwargs: see `RetrievalData`.
    """

    def __init__(
        self,
        root: str | None = None,
        world: str | None = None,
        titles: bool = True,
        train_worlds: tuple[str, ...] = TRAIN_WORLDS,
        dev_worlds: tuple[str, ...] = DEV_WORLDS,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
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


class ZeShEL(RetrievalData):
    """Zero-shot entity linking on Fandom wikis: documents/<world>.json and mentions/<split>.json.

    Args:
        root: folder of the data set.
        world: the world that the test split consists of, for example yugioh; None: the four test worlds.
        context_tokens: words of context on each side of a mention.
        **kwargs: see `RetrievalData`.
    """

    def __init__(self, root: Path, world: str | None = None, context_tokens: int = 128, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.root = root
        self.world = world
        self.context_tokens = context_tokens

    def read(self, split: Split) -> list[Collection]:
        """The worlds of a split."""
        names = ZESHEL_SPLITS["val" if split == "dev" else split]
        if self.world is not None and split == "test":
            names = (self.world,)
        return [load_zeshel(self.root, name, context_tokens=self.context_tokens) for name in names]


class BEIR(RetrievalData):
    """A collection in BEIR's layout: corpus.jsonl, queries.jsonl and qrels/<split>.tsv.

    Args:
        root: folder of the collection; give this or ``name``.
        name: name of a BEIR data set on the Hub, for example fiqa.
        split: the qrels to evaluate with.
        drop_same_id: for ArguAna and Quora, whose queries are items too: see `load_beir`.
        **kwargs: see `RetrievalData`.
    """

    def __init__(
        self,
        root: Path | None = None,
        name: str | None = None,
        split: str = "test",
        drop_same_id: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
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
        if self.root is not None and split == "test" and Folder(self.root).corpus_alone:
            return [load_corpus(Folder(self.root))]
        if self.root is not None:
            return [load_beir(self.root, qrels, drop_same_id=self.drop_same_id)]
        assert self.name is not None
        return [load_beir_hub(self.name, qrels, drop_same_id=self.drop_same_id)]


class BLINK(RetrievalData):
    """Wikipedia entity linking in BLINK's layout: AIDA, MSNBC, WNED; see `simzoo.datamodules.readers.blink`.

    Args:
        root: folder of the files.
        entities: the catalogue's file in it.
        train: the training mentions' file.
        dev: the validation mentions' file.
        test: the test mentions' file: AIDA-YAGO2_testb.jsonl, msnbc_questions.jsonl, wnedwiki_questions.jsonl, ...
        context_words: words of context on each side of a mention.
        **kwargs: see `RetrievalData`.
    """

    def __init__(
        self,
        root: Path,
        entities: str = "entity.jsonl",
        train: str = "AIDA-YAGO2_train.jsonl",
        dev: str = "AIDA-YAGO2_testa.jsonl",
        test: str = "AIDA-YAGO2_testb.jsonl",
        context_words: int = 64,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
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


class MSMARCO(RetrievalData):
    """MS MARCO passages with given candidates; see `simzoo.datamodules.readers.msmarco`.

    Args:
        root: folder of the files.
        train_candidates: run or top1000 file of the train split.
        dev_candidates: that of the dev split, which is the test split too: MS MARCO publishes no other judgements.
        depth: most candidates to keep for a query; None: all.
        **kwargs: see `RetrievalData`.
    """

    def __init__(
        self, root: Path, train_candidates: Path, dev_candidates: Path, depth: int | None = None, **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        self.root = root
        self.candidates = {"train": train_candidates, "dev": dev_candidates}
        self.depth = depth

    def read(self, split: Split) -> list[Collection]:
        """The split's queries and their candidates."""
        name = "train" if split == "train" else "dev"
        return [load_msmarco(self.root, name, self.candidates[name], self.depth)]


class DSTC7(RetrievalData):
    """DSTC7's next utterance among 100; see `simzoo.datamodules.readers.dstc7`.

    Args:
        root: folder of the files.
        train: the training dialogues' file.
        dev: the validation dialogues' file.
        test: the test dialogues' file.
        answers: table of the test dialogues' answers.
        words: last words of a dialogue to keep.
        **kwargs: see `RetrievalData`.
    """

    def __init__(
        self,
        root: Path,
        train: str = "ubuntu_train_subtask_1.json",
        dev: str = "ubuntu_dev_subtask_1.json",
        test: str = "ubuntu_test_subtask_1.json",
        answers: str | None = "ubuntu_responses_subtask_1.tsv",
        words: int = 300,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.root = root
        self.files: dict[Split, str] = {"train": train, "dev": dev, "test": test}
        self.answers = answers
        self.words = words

    def read(self, split: Split) -> list[Collection]:
        """The dialogues of a split."""
        answers = self.root / self.answers if split == "test" and self.answers is not None else None
        return [load_dstc7(self.root / self.files[split], answers, self.words, add_answer=split == "train")]
