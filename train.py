"""Training: ``python train.py fit --config configs/wordnet/dual_encoder.yaml``; also ``validate`` and ``test``."""

from __future__ import annotations

if __name__ not in ("__main__", "simzoo.train"):
    raise ImportError("train is a part of simzoo: import simzoo.train instead of train")

if __name__ == "__main__":
    from simzoo.core.interrupts import end_without_traceback

    end_without_traceback()

import os
import sys
import warnings
from importlib.util import find_spec
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

from jsonargparse import Namespace
from lightning import Callback, LightningModule, Trainer
from lightning.pytorch import loggers as lightning_loggers
from lightning.pytorch.callbacks import EarlyStopping, ModelCheckpoint
from lightning.pytorch.cli import LightningArgumentParser, LightningCLI
from lightning.pytorch.loggers import Logger

from simzoo.core.command_line import EPILOG, OneLine, prepared
from simzoo.core.heartbeat import Heartbeat
from simzoo.core.progress import quiet
from simzoo.core.startup import importing
from simzoo.datamodules.training_data import TrainingData
from simzoo.models.checkpointing import on_disk, read
from simzoo.models.durable import Durable, check_release, command_of, resolve
from simzoo.models.formats import restore, save
from simzoo.models.similarity import LearnedSimilarity

LoggerName = Literal["tensorboard", "wandb", "mlflow"]


class Release(Callback):
    """Writes the best weights as a checkpoint folder when training ends.

    Args:
        folder: where; for example out/wordnet-de.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Reloads the best checkpoint, if one was chosen by a metric, and saves it."""
        assert isinstance(pl_module, LearnedSimilarity)
        keeper = trainer.checkpoint_callback
        if isinstance(keeper, ModelCheckpoint) and keeper.monitor and keeper.best_model_path:
            restore(pl_module, Path(keeper.best_model_path))
        if trainer.is_global_zero:
            save(pl_module, self.folder)


def with_seeds(config: Namespace) -> Namespace:
    """The configuration with ``seed_everything`` for every seed of model and data, nested ones too, that is not set.

    Not a link of the parser: that overrides a seed that is set, is left out of saved configurations, and cannot reach
    into nested data.
    """
    config = config.clone()
    run = config[config.subcommand] if "subcommand" in config else config
    seed = run.get("seed_everything")
    # True: drawn later; False: none; and a part of a configuration, which jsonargparse dumps alone, has no such key.
    if seed is not None and not isinstance(seed, bool):
        for part in ("model", "data"):
            _set_seeds(run.get(part), seed)
    return config


def _set_seeds(node: Any, seed: int) -> None:
    if isinstance(node, Namespace):
        if "seed" in node and node["seed"] is None:
            node["seed"] = seed
        node = list(vars(node).values())
    if isinstance(node, list):
        for child in node:
            _set_seeds(child, seed)


class Parser(OneLine, LightningArgumentParser):
    """Prints and saves configurations with the seeds that a run of them uses."""

    bases = MappingProxyType(
        {"model": "LearnedSimilarity", "source": "Source", "lists": "TrainingLists", "miner": "Miner"}
    )

    def dump(self, namespace: Namespace, *args: Any, **kwargs: Any) -> str:
        """See `with_seeds`."""
        text: str = super().dump(with_seeds(namespace), *args, **kwargs)
        return text


def keepers(output: Path, monitor: str | None, resume_every: int | None, patience: int | None) -> list[Callback]:
    """What keeps checkpoints and ends training early.

    Args:
        output: folder of the run.
        monitor: metric whose largest value is best; None: the last weights are.
        resume_every: steps between checkpoints to resume from; None: none are kept.
        patience: validations without a better value before training ends; None: it goes on.
    """
    plain: dict[str, Any] = {"dirpath": output / "checkpoints", "save_top_k": 1, "enable_version_counter": False}
    kept: list[Callback] = []
    if monitor is not None:
        kept.append(ModelCheckpoint(filename="best", monitor=monitor, mode="max", **plain))
        if patience is not None:
            kept.append(EarlyStopping(monitor, mode="max", patience=patience))
    if resume_every is not None:
        kept.append(ModelCheckpoint(filename="resume", every_n_train_steps=resume_every, **plain))
    return kept


def loggers_of(output: Path, names: list[LoggerName]) -> list[Logger]:
    """The CSV logger, and the named ones.

    Raises:
        ValueError: the package of one is not installed.
    """
    packages = {"tensorboard": "tensorboard", "wandb": "wandb", "mlflow": "mlflow"}
    missing = [name for name in names if find_spec(packages[name]) is None]
    if missing:
        raise ValueError(f"--loggers {', '.join(missing)}: not installed; pip install 'simzoo[{','.join(missing)}]'")
    made: list[Logger] = [lightning_loggers.CSVLogger(output, name="logs")]
    for name in names:
        if name == "tensorboard":
            made.append(lightning_loggers.TensorBoardLogger(output, name="tensorboard"))
        elif name == "wandb":
            made.append(lightning_loggers.WandbLogger(output.name, output, project="simzoo"))
        else:
            # A database: MLflow 3 refuses to write folders of files.
            output.mkdir(parents=True, exist_ok=True)
            here, artifacts = (output.resolve() / part for part in ("mlflow.db", "mlruns"))
            store = os.environ.get("MLFLOW_TRACKING_URI") or f"sqlite:///{here}"
            made.append(lightning_loggers.MLFlowLogger("simzoo", output.name, store, artifact_location=str(artifacts)))
    return made


