"""The contract that every learned similarity fulfils, and the one training loop."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, is_dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal, Self

import numpy as np
import torch
from lightning import LightningModule
from torch import Tensor
from torch.nn import functional as F
from torchmetrics.retrieval import RetrievalHitRate, RetrievalMRR
from transformers import get_scheduler

from datamodules.batch import Batch
from datamodules.records import Item, Query
from datamodules.reps import Reps, num_rows, take
from losses import Loss, SoftmaxCrossEntropy
from models.tokens import TextEncoder


@dataclass
class Optimization:
    """AdamW and its schedule.

    Attributes:
        lr: peak learning rate.
        weight_decay: decoupled weight decay.
        warmup: share of all steps in which the rate rises from 0.
        schedule: what the rate does after the warm-up.
        betas: decay of the means of gradients and of their squares. A row of an embedding table has a gradient in few
            steps; with the second one near 1 each of these moves it far.
    """

    lr: float = 2e-5
    weight_decay: float = 0.01
    warmup: float = 0.05
    schedule: Literal["linear", "cosine", "constant_with_warmup"] = "linear"
    betas: tuple[float, float] = (0.9, 0.999)

    def __post_init__(self) -> None:
        if not self.lr > 0:
            raise ValueError(f"optimization.lr must be positive, got {self.lr}")
        if not 0 <= self.warmup <= 1:
            raise ValueError(f"optimization.warmup is a share of all steps in [0, 1], got {self.warmup}")
        if not all(0 <= beta < 1 for beta in self.betas):
            raise ValueError(f"optimization.betas are shares in [0, 1), got {list(self.betas)}")

    @property
    def needs_steps(self) -> bool:
        """Whether the rate depends on the number of all steps."""
        return self.schedule != "constant_with_warmup" or self.warmup > 0


def plain(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments with dataclasses turned into dicts, so that no file needs a class of ours to be read."""
    return {name: asdict(value) if is_dataclass(value) else value for name, value in arguments.items()}  # type: ignore[arg-type]


def inner_products(queries: Reps, items: Reps, candidates: Tensor | None) -> Tensor:
    """`LearnedSimilarity.score` for a similarity that is the inner product of the parts named ``vector``."""
    query, item = queries["vector"], items["vector"]
    assert isinstance(query, Tensor) and isinstance(item, Tensor)
    if candidates is None:
        return query @ item.T
    if candidates.shape[0] == 1:
        scores = query @ item[candidates[0]].T
    else:
        # As an embedding, because the gradient of plain indexing is added up one row after another.
        scores = torch.einsum("bd,bkd->bk", query, F.embedding(candidates.clamp_min(0), item))
    return scores.masked_fill(candidates < 0, -torch.inf)


def pair_by_pair(similarity: LearnedSimilarity, queries: Reps, items: Reps, candidates: Tensor | None) -> Tensor:
    """`LearnedSimilarity.score` for a similarity whose `score_pairs` does the work; only real candidates are scored."""
    size = num_rows(queries)
    if candidates is None:
        candidates = torch.arange(num_rows(items), device=similarity.device)[None]
    candidates = candidates.expand(size, -1)
    real = candidates >= 0
    query_rows = torch.arange(size, device=candidates.device)[:, None].expand_as(candidates)[real]
    pairs = similarity.score_pairs(queries, items, query_rows, candidates[real])
    scores = pairs.new_full(candidates.shape, -torch.inf)
    scores[real] = pairs
    return scores


def fastest_device() -> str:
    """The GPU, where there is one."""
    return "cuda" if torch.cuda.is_available() else "cpu"


