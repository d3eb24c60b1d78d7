"""A small generated collection, its source and its data module, for tests of training and search."""

from __future__ import annotations

import random
from typing import Any

from simzoo.core.records import Collection, Item, Query
from simzoo.datamodules.lists import HardNegatives, TrainingLists
from simzoo.datamodules.sources import Source, Split
from simzoo.datamodules.training_data import TrainingData

WORDS = ["boat", "river", "bank", "sea", "money", "tree", "stone", "house", "road", "wind", "fish", "sand"]


def toy_collection(name: str = "toy", num_items: int = 40, num_queries: int = 24, seed: int = 0) -> Collection:
    """Each item is four random words; its query repeats two of them."""
    rng = random.Random(f"{name}{seed}")
    texts = [rng.sample(WORDS, 4) for _ in range(num_items)]
    items = [Item(f"i{n}", " ".join(words), words[0]) for n, words in enumerate(texts)]
    gold = [rng.randrange(num_items) for _ in range(num_queries)]
    queries = [Query(f"q{n}", " ".join(texts[row][:2]), (0, len(texts[row][0]))) for n, row in enumerate(gold)]
    return Collection(name, items, queries, [{row: 1} for row in gold])


class ToySource(Source):
    """Two training collections, one for dev and test.

    Args:
        seed: of nothing, to see whether it is set.
    """

    def __init__(self, seed: int | None = None) -> None:
        self.seed = seed or 0

    def read(self, split: Split) -> list[Collection]:
        names = ["a", "b"] if split == "train" else [split]
        return [toy_collection(name) for name in names]


def toy(lists: TrainingLists | None = None, **settings: Any) -> TrainingData:
    """The toy source with three hard negatives a query, or other lists."""
    return TrainingData(ToySource(), lists or HardNegatives(hard=3), **{"batch_size": 4, **settings})
