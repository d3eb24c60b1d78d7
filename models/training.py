"""The one training loop: what a step minimises, what validation measures, what a training checkpoint holds."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from lightning import LightningModule
from lightning.pytorch.trainer.states import TrainerFn
from torch import Tensor
from torchmetrics import MeanMetric
from torchmetrics.functional.retrieval import retrieval_hit_rate, retrieval_r_precision, retrieval_reciprocal_rank
from transformers import get_scheduler

from simzoo.core.batch import Batch
from simzoo.core.settings import plain
from simzoo.core.targets import Targets
from simzoo.losses import Loss, SoftmaxCrossEntropy
from simzoo.models.parts.packing import recomputing
from simzoo.models.ranks import share_of_mean

__all__ = ["Optimization", "TrainingLoop"]


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
        recompute: forget what the encoders computed for each batch of ``tokens_per_batch`` tokens, and compute it again
            when its gradient is due (gradient caching): a step needs no more memory for more queries, and takes about a
            third longer.
    """

    lr: float = 2e-5
    weight_decay: float = 0.01
    warmup: float = 0.05
    schedule: Literal["linear", "cosine", "constant_with_warmup"] = "linear"
    betas: tuple[float, float] = (0.9, 0.999)
    recompute: bool = False

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


class TrainingLoop(LightningModule, ABC):
    """A module that learns from scores of candidate lists.

    Args:
        loss: what training minimises.
        optimization: optimiser and schedule.
        seed: dropout in step t depends on (seed, t, rank) alone, so that a resumed run goes on with the same bytes;
            None: 0, on the command line seed_everything.
    """

    strict_loading = False  # training checkpoints hold what is trained; the backbone is found by name

    def __init__(self, loss: Loss | None, optimization: Optimization | None, seed: int | None) -> None:
        super().__init__()
        self.loss = loss or SoftmaxCrossEntropy()
        self.optimization = optimization or Optimization()
        self.seed = seed or 0
        # Means, whose states can be summed over ranks of which one has no query.
        self.val_accuracy = MeanMetric()
        self.val_mrr = MeanMetric()
        self.val_r_precision = MeanMetric()

    def remember(self, **arguments: Any) -> None:
        """Keeps the constructor's arguments: config.json will hold them, training checkpoints too, as plain values."""
        self.arguments = arguments
        self.save_hyperparameters(plain(arguments))

    @abstractmethod
    def list_scores(self, batch: Batch) -> Tensor:
        """Scores (B, K) of a training batch."""

    def training_loss(self, batch: Batch) -> Tensor:
        """What a step minimises: the loss of the scores; a system with terms of its own adds them here.

        On several ranks it is this rank's share of the loss of all their batches (`simzoo.models.ranks`).
        """
        return self.loss_of_scores(self.list_scores(batch), batch.targets)

    def loss_of_scores(self, scores: Tensor, targets: Targets) -> Tensor:
        """The loss of scores (B, K)."""
        shares = [
            weight * share_of_mean(part(scores, targets), part.count(targets)) for weight, part in self.loss.parts()
        ]
        return torch.stack(shares).sum()

    def on_train_batch_start(self, batch: Batch, batch_idx: int) -> None:
        """Seeds dropout by the step, so that a run that was killed continues as if it had not been."""
        place = [self.seed, self.current_epoch, batch_idx, self.global_rank]
        torch.manual_seed(int(np.random.SeedSequence(place).generate_state(1)[0]))

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        """One step of the loss; stops at a loss that is not finite."""
        with recomputing(self.optimization.recompute):
            loss = self.training_loss(batch)
        if not torch.isfinite(loss):
            raise FloatingPointError(
                f"loss is {loss.item()} in epoch {self.current_epoch}, batch {batch_idx}, "
                f"queries {', '.join(batch.query_ids)}. The last checkpoint is kept; lower optimization.lr, "
                "clip gradients (trainer.gradient_clip_val) or look at these queries."
            )
        self.log("train/loss", loss, prog_bar=True, batch_size=len(batch.query_ids))
        return loss

    def validation_step(self, batch: Batch, batch_idx: int) -> None:
        """Ranks each query's candidates: accuracy (gold first; a gold that was not retrieved is a miss) and MRR.

        And R-precision: the share of relevant ones among the first R, R being the number of those among the candidates.
        """
        if batch.query_ids:  # none: of a rank that has a batch fewer than the others
            scores, targets = self.list_scores(batch).float(), batch.targets
            lists = zip(scores, targets.labels, targets.mask, strict=True)
            rows = [(row[mask], grades[mask] > 0) for row, grades, mask in lists]
            self.val_accuracy.update(torch.stack([retrieval_hit_rate(*row, top_k=1) for row in rows]))
            self.val_mrr.update(torch.stack([retrieval_reciprocal_rank(*row) for row in rows]))
            self.val_r_precision.update(torch.stack([retrieval_r_precision(*row) for row in rows]))
        self.log("val/accuracy", self.val_accuracy, prog_bar=True, batch_size=len(batch.query_ids))
        self.log("val/mrr", self.val_mrr, batch_size=len(batch.query_ids))
        self.log("val/r_precision", self.val_r_precision, batch_size=len(batch.query_ids))

    test_step = validation_step

    def configure_optimizers(self) -> Any:
        """The optimiser over the parameter groups, with the schedule.

        Raises:
            ValueError: the schedule depends on the number of steps, which the trainer cannot know.
        """
        settings = self.optimization
        optimizer = self.make_optimizer(self.parameter_groups())
        steps = self._total_steps() if settings.needs_steps else 0
        scheduler = get_scheduler(settings.schedule, optimizer, int(settings.warmup * steps), steps)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}

    def make_optimizer(self, groups: list[dict[str, Any]]) -> torch.optim.Optimizer:
        """The optimiser of parameter groups."""
        return torch.optim.AdamW(groups, lr=self.optimization.lr, betas=self.optimization.betas)

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
        checkpoint["class"] = type(self).__qualname__

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Refuses a checkpoint that holds other parameters than this model trains."""
        name, state, held = type(self).__qualname__, self.trained_state(), checkpoint["state_dict"]
        if (of := checkpoint.get("class", name)) != name:
            raise ValueError(
                f"the checkpoint does not fit {name}: it holds a {of}; was it trained with another recipe?"
            )
        if state.keys() != held.keys():
            raise ValueError(
                f"the checkpoint does not fit {name}: missing {sorted(state.keys() - held.keys())[:3]}, "
                f"unknown {sorted(held.keys() - state.keys())[:3]}; was it trained with another recipe?"
            )
        for key, value in state.items():
            if held[key].shape != value.shape:
                raise ValueError(
                    f"the checkpoint does not fit {name}: {key} has shape {tuple(held[key].shape)}, expected "
                    f"{tuple(value.shape)}; was it trained with another recipe?"
                )
        states = {"optimizer_states", "lr_schedulers"}
        if self.trainer.state.fn == TrainerFn.FITTING and not states <= checkpoint.keys():
            raise ValueError(
                "the checkpoint holds weights only (save_weights_only), and a training goes on from one that holds the "
                "optimiser's state, too"
            )
