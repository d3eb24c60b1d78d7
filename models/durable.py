"""The callback that every training has: checkpoints that outlast crashes, and an end that can be gone on from."""

from __future__ import annotations

import os
import shlex
import signal
import sys
import threading
from contextlib import ExitStack
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any

import torch
from lightning import Callback, LightningModule, Trainer
from lightning.fabric.plugins.environments.slurm import SLURMEnvironment
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.trainer.states import TrainerFn
from lightning.pytorch.utilities.exceptions import SIGTERMException

from simzoo.core.interrupts import Stopped
from simzoo.core.locks import locked
from simzoo.models.checkpointing import CheckpointFiles, newest, on_disk, remove_unfinished
from simzoo.models.resuming import owe_validation, owes_epoch_end


class Durable(Callback):
    """Writes checkpoints atomically, stops at signals so that the run can go on, and says how.

    As a context it takes SIGTERM and Ctrl-C: within the batches of an epoch the batch is finished and a checkpoint
    written; elsewhere, and at a second signal, the program ends at once. When it ends so, one line on stderr says how
    to go on. A requeue signal of SLURM is Lightning's, and so is SIGTERM where that is the requeue signal.

    Args:
        command: what the user typed, for the line that says how to go on; None: another program calls.
    """

    def __init__(self, command: list[str] | None = None) -> None:
        self.command = command
        self.files = CheckpointFiles()
        self._resumed_from: str | None = None
        self._before: dict[int, Any] = {}
        self._process = os.getpid()
        self._within_batches = False
        self._asked = 0
        self._step = 0
        self._last_step: int | None = None
        self._held = ExitStack()  # the locks of the folders

    # -- signals ------------------------------------------------------------------------------------------------------

    def __enter__(self) -> Durable:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                if signal.getsignal(number) in (signal.SIG_DFL, signal.default_int_handler):
                    self._before[number] = signal.signal(number, self._on_signal)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        if isinstance(error, SIGTERMException):
            error = Stopped(signal.SIGTERM)
        if isinstance(error, Stopped):
            if int(os.environ.get("LOCAL_RANK", "0")) == 0:
                print(f"stopped by {signal.Signals(error.number).name}; {self.how_to_go_on()}", file=sys.stderr)
            raise error from None

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if os.getpid() != self._process:  # a worker of a data loader, whose parent got the signal, too
            raise KeyboardInterrupt
        if self._within_batches and not self._asked:
            self._asked = number
        else:
            raise Stopped(number)

    def how_to_go_on(self) -> str:
        """The command that goes on from this run's last checkpoint."""
        last = self.files.written or self._resumed_from
        if last is None:
            again = "" if self.command is None else f" with: {shlex.join(self.command)}"
            return f"there is no checkpoint yet, begin again{again}"
        if self.command is None:
            return f"go on with ckpt_path={str(last)!r}"
        return f"go on with: {shlex.join([*without_checkpoint(self.command), '--ckpt_path', str(last)])}"

    # -- hooks --------------------------------------------------------------------------------------------------------

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Makes the trainer write and read checkpoints durably, as the only one in its folders.

        Raises:
            InUse: another training writes its checkpoints there.
        """
        trainer.strategy.checkpoint_io = self.files
        if trainer.ckpt_path is not None:
            self._resumed_from = str(trainer.ckpt_path)
        if stage == "fit" and trainer.is_global_zero:
            for folder in folders(trainer):
                # SLURM sees to it that a job runs once, and a node that died leaves a lock that another cannot judge.
                if not SLURMEnvironment.detect():
                    self._held.enter_context(locked(folder))
                remove_unfinished(folder)
            remove_unfinished(Path(trainer.default_root_dir))

    def on_load_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        """Lets a validation that was due be made.

        Raises:
            ValueError: the checkpoint is of a later epoch than the run has, or its progress cannot be read.
        """
        if trainer.state.fn != TrainerFn.FITTING:
            return
        if trainer.max_epochs is not None and 0 <= trainer.max_epochs < checkpoint["epoch"]:
            raise ValueError(
                f"the checkpoint is of epoch {checkpoint['epoch']}, but trainer.max_epochs is {trainer.max_epochs}: "
                "nothing is left to train"
            )
        try:
            loops = checkpoint["loops"]["fit_loop"]
            owe_validation(loops)
            ended = owes_epoch_end(loops)
        except (AttributeError, KeyError, TypeError) as error:
            raise ValueError(
                f"the checkpoint does not say how far its run came ({type(error).__name__}: {error}); go on from "
                "another checkpoint"
            ) from error
        if trainer.max_steps == checkpoint["global_step"] and ended:
            self._last_step = trainer.max_steps

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """A run whose steps are done does not begin, even if its last validation is due."""
        if self._last_step is not None:
            trainer.fit_loop.epoch_loop.max_steps = self._last_step + 1

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Takes SIGTERM back from Lightning, which ends with status 0, and asks the other ranks in its handler."""
        # Behind the callbacks that write checkpoints, so that a run does not stop between them.
        trainer.callbacks = [one for one in trainer.callbacks if one is not self] + [self]  # type: ignore[attr-defined]
        if signal.SIGTERM in self._before and not _requeues_at_sigterm(trainer):
            signal.signal(signal.SIGTERM, self._on_signal)

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        """From here on a signal waits for the batch's end."""
        self._within_batches = True
        self._step = trainer.global_step

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Writes a checkpoint and stops, if a signal came; not between batches that share a step."""
        if trainer.global_step > self._step and trainer.strategy.reduce_boolean_decision(self._asked > 0, all=False):
            if (path := _place(trainer)) is not None:
                trainer.save_checkpoint(path)
            raise Stopped(self._asked or signal.SIGTERM)

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """A validation can take long, and there is nothing to write within it."""
        self._leave_batches()

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Mining and the like come next."""
        if self._last_step is not None:
            trainer.fit_loop.epoch_loop.max_steps, self._last_step = self._last_step, None
        self._leave_batches()

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        """Ends the processes that Lightning started: they would wait for this one."""
        self._held.close()
        self._within_batches = False
        launcher: Any = trainer.strategy.launcher
        if isinstance(exception, Stopped) and hasattr(launcher, "kill"):
            launcher.kill(signal.SIGKILL)

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Lets others write there."""
        self._held.close()

    def _leave_batches(self) -> None:
        self._within_batches = False
        if self._asked:
            raise Stopped(self._asked)


def check_release(folder: Path) -> None:
    """Refuses a folder for the release before the training.

    Raises:
        OSError: it is a file, or may not be written.
    """
    there = folder.absolute()
    while not there.exists():
        there = there.parent
    if not there.is_dir():
        raise NotADirectoryError(f"release: {there} is a file; name a folder")
    if not os.access(there, os.W_OK | os.X_OK):
        raise PermissionError(f"release: {there} may not be written; name another folder")


def folders(trainer: Trainer) -> list[Path]:
    """Where a trainer writes checkpoints.

    Raises:
        ValueError: one is an address.
    """
    named = [keeper.dirpath for keeper in trainer.checkpoint_callbacks if isinstance(keeper, ModelCheckpoint)]
    return list(dict.fromkeys(on_disk(folder) for folder in named if folder is not None))


def resolve(trainer: Trainer, ckpt_path: str | None) -> str | None:
    """``last`` stands for the newest whole checkpoint of the trainer's folders, or none where there is none yet."""
    if ckpt_path != "last":
        return ckpt_path
    kept = [path for folder in folders(trainer) for path in folder.glob("*.ckpt")]
    path, passed_over = newest([*kept, *Path(trainer.default_root_dir).glob("hpc_ckpt_*.ckpt")])
    for reason in passed_over:
        print(f"passed over: {reason}", file=sys.stderr)
    if path is None:
        print("there is no checkpoint yet: from the beginning", file=sys.stderr)
        return None
    print(f"going on from {path}", file=sys.stderr)
    return str(path)


