"""Negatives mined with the model in training: whose they are, and whether a resumed run finds its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
import torch
from lightning import Callback, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint
from numpy.typing import NDArray

from simzoo.datamodules.training_data import TrainingData
from simzoo.models.dual_encoder import DualEncoder
from simzoo.models.similarity import LearnedSimilarity
from simzoo.models.training import Optimization
from simzoo.retrieval.first_stages.dense import Dense
from simzoo.retrieval.first_stages.lexical import BM25
from simzoo.retrieval.mining import MineCandidates, mine
from tests.toy import toy, toy_collection

ROOT = Path(__file__).parents[1]


def trainer(folder: Path, *callbacks: Callback, miner: MineCandidates | None = None, **settings: Any) -> Trainer:
    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
    return Trainer(
        **{"max_epochs": 2, "devices": 1, **quiet, **settings},
        accelerator="cpu",
        callbacks=[miner or MineCandidates(depth=10, every_n_epochs=1), *callbacks],
        default_root_dir=folder,
        limit_val_batches=0,
        use_distributed_sampler=False,
        enable_checkpointing=any(isinstance(c, ModelCheckpoint) for c in callbacks),
    )


def student(pooling: Literal["mean", "cls"] = "mean") -> DualEncoder:
    """The tiny dual encoder, the same weights each time, with a rate that moves it far in an epoch."""
    tiny = DualEncoder.tiny()
    model = DualEncoder(tiny.arguments["backbone"], tiny.arguments["tokens"], pooling=pooling)
    model.load_state_dict(tiny.state_dict())
    model.optimization = Optimization(lr=1e-2)
    return model


def weights(model: LearnedSimilarity) -> torch.Tensor:
    return torch.cat([value.flatten() for value in model.trained_state().values()])


def seen(data: TrainingData) -> NDArray[np.int64]:
    """What the data module was handed for the first training collection."""
    candidates = data.part("train", 0).candidates
    assert candidates is not None
    return candidates.items


def test_another_model_in_the_same_folder_mines_its_own(tmp_path: Path) -> None:
    """Kept as those of "the model in training", a first model's negatives were those of every later one."""
    trainer(tmp_path / "shared").fit(student(), datamodule=toy())
    for folder in ("shared", "fresh"):
        model, data = student("cls"), toy()
        before, start = toy(), student("cls").eval()
        trainer(tmp_path / folder, max_steps=1).fit(model, datamodule=data)
        assert np.array_equal(seen(data), mine(Dense.of(start), before.collections("train")[0], 10).items)
    ends = []
    for folder in ("shared", "fresh"):
        model = student("cls")
        trainer(tmp_path / folder).fit(model, datamodule=toy())
        ends.append(weights(model))
    assert torch.equal(*ends)
    files = {path.stem for path in (tmp_path / "shared").rglob("*.npz")}
    assert {path.stem for path in (tmp_path / "fresh").rglob("*.npz")} < files


class Stop(Callback):
    """Ends the run as an exception would, in the middle of the second epoch."""

    def on_train_batch_end(self, trainer: Trainer, *_: Any) -> None:
        if trainer.global_step == 17:
            raise RuntimeError("stopped")


def stopped(folder: Path) -> Path:
    """The checkpoint of step 15 of 24 of a run that was stopped at step 17."""
    keep = ModelCheckpoint(dirpath=folder, filename="resume", every_n_train_steps=5, enable_version_counter=False)
    with pytest.raises(RuntimeError, match="stopped"):
        trainer(folder, keep, Stop()).fit(student(), datamodule=toy())
    return folder / "resume.ckpt"


def test_a_resumed_run_trains_on_what_it_mined_itself(tmp_path: Path) -> None:
    """Mined with step 15's weights instead of step 12's, the rest of the epoch would be another training."""
    kept = stopped(tmp_path / "a")
    mined = {path: path.read_bytes() for path in (tmp_path / "a").rglob("*.npz")}
    assert len(mined) == 4  # two rounds, two collections
    trainer(tmp_path / "a").fit(student("cls"), datamodule=toy())
    resumed, whole = student(), student()
    trainer(tmp_path / "a").fit(resumed, datamodule=toy(), ckpt_path=kept, weights_only=True)
    trainer(tmp_path / "b").fit(whole, datamodule=toy())
    assert torch.equal(weights(resumed), weights(whole))
    assert {path: path.read_bytes() for path in mined} == mined
    assert len(list((tmp_path / "a").rglob("*.npz"))) == 8  # resuming mined nothing
    assert torch.load(kept, weights_only=True)["callbacks"]["MineCandidates"]["round"] == 1


def test_lost_negatives_are_missed(tmp_path: Path) -> None:
    """Others in their place, mined with later weights, would go unseen."""
    kept = stopped(tmp_path)
    for path in (tmp_path / "candidates" / "round-1").iterdir():
        path.unlink()
    with pytest.raises(FileNotFoundError, match=r"round-1.*there is no such file.*train from the beginning"):
        trainer(tmp_path).fit(student(), datamodule=toy(), ckpt_path=kept, weights_only=True)


def test_one_callback_serves_several_trainings(tmp_path: Path) -> None:
    """The second one had no candidates, because the callback took its round for mined."""
    miner = MineCandidates(BM25(), depth=10)
    for _ in range(2):
        data = toy()
        trainer(tmp_path, miner=miner, max_steps=1).fit(student(), datamodule=data)
        assert np.array_equal(seen(data), mine(BM25(), toy_collection("a"), 10).items)


def test_ranks_read_what_the_first_one_mined(tmp_path: Path) -> None:
    """Where sums differ by the last bit between ranks, each would look for a file of its own."""
    script = f"""
import torch
from pathlib import Path
import simzoo.retrieval.mining
from tests.test_mining import seen, student, trainer
from tests.toy import toy
if __name__ == "__main__":
    content = simzoo.retrieval.mining._content
    simzoo.retrieval.mining._content = lambda model: content(model) + str(torch.distributed.get_rank())
    data, folder = toy(), Path({str(tmp_path)!r})
    fit = trainer(folder, strategy="ddp", devices=2)
    fit.fit(student(), datamodule=data)
    items = torch.from_numpy(seen(data))
    low, high = fit.strategy.reduce(items, reduce_op="min"), fit.strategy.reduce(items, reduce_op="max")
    zero = fit.is_global_zero
    torch.distributed.destroy_process_group()
    if zero:
        print("RESULT", torch.equal(low, high), fit.global_step, len(list(folder.rglob("*.npz"))))
"""
    (tmp_path / "ddp.py").write_text(script)
    done = subprocess.run(
        [sys.executable, str(tmp_path / "ddp.py")],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert "RESULT True 12 4" in done.stdout
