"""Training lists when the retriever missed the gold item, found too few items, or gave no scores."""

from __future__ import annotations

import logging
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from lightning import Trainer
from numpy.typing import NDArray

from simzoo.core.batch import Batch
from simzoo.core.candidates import Candidates
from simzoo.core.targets import Targets
from simzoo.datamodules.lists import (
    Distilled,
    HardNegatives,
    InBatch,
    OtherPositives,
    RandomNegatives,
    TrainingLists,
)
from simzoo.datamodules.lists.base import BatchLists
from simzoo.datamodules.lists.distilled import UNLABELLED
from simzoo.datamodules.lists.negatives import MISSED
from simzoo.datamodules.loading import Loading, evaluation_loader
from simzoo.datamodules.training_data import TrainingData
from simzoo.losses import (
    KLToRetriever,
    Loss,
    MarginMSE,
    OtherPositivesCrossEntropy,
    PairLoss,
    SoftmaxCrossEntropy,
    SumOfLosses,
)
from simzoo.models.cross_encoder import CrossEncoder
from simzoo.models.dual_encoder import DualEncoder
from simzoo.models.formats import load, save
from simzoo.models.similarity import LearnedSimilarity
from simzoo.retrieval.corpus import Corpus
from simzoo.retrieval.first_stages.lexical import BM25
from simzoo.retrieval.first_stages.offered import Random
from simzoo.retrieval.mining import MineCandidates, OfAll, OfMined, Teacher
from tests.toy import ToySource, toy


def connected(data: TrainingData, folder: Path, model: LearnedSimilarity) -> None:
    """Gives the data module the trainer and the model that it asks for its tokens."""
    fit = Trainer(accelerator="cpu", logger=False, default_root_dir=folder, enable_progress_bar=False, max_epochs=1)
    fit.strategy.connect(model)
    fit.strategy._lightning_module = model
    data.trainer = fit


def mined(
    data: TrainingData,
    folder: Path,
    items: NDArray[np.int64],
    scores: NDArray[np.float32] | None = None,
    loss: Loss | None = None,
) -> Any:
    """The first collection's training lists, with candidates (24, K)."""
    model = DualEncoder.tiny()
    model.loss = loss or model.loss
    connected(data, folder, model)
    data.train_dataloader()
    scores = np.zeros(items.shape, np.float32) if scores is None else scores
    data.set_candidates("train", [Candidates(items, scores, np.zeros(len(items), np.float32))] * 2)
    return data.part("train", 0)


@pytest.mark.parametrize("add", [True, False])
def test_a_gold_item_that_was_not_found(add: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """It must be counted, and be in the list only if that was asked for."""
    data = toy(HardNegatives(hard=5, add_gold=add))
    items = np.tile(np.arange(8), (24, 1))
    with caplog.at_level(logging.INFO, "simzoo.datamodules.training_data"):
        part = mined(data, tmp_path, items)
    golds = [[c.relevant(row) for row in range(24)] for c in data.collections("train")]
    missed = [min(relevant) >= 8 for relevant in golds[0]]
    assert data.counts[MISSED] == sum(min(relevant) >= 8 for found in golds for relevant in found) > 0
    assert f"{data.counts[MISSED]} training queries have no relevant item" in caplog.text
    for row in range(24):
        batch = part.batch([row], 0)
        assert batch.targets.labels.sum() == (1 if add or not missed[row] else 0)
        width = batch.candidates.shape[1]
        assert len(set(batch.candidates[0].tolist())) == width
        # Cross-entropy passes over a list without a relevant item: nothing but its first entry is to be scored.
        assert width == 1 if missed[row] and not add else width >= 5
        scores = torch.zeros(batch.targets.labels.shape, requires_grad=True)
        loss = SoftmaxCrossEntropy()(scores, batch.targets)
        assert (loss == 0) == (missed[row] and not add)


def test_lists_without_a_relevant_item_stay_whole_for_other_losses(tmp_path: Path) -> None:
    """A divergence from the retriever's scores over one entry is 0 for any model: nothing is learned of the query."""
    data = toy(HardNegatives(hard=5, add_gold=False))
    items = np.tile(np.arange(8), (24, 1))
    part = mined(data, tmp_path, items, np.zeros(items.shape, np.float32), KLToRetriever())
    missed = [row for row in range(24) if min(data.collections("train")[0].relevant(row)) >= 8]
    assert missed and all(part.batch([row], 0).candidates.shape[1] == 5 for row in missed)


def test_too_few_candidates_for_the_negatives(tmp_path: Path) -> None:
    """Random items in their place would make training easier than it was meant to be, silently."""
    with pytest.raises(
        ValueError, match="a: 6 negatives a query are to come from the mined candidates, which are only 5"
    ):
        mined(toy(HardNegatives(hard=6)), tmp_path, np.tile(np.arange(5), (24, 1)))
    mined(toy(HardNegatives(hard=3, random=3)), tmp_path, np.tile(np.arange(5), (24, 1)))


@pytest.mark.parametrize(
    ("setting", "name"),
    [
        ({"temperature": 1.0}, r"data\.lists\.temperature"),
        ({"margin": 0.1}, r"data\.lists\.margin"),
        ({}, "the loss"),
    ],
)
def test_an_order_is_no_score(setting: dict[str, Any], name: str, tmp_path: Path) -> None:
    """NaN compares as false and sorts anywhere: the lists would be wrong without a word."""
    items = np.tile(np.arange(8), (24, 1))
    unscored = np.full(items.shape, np.nan, np.float32)
    data, loss = toy(HardNegatives(hard=5, **setting)), None if setting else KLToRetriever()
    with pytest.raises(ValueError, match=rf"{name} needs the retriever's scores, but it gave an order only"):
        mined(data, tmp_path, items, unscored, loss)
    mined(toy(HardNegatives(hard=5)), tmp_path, items, unscored)


def test_kl_to_a_retriever_that_scored_nothing() -> None:
    """A divergence over no candidates is 0: the regulariser would be off without a word."""
    retriever = torch.tensor([[0.1, float("nan"), 0.3], [float("nan")] * 3])
    mask = torch.ones(2, 3, dtype=torch.bool)
    targets = Targets(torch.zeros(2, 3), mask, retriever=retriever)
    with pytest.raises(ValueError, match="no candidate of 1 of the batch's 2 queries has a score of the retriever"):
        KLToRetriever()(torch.zeros(2, 3), targets)


def test_kl_takes_the_models_temperature() -> None:
    """Cosines beside a softmax over cosines / 0.05 would be pulled towards twenty times their size."""
    scores, retriever = torch.randn(2, 4), torch.randn(2, 4)
    targets = Targets(torch.zeros(2, 4), torch.ones(2, 4, dtype=torch.bool), retriever=retriever)
    torch.testing.assert_close(
        KLToRetriever(0.1, temperature=0.05)(scores, targets), KLToRetriever(0.1)(scores / 0.05, targets)
    )


def fit(data: TrainingData, folder: Path, model: LearnedSimilarity, **settings: Any) -> None:
    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False, "limit_val_batches": 0}
    plain = {"enable_checkpointing": False, "num_sanity_val_steps": 0, "max_steps": 2, **quiet, **settings}
    Trainer(accelerator="cpu", default_root_dir=folder, use_distributed_sampler=False, **plain).fit(model, data)


