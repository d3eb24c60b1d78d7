"""Nearly all of WordNet encoded for a Hypencoder: what benchmarks.graph_search.measure searches in.

That is the released wordnet-hypencoder (2 x 384), or the 6 x 768 student of benchmarks.hypencoder.train. The item
vectors are those of the frozen encoder (`benchmarks.hypencoder.frozen`); what was encoded for the training is
not encoded again.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file
from torch import Tensor

from benchmarks.hypencoder.frozen import FirstAndLast, FrozenEncoder
from benchmarks.hypencoder.students import Frozen, untrained_wide
from benchmarks.hypencoder.train import padded, student_file
from simzoo.core.hub import file_sha256
from simzoo.core.records import Collection, Query
from simzoo.core.reps import Reps
from simzoo.datamodules.readers.wordnet import TEST_WORLDS, WORLDS, find_wordnet, load_wordnet
from simzoo.models.formats import load
from simzoo.models.parts.q_net import QNet
from simzoo.retrieval.storage.encoding import encode_queries

CHECKPOINT = "checkpoints/wordnet-hypencoder"
WIDE = {"depth": 6, "seed": 1}
"""The wide student."""
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
        made_by: sha256 of what made them.
    """

    collection: Collection
    vectors: Tensor
    net: QNet
    queries: Reps
    made_by: str

    @property
    def sizes(self) -> str:
        """Of a q-net: core blocks x width."""
        return f"{len(self.net.residuals)} x {self.vectors.shape[1]}"

    @classmethod
    def of_wordnet(cls, queries: int, wide: bool) -> Space:
        """Reads WordNet; ``queries`` searched ones of each test world; 6 x 768 q-nets or 2 x 384 ones."""
        items, parts, asked, judged = [], [], [], []
        frozen = FirstAndLast() if wide else FrozenEncoder()
        searched = [name for name in WORLDS if name not in LEFT_OUT]
        for name, world in load_wordnet(find_wordnet(), titles=False, only=searched).items():
            if name in TEST_WORLDS:
                for row in np.random.default_rng(0).permutation(len(world.queries))[:queries].tolist():
                    asked.append(world.queries[row])
                    judged.append({len(items) + world.relevant(row)[0]: 1})
            items += world.items
            parts.append(frozen.vectors(world.items))
        nets = _of_student(frozen, asked) if wide else _of_checkpoint(asked)
        return cls(Collection("WordNet", items, asked, judged), torch.cat(parts), *nets)


def _of_checkpoint(asked: list[Query]) -> tuple[QNet, Reps, str]:
    model = load(CHECKPOINT)
    return model.q_net, encode_queries(model, asked), file_sha256(Path(CHECKPOINT) / "model.safetensors")


def _of_student(frozen: FrozenEncoder, asked: list[Query]) -> tuple[QNet, Reps, str]:
    path = student_file(**WIDE, wide=True).with_suffix(".safetensors")
    if not path.exists():
        raise SystemExit(f"error: no {path}: python -m benchmarks.hypencoder.train train --wide --depth 6 --seed 1")
    student = untrained_wide(**WIDE)
    assert isinstance(student, Frozen)
    student.load_state_dict(load_file(path))
    states = frozen.states(asked)
    with torch.inference_mode():
        made = [student.hyperhead(*padded(states, rows)) for rows in torch.split(torch.arange(len(asked)), 8)]
    weights = [torch.cat(matrices) for matrices in zip(*made, strict=True)]
    return student.q_net.eval(), dict(zip(student.q_net.names, weights, strict=True)), file_sha256(path)
