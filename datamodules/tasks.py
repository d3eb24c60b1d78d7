"""The data modules that recipes and commands name: one short class a layout over the readers."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from datamodules.base import RetrievalData, Split
from datamodules.beir import load_beir, load_beir_hub
from datamodules.records import Collection
from datamodules.wordnet import DEV_WORLDS, TEST_WORLDS, TRAIN_WORLDS, find_wordnet, load_wordnet
from datamodules.zeshel import ZESHEL_SPLITS, load_zeshel


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
        **kwargs: see `RetrievalData`.
    """

    def __init__(self, root: Path | None = None, name: str | None = None, split: str = "test", **kwargs: Any) -> None:
        super().__init__(**kwargs)
        if (root is None) == (name is None):
            raise ValueError("BEIR needs either a folder (root) or the name of a data set on the Hub (name)")
        self.root = root
        self.name = name
        self.split = split

    def read(self, split: Split) -> list[Collection]:
        """The collection with the qrels of a split; ``split`` names those of the test split."""
        qrels = self.split if split == "test" else split
        if self.root is not None:
            return [load_beir(self.root, qrels)]
        assert self.name is not None
        return [load_beir_hub(self.name, qrels)]
