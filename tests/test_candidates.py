"""Training lists when the retriever missed the gold item, found too few items, or gave no scores."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from lightning import Trainer
from numpy.typing import NDArray

from simzoo.core.candidates import Candidates
from simzoo.core.targets import Targets
from simzoo.losses import KLToRetriever, SoftmaxCrossEntropy
from simzoo.models.dual_encoder import DualEncoder
from tests.toy import Toy


def mined(data: Toy, folder: Path, items: NDArray[np.int64], scores: NDArray[np.float32] | None = None) -> Any:
    """The first collection's training lists, with candidates (24, K)."""
    model = DualEncoder.tiny()
    fit = Trainer(accelerator="cpu", logger=False, default_root_dir=folder, enable_progress_bar=False, max_epochs=1)
    fit.strategy.connect(model)
    fit.strategy._lightning_module = model
    data.trainer = fit
    data.train_dataloader()
    scores = np.zeros(items.shape, np.float32) if scores is None else scores
    data.set_candidates("train", [Candidates(items, scores, np.zeros(len(items), np.float32))] * 2)
    return data._lists["train", 0]


@pytest.mark.parametrize("add", [True, False])
def test_a_gold_item_that_was_not_found(add: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """It must be counted, and be in the list only if that was asked for."""
    data = Toy(batch_size=4, negatives=5, add_gold=add)
    items = np.tile(np.arange(8), (24, 1))
    with caplog.at_level(logging.INFO, "simzoo.datamodules.lists"):
        part = mined(data, tmp_path, items)
    golds = [[c.relevant(row) for row in range(24)] for c in data.collections("train")]
    missed = [min(relevant) >= 8 for relevant in golds[0]]
    assert data.missed == sum(min(relevant) >= 8 for found in golds for relevant in found) > 0
    assert f"{data.missed} training queries have no relevant item" in caplog.text
    for row in range(24):
        batch = part.batch([row], 0)
        assert batch.targets.labels.sum() == (1 if add or not missed[row] else 0)
        assert len(set(batch.candidates[0].tolist())) == batch.candidates.shape[1] >= 5
        scores = torch.zeros(batch.targets.labels.shape, requires_grad=True)
        loss = SoftmaxCrossEntropy()(scores, batch.targets)
        assert (loss == 0) == (missed[row] and not add)


def test_too_few_candidates_for_the_negatives(tmp_path: Path) -> None:
    """Random items in their place would make training easier than it was meant to be, silently."""
    with pytest.raises(
        ValueError, match="a: 6 negatives a query are to come from the mined candidates, which are only 5"
    ):
        mined(Toy(batch_size=4, negatives=6), tmp_path, np.tile(np.arange(5), (24, 1)))
    mined(Toy(batch_size=4, negatives=6, hard=0.5), tmp_path, np.tile(np.arange(5), (24, 1)))


@pytest.mark.parametrize(
    ("setting", "name"),
    [
        ({"hard_temperature": 1.0}, r"data\.hard_temperature"),
        ({"margin": 0.1}, r"data\.margin"),
        ({"retriever_scores": True}, r"data\.retriever_scores"),
    ],
)
def test_an_order_is_no_score(setting: dict[str, Any], name: str, tmp_path: Path) -> None:
    """NaN compares as false and sorts anywhere: the lists would be wrong without a word."""
    items = np.tile(np.arange(8), (24, 1))
    with pytest.raises(ValueError, match=f"{name} needs the retriever's scores, but it gave an order only"):
        mined(Toy(batch_size=4, negatives=5, **setting), tmp_path, items, np.full(items.shape, np.nan, np.float32))
    mined(Toy(batch_size=4, negatives=5), tmp_path, items, np.full(items.shape, np.nan, np.float32))


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
