"""MarginMSE and cross-entropy over other queries' positives: the losses, and the lists they are computed on."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from lightning import Trainer

from simzoo.core.candidates import Candidates
from simzoo.datamodules.lists import HardNegatives, OtherPositives
from simzoo.datamodules.training_data import TrainingData
from simzoo.losses import MarginMSE, OtherPositivesCrossEntropy, SumOfLosses, Targets
from simzoo.losses.ranking import margin_mse, other_positives_cross_entropy
from simzoo.models.dual_encoder import DualEncoder
from tests.toy import toy

SCORES = torch.tensor([[2.0, 1.0, 0.0, 4.0], [0.5, 0.5, 3.0, 1.0]])
LABELS = torch.tensor([[1.0, 0, 0, 1.0], [0, 1.0, 0, 0]])
TEACHER = torch.tensor([[5.0, 1.0, math.nan, 2.0], [1.0, math.nan, 0.0, 0.0]])
ALL = torch.ones(2, 4, dtype=torch.bool)


def test_margin_mse_by_hand() -> None:
    """Every (positive, negative) pair that the teacher scored counts once, over the whole batch."""
    # Row 0: positives 0 and 3, negative 1; negative 2 is unknown. Row 1: its positive is unknown.
    expected = ((2 - 1 - (5 - 1)) ** 2 + (4 - 1 - (2 - 1)) ** 2) / 2
    assert margin_mse(SCORES, LABELS, ALL, TEACHER).item() == pytest.approx(expected)
    masked = ALL.clone()
    masked[0, 3] = False
    assert margin_mse(SCORES, LABELS, masked, TEACHER).item() == pytest.approx(9.0)


def test_margin_mse_is_least_at_the_teacher() -> None:
    """Scores that are the teacher's but for a constant are perfect; entries that it left out get no gradient."""
    scores = (torch.nan_to_num(TEACHER, nan=9.0) + 3.0).requires_grad_()
    loss = margin_mse(scores, LABELS, ALL, TEACHER)
    loss.backward()
    assert loss.item() == 0 and scores.grad is not None
    torch.testing.assert_close(scores.grad, torch.zeros(2, 4))
    scores = torch.full((2, 4), -torch.inf).masked_fill(torch.isfinite(TEACHER), 1.0).requires_grad_()
    margin_mse(scores, LABELS, ALL, TEACHER).backward()
    assert scores.grad is not None and torch.isfinite(scores.grad).all()
    assert margin_mse(SCORES, torch.zeros(2, 4), ALL, TEACHER).item() == 0


def test_own_negatives_take_no_part_in_the_cross_entropy() -> None:
    """Mined negatives are often relevant: only the other queries' positives may be pushed down."""
    labels = torch.tensor([[1.0, 0, 0, 0], [1.0, 0, 0, 0]])
    others = torch.tensor([[False, False, True, True], [False, False, True, True]])
    mask = torch.tensor([[True, True, True, True], [True, True, True, False]])
    scores = SCORES.clone().requires_grad_()
    loss = other_positives_cross_entropy(scores, labels, mask, others)
    expected = (-math.log(math.exp(2) / (math.exp(2) + 1 + math.exp(4))) + math.log(1 + math.exp(3 - 0.5))) / 2
    assert loss.item() == pytest.approx(expected)
    loss.backward()
    assert scores.grad is not None
    assert (scores.grad != 0).tolist() == [[True, False, True, True], [True, False, True, False]]


def test_a_sum_of_losses_is_their_sum() -> None:
    """A weight that is ignored, or a loss that is left out."""
    others = torch.tensor([[False, False, True, False]] * 2)
    targets = Targets(LABELS, ALL, TEACHER, others)
    parts = [MarginMSE()(SCORES, targets), OtherPositivesCrossEntropy(temperature=2.0)(SCORES, targets)]
    losses = [MarginMSE(), OtherPositivesCrossEntropy(temperature=2.0)]
    torch.testing.assert_close(SumOfLosses(losses)(SCORES, targets), parts[0] + parts[1])
    torch.testing.assert_close(SumOfLosses(losses, [0.5, 3.0])(SCORES, targets), 0.5 * parts[0] + 3 * parts[1])
    for wrong in ([], [1.0]):
        with pytest.raises(ValueError, match="a weight for each"):
            SumOfLosses(losses, wrong)


