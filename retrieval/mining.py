"""Mines candidates during training: hard negatives for the train split, candidate lists for dev and test."""

from __future__ import annotations

import hashlib
import json
import shutil
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import torch
from lightning import LightningModule, Trainer

from simzoo.core.candidates import Candidates, Listed
from simzoo.core.records import Collection, Item
from simzoo.core.settings import plain
from simzoo.core.shards import ALONE, Worker
from simzoo.datamodules.miner import Miner
from simzoo.datamodules.sources import Split
from simzoo.datamodules.training_data import TrainingData
from simzoo.models.formats import load
from simzoo.models.similarity import LearnedSimilarity, fastest_device
from simzoo.retrieval.corpus import Corpus
from simzoo.retrieval.first_stages.dense import Dense
from simzoo.retrieval.first_stages.first_stage import FirstStage
from simzoo.retrieval.judge import SimilarityJudge
from simzoo.retrieval.mined import found_of, mine, mine_shards, read, with_golds
from simzoo.retrieval.topk import Rows, Scores, top_columns

__all__ = ["MineCandidates", "OfAll", "OfMined", "Teacher"]

BLOCK = 256  # queries whose candidates a teacher scores at once

LAYOUT = "with relevant items"
"""Of the files of candidates: those that were written without the relevant items' scores are mined anew."""


class Teacher(ABC):
    """A pointwise similarity whose scores stand beside the mined candidates of the train split.

    Args:
        checkpoint: as for `simzoo.load`.
    """

    def __init__(self, checkpoint: str) -> None:
        self.checkpoint = checkpoint
        self._bound: tuple[Sequence[Item], SimilarityJudge] | None = None

    @cached_property
    def model(self) -> LearnedSimilarity:
        """The model, loaded at first use."""
        return load(self.checkpoint, fastest_device())

    def identity(self) -> str:
        """Names what its scores depend on: what it scored is kept under it."""
        return self.model.weights_sha256

    def bind(self, items: Sequence[Item], store: Path | None = None, worker: Worker = ALONE) -> SimilarityJudge:
        """It over these items, which it encodes; those of the last call are kept.

        Args:
            items: N items.
            store: folder in which the workers encode them together; None: this one encodes all, in memory.
            worker: which of the workers this process is.
        """
        if self._bound is None or self._bound[0] is not items:
            self._bound = items, SimilarityJudge.of(self.model, items, store, worker=worker)
        return self._bound[1]

    def teach(self, found: Candidates, collection: Collection) -> Candidates:
        """The candidates with its scores: of every one, and of every relevant item, found or not."""
        judge = self.bind(collection.items)

        def scores(items: Rows) -> Scores:
            blocks = [slice(start, start + BLOCK) for start in range(0, len(items), BLOCK)]
            return np.concatenate([judge.scorer(collection.queries[block]).lists(items[block]) for block in blocks])

        taught = replace(found, teacher=scores(found.items))
        if found.gold is not None:
            taught = replace(taught, gold_teacher=scores(found.gold.items))
        return self.chosen(taught, collection, judge)

    @abstractmethod
    def chosen(self, found: Candidates, collection: Collection, judge: SimilarityJudge) -> Candidates:
        """The candidates with its top items (`Candidates.best`).

        Args:
            found: the candidates of the collection's queries.
            collection: the queries and items.
            judge: scores any of them.
        """


class OfMined(Teacher):
    """Scores what was mined, and no other items: its top items are the best of these."""

    def chosen(self, found: Candidates, collection: Collection, judge: SimilarityJudge) -> Candidates:
        """See `Teacher.chosen`: nothing to add."""
        return found


class OfAll(Teacher):
    """Scores every item for every query, as ANNCUR has it: its top items may be ones that the first stage missed.

    That is as many pairs as queries times items.

    Args:
        checkpoint: as for `simzoo.load`.
        top: how many of its best items are kept for each query.
    """

    def __init__(self, checkpoint: str, top: int = 64) -> None:
        super().__init__(checkpoint)
        if top < 1:
            raise ValueError(f"top must be at least 1, got {top}")
        self.top = top

    def identity(self) -> str:
        """See `Teacher.identity`."""
        return f"{super().identity()} of all {self.top}"

    def chosen(self, found: Candidates, collection: Collection, judge: SimilarityJudge) -> Candidates:
        """See `Teacher.chosen`."""
        top = min(self.top, len(collection.items))
        items, scores = [], []
        for query in collection.queries:
            values = judge.scorer([query]).lists(np.arange(len(collection.items))[None])
            items.append(top_columns(values, top)[0])
            scores.append(values[0, items[-1]])
        return replace(found, best=Listed(np.stack(items), np.stack(scores)))