class LearnedSimilarity(LightningModule, ABC):
    """Scores a query against an item; subclasses say how.

    A representation (`Reps`) is a dict of tensors or ragged sequences that share their first dimension.

    Args:
        loss: what training minimises.
        optimization: optimiser and schedule.
        seed: dropout in step t depends on (seed, t, rank) alone, so that a resumed run goes on with the same bytes;
            None: 0, on the command line seed_everything.
    """

    pointwise: ClassVar[bool] = True
    """Whether a score depends on its own query and item only, so that candidates may be scored in chunks."""

    is_inner_product: ClassVar[bool] = False
    """Whether the score is <query["vector"], item["vector"]>, so that a vector index may search it."""

    text: TextEncoder | None = None
    """How texts become token ids, where there are texts."""

    weights_sha256: str = ""
    """sha256 of the weights file that the model was loaded from; empty for a model at hand."""

    strict_loading = False  # training checkpoints hold what is trained; the backbone is found by name

    def __init__(self, loss: Loss | None, optimization: Optimization | None, seed: int | None) -> None:
        super().__init__()
        self.loss = loss or SoftmaxCrossEntropy()
        self.optimization = optimization or Optimization()
        self.seed = seed or 0
        self.val_accuracy = RetrievalHitRate(top_k=1, empty_target_action="neg")
        self.val_mrr = RetrievalMRR(empty_target_action="neg")

    def remember(self, **arguments: Any) -> None:
        """Keeps the constructor's arguments: config.json will hold them, training checkpoints too, as plain values."""
        self.arguments = arguments
        self.save_hyperparameters(plain(arguments))

    # -- the three verbs, and the tokenising before them ---------------------------------------------------------------

    @abstractmethod
    def collate_queries(self, queries: Sequence[Query]) -> Reps:
        """Tokenises B queries: what `encode_queries` takes. Done once for each query."""

    @abstractmethod
    def collate_items(self, items: Sequence[Item]) -> Reps:
        """Tokenises M items: what `encode_items` takes. Done once for each item."""

    @abstractmethod
    def encode_queries(self, tokens: Reps) -> Reps:
        """Representations of B tokenised queries."""

    @abstractmethod
    def encode_items(self, tokens: Reps) -> Reps:
        """Representations of M tokenised items; this is what a store keeps."""

    @abstractmethod
    def score(self, queries: Reps, items: Reps, candidates: Tensor | None = None) -> Tensor:
        """Scores of candidate lists.

        Args:
            queries: representations of B queries.
            items: representations of M items.
            candidates: (B, K) or (1, K) rows of ``items``, -1 for no candidate; None: every item for every query.

        Returns:
            (B, K), -inf where there is no candidate.
        """

    def score_pairs(self, queries: Reps, items: Reps, query_rows: Tensor, item_rows: Tensor) -> Tensor:
        """Scores of a flat list of pairs.

        Args:
            queries: representations of B queries.
            items: representations of M items.
            query_rows: (P,) rows of ``queries``.
            item_rows: (P,) rows of ``items``.

        Returns:
            (P,).

        Raises:
            TypeError: when the similarity is not pointwise.
        """
        if not self.pointwise:
            raise TypeError(
                f"{type(self).__name__} compares the candidates of a list with each other; it cannot score single "
                "pairs. Use it through a searcher that gives it whole candidate lists."
            )
        return self.score(take(queries, query_rows), items, item_rows[:, None])[:, 0]

    # -- training ------------------------------------------------------------------------------------------------------

    def list_scores(self, batch: Batch) -> Tensor:
        """Scores (B, K) of a training batch."""
        return self.score(self.encode_queries(batch.queries), self.encode_items(batch.items), batch.candidates)

    def training_loss(self, batch: Batch) -> Tensor:
        """What a step minimises: the loss of the scores; a system with terms of its own adds them here."""
        loss: Tensor = self.loss(self.list_scores(batch), batch.targets)
        return loss

    def on_train_batch_start(self, batch: Batch, batch_idx: int) -> None:
        """Seeds dropout by the step, so that a run that was killed continues as if it had not been."""
        place = [self.seed, self.current_epoch, batch_idx, self.global_rank]
        torch.manual_seed(int(np.random.SeedSequence(place).generate_state(1)[0]))

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        """One step of the loss; stops at a loss that is not finite."""
        loss = self.training_loss(batch)
        if not torch.isfinite(loss):
            raise FloatingPointError(
                f"loss is {loss.item()} in epoch {self.current_epoch}, batch {batch_idx}, "
                f"queries {', '.join(batch.query_ids)}. The last checkpoint is kept; lower optimization.lr, "
                "clip gradients (trainer.gradient_clip_val) or look at these queries."
            )
        self.log("train/loss", loss, prog_bar=True, batch_size=len(batch.query_ids))
        return loss

    def on_validation_epoch_start(self) -> None:
        """Begins to count the queries that are ranked."""
        self._ranked = 0

    on_test_epoch_start = on_validation_epoch_start

    def validation_step(self, batch: Batch, batch_idx: int) -> None:
        """Ranks each query's candidates: accuracy (gold first; a gold that was not retrieved is a miss) and MRR."""
        scores = self.list_scores(batch)
        # Batches differ in size, and the metrics tell queries apart by number.
        numbers = self._ranked + torch.arange(scores.shape[0], device=scores.device)
        self._ranked += scores.shape[0]
        rows = numbers * self.trainer.world_size + self.global_rank
        indexes = rows[:, None].expand_as(scores)[batch.targets.mask]
        found, relevant = scores[batch.targets.mask].float(), batch.targets.labels[batch.targets.mask] > 0
        self.val_accuracy.update(found, relevant, indexes)
        self.val_mrr.update(found, relevant, indexes)
        self.log("val/accuracy", self.val_accuracy, prog_bar=True, batch_size=scores.shape[0])
        self.log("val/mrr", self.val_mrr, batch_size=scores.shape[0])

    test_step = validation_step

    def configure_optimizers(self) -> Any:
        """AdamW over the parameter groups, with the schedule.

        Raises:
            ValueError: the schedule depends on the number of steps, which the trainer cannot know.
        """
        settings = self.optimization
        optimizer = torch.optim.AdamW(self.parameter_groups(), lr=settings.lr, betas=settings.betas)
        steps = self._total_steps() if settings.needs_steps else 0
        scheduler = get_scheduler(settings.schedule, optimizer, int(settings.warmup * steps), steps)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}

    def _total_steps(self) -> int:
        """Optimiser steps of the whole training; Lightning's -1 or inf for an unknown number would make the rate 0."""
        steps = self.trainer.estimated_stepping_batches
        if not 0 <= steps < math.inf:
            raise ValueError(
                f"optimization.schedule {self.optimization.schedule} with optimization.warmup "
                f"{self.optimization.warmup:g} needs the number of steps, but the trainer's estimate is {steps}: the "
                "training data is streamed and has no length, or the training has no end. Set trainer.max_steps, or "
                "use optimization.schedule constant_with_warmup with optimization.warmup 0"
            )
        return int(steps)

    def parameter_groups(self) -> list[dict[str, Any]]:
        """AdamW's groups: what is trainable, without decay on biases and norms."""
        decay: list[torch.nn.Parameter] = []
        rest: list[torch.nn.Parameter] = []
        for parameter in self.parameters():
            if parameter.requires_grad:
                (decay if parameter.ndim > 1 else rest).append(parameter)
        return [
            {"params": decay, "weight_decay": self.optimization.weight_decay},
            {"params": rest, "weight_decay": 0.0},
        ]

    def trained_state(self) -> dict[str, Tensor]:
        """What differs from the named backbone: every trainable parameter, by name."""
        return {name: p.detach() for name, p in self.named_parameters() if p.requires_grad}

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Keeps what is trained; the frozen backbone is found by name and hash."""
        checkpoint["state_dict"] = self.trained_state()
        # Under Lightning's own key its command line would take them for the recipe's model, which lacks the class then.
        checkpoint["arguments"] = checkpoint.pop("hyper_parameters", {})

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Refuses a checkpoint that holds other parameters than this model trains."""
        expected, found = set(self.trained_state()), set(checkpoint["state_dict"])
        if expected != found:
            raise ValueError(
                f"the checkpoint does not fit {type(self).__name__}: missing {sorted(expected - found)[:3]}, "
                f"unknown {sorted(found - expected)[:3]}; was it trained with another recipe?"
            )

    # -- use -----------------------------------------------------------------------------------------------------------

    @classmethod
    def from_pretrained(
        cls, checkpoint: str | Path, device: torch.device | str = "cpu", dtype: torch.dtype = torch.float32
    ) -> Self:
        """Loads a checkpoint of any known layout, in evaluation mode, on a device. See `models.checkpoint.load`."""
        from models.checkpoint import load

        model = load(checkpoint, dtype=dtype).to(device)
        if not isinstance(model, cls):
            raise TypeError(f"{checkpoint} holds a {type(model).__name__}, expected a {cls.__name__}")
        return model

    def save_pretrained(self, folder: str | Path) -> None:
        """Writes a checkpoint folder. See `models.checkpoint.save`."""
        from models.checkpoint import save

        save(self, folder)

    def save_sentence_transformer(self, folder: str | Path) -> None:
        """Writes a folder that sentence-transformers loads. See `models.export.save_sentence_transformer`."""
        from models.export import save_sentence_transformer

        save_sentence_transformer(self, Path(folder))

    def save_onnx(self, folder: str | Path) -> None:
        """Writes ONNX files. See `models.export.save_onnx`."""
        from models.export import save_onnx

        save_onnx(self, Path(folder))

    @torch.inference_mode()
    def rank(self, query: str | Query, documents: Sequence[str | Item]) -> list[tuple[int, float]]:
        """Ranks documents for one query.

        Args:
            query: a text, or a `Query` with a mention.
            documents: texts or `Item` records.

        Returns:
            (row of the document, score), best first.
        """
        queries = [Query("query", query) if isinstance(query, str) else query]
        items = [Item(str(i), d) if isinstance(d, str) else d for i, d in enumerate(documents)]
        reps = self.encode_queries(self.collate_queries(queries)), self.encode_items(self.collate_items(items))
        scores = self.score(*reps)[0]
        order = torch.argsort(scores, descending=True, stable=True).tolist()
        return [(row, float(scores[row])) for row in order]

    @classmethod
    @abstractmethod
    def tiny(cls) -> Self:
        """A tiny model with random weights, for the contract tests."""
