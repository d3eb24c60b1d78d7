"""Mines candidates during training: hard negatives for the train split, candidate lists for dev and test."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
from lightning import Callback, LightningModule, Trainer

from datamodules.base import Candidates, RetrievalData, Split
from datamodules.records import Collection
from models.similarity import LearnedSimilarity
from retrieval.dense import Dense
from retrieval.first_stage import FirstStage


class MineCandidates(Callback):
    """Finds the top items of every query with a first stage and hands them to the data module.

    What was mined for the train split is kept on disk by round, so that a resumed run sees the same negatives.

    Args:
        first_stage: what mines: BM25, TFIDF, a dual encoder's checkpoint, ...; None: the model that is being trained.
        depth: candidates a query.
        every_n_epochs: mines the train split again after so many epochs; 0: once.
        folder: where mined candidates are kept; None: ``candidates`` in the trainer's root folder.
    """

    def __init__(
        self,
        first_stage: FirstStage | None = None,
        depth: int = 64,
        every_n_epochs: int = 0,
        folder: Path | None = None,
    ) -> None:
        if depth < 1 or every_n_epochs < 0:
            raise ValueError(
                f"depth must be at least 1 and every_n_epochs at least 0, got {depth} and {every_n_epochs}"
            )
        self.first_stage = first_stage
        self.depth = depth
        self.every_n_epochs = every_n_epochs
        self.folder = folder
        self._round = -1

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Also when training resumes within an epoch."""
        self._mine_train(trainer, pl_module)

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Mines again when its time has come."""
        self._mine_train(trainer, pl_module)

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Candidates of the dev split."""
        self._mine(trainer, pl_module, "dev", None)

    def on_test_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Candidates of the test split."""
        self._mine(trainer, pl_module, "test", None)

    def _mine_train(self, trainer: Trainer, model: LightningModule) -> None:
        number = trainer.current_epoch // self.every_n_epochs if self.every_n_epochs else 0
        if number != self._round:
            folder = self.folder or Path(trainer.default_root_dir) / "candidates"
            self._mine(trainer, model, "train", folder / f"round-{number}")
            self._round = number

    def _mine(self, trainer: Trainer, model: LightningModule, split: Split, folder: Path | None) -> None:
        data: Any = trainer.datamodule  # type: ignore[attr-defined]
        assert isinstance(data, RetrievalData) and isinstance(model, LearnedSimilarity)
        stage = self.first_stage or Dense.of(model)
        was_training = model.training
        model.eval()
        mined = []
        for index, collection in enumerate(data.collections(split)):
            path = None if folder is None else folder / f"{index:03d}-{collection.fingerprint[:16]}-{self.depth}.npz"
            if path is None:
                mined.append(mine(stage, collection, self.depth))
                continue
            if trainer.is_global_zero and not path.exists():
                _write(path, mine(stage, collection, self.depth))
            trainer.strategy.barrier()
            mined.append(_read(path))
        model.train(was_training)
        data.set_candidates(split, mined)


def mine(stage: FirstStage, collection: Collection, depth: int) -> Candidates:
    """The top ``depth`` items of every query (all items where there are fewer), and the gold item's score.

    The gold score is inf where no gold item is among them: the false-negative filter then drops nothing.
    """
    stage.index(collection)
    depth = min(depth, len(collection.items))
    items, scores = stage.search(np.arange(len(collection.queries)), depth)
    gold = np.full(len(collection.queries), np.inf, dtype=np.float32)
    for row in range(len(collection.queries)):
        found = scores[row][np.isin(items[row], collection.relevant(row))]
        if found.size:
            gold[row] = found.max()
    return Candidates(items, scores, gold)


def _write(path: Path, mined: Candidates) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    scratch = path.with_suffix(f".{os.getpid()}.tmp")
    with scratch.open("wb") as file:
        np.savez(file, items=mined.items.astype(np.int32), scores=mined.scores, gold_scores=mined.gold_scores)
    os.replace(scratch, path)


def _read(path: Path) -> Candidates:
    with np.load(path, allow_pickle=False) as kept:
        return Candidates(kept["items"].astype(np.int64), kept["scores"], kept["gold_scores"])