class MineCandidates(Miner):
    """Finds the top items of every query with a first stage and hands them to the data module.

    What was mined for the train split is kept on disk by round, under a name that depends on the data, the depth and
    what mined: a first stage's settings, or class, arguments and weights of the model in training as they were then.
    Training checkpoints remember the latter, so that a resumed run sees the negatives that it mined itself.

    Ranks that train together mine together (`simzoo.retrieval.mined`), in a folder that all of them see, and read the
    same file. What a first stage finds for dev and test is mined once; the model in training mines it anew each time.

    Args:
        first_stage: what mines: BM25, TFIDF, a dual encoder's checkpoint, ...; None: the model that is being trained.
        depth: candidates a query.
        teacher: what scores the train split's candidates besides, for distillation.
        every_n_epochs: mines the train split again after so many epochs; 0: once.
        folder: where mined candidates are kept; None: ``candidates`` in the trainer's root folder.
    """

    def __init__(
        self,
        first_stage: FirstStage | None = None,
        depth: int = 64,
        teacher: Teacher | None = None,
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
        self._miner = ""
        self._resumed: dict[str, Any] = {}
        self._given: WeakKeyDictionary[TrainingData, set[Split]] = WeakKeyDictionary()  # what first stages found
        self._spent: list[Path] = []  # what other ranks may still be reading

    @property
    def gives(self) -> frozenset[str]:
        """See `Miner.gives`."""
        return frozenset({"retriever"} | ({"teacher"} if self.teacher is not None else set()))

    def state_dict(self) -> dict[str, Any]:
        """The round, and what mined it, if that was the model in training."""
        return {"round": self._round, "miner": self._miner} if self.first_stage is None else {}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Of the run that is resumed."""
        self._resumed = dict(state_dict)

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Also when training resumes within an epoch.

        Raises:
            FileNotFoundError: a run resumes within a round whose candidates the model in training mined as it was then,
                and they are gone.
        """
        self._round = -1  # a callback may serve several trainings
        self._mine_train(trainer, pl_module)
        self._resumed = {}

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Mines again when its time has come."""
        self._mine_train(trainer, pl_module)

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """All ranks took a step together, so none is at its mining any more."""
        if self._spent:
            self._remove(trainer)

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """All ranks have exchanged what the last validation found."""
        self._remove(trainer)

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Candidates of the dev split."""
        self._mine_once(trainer, pl_module, "dev")

    def on_test_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Candidates of the test split."""
        self._mine_once(trainer, pl_module, "test")

    def _mine_train(self, trainer: Trainer, model: LightningModule) -> None:
        number = trainer.current_epoch // self.every_n_epochs if self.every_n_epochs else 0
        if number == self._round:
            return
        within = self.first_stage is None and self._resumed.get("round") == number
        self._miner = self._resumed["miner"] if within else self._identity(trainer, model)
        names = [self._name(collection) for collection in _data(trainer).mined("train")]
        paths = [self._folder(trainer) / f"round-{number}" / f"{i:03d}-{name}.npz" for i, name in enumerate(names)]
        if within:
            _check_kept(trainer, paths)
        self._mine(trainer, model, "train", paths)
        self._round = number

    def _mine_once(self, trainer: Trainer, model: LightningModule, split: Split) -> None:
        """For dev and test; on several ranks by way of files, which are removed if they are of these weights only."""
        data = _data(trainer)
        if not data.mined(split) or split in self._given.get(data, set()):
            return
        paths: list[Path] = []
        if trainer.world_size > 1:
            miner = self._identity(trainer, model)
            names = [_sha256(split, c.fingerprint, str(self.depth), miner) for c in data.mined(split)]
            paths = [self._folder(trainer) / split / f"{i:03d}-{name}.npz" for i, name in enumerate(names)]
        self._mine(trainer, model, split, paths)
        if self.first_stage is None:
            self._spent += paths
        else:
            self._given.setdefault(data, set()).add(split)

    def _mine(self, trainer: Trainer, model: LightningModule, split: Split, paths: Sequence[Path]) -> None:
        """Mines every collection; what is kept under its path, where there are paths, is read instead."""
        assert isinstance(model, LearnedSimilarity)
        collections = _data(trainer).mined(split)
        if not collections:
            return
        stage = self.first_stage or Dense.of(model)
        was_training = model.training
        model.eval()
        if paths:
            worker = Worker(trainer.global_rank, trainer.world_size)
            mined = [
                self._mined(path, collection, stage, worker, split == "train")
                for path, collection in zip(paths, collections, strict=True)
            ]
            if worker.alone:
                self._remove(trainer)
        else:
            mined = [mine(stage, collection, self.depth) for collection in collections]
        model.train(was_training)
        _data(trainer).set_candidates(split, mined)

    def _mined(
        self, path: Path, collection: Collection, stage: FirstStage, worker: Worker, to_train: bool
    ) -> Candidates:
        """The candidates of a file, which the workers make together if it is not there."""
        encoded = path.with_suffix(".shards")
        corpus = Corpus.of(collection)

        def found(part: Collection) -> Candidates:
            stage.index_together(corpus, encoded / "items", worker)
            candidates = found_of(stage, part, self.depth)
            if not to_train:
                return candidates
            candidates = with_golds(candidates, stage, part)
            if self.teacher is None:
                return candidates
            self.teacher.bind(part.items, None if worker.alone else encoded / "taught", worker)
            return self.teacher.teach(candidates, part)

        self._spent.append(mine_shards(path, collection, found, worker))
        return read(path)

    def _remove(self, trainer: Trainer) -> None:
        """Removes what nobody reads any more."""
        if trainer.is_global_zero:
            for path in self._spent:
                if path.is_dir():
                    shutil.rmtree(path, ignore_errors=True)
                else:
                    path.unlink(missing_ok=True)
        self._spent = []

    def _folder(self, trainer: Trainer) -> Path:
        return self.folder or Path(trainer.default_root_dir) / "candidates"

    def _identity(self, trainer: Trainer, model: LightningModule) -> str:
        """What mines, by its content; of the model in training, the first rank's, so that all look for one file."""
        if self.first_stage is not None:
            return self.first_stage.identity()
        assert isinstance(model, LearnedSimilarity)
        return str(trainer.strategy.broadcast(_content(model) if trainer.is_global_zero else ""))

    def _name(self, collection: Collection) -> str:
        """What the mined candidates depend on: kept ones are used again only for the same."""
        parts = [LAYOUT, collection.fingerprint, str(self.depth), self._miner]
        if self.teacher is not None:
            parts.append(self.teacher.identity())
        return _sha256(*parts)


def _sha256(*parts: str) -> str:
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:20]


