"""A line a minute of a training that nobody watches, and its figures on disk as they come."""

from __future__ import annotations

import math
import sys
import time
from typing import Any

from lightning import Callback, LightningModule, Trainer

from simzoo.core import progress


class Heartbeat(Callback):
    """Says each minute how far training is, where no bar does: loss, steps, rate and time left.

    Also writes what the loggers hold (metrics.csv), which they would keep for a hundred of their lines.
    """

    def __init__(self) -> None:
        self._start = self._last = 0.0
        self._first = 0

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Begins to count; a run that goes on where it was counts its own steps for the rate."""
        self._start = self._last = time.monotonic()
        self._first = trainer.global_step

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """A line with the loss of this step."""
        if self._is_due(trainer):
            loss = outputs["loss"] if isinstance(outputs, dict) else outputs
            progress.say(f"{self._place(trainer)}, loss {float(loss):.4g}")

    def on_validation_batch_end(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        """A line with the number of the batch."""
        if not trainer.sanity_checking and self._is_due(trainer):
            batches = trainer.num_val_batches[dataloader_idx]
            known = f"/{batches:,}" if math.isfinite(batches) else ""
            progress.say(f"validating after step {trainer.global_step:,}: batch {batch_idx + 1:,}{known}")

    def _is_due(self, trainer: Trainer) -> bool:
        """Whether it is time for a line, and there is no bar that shows the same."""
        now = time.monotonic()
        if now - self._last < progress.QUIET_SECONDS:
            return False
        self._last = now
        for logger in trainer.loggers:
            logger.save()
        return trainer.is_global_zero and (trainer.progress_bar_callback is None or not sys.stderr.isatty())

    def _place(self, trainer: Trainer) -> str:
        known = trainer.estimated_stepping_batches
        total = int(known) if 0 <= known < math.inf else None
        return progress.line(
            f"epoch {trainer.current_epoch + 1}, step",
            trainer.global_step,
            total,
            time.monotonic() - self._start,
            trainer.global_step - self._first,
        )
