"""The data module: what there is (a source), how queries get their candidates (lists), and how that is loaded."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Sequence
from typing import Any

from lightning import LightningDataModule
from torch.utils.data import DataLoader

from simzoo.core.batch import Batch
from simzoo.core.candidates import Candidates
from simzoo.core.records import Collection, hide_titles, sample_together
from simzoo.datamodules.lists.base import BatchLists, TrainingLists
from simzoo.datamodules.loading import Loading, evaluation_loader
from simzoo.datamodules.miner import Miner
from simzoo.datamodules.sources import Source, Split
from simzoo.losses import check_needs

__all__ = ["TrainingData"]

log = logging.getLogger(__name__)


class TrainingData(LightningDataModule):
    """Batches for training and validation.

    Args:
        source: the collections; None: none, for lists that bring their own queries (`FromFiles`), without validation.
        lists: how a training query gets its candidates.
        miner: what finds candidates for training lists and for validation; None: nothing does.
        batch_size: queries a batch, all from one collection.
        val_depth: candidates of a validation query: the first so many mined; a gold item not among them is a miss.
            None: all items of its collection, which nothing need mine.
        title_dropout: share of the queries whose items are shown, and mined, without titles: in validation as in
            training, so that the best step is the best at both.
        max_train_queries: trains on a fixed random sample of the queries; None: on all.
        max_val_queries: validates on a fixed random sample of the queries of each collection; None: on all.
        workers: processes that make batches ahead of the training step; 0: none. Batches are the same bytes either way.
        pin_memory: copies batches into memory that a GPU reads faster.
        seed: of samples, negatives and order; None: 0, on the command line seed_everything.
    """

    def __init__(
        self,
        source: Source | None,
        lists: TrainingLists,
        miner: Miner | None = None,
        batch_size: int = 8,
        val_depth: int | None = 64,
        title_dropout: float = 0.0,
        max_train_queries: int | None = None,
        max_val_queries: int | None = None,
        workers: int = 0,
        pin_memory: bool = False,
        seed: int | None = None,
    ) -> None:
        super().__init__()
        if not 0 <= title_dropout <= 1:
            raise ValueError(f"title_dropout is a share in [0, 1], got {title_dropout}")
        if batch_size < 1 or (val_depth is not None and val_depth < 1) or workers < 0:
            raise ValueError(
                "batch_size and val_depth must be at least 1 and workers at least 0, got "
                f"{batch_size}, {val_depth} and {workers}"
            )
        self.source = source
        self.lists = lists
        self.miner = miner
        self.batch_size = batch_size
        self.val_depth = val_depth
        self.title_dropout = title_dropout
        self.max_train_queries = max_train_queries
        self.max_val_queries = max_val_queries
        self.workers = workers
        self.pin_memory = pin_memory
        self.seed = seed or 0
        self.counts: Counter[str] = Counter()
        """What was counted when the training lists were checked, by what it is."""
        self._parts: dict[tuple[str, int], BatchLists] = {}
        self._splits: dict[str, list[Collection]] = {}

    @property
    def item_ids(self) -> list[str]:
        """See `Source.item_ids`."""
        return [] if self.source is None else self.source.item_ids

    @property
    def query_ids(self) -> list[str]:
        """See `Source.query_ids`."""
        return [] if self.source is None else self.source.query_ids

    def setup(self, stage: str) -> None:
        """Installs the miner, and refuses lists that cannot give what the loss needs."""
        assert self.trainer is not None
        callbacks: list[Any] = self.trainer.callbacks  # type: ignore[attr-defined]
        if self.miner is not None and self.miner not in callbacks:
            callbacks.insert(0, self.miner)
        miners = [callback for callback in callbacks if isinstance(callback, Miner)]
        if stage != "fit":
            return
        kind = type(self.lists).__name__
        if self.lists.mines and not miners:
            raise ValueError(
                f"data.lists: {kind} needs mined candidates: give the recipe a data.miner, for example "
                "simzoo.retrieval.mining.MineCandidates"
            )
        gives = self.lists.gives(frozenset().union(*(miner.gives for miner in miners)))
        mined = "".join(f", with data.miner: {type(miner).__name__}" for miner in miners)
        check_needs(self._loss(), gives, f"data.lists: {kind}{mined},")

    def _loss(self) -> Any:
        assert self.trainer is not None
        return self.trainer.lightning_module.loss

    def collections(self, split: Split) -> list[Collection]:
        """The collections of a split, with the queries that training or validation samples from them."""
        if split not in self._splits:
            found = [] if self.source is None else self.source.collections(split)
            if split == "train":
                found = sample_together(found, self.max_train_queries, self.seed)
            elif split == "dev":
                found = [collection.sample(self.max_val_queries, self.seed) for collection in found]
            if split != "test":
                found = [part for whole in found for part in hide_titles(whole, self.title_dropout, self.seed)]
            self._splits[split] = [collection for collection in found if collection.queries]
        return self._splits[split]

    def mined(self, split: Split) -> list[Collection]:
        """The collections of a split for whose queries candidates are to be mined."""
        wanted = self.lists.mines if split == "train" else self.lists.validates_mined and self.val_depth is not None
        return self.collections(split) if wanted else []

    def set_candidates(self, split: Split, candidates: Sequence[Candidates]) -> None:
        """Mined candidates for each collection of a split, in order; replaces earlier ones."""
        collections = self.collections(split)
        if len(candidates) != len(collections):
            raise ValueError(f"{len(candidates)} sets of candidates for {len(collections)} collections of {split}")
        self.counts = Counter() if split == "train" else self.counts
        for index, (collection, mined) in enumerate(zip(collections, candidates, strict=True)):
            if len(mined.items) != len(collection.queries):
                raise ValueError(
                    f"{collection.name}: candidates of {len(mined.items)} queries for {len(collection.queries)}"
                )
            self.part(split, index).candidates = mined
            if split == "train":
                self.counts.update(self.lists.check(collection, mined, self._loss().needs))
        if split == "train":
            for what, count in self.counts.items():
                if count:
                    log.info("%d %s", count, what)

    def part(self, split: Split, index: int) -> BatchLists:
        """The lists of a collection, tokenised by the model."""
        key = (split, index)
        if key not in self._parts:
            assert self.trainer is not None, "the data module gets its tokenising from the trainer's model"
            model: Any = self.trainer.lightning_module
            collection = self.collections(split)[index]
            if split == "train":
                self._parts[key] = self.lists.part(collection, model, self.seed, model.loss.needs)
            else:
                self._parts[key] = self.lists.validation(collection, model, self.seed, self.val_depth)
        return self._parts[key]

    def parts(self, split: Split) -> list[BatchLists]:
        """The lists of every collection of a split."""
        return [self.part(split, index) for index in range(len(self.collections(split)))]

    def loading(self) -> Loading:
        """How this process loads."""
        trainer = self.trainer
        assert trainer is not None
        progress = trainer.fit_loop.epoch_loop.batch_progress

        def place() -> tuple[int, int]:
            return int(trainer.current_epoch), int(progress.current.completed)

        ranks = trainer.global_rank, trainer.world_size
        return Loading(self.batch_size, self.seed, *ranks, self.workers, self.pin_memory, place)

    def train_dataloader(self) -> DataLoader[Batch]:
        """Batches of the training split."""
        assert self.trainer is not None
        model: Any = self.trainer.lightning_module
        return self.lists.loader(self.loading(), model, lambda: self.parts("train"), model.loss.needs)

    def val_dataloader(self) -> DataLoader[Batch]:
        """Batches of the dev split, once each over all ranks."""
        return evaluation_loader(self.parts("dev"), self.loading())

    def test_dataloader(self) -> DataLoader[Batch]:
        """Batches of the test split, once each over all ranks."""
        return evaluation_loader(self.parts("test"), self.loading())