def _data(trainer: Trainer) -> TrainingData:
    data: Any = trainer.datamodule  # type: ignore[attr-defined]
    assert isinstance(data, TrainingData)
    return data


def _content(model: LearnedSimilarity) -> str:
    """sha256 of class, arguments and all weights; a backbone's too, which a folder's name does not tell."""
    digest = hashlib.sha256(f"{type(model).__module__}.{type(model).__qualname__}\n".encode())
    digest.update(json.dumps(plain(model.arguments), sort_keys=True).encode())
    for name, value in sorted(model.state_dict().items()):
        digest.update(f"\n{name} {value.dtype} {tuple(value.shape)}\n".encode())
        digest.update(value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy())
    return digest.hexdigest()


def _check_kept(trainer: Trainer, paths: Sequence[Path]) -> None:
    """Whether a run that resumes within a round finds its negatives; the first rank looks for all."""
    missing = trainer.strategy.broadcast([str(path) for path in paths if not path.exists()])
    if missing:
        raise FileNotFoundError(
            f"{missing[0]}: there is no such file. It held negatives that this run mined with the model as it was when "
            "the round began, and they cannot be mined again in the middle of it. Bring the file back, let the folder "
            "of retrieval.mining.MineCandidates name where it is, or train from the beginning"
        )