class CLI(LightningCLI):
    """Makes what every run has alike, from its folder and metric; for the rest the recipe composes model and data."""

    def __init__(self, words: list[str], **kwargs: Any) -> None:
        self.named = words[0] if words else ""
        super().__init__(args=words, **kwargs)

    def subcommands(self) -> dict[str, set[str]]:  # type: ignore[override]  # Lightning's own is static
        """The named one: each takes a fifth of a second to describe all that a trainer takes."""
        every: dict[str, set[str]] = super().subcommands()
        return {self.named: every[self.named]} if self.named in every else every

    def add_arguments_to_parser(self, parser: Any) -> None:
        """Adds the run's folder and what is kept in it; hands the ids of records to a model that has a row for each."""
        parser.add_argument(
            "--output",
            type=Path | None,
            default=None,
            help="folder of the run: logs, checkpoints, mined candidates and the released model. Without it, the "
            "trainer's own settings say what is written",
        )
        parser.add_argument(
            "--monitor", type=str | None, default=None, help="metric of the best checkpoint: its largest value"
        )
        parser.add_argument(
            "--resume_every", type=int | None, default=None, help="steps between checkpoints to resume from"
        )
        parser.add_argument(
            "--patience", type=int | None, default=None, help="validations without a better value that end training"
        )
        parser.add_argument(
            "--loggers", type=list[LoggerName], default=[], help="loggers besides the CSV file; each is an extra"
        )
        parser.add_argument(
            "--release",
            type=Path | None,
            default=None,
            help="write the trained model as a checkpoint folder here; null: into release in the output folder",
        )
        # Passed over where the model does not take them.
        for name in ("item_ids", "query_ids"):
            parser.link_arguments(f"data.{name}", f"model.init_args.{name}", apply_on="instantiate")

    def before_instantiate_classes(self) -> None:
        """Seeds model and data; ``seed_everything`` is a number by now."""
        self.config = with_seeds(self.config)

    def instantiate_trainer(self, **kwargs: Any) -> Trainer:
        """The trainer, with what the output folder asks for."""
        run = self.config[self.config.subcommand] if "subcommand" in self.config else self.config
        if run.output is None:
            return super().instantiate_trainer(**kwargs)
        kwargs = {"default_root_dir": run.output, **kwargs}
        settings = run.trainer
        if settings.logger in (None, True):
            kwargs["logger"] = loggers_of(run.output, run.loggers)
        if settings.enable_checkpointing is not False:
            kept = keepers(run.output, run.monitor, run.resume_every, run.patience)
            kwargs["callbacks"] = [*(self._get(self.config_init, "trainer.callbacks") or []), *kept]
        return super().instantiate_trainer(**kwargs)

    def _parse_ckpt_path(self) -> None:
        """Refuses what is no file here, before any work; a checkpoint's arguments are no part of the configuration."""
        path = self.config.get(str(self.config.get("subcommand")), {}).get("ckpt_path")
        if path not in (None, "last", "best", "hpc") and not on_disk(path).is_file():
            read(path)

    def _prepare_subcommand_kwargs(self, subcommand: str) -> dict[str, Any]:
        """Names the checkpoint that ``last`` stands for."""
        settings: dict[str, Any] = super()._prepare_subcommand_kwargs(subcommand)
        return {**settings, "ckpt_path": resolve(self.trainer, settings["ckpt_path"])}

    def before_fit(self) -> None:
        """Installs the release callback."""
        run = self.config.fit
        folder = run.release or (None if run.output is None else run.output / "release")
        if folder is not None:
            check_release(Path(folder))
            trainer: Any = self.trainer
            trainer.callbacks.append(Release(Path(folder)))


def main(args: list[str] | None = None, run: bool = True) -> CLI:
    """Runs the command line; ``run=False`` only parses and composes."""
    with Durable(command_of(args)) as durable:
        quiet()
        return _cli(args, run, durable)


def _cli(args: list[str] | None, run: bool, durable: Durable) -> CLI:
    # It is resumable, by asking the trainer where it stands (ResumableLoader).
    warnings.filterwarnings("ignore", message=".*your dataloader is not resumable")
    # They are the same words, but for --allow.
    warnings.filterwarnings("ignore", message="LightningCLI's args parameter")
    with importing():
        words = prepared(args)
    return CLI(
        words,
        model_class=LearnedSimilarity,
        datamodule_class=TrainingData,
        subclass_mode_model=True,
        seed_everything_default=0,
        trainer_defaults={
            "use_distributed_sampler": False,
            "num_sanity_val_steps": 0,
            "callbacks": [durable, Heartbeat()],
        },
        save_config_kwargs={"overwrite": True},
        parser_class=Parser,
        parser_kwargs={"allow_abbrev": False, "epilog": EPILOG},
        run=run,
    )


if __name__ == "__main__":
    try:
        main()
    except (FloatingPointError, ImportError, OSError, TypeError, ValueError) as error:
        sys.exit(f"error: {error}")
