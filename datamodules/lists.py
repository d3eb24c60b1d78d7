"""From collections to training batches: candidate lists, negatives, in-batch sharing; resumable at any batch."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
import torch
from lightning import LightningDataModule
from numpy.typing import NDArray
from torch.utils.data import DataLoader

from simzoo.core.batch import Batch
from simzoo.core.candidates import Candidates, check_usable, num_missed
from simzoo.core.records import Collection, hide_titles, sample_together
from simzoo.core.reps import Reps, take
from simzoo.core.targets import Targets
from simzoo.datamodules.loading import CollectionBatches, Lists, ResumableLoader, only_batch

log = logging.getLogger(__name__)

Split = Literal["train", "dev", "test"]
Scored = tuple[NDArray[np.int64], NDArray[np.float32]]


class RetrievalData(LightningDataModule, ABC):
    """Candidate lists for training and validation.

    A training list is one relevant item and ``negatives`` others of the same collection: a share ``hard`` of them from
    the top of the mined candidates (see `simzoo.retrieval.mining`), the rest at random.

    Args:
        batch_size: queries a batch, all from one collection.
        negatives: negatives for each query.
        hard: share of the negatives taken from the mined candidates.
        hard_depth: hard negatives are drawn from the first so many mined candidates that are not relevant.
        hard_fixed: share of the hard negatives that are always the retriever's first ones (CMC A.C).
        hard_temperature: the others are drawn with probability proportional to exp(retriever's score / temperature);
            None: uniformly.
        add_gold: a training query whose relevant items the retriever missed gets one of them all the same; False: its
            list is what was found, which cross-entropy passes over. Such queries are counted (``missed``) either way.
        margin: a mined candidate that scores above the gold item by more than this is taken for a false negative and
            dropped; None keeps all.
        distill: train on a teacher instead of labels (ANNCUR A.3): a query's list is the teacher's top so many of the
            mined candidates, with its scores, and as many hard negatives: the retriever's top ones that are not among
            them. For `MatchLoss` and `PairLoss`; ``negatives`` and ``hard`` do not apply.
        retriever_scores: the retriever's scores stand beside the labels (`KLToRetriever`): NaN at items not mined.
        taught: a teacher's scores stand beside the labels (`MarginMSE`): NaN at items that were not mined.
        other_positives: the positives of the batch's other queries are candidates too, behind a query's own, and marked
            as such (`OtherPositivesCrossEntropy`).
        in_batch: every item of the batch is a candidate of every query, but never a negative of one it is relevant to.
        title_dropout: share of the training queries whose items are shown, and mined, without titles.
        val_depth: candidates of a validation query: the first so many mined; a gold item not among them is a miss.
        max_train_queries: trains on a fixed random sample of the queries; None: on all.
        max_val_queries: validates on a fixed random sample of the queries of each collection; None: on all.
        seed: of samples, negatives and order; None: 0, on the command line seed_everything.
    """

    def __init__(
        self,
        batch_size: int = 8,
        negatives: int = 15,
        hard: float = 1.0,
        hard_depth: int = 64,
        hard_fixed: float = 0.0,
        hard_temperature: float | None = None,
        add_gold: bool = True,
        margin: float | None = None,
        distill: int | None = None,
        retriever_scores: bool = False,
        taught: bool = False,
        other_positives: bool = False,
        in_batch: bool = False,
        title_dropout: float = 0.0,
        val_depth: int = 64,
        max_train_queries: int | None = None,
        max_val_queries: int | None = None,
        seed: int | None = None,
    ) -> None:
        super().__init__()
        for share in (hard, hard_fixed, title_dropout):
            if not 0 <= share <= 1:
                raise ValueError(f"hard, hard_fixed and title_dropout are shares in [0, 1], got {share}")
        if batch_size < 1 or negatives < 0 or val_depth < 1:
            raise ValueError(f"batch_size {batch_size}, negatives {negatives} or val_depth {val_depth} is too small")
        self.batch_size = batch_size
        self.negatives = negatives
        self.num_hard = round(hard * negatives)
        self.num_fixed = round(hard_fixed * self.num_hard)
        self.hard_depth = hard_depth
        if hard_temperature is not None and not hard_temperature > 0:
            raise ValueError(f"hard_temperature must be positive, got {hard_temperature}")
        self.hard_temperature = hard_temperature
        if distill is not None and (distill < 1 or in_batch):
            raise ValueError(f"distill must be at least 1 and excludes in_batch, got {distill} and {in_batch}")
        if (distill is not None or in_batch) and (retriever_scores or taught or other_positives):
            raise ValueError(
                "retriever_scores, taught and other_positives exclude distill and in_batch, which make other lists"
            )
        self.add_gold = add_gold
        self.margin = margin
        self.distill = distill
        self.retriever_scores = retriever_scores
        self.taught = taught
        self.other_positives = other_positives
        self.in_batch = in_batch
        self.title_dropout = title_dropout
        self.val_depth = val_depth
        self.max_train_queries = max_train_queries
        self.max_val_queries = max_val_queries
        self.seed = seed or 0
        self._lists: dict[tuple[str, int], BatchLists] = {}
        self._splits: dict[str, list[Collection]] = {}
        self.missed = 0
        """Training queries without a relevant item among the mined candidates."""

    @abstractmethod
    def read(self, split: Split) -> list[Collection]:
        """Reads the collections of a split."""

    def collections(self, split: Split) -> list[Collection]:
        """The collections of a split, with the queries that training or validation samples from them."""
        if split not in self._splits:
            found = self.read(split)
            if split == "train":
                found = sample_together(found, self.max_train_queries, self.seed)
                found = [part for whole in found for part in hide_titles(whole, self.title_dropout, self.seed)]
            elif split == "dev":
                found = [collection.sample(self.max_val_queries, self.seed) for collection in found]
            self._splits[split] = [collection for collection in found if collection.queries]
        return self._splits[split]

    def set_candidates(self, split: Split, candidates: Sequence[Candidates]) -> None:
        """Mined candidates for each collection of a split, in order; replaces earlier ones."""
        collections = self.collections(split)
        if len(candidates) != len(collections):
            raise ValueError(f"{len(candidates)} sets of candidates for {len(collections)} collections of {split}")
        for index, (collection, mined) in enumerate(zip(collections, candidates, strict=True)):
            if len(mined.items) != len(collection.queries):
                raise ValueError(
                    f"{collection.name}: candidates of {len(mined.items)} queries for {len(collection.queries)}"
                )
            self._built(split, index).candidates = mined
        if split == "train":
            self._check(collections, candidates)

    def _check(self, collections: Sequence[Collection], candidates: Sequence[Candidates]) -> None:
        """Whether the training lists can be made of what was mined; counts the queries whose gold was missed."""
        needs = {
            "data.hard_temperature": self.hard_temperature is not None,
            "data.margin": self.margin is not None,
            "data.retriever_scores": self.retriever_scores,
        }
        asked = " and ".join(name for name, needed in needs.items() if needed)
        for collection, mined in zip(collections, candidates, strict=True):
            check_usable(mined, collection, 0 if self.distill else self.num_hard, asked)
        pairs = zip(collections, candidates, strict=True)
        self.missed = sum(num_missed(mined, collection) for collection, mined in pairs)
        if self.missed:
            log.info(
                "%d training queries have no relevant item among their mined candidates; %s",
                self.missed,
                "one is added to their lists" if self.add_gold else "cross-entropy passes them over",
            )

    def _built(self, split: Split, index: int) -> BatchLists:
        key = (split, index)
        if key not in self._lists:
            assert self.trainer is not None, "the data module gets its tokenising from the trainer's model"
            self._lists[key] = self.build(split, self.collections(split)[index], self.trainer.lightning_module)
        return self._lists[key]

    def build(self, split: Split, collection: Collection, model: Any) -> BatchLists:
        """The lists of a collection, tokenised by the model."""
        queries = model.collate_queries(collection.queries)
        items = model.collate_items(collection.items)
        if split != "train":
            return ValidationLists(self, collection, queries, items)
        return TrainLists(self, collection, queries, items)

    def train_dataloader(self) -> DataLoader[Batch]:
        """Batches of the training split."""
        lists = [self._built("train", i) for i in range(len(self.collections("train")))]
        trainer = self.trainer
        assert trainer is not None
        sizes = [len(part) for part in lists]
        sampler = CollectionBatches(sizes, self.batch_size, self.seed, trainer.global_rank, trainer.world_size)
        progress = trainer.fit_loop.epoch_loop.batch_progress

        def place() -> tuple[int, int]:
            return int(trainer.current_epoch), int(progress.current.completed)

        return ResumableLoader(Lists(lists), sampler, place)

    def val_dataloader(self) -> DataLoader[Batch]:
        """Batches of the dev split, once each over all ranks."""
        return self._evaluation("dev")

    def test_dataloader(self) -> DataLoader[Batch]:
        """Batches of the test split, once each over all ranks."""
        return self._evaluation("test")

    def _evaluation(self, split: Split) -> DataLoader[Batch]:
        lists = [self._built(split, i) for i in range(len(self.collections(split)))]
        trainer = self.trainer
        assert trainer is not None
        batches = [
            [(i, row) for row in rows]
            for i, part in enumerate(lists)
            for rows in np.array_split(np.arange(len(part)), -(-len(part) // self.batch_size))
        ]
        own = batches[trainer.global_rank :: trainer.world_size]
        return DataLoader(Lists(lists), batch_sampler=own, collate_fn=only_batch)


class BatchLists(ABC):
    """What batches are made of: the members of one collection, a query each."""

    candidates: Candidates | None = None

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def batch(self, members: Sequence[int], epoch: int) -> Batch:
        """The batch of these members in an epoch; depends on (seed, epoch, member) alone."""


class TrainLists(BatchLists):
    """Training lists of one collection."""

    def __init__(self, data: RetrievalData, collection: Collection, queries: Reps, items: Reps) -> None:
        self.data = data
        self.collection = collection
        self.queries = queries
        self.items = items
        self.rows = [row for row in range(len(collection.queries)) if collection.relevant(row)]

    def __len__(self) -> int:
        return len(self.rows)

    def batch(self, members: Sequence[int], epoch: int) -> Batch:
        """See `BatchLists.batch`."""
        rows = [self.rows[m] for m in members]
        draws = [np.random.default_rng([self.data.seed, epoch, row]) for row in rows]
        if self.data.distill is not None:
            lists = [self._distilled(row, self.data.distill) for row in rows]
        else:
            lists = [self._list(row, rng) for row, rng in zip(rows, draws, strict=True)]
        teacher = retriever = others = None
        if self.data.in_batch:
            shared = np.unique(np.concatenate(lists))[None]
            chosen, candidates, columns = shared[0], torch.arange(shared.size)[None], shared.repeat(len(rows), axis=0)
            labels = self._labels(rows, columns)
            mask = torch.ones(labels.shape, dtype=torch.bool)
        else:
            width = max(len(entry) for entry in lists)
            columns = np.stack([np.pad(entry, (0, width - len(entry)), constant_values=-1) for entry in lists])
            if self.data.other_positives:
                columns = np.concatenate([columns, self._others(rows, lists)], axis=1)
                others = torch.arange(columns.shape[1]).expand(columns.shape) >= width
            chosen, where = np.unique(columns, return_inverse=True)
            mask = torch.from_numpy(columns >= 0)
            candidates = torch.from_numpy(where.reshape(columns.shape)) - int(chosen[0] == -1)
            chosen = chosen[chosen >= 0]
            labels = self._labels(rows, columns)
            if self.data.distill is not None:
                teacher = self._teacher(rows, columns, self.data.distill)
            elif self.data.taught:
                teacher = self._looked_up([self._taught(row) for row in rows], columns, width)
            if self.data.retriever_scores:
                retriever = self._looked_up([self._mined(row) for row in rows], columns, width)
        items = take(self.items, torch.from_numpy(chosen))
        queries = take(self.queries, torch.tensor(rows))
        names = [self.collection.queries[row].id for row in rows]
        return Batch(queries, items, candidates, Targets(labels, mask, teacher, others, retriever), names)

    def _distilled(self, row: int, size: int) -> NDArray[np.int64]:
        """The teacher's top ``size`` of the mined candidates, then the retriever's top ones outside them."""
        mined, teacher = self._taught(row)
        if len(mined) < 2 * size:
            raise ValueError(
                f"distill: {size} needs {2 * size} mined candidates a query, got {len(mined)}: mine deeper"
            )
        top = np.argsort(-teacher, kind="stable")[:size]
        return np.concatenate([mined[top], np.delete(mined, top)[:size]])

    def _teacher(self, rows: Sequence[int], columns: NDArray[np.int64], size: int) -> torch.Tensor:
        """(B, 2 size) the teacher's scores of its top items, NaN at the hard negatives."""
        scores = np.full(columns.shape, np.nan, dtype=np.float32)
        for i, row in enumerate(rows):
            scores[i, :size] = -np.sort(-self._taught(row)[1])[:size]
        return torch.from_numpy(scores)

    def _others(self, rows: Sequence[int], lists: Sequence[NDArray[np.int64]]) -> NDArray[np.int64]:
        """(B, P) the positives of the whole batch, once each; -1 where they are relevant to the query itself."""
        positives = np.unique([entry[0] for entry in lists])
        return np.stack([np.where(np.isin(positives, self.collection.relevant(row)), -1, positives) for row in rows])

    def _looked_up(self, known: Sequence[Scored], columns: NDArray[np.int64], own: int) -> torch.Tensor:
        """(B, K) known scores of the queries' own candidates, the first ``own`` columns; NaN elsewhere."""
        same = columns[:, :own, None] == np.stack([items for items, _ in known])[:, None]
        scores = np.full(columns.shape, np.nan, dtype=np.float32)
        found = np.take_along_axis(np.stack([values for _, values in known]), same.argmax(axis=2), axis=1)
        scores[:, :own] = np.where(same.any(axis=2), found, np.nan)
        return torch.from_numpy(scores)

    def _taught(self, row: int) -> Scored:
        if self.candidates is None or self.candidates.teacher is None:
            raise ValueError("a teacher's scores are missing: give MineCandidates a teacher")
        return self.candidates.items[row], self.candidates.teacher[row]

    def _mined(self, row: int) -> Scored:
        if self.candidates is None:
            raise ValueError("hard negatives need mined candidates: add MineCandidates to the recipe")
        return self.candidates.items[row], self.candidates.scores[row]

    def _list(self, row: int, rng: np.random.Generator) -> NDArray[np.int64]:
        relevant = np.array(self.collection.relevant(row), dtype=np.int64)
        positive = rng.choice(relevant, 1)
        if not self.data.add_gold and not np.isin(self._mined(row)[0], relevant).any():
            positive = positive[:0]
        hard = np.empty(0, dtype=np.int64)
        if self.data.num_hard:
            mined, scores = self._mined(row)
            keep = ~np.isin(mined, relevant)
            if self.data.margin is not None:
                assert self.candidates is not None
                keep &= scores <= self.candidates.gold_scores[row] + self.data.margin
            pool, scores = mined[keep][: self.data.hard_depth], scores[keep][: self.data.hard_depth]
            if self.data.hard_temperature is None:
                scores = np.zeros_like(scores)
            else:
                scores = scores / self.data.hard_temperature
            # The largest of the scores plus Gumbel noise are a sample by softmax without replacement.
            noisy = scores + rng.gumbel(size=len(pool))
            noisy[: self.data.num_fixed] = np.inf
            hard = pool[np.argsort(-noisy, kind="stable")[: self.data.num_hard]]
        taken = np.concatenate([relevant, hard])
        missing = min(self.data.negatives - len(hard), len(self.collection.items) - len(np.unique(taken)))
        # Rejection needs few rounds: the items taken are few among all.
        extra = np.empty(0, dtype=np.int64)
        while len(extra) < missing:
            drawn = rng.integers(len(self.collection.items), size=2 * missing + 8)
            drawn = drawn[~np.isin(drawn, taken)]
            extra = np.concatenate([extra, drawn])
            extra = extra[np.sort(np.unique(extra, return_index=True)[1])]
        return np.concatenate([positive, hard, extra[:missing]])

    def _labels(self, rows: Sequence[int], columns: NDArray[np.int64]) -> torch.Tensor:
        labels = [np.isin(c, self.collection.relevant(row)) for c, row in zip(columns, rows, strict=True)]
        return torch.from_numpy(np.stack(labels).astype(np.float32))


class ValidationLists(BatchLists):
    """Validation lists of one collection: each query with its first mined candidates."""

    def __init__(self, data: RetrievalData, collection: Collection, queries: Reps, items: Reps) -> None:
        self.data = data
        self.collection = collection
        self.queries = queries
        self.items = items

    def __len__(self) -> int:
        return len(self.collection.queries)

    def batch(self, members: Sequence[int], epoch: int) -> Batch:
        """The batch of these queries."""
        if self.candidates is None:
            raise ValueError("validation needs mined candidates: add MineCandidates to the recipe")
        columns = self.candidates.items[np.asarray(members), : self.data.val_depth]
        chosen, where = np.unique(columns, return_inverse=True)
        labels = np.stack([np.isin(c, self.collection.relevant(m)) for c, m in zip(columns, members, strict=True)])
        targets = Targets(torch.from_numpy(labels.astype(np.float32)), torch.ones(labels.shape, dtype=torch.bool))
        return Batch(
            take(self.queries, torch.tensor(np.asarray(members))),
            take(self.items, torch.from_numpy(chosen)),
            torch.from_numpy(where.reshape(columns.shape)),
            targets,
            [self.collection.queries[m].id for m in members],
        )
