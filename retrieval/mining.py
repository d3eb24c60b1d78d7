"""Mines candidates during training: hard negatives for the train split, candidate lists for dev and test."""

from __future__ import annotations

import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from lightning import LightningModule, Trainer

from simzoo.core.candidates import Candidates, Listed, relevant_rows
from simzoo.core.files import replacing
from simzoo.core.records import Collection, Query
from simzoo.core.settings import plain
from simzoo.datamodules.miner import Miner
from simzoo.datamodules.sources import Split
from simzoo.datamodules.training_data import TrainingData
from simzoo.models.formats import load
from simzoo.models.similarity import LearnedSimilarity, fastest_device
from simzoo.retrieval.corpus import Corpus
from simzoo.retrieval.first_stages.dense import Dense
from simzoo.retrieval.first_stages.first_stage import FirstStage
from simzoo.retrieval.judge import SimilarityJudge
from simzoo.retrieval.topk import Rows, Scores, top_columns

__all__ = ["MineCandidates", "OfAll", "OfMined", "Teacher", "mine"]

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

    @cached_property
    def model(self) -> LearnedSimilarity:
        """The model, loaded at first use."""
        return load(self.checkpoint, fastest_device())

    def identity(self) -> str:
        """Names what its scores depend on: what it scored is kept under it."""
        return self.model.weights_sha256

    def teach(self, found: Candidates, collection: Collection) -> Candidates:
        """The candidates with its scores: of every one, and of every relevant item, found or not."""
        judge = SimilarityJudge.of(self.model, collection.items)

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

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Candidates of the dev split."""
        self._mine(trainer, pl_module, "dev", ())

    def on_test_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Candidates of the test split."""
        self._mine(trainer, pl_module, "test", ())

    def _mine_train(self, trainer: Trainer, model: LightningModule) -> None:
        number = trainer.current_epoch // self.every_n_epochs if self.every_n_epochs else 0
        if number == self._round:
            return
        within = self.first_stage is None and self._resumed.get("round") == number
        self._miner = self._resumed["miner"] if within else self._identity(trainer, model)
        folder = (self.folder or Path(trainer.default_root_dir) / "candidates") / f"round-{number}"
        collections = _data(trainer).mined("train")
        paths = [folder / f"{i:03d}-{self._name(collection)}.npz" for i, collection in enumerate(collections)]
        if within:
            _check_kept(trainer, paths)
        self._mine(trainer, model, "train", paths)
        self._round = number

    def _mine(self, trainer: Trainer, model: LightningModule, split: Split, paths: Sequence[Path]) -> None:
        """Mines every collection; what is kept under its path, where there are paths, is read instead."""
        assert isinstance(model, LearnedSimilarity)
        collections = _data(trainer).mined(split)
        if not collections:
            return
        stage = self.first_stage or Dense.of(model)
        was_training = model.training
        model.eval()
        mined = []
        for index, collection in enumerate(collections):
            if not paths:
                mined.append(mine(stage, collection, self.depth))
                continue
            path = paths[index]
            if trainer.is_global_zero and not path.exists():
                found = with_golds(mine(stage, collection, self.depth), stage, collection)
                _write(path, found if self.teacher is None else self.teacher.teach(found, collection))
            trainer.strategy.barrier()
            mined.append(_read(path))
        model.train(was_training)
        _data(trainer).set_candidates(split, mined)

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
        return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:20]


def mine(stage: FirstStage, collection: Collection, depth: int) -> Candidates:
    """The top ``depth`` items of every query (all items where there are fewer), and the gold item's score.

    The gold score is inf where no gold item is among them: the false-negative filter then drops nothing.

    Raises:
        ValueError: the first stage finds fewer for a query.
    """
    stage.index(Corpus.of(collection))
    depth = min(depth, len(collection.items))
    items, scores = stage.search(collection.queries, depth)
    found = (items >= 0).sum(axis=1)
    short = np.flatnonzero(found < depth)
    if short.size:
        raise ValueError(
            f"{collection.name}: {depth} candidates were asked for, but {type(stage).__name__} finds {found[short[0]]} "
            f"for query {collection.queries[short[0]].id!r}; every query has {found.min()}: mine less deep"
        )
    gold = np.full(len(collection.queries), np.inf, dtype=np.float32)
    for row in range(len(collection.queries)):
        its = scores[row][np.isin(items[row], collection.relevant(row))]
        if its.size:
            gold[row] = its.max()
    return Candidates(items, scores, gold)


def with_golds(found: Candidates, stage: FirstStage, collection: Collection) -> Candidates:
    """The candidates with the first stage's scores of every relevant item, NaN where it gives none.

    Those that it did not find are scored by their vectors, or else looked up in its ranking of all items.

    Args:
        found: what the first stage found for the collection's queries.
        stage: indexed.
        collection: the queries and items.
    """
    rows = relevant_rows(collection)
    values = np.full(rows.shape, np.nan, dtype=np.float32)
    for row, listed in enumerate(rows):
        relevant = listed[listed >= 0]
        same = relevant[:, None] == found.items[row]
        values[row, : len(relevant)] = np.where(same.any(axis=1), found.scores[row][same.argmax(axis=1)], np.nan)
        missed = ~same.any(axis=1)
        if missed.any() and np.isfinite(found.scores[row]).all():
            values[row, np.flatnonzero(missed)] = _own_scores(stage, collection.queries[row], relevant[missed])
    return replace(found, gold=Listed(rows, values))


def _own_scores(stage: FirstStage, query: Query, rows: Rows) -> Scores:
    """(K,) a first stage's scores of K items; NaN where it ranks an item nowhere."""
    if isinstance(stage, Dense):
        product: Scores = stage.embedder.vectors[rows] @ stage.embedder.encode([query])[0]
        return product
    ranked, scores = stage.search([query], len(stage.corpus))
    same = rows[:, None] == ranked[0]
    return np.where(same.any(axis=1), scores[0][same.argmax(axis=1)], np.float32(np.nan))


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


def _write(path: Path, mined: Candidates) -> None:
    kept = {"items": mined.items.astype(np.int32), "scores": mined.scores, "gold_scores": mined.gold_scores}
    for name, listed in (("gold", mined.gold), ("best", mined.best)):
        if listed is not None:
            kept |= {f"{name}_items": listed.items.astype(np.int32), f"{name}_values": listed.scores}
    for name in ("teacher", "gold_teacher"):
        if (scores := getattr(mined, name)) is not None:
            kept[name] = scores
    with replacing(path) as file:
        np.savez(file, **kept)  # type: ignore[arg-type]  # numpy's stub takes the names for its own options


def _read(path: Path) -> Candidates:
    with np.load(path, allow_pickle=False) as kept:

        def listed(name: str) -> Listed | None:
            if f"{name}_items" not in kept.files:
                return None
            return Listed(kept[f"{name}_items"].astype(np.int64), kept[f"{name}_values"])

        teacher, gold_teacher = (kept[name] if name in kept.files else None for name in ("teacher", "gold_teacher"))
        items = kept["items"].astype(np.int64)
        golds = listed("gold")
        return Candidates(items, kept["scores"], kept["gold_scores"], teacher, golds, gold_teacher, listed("best"))
