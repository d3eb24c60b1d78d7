"""Nearly all of WordNet encoded by wordnet-hypencoder: what benchmarks.graph_search searches in.

The item vectors are those of the frozen encoder that the checkpoint has (`benchmarks.frozen`); what was encoded for
benchmarks.hypencoder_frozen is not encoded again.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from benchmarks.frozen import FrozenEncoder
from datamodules.records import Collection
from datamodules.reps import Reps
from datamodules.wordnet import TEST_WORLDS, WORLDS, find_wordnet, load_wordnet
from models.hypencoder import Hypencoder
from models.q_net import QNet
from retrieval.encode import encode_queries

CHECKPOINT = "checkpoints/wordnet-hypencoder"
LEFT_OUT = ("noun.animal", "noun.plant")
"""Worlds with 15,539 synsets and 74 queries: minutes less to encode."""


@dataclass
class Space:
    """What is searched, and for what.

    Attributes:
        collection: the synsets, without titles; the searched queries, a sample of the test worlds'.
        vectors: (N, h).
        net: applies the queries' q-nets.
        queries: their weights.
    """

    collection: Collection
    vectors: Tensor
    net: QNet
    queries: Reps

    @classmethod
    def of_wordnet(cls, queries: int) -> Space:
        """Reads WordNet; ``queries`` searched ones of each test world."""
        frozen, items, parts, asked, judged = FrozenEncoder(), [], [], [], []
        searched = [name for name in WORLDS if name not in LEFT_OUT]
        for name, world in load_wordnet(find_wordnet(), titles=False, only=searched).items():
            if name in TEST_WORLDS:
                for row in np.random.default_rng(0).permutation(len(world.queries))[:queries].tolist():
                    asked.append(world.queries[row])
                    judged.append({len(items) + world.relevant(row)[0]: 1})
            items += world.items
            parts.append(frozen.vectors(world.items))
        model = Hypencoder.from_pretrained(CHECKPOINT)
        weights = encode_queries(model, asked)
        return cls(Collection("WordNet", items, asked, judged), torch.cat(parts), model.q_net, weights)