def test_what_the_data_module_must_give_is_asked_for() -> None:
    """Training on nothing must not look like a loss of zero."""
    with pytest.raises(ValueError, match=r"MarginMSE needs a teacher's scores"):
        MarginMSE()(SCORES, Targets(LABELS, ALL))
    with pytest.raises(ValueError, match="needs the positives of the batch's other queries"):
        OtherPositivesCrossEntropy()(SCORES, Targets(LABELS, ALL, TEACHER))
    with pytest.raises(ValueError, match="positive"):
        OtherPositivesCrossEntropy(temperature=0.0)


def lists(data: TrainingData, folder: Path, teacher: bool) -> None:
    """Connects the data module to a model and mines: query q finds the items q, q + 1, ... q + 9 (modulo 40)."""
    model = DualEncoder.tiny()
    model.loss = SumOfLosses([MarginMSE(), OtherPositivesCrossEntropy()])
    fit = Trainer(accelerator="cpu", logger=False, default_root_dir=folder, enable_progress_bar=False, max_epochs=1)
    fit.strategy.connect(model)
    fit.strategy._lightning_module = model
    data.trainer = fit
    items = (np.arange(24)[:, None] + np.arange(10)) % 40
    scores = np.zeros((24, 10), np.float32)
    taught = (1000.0 * np.arange(24)[:, None] + items).astype(np.float32) if teacher else None
    data.train_dataloader()
    data.set_candidates("train", [Candidates(items, scores, np.zeros(24, np.float32), taught)] * 2)


def test_lists_hold_the_teachers_scores_and_the_other_golds(tmp_path: Path) -> None:
    """A teacher's score at the wrong item, or a gold taken for a negative, teaches the opposite."""
    data = toy(OtherPositives(HardNegatives(hard=3, random=2)), batch_size=6)
    lists(data, tmp_path, teacher=True)
    collection = data.collections("train")[0]
    part: Any = data.part("train", 0)
    members = list(range(12))
    batch = part.batch(members, 0)
    targets, own = batch.targets, 6
    assert targets.teacher is not None and targets.others is not None
    assert targets.others[:, own:].all()
    # Which item stands where, found by its tokens: a row of batch.items says nothing about the collection's rows.
    tokens = [batch.items["ids"].take(torch.tensor([i])).values.tolist() for i in range(len(batch.items["ids"]))]
    every = [part.items["ids"].take(torch.tensor([i])).values.tolist() for i in range(40)]
    golds = {next(iter(collection.relevant(row))) for row in members}
    for row in members:
        gold = collection.relevant(row)
        found = [every.index(tokens[c]) if c >= 0 else None for c in batch.candidates[row].tolist()]
        assert found[0] in gold and not set(found[1:]) & set(gold)
        assert targets.labels[row].tolist() == [1.0] + [0.0] * (len(found) - 1)
        added = {item for item in found[own:] if item is not None}
        marked = {item for item, other in zip(found[:own], targets.others[row], strict=False) if other}
        assert added | marked == golds - set(gold) and not added & set(found[:own])
        assert targets.mask[row].tolist() == [item is not None for item in found]
        for column, item in enumerate(found):
            mined = item is not None and (item - row) % 40 < 10
            known = float(targets.teacher[row, column])
            assert known == 1000 * row + item if column < own and mined else math.isnan(known)


def test_teacher_scores_that_were_not_mined_are_asked_for(tmp_path: Path) -> None:
    """Without a teacher in the recipe MarginMSE would train on nothing."""
    data = toy(HardNegatives(hard=5), batch_size=6)
    lists(data, tmp_path, teacher=False)
    part: Any = data.part("train", 0)
    with pytest.raises(ValueError, match=r"give data\.miner a teacher"):
        part.batch([0, 1], 0)
