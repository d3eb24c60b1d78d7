"""Several ranks train as one process does on their joint batch: the same loss, the same gradients."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, distributed, nn
from torch.multiprocessing import spawn  # type: ignore[attr-defined]  # it is not in its module's __all__
from torch.nn.parallel import DistributedDataParallel

from simzoo.core.batch import Batch
from simzoo.core.records import Collection, History, Item
from simzoo.datamodules.lists import HardNegatives, InBatch, OtherPositives
from simzoo.datamodules.lists.base import BatchLists
from simzoo.datamodules.loading import Share
from simzoo.datamodules.next_items import NextItemLists
from simzoo.losses import (
    InBatchCrossEntropy,
    KLToRetriever,
    OtherPositivesCrossEntropy,
    SoftmaxCrossEntropy,
    SumOfLosses,
)
from simzoo.models.dual_encoder import DualEncoder
from simzoo.models.hypencoder import Hypencoder
from simzoo.models.inductive_factorization import InductiveMatrixFactorization
from simzoo.models.late_interaction import SumOfMax
from simzoo.models.matrix_factorization import MatrixFactorization
from simzoo.models.mixture_of_logits import MoL
from simzoo.models.next_item import NextItem
from simzoo.models.next_item_mol import NextItemMoL
from simzoo.models.parts.packing import recomputing
from simzoo.models.parts.tiny import tiny_backbone
from simzoo.models.similarity import LearnedSimilarity
from simzoo.retrieval.first_stages.lexical import BM25
from simzoo.retrieval.mined import mine, with_golds
from tests.ports import free_port
from tests.test_similarities import registered
from tests.toy import toy_collection

TEXT = {
    "listwise": (
        HardNegatives(hard=3, random=1, temperature=0.5),
        SumOfLosses([SoftmaxCrossEntropy(), KLToRetriever()]),
    ),
    "in batch": (InBatch(HardNegatives(hard=1)), InBatchCrossEntropy()),
    "other positives": (OtherPositives(HardNegatives(hard=1)), OtherPositivesCrossEntropy()),
}
HISTORIES = {
    "negatives of the batch": (NextItemLists("batch", negatives=3), SoftmaxCrossEntropy()),
    "all items": (NextItemLists("all"), SoftmaxCrossEntropy()),
}
FACTORIZATIONS = (MatrixFactorization, InductiveMatrixFactorization)
MEMBERS = {2: [4, 0, 9, 2, 7, 5, 1], 4: [3, 8, 6]}
"""Of the joint batch by number of ranks: uneven shares, and one rank with none."""


def histories() -> Collection:
    """Ten users of the items that the sequence models' ``tiny`` knows."""
    steps = [[(user * 3 + step * (1 + user % 2)) % 5 for step in range(2 + user % 4)] for user in range(10)]
    queries = [
        History.of(f"{user}", [f"i{row}" for row in rows], list(range(1, len(rows) + 1)), len(rows) + 1)
        for user, rows in enumerate(steps)
    ]
    return Collection(
        "histories", [Item(f"i{n}", "") for n in range(5)], queries, [{user % 5: 1} for user in range(10)]
    )


def cases(ranks: int) -> list[tuple[type[LearnedSimilarity], str]]:
    """Every system on two ranks; on four, of which one has nothing to do, one of each kind of representation."""
    every = [
        kind for kind in registered() if not issubclass(kind, FACTORIZATIONS)
    ]  # they learn from a matrix's entries
    found = []
    for kind in every if ranks == 2 else [DualEncoder, Hypencoder, MoL, NextItemMoL, SumOfMax]:
        lists = HISTORIES if issubclass(kind, NextItem) else TEXT
        found += [(kind, name) for name in lists if name != "other positives" or kind in (DualEncoder, Hypencoder)]
    return found


def made(kind: type[LearnedSimilarity], name: str) -> tuple[LearnedSimilarity, BatchLists]:
    """The model, without dropout, and its lists."""
    torch.manual_seed(0)
    model = kind.tiny().eval()
    if issubclass(kind, NextItem):
        lists, model.loss = HISTORIES[name]
        return model, lists.part(histories(), model, 0)
    lists, model.loss = TEXT[name]
    collection = toy_collection()
    part = lists.part(collection, model, 0, model.loss.needs)
    stage = BM25()
    part.candidates = with_golds(mine(stage, collection, 10), stage, collection)
    return model, part


class Step(nn.Module):
    """What data-parallel training wraps: a batch to its loss."""

    def __init__(self, model: LearnedSimilarity) -> None:
        super().__init__()
        self.model = model
        self.recompute = False

    def forward(self, batch: Batch) -> Tensor:
        with recomputing(self.recompute):
            return self.model.training_loss(batch)


def gradients(model: LearnedSimilarity) -> dict[str, Tensor]:
    found = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
    model.zero_grad()
    return found


def on_a_rank(rank: int, ranks: int, port: int, folder: str) -> None:
    """Every case on one of several processes: plain, recomputed, and accumulated over two joint batches."""
    torch.set_num_threads(1)
    tiny_backbone()  # before there are ranks: of several, transformers lets the first one alone write
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    distributed.init_process_group("gloo", rank=rank, world_size=ranks)
    found = {}
    for kind, name in cases(ranks):
        model, part = made(kind, name)
        batch = part.share(MEMBERS[ranks], 0, Share(rank, ranks))
        step = DistributedDataParallel(Step(model))
        for recompute in (False, True):
            step.module.recompute = recompute
            loss = step(batch)
            loss.backward()
            distributed.all_reduce(loss)
            found[kind.__name__, name, recompute] = loss.item() / ranks, gradients(model)
        with step.no_sync():
            (step(batch) / 2).backward()
        (step(part.share(MEMBERS[ranks], 1, Share(rank, ranks))) / 2).backward()
        found[kind.__name__, name, "accumulated"] = 0.0, gradients(model)
    if rank == 0:
        torch.save(found, Path(folder) / "found.pt")
    distributed.destroy_process_group()


@pytest.mark.parametrize("ranks", list(MEMBERS))
def test_ranks_train_as_one_process_does(ranks: int, tmp_path: Path) -> None:
    """Negatives of other ranks without their gradients, means of unequal shares, a second exchange: all train on."""
    spawn(on_a_rank, (ranks, free_port(), str(tmp_path)), nprocs=ranks)
    found: Any = torch.load(tmp_path / "found.pt", weights_only=True)
    for kind, name in cases(ranks):
        model, part = made(kind, name)
        losses, alone = [], []
        for epoch in range(2):
            loss = model.training_loss(part.batch(MEMBERS[ranks], epoch))
            loss.backward()
            losses.append(loss.item())
            alone.append(gradients(model))
        both = {key: (alone[0][key] + alone[1][key]) / 2 for key in alone[0]}
        for way, expected in ((False, alone[0]), (True, alone[0]), ("accumulated", both)):
            value, together = found[kind.__name__, name, way]
            case = f"{kind.__name__}, {name}, {way}"
            assert way == "accumulated" or value == pytest.approx(losses[0], abs=1e-5), case
            assert together.keys() == expected.keys(), case
            # Sums over ranks round otherwise than those over a batch.
            close = 3e-5 * max(1.0, *(float(gradient.abs().max()) for gradient in expected.values()))
            for key, gradient in expected.items():
                assert float((together[key] - gradient).abs().max()) < close, f"{case}: {key}"
