"""Negatives mined with the model in training: whose they are, and whether a resumed run finds its own."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
import torch
from lightning import Callback, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint
from numpy.typing import NDArray

from simzoo.core.candidates import Candidates, Listed
from simzoo.core.records import Collection
from simzoo.datamodules.training_data import TrainingData
from simzoo.models.dual_encoder import DualEncoder
from simzoo.models.similarity import LearnedSimilarity
from simzoo.models.training import Optimization
from simzoo.retrieval import mining
from simzoo.retrieval.first_stages.dense import Dense
from simzoo.retrieval.first_stages.first_stage import FirstStage
from simzoo.retrieval.first_stages.lexical import BM25
from simzoo.retrieval.mined import joined, mine
from simzoo.retrieval.mining import MineCandidates
from tests.toy import toy, toy_collection


def trainer(folder: Path, *callbacks: Callback, miner: MineCandidates | None = None, **settings: Any) -> Trainer:
    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
    return Trainer(
        **{"max_epochs": 2, "devices": 1, "limit_val_batches": 0, **quiet, **settings},
        accelerator="cpu",
        callbacks=[miner or MineCandidates(depth=10, every_n_epochs=1), *callbacks],
        default_root_dir=folder,
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


@pytest.mark.parametrize(("stage", "times"), [(BM25(), 1), (None, 2)])
def test_dev_is_mined_once_by_what_does_not_change(
    stage: FirstStage | None, times: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was mined anew at each validation; mined once by a model in training, it would be that of its start."""
    names = []

    def counted(stage: FirstStage, collection: Collection, depth: int) -> Candidates:
        names.append(collection.name)
        return mine(stage, collection, depth)

    monkeypatch.setattr(mining, "mine", counted)
    validated = {"limit_val_batches": None, "num_sanity_val_steps": 0}
    trainer(tmp_path, miner=MineCandidates(stage, depth=10), **validated).fit(student(), datamodule=toy())
    assert names == ["dev"] * times


def test_worker_processes_see_what_was_mined(tmp_path: Path) -> None:
    """They were started before validation's candidates were mined, and ended the run."""
    found = []
    for workers in (0, 1):
        fit = trainer(tmp_path, miner=MineCandidates(depth=10), limit_val_batches=None)
        [metrics] = fit.validate(student(), datamodule=toy(workers=workers), verbose=False)
        found.append(metrics)
    assert found[0] == found[1] and len(found[0]) == 3


def test_parts_of_other_widths_are_joined() -> None:
    """Queries with three relevant items in one part, and with one in another: -1 is no item, NaN no score."""

    def part(golds: list[list[int]]) -> Candidates:
        items = np.array(golds)
        scores = items.astype(np.float32)
        mined = np.zeros((len(golds), 2), dtype=np.int64)
        return Candidates(
            mined, mined.astype(np.float32), scores[:, 0], gold=Listed(items, scores), gold_teacher=scores
        )

    both = joined([part([[1, 2, 3]]), part([[4], [5]])])
    assert both.gold is not None and both.gold_teacher is not None
    assert both.gold.items.tolist() == [[1, 2, 3], [4, -1, -1], [5, -1, -1]]
    assert np.array_equal(both.gold.scores[1], [4, np.nan, np.nan], equal_nan=True)
    assert both.gold_teacher[2].tolist() == [5, -np.inf, -np.inf]
    assert both.items.shape == (3, 2) and both.gold_scores.tolist() == [1, 4, 5]