@pytest.mark.parametrize(
    ("lists", "loss", "message"),
    [
        (
            HardNegatives(),
            MarginMSE(),
            "MarginMSE needs a teacher's scores. data.lists: HardNegatives, with",
        ),
        (RandomNegatives(), KLToRetriever(), "KLToRetriever needs a retriever's scores. data.lists: RandomNegatives"),
        (
            HardNegatives(),
            OtherPositivesCrossEntropy(),
            r"needs the positives of the batch's other queries. data.lists",
        ),
        (InBatch(Distilled(3)), PairLoss(), "PairLoss needs a teacher's top items and as many hard negatives"),
    ],
)
def test_a_loss_refuses_lists_that_cannot_serve_it(
    lists: TrainingLists, loss: Loss, message: str, tmp_path: Path
) -> None:
    """Found out in the first step, after hours of mining; or never, where the loss is a constant."""
    model = DualEncoder.tiny()
    model.loss = loss
    with pytest.raises(ValueError, match=re.escape(message)):
        fit(toy(lists, miner=Unmined()), tmp_path, model)


class Unmined(MineCandidates):
    """Fails if it is asked to mine."""

    def on_train_start(self, trainer: Trainer, pl_module: Any) -> None:
        raise AssertionError("mined before the lists were checked")


def test_lists_without_a_miner_are_refused(tmp_path: Path) -> None:
    """An empty pool would make lists of the gold item alone."""
    with pytest.raises(ValueError, match=r"HardNegatives needs mined candidates: give the recipe a data\.miner"):
        fit(toy(), tmp_path, DualEncoder.tiny())
    fit(toy(RandomNegatives(3)), tmp_path, DualEncoder.tiny())


def some_unlabelled(source: ToySource) -> ToySource:
    """Every second training query without a relevant item."""
    for collection in source.collections("train"):
        for row in range(0, 24, 2):
            collection.judgements[row].clear()  # type: ignore[attr-defined]
    return source


