"""Mines candidates during training: hard negatives for the train split, candidate lists for dev and test."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from lightning import Callback, LightningModule, Trainer

from simzoo.core.candidates import Candidates
from simzoo.core.files import replacing
from simzoo.core.records import Collection
from simzoo.datamodules.lists import RetrievalData, Split
from simzoo.models.formats import load
from simzoo.models.similarity import LearnedSimilarity, fastest_device
from simzoo.retrieval.evaluation import similarity_scorer
from simzoo.retrieval.first_stages.dense import Dense
from simzoo.retrieval.first_stages.first_stage import FirstStage


class MineCandidates(Callback):
    """Finds the top items of every query with a first stage and hands them to the data module.

    What was mined for the train split is kept on disk by round, so that a resumed run sees the same negatives.

    Args:
        first_stage: what mines: BM25, TFIDF, a dual encoder's checkpoint, ...; None: the model that is being trained.
        depth: candidates a query.
        teacher: checkpoint of a pointwise similarity that scores the train split's candidates, for distillation.
        every_n_epochs: mines the train split again after so many epochs; 0: once.
        folder: where mined candidates are kept; None: ``candidates`` in the trainer's root folder.
    """

    def __init__(
        self,
        first_stage: FirstStage | None = None,
        depth: int = 64,
        teacher: str | None = None,
        every_n_epochs: int = 0,
        folder: Path | None = None,
    ) -> None:
        if depth < 1 or every_n_epochs < 0:
            raise ValueError(
                f"depth must be at least 1 and every_n_epochs at least 0, got {depth} and {every_n_epochs}"
            )
        self.first_stage = first_stage
        self.depth = depth
        self.teacher = teacher
        self.every_n_epochs = every_n_epochs
        self.folder = folder
        self._round = -1
        self._teacher: LearnedSimilarity | None = None

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
            path = None if folder is None else folder / f"{index:03d}-{self._identity(collection)}.npz"
            if path is None:
                mined.append(mine(stage, collection, self.depth))
                continue
            if trainer.is_global_zero and not path.exists():
                found = mine(stage, collection, self.depth)
                _write(path, found if self.teacher is None else self._taught(found, collection))
            trainer.strategy.barrier()
            mined.append(_read(path))
        model.train(was_training)
        data.set_candidates(split, mined)

    def _identity(self, collection: Collection) -> str:
        """What the mined candidates depend on: kept ones are used again only for the same."""
        parts = [collection.fingerprint, str(self.depth)]
        parts.append("the model in training" if self.first_stage is None else self.first_stage.identity())
        if self.teacher is not None:
            parts.append(self._teacher_model().weights_sha256)
        return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:20]

    def _teacher_model(self) -> LearnedSimilarity:
        if self._teacher is None:
            assert self.teacher is not None
            self._teacher = load(self.teacher, fastest_device())
        return self._teacher

    def _taught(self, found: Candidates, collection: Collection) -> Candidates:
        scorer = similarity_scorer(self._teacher_model(), collection)
        return replace(found, teacher=scorer.score_lists(np.arange(len(found.items)), found.items))


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
    kept = {"items": mined.items.astype(np.int32), "scores": mined.scores, "gold_scores": mined.gold_scores}
    if mined.teacher is not None:
        kept["teacher"] = mined.teacher
    with replacing(path) as file:
        np.savez(file, **kept)  # type: ignore[arg-type]  # numpy's stub takes the names for its own options


def _read(path: Path) -> Candidates:
    with np.load(path, allow_pickle=False) as kept:
        teacher = kept["teacher"] if "teacher" in kept.files else None
        return Candidates(kept["items"].astype(np.int64), kept["scores"], kept["gold_scores"], teacher)