def command_of(args: list[str] | None) -> list[str] | None:
    """What the user typed, if ``args`` (None: all of them) are its last words."""
    typed = sys.orig_argv
    return typed if args is None or (args and typed[-len(args) :] == args) else None


def without_checkpoint(command: list[str]) -> list[str]:
    """A command line without the option ``--ckpt_path``."""
    kept: list[str] = []
    skip = False
    for word in command:
        if not skip and word != "--ckpt_path" and not word.startswith("--ckpt_path="):
            kept.append(word)
        skip = word == "--ckpt_path"
    return kept


def _requeues_at_sigterm(trainer: Trainer) -> bool:
    environment: Any = trainer._accelerator_connector.cluster_environment
    return (
        isinstance(environment, SLURMEnvironment)
        and environment.auto_requeue
        and environment.requeue_signal == signal.SIGTERM
    )


def _place(trainer: Trainer) -> str | None:
    """Where the checkpoint of a run that is stopped belongs: where its steps are kept, or else beside the others."""
    keepers = [keeper for keeper in trainer.checkpoint_callbacks if isinstance(keeper, ModelCheckpoint)]
    if not keepers:
        return None
    for keeper in keepers:
        if keeper.monitor is None and not keeper.save_weights_only:
            place = {"epoch": torch.tensor(trainer.current_epoch), "step": torch.tensor(trainer.global_step)}
            return str(keeper.format_checkpoint_name({**trainer.callback_metrics, **place}))
    return str(Path(str(keepers[0].dirpath)) / "stopped.ckpt")