@pytest.mark.parametrize("kind", [OfMined, OfAll])
def test_a_teacher_needs_no_labels(kind: type[Teacher], tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Half of the queries were left out of distillation without a word; L_match needs the teacher alone."""
    save(CrossEncoder.tiny(), tmp_path / "teacher")
    source = some_unlabelled(ToySource())
    miner = MineCandidates(BM25(), depth=8, teacher=kind(str(tmp_path / "teacher")))
    data = TrainingData(source, Distilled(top=3), miner, batch_size=4)
    model = DualEncoder.tiny()
    model.loss = PairLoss()
    with caplog.at_level(logging.INFO, "simzoo.datamodules.training_data"):
        fit(data, tmp_path, model, max_steps=-1, max_epochs=1)
    assert data.counts[UNLABELLED] == 24 and "24 training queries have no relevant item; trained on" in caplog.text
    part: Any = data.part("train", 0)
    assert len(part) == 24
    collection = data.collections("train")[0]
    scores = dict(load(tmp_path / "teacher").rank(collection.queries[0], list(collection.items)))
    every = range(40) if kind is OfAll else part.candidates.items[0].tolist()
    best = sorted(every, key=lambda item: -scores[item])[:3]
    drawn = part.lists.draw(part, 0, np.random.default_rng(0))
    assert sorted(drawn.rows[:3].tolist()) == sorted(best) and len(set(drawn.rows.tolist())) == 6
    np.testing.assert_allclose(drawn.teacher[:3], [scores[item] for item in drawn.rows[:3]], atol=1e-4)
    assert set(drawn.rows[3:]) <= set(part.candidates.items[0]) - set(best)


def test_a_relevant_item_that_was_missed_is_scored(tmp_path: Path) -> None:
    """MarginMSE compares every negative with the gold item: without the gold's score the query taught nothing."""
    save(CrossEncoder.tiny(), tmp_path / "teacher")
    data = toy(
        HardNegatives(hard=3), miner=MineCandidates(Random(), depth=4, teacher=OfMined(str(tmp_path / "teacher")))
    )
    model = DualEncoder.tiny()
    model.loss = SumOfLosses([MarginMSE(), KLToRetriever()])
    fit(data, tmp_path, model)
    part: Any = data.part("train", 0)
    collection, teacher = data.collections("train")[0], load(tmp_path / "teacher")
    missed = [row for row in range(24) if collection.relevant(row)[0] not in part.candidates.items[row]]
    stage = Random()
    stage.index(Corpus.of(collection))
    assert missed
    for row in missed:
        batch, gold = part.batch([row], 0), collection.relevant(row)[0]
        [(_, expected)] = teacher.rank(collection.queries[row], [collection.items[gold]])
        assert float(batch.targets.teacher[0, 0]) == pytest.approx(expected, abs=1e-4)
        ranked, scores = stage.search([collection.queries[row]], 40)
        own = dict(zip(ranked[0].tolist(), scores[0].tolist(), strict=True))
        assert float(batch.targets.retriever[0, 0]) == pytest.approx(own[gold], abs=1e-5)


def test_other_positives_are_relevant_ones(tmp_path: Path) -> None:
    """A list's first entry was taken for its positive; without ``add_gold`` it may be a negative."""
    data = toy(OtherPositives(HardNegatives(hard=3, add_gold=False)))
    model = DualEncoder.tiny()
    model.loss = OtherPositivesCrossEntropy()
    connected(data, tmp_path, model)
    items = np.tile(np.arange(8), (24, 1))
    data.set_candidates("train", [Candidates(items, np.zeros((24, 8), np.float32), np.zeros(24, np.float32))] * 2)
    part: Any = data.part("train", 0)
    rows = list(range(12))
    drawn = [part.lists.draw(part, row, np.random.default_rng([0, 0, row])) for row in rows]
    found = {min(data.collections("train")[0].relevant(row)) for row in rows}
    joined = part.joining.join(drawn, frozenset(), None)
    assert min(found) < 8 <= max(found)
    assert set(joined.columns[joined.others & (joined.columns >= 0)].tolist()) <= {gold for gold in found if gold < 8}


@pytest.mark.parametrize("lists", [HardNegatives(hard=3, temperature=1.0), InBatch(RandomNegatives(1))])
def test_workers_make_the_same_batches(lists: TrainingLists, tmp_path: Path) -> None:
    """Batches made by other processes must be those of this one, in the same order."""
    made = []
    for workers in (0, 2):
        data = toy(lists, workers=workers)
        connected(data, tmp_path, DualEncoder.tiny())
        items, scores = np.tile(np.arange(8), (24, 1)), np.tile(np.linspace(1, 0, 8, dtype=np.float32), (24, 1))
        data.set_candidates("train", [Candidates(items, scores, np.zeros(24, np.float32))] * 2)
        made.append(
            [(b.query_ids, b.candidates.numpy().tobytes(), b.targets.labels.tolist()) for b in data.train_dataloader()]
        )
    assert len(made[0]) == 12 and made[0] == made[1]


def test_ranks_get_the_same_number_of_validation_batches() -> None:
    """Two ranks and one batch: the second had a loader of length 0, and training stopped at the first validation."""

    class Part(BatchLists):
        def __len__(self) -> int:
            return 5

        def batch(self, members: Any, epoch: int) -> Batch:
            size = len(members)
            targets = Targets(torch.zeros(size, 2), torch.ones(size, 2, dtype=torch.bool))
            rows = torch.tensor(list(members), dtype=torch.int64)
            return Batch(
                {"row": rows}, {"row": torch.arange(2)}, torch.zeros(size, 2), targets, [str(m) for m in members]
            )

    for batch_size, ranks in ((8, 2), (2, 2), (2, 4), (1, 3)):
        found = [list(evaluation_loader([Part()], Loading(batch_size, 0, rank, ranks))) for rank in range(ranks)]
        assert len({len(batches) for batches in found}) == 1
        names = [name for batches in found for batch in batches for name in batch.query_ids]
        assert sorted(names) == ["0", "1", "2", "3", "4"]
