"""The training loop: what it learns from, what it survives."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from lightning import Callback, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint

from simzoo.core.batch import Batch
from simzoo.core.candidates import Candidates
from simzoo.core.reps import num_rows
from simzoo.datamodules.lists import Distilled, HardNegatives, InBatch
from simzoo.datamodules.loading import CollectionBatches, Loading
from simzoo.losses import KLToRetriever, Loss, MatchLoss, PairLoss, SoftmaxCrossEntropy, Targets
from simzoo.models.cross_encoder import CrossEncoder
from simzoo.models.dual_encoder import DualEncoder
from simzoo.models.formats import load, save
from simzoo.models.similarity import LearnedSimilarity
from simzoo.models.training import Optimization
from simzoo.retrieval.first_stages.lexical import BM25
from simzoo.retrieval.mined import mine
from simzoo.retrieval.mining import MineCandidates, OfMined
from tests.toy import toy, toy_collection

ROOT = Path(__file__).parents[1]


def trainer(folder: Path, *callbacks: Callback, epochs: int = 2, **settings: Any) -> Trainer:
    return Trainer(
        max_epochs=epochs,
        accelerator="cpu",
        callbacks=[MineCandidates(BM25(), depth=10), *callbacks],
        default_root_dir=folder,
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        num_sanity_val_steps=0,
        use_distributed_sampler=False,
        enable_checkpointing=any(isinstance(c, ModelCheckpoint) for c in callbacks),
        **settings,
    )


@pytest.mark.parametrize("kind", [DualEncoder, CrossEncoder])
def test_training_lowers_the_loss_and_validates(kind: type[LearnedSimilarity], tmp_path: Path) -> None:
    """A loop that runs but does not learn (frozen weights, shuffled labels) still prints a falling progress bar."""
    model = kind.tiny()
    model.optimization, model.loss = Optimization(lr=1e-2), SoftmaxCrossEntropy(temperature=0.2)
    losses: list[float] = []

    class Watch(Callback):
        def on_train_batch_end(self, trainer: Trainer, *_: Any) -> None:
            losses.append(float(trainer.callback_metrics["train/loss"]))

    fit = trainer(tmp_path, Watch(), epochs=8)
    fit.fit(model, datamodule=toy(HardNegatives(hard=5)))
    assert np.mean(losses[-8:]) < 0.8 * np.mean(losses[:8])
    assert 0 < float(fit.callback_metrics["val/mrr"]) <= 1


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ({"lr": 0.0}, "lr must be positive, got 0.0"),
        ({"warmup": 1.5}, r"warmup is a share of all steps in \[0, 1\], got 1.5"),
        ({"betas": (0.9, 1.0)}, r"betas are shares in \[0, 1\), got \[0.9, 1.0\]"),
    ],
)
def test_wrong_optimization_is_refused(setting: Any, message: str) -> None:
    """Rates and moments that train nothing, or diverge."""
    with pytest.raises(ValueError, match=message):
        Optimization(**setting)


def test_validation_does_not_depend_on_the_batches(tmp_path: Path) -> None:
    """Batches differ in size by one where the queries do not divide: two queries under one number become one list."""
    model, found = CrossEncoder.tiny(), []
    for batch_size in (24, 5):
        fit = trainer(tmp_path)
        [metrics] = fit.validate(model, datamodule=toy(batch_size=batch_size), verbose=False)
        found.append(metrics)
    assert found[0] == pytest.approx(found[1], abs=1e-6)


def test_batches_show_what_they_should(tmp_path: Path) -> None:
    """The gold item must be in every list, negatives must not be relevant, in-batch items must serve all queries."""
    model = CrossEncoder.tiny()
    for in_batch in (False, True):
        lists = HardNegatives(hard=3, random=2)
        data = toy(InBatch(lists) if in_batch else lists)
        fit = trainer(tmp_path)
        fit.strategy.connect(model)
        data.trainer = fit
        fit.strategy._lightning_module = model
        collections = data.collections("train")
        mined = [Candidates(np.tile(np.arange(10), (24, 1)), np.zeros((24, 10), np.float32), np.zeros(24, np.float32))]
        data.train_dataloader()
        data.set_candidates("train", mined * 2)
        batches = list(data.train_dataloader())
        assert len(batches) == 12
        seen = [q for batch in batches for q in batch.query_ids]
        assert len(seen) == 48
        for batch in batches:
            assert batch.targets.labels.shape == (4, batch.candidates.shape[1])
            assert (batch.targets.labels.sum(dim=1) >= 1).all()
            assert batch.candidates.max() < num_rows(batch.items)
            if not in_batch:
                assert batch.targets.labels[:, 0].eq(1).all()
                assert batch.candidates.shape == (4, 6)
                assert all(len(set(row)) == 6 for row in batch.candidates.tolist())
            else:
                assert batch.candidates.shape == (1, num_rows(batch.items))
        assert len(collections) == 2


def test_false_negatives_are_filtered(tmp_path: Path) -> None:
    """A mined item that scores above the gold by the margin is probably right: it must not be trained against."""
    model = CrossEncoder.tiny()
    data = toy(HardNegatives(hard=3, margin=0.5), batch_size=1)
    fit = trainer(tmp_path)
    data.trainer = fit
    fit.strategy._lightning_module = model
    scores = np.linspace(2, 0, 10, dtype=np.float32)[None].repeat(24, axis=0)
    mined = Candidates(np.tile(np.arange(10), (24, 1)), scores, np.full(24, 1.0, np.float32))
    data.train_dataloader()
    data.set_candidates("train", [mined, mined])
    lists: Any = data.part("train", 0)
    allowed = {item for item, score in zip(range(10), scores[0], strict=True) if score <= 1.5}
    for row in range(24):
        drawn = lists.lists.draw(lists, row, np.random.default_rng(0)).rows
        assert set(drawn[1:].tolist()) <= allowed - set(lists.collection.relevant(row))
        assert drawn[0] in lists.collection.relevant(row)


def test_hard_negatives_follow_the_retrievers_scores(tmp_path: Path) -> None:
    """Drawn evenly from the top 64, the other senses of a mention's lemma are almost never among a handful."""
    model = CrossEncoder.tiny()
    scores = np.array([[2.0, 1.0] + [0.0] * 8], dtype=np.float32).repeat(24, axis=0)
    counts = {}
    for temperature in (None, 0.5):
        data = toy(HardNegatives(hard=1, temperature=temperature), batch_size=1)
        fit = trainer(tmp_path)
        data.trainer = fit
        fit.strategy._lightning_module = model
        data.train_dataloader()
        mined = Candidates(np.tile(np.arange(30, 40), (24, 1)), scores, np.zeros(24, np.float32))
        data.set_candidates("train", [mined, mined])
        lists: Any = data.part("train", 0)
        row = next(r for r in range(24) if not set(lists.collection.relevant(r)) & {30, 31})
        drawn = [lists.lists.draw(lists, row, np.random.default_rng(n)).rows[1] for n in range(2000)]
        counts[temperature] = np.bincount(drawn, minlength=40)[30:32] / 2000
    left = 10 - len({*range(30, 40)} & set(lists.collection.relevant(row)))
    total = np.exp(4) + np.exp(2) + left - 2
    assert counts[None] == pytest.approx([1 / left, 1 / left], abs=0.03)
    assert counts[0.5] == pytest.approx([np.exp(4) / total, np.exp(2) / total], abs=0.03)
    with pytest.raises(ValueError, match="temperature must be positive"):
        HardNegatives(temperature=0.0)


def test_a_fixed_share_of_hard_negatives_and_their_scores(tmp_path: Path) -> None:
    """CMC's lists: the retriever's first ones always, the rest drawn, all with the retriever's scores beside them."""
    data = toy(HardNegatives(hard=6, random=2, fixed=3, temperature=1.0), batch_size=24)
    fit = trainer(tmp_path)
    data.trainer = fit
    model = CrossEncoder.tiny()
    model.loss = KLToRetriever()
    fit.strategy._lightning_module = model
    data.train_dataloader()
    scores = np.linspace(2, 0, 20, dtype=np.float32)[None].repeat(24, axis=0)
    mined = Candidates(np.tile(np.arange(20), (24, 1)), scores, np.zeros(24, np.float32))
    data.set_candidates("train", [mined, mined])
    lists: Any = data.part("train", 0)
    batch = lists.batch(list(range(24)), 0)
    assert batch.targets.retriever is not None
    for row in range(24):
        relevant = lists.collection.relevant(row)
        drawn = lists.lists.draw(lists, row, np.random.default_rng([data.seed, 0, row])).rows
        assert drawn[1:4].tolist() == [item for item in range(20) if item not in relevant][:3]
        assert len(set(drawn.tolist())) == 9
        known = [scores[0, item] if item < 20 else np.nan for item in drawn]
        np.testing.assert_allclose(batch.targets.retriever[row], known)


def test_hidden_titles_share_the_queries() -> None:
    """Each query trains in one form, and is mined in the form that it trains in."""
    data = toy(title_dropout=0.25)
    parts = data.collections("train")
    assert [len(part.queries) for part in parts] == [18, 6, 18, 6]
    for shown, hidden in zip(parts[::2], parts[1::2], strict=True):
        assert {q.id for q in shown.queries} | {q.id for q in hidden.queries} == {f"q{n}" for n in range(24)}
        assert all(item.title for item in shown.items) and not any(item.title for item in hidden.items)
        whole = toy_collection(shown.name)
        for part in (shown, hidden):
            for row, query in enumerate(part.queries):
                assert part.judgements[row] == whole.judgements[int(query.id[1:])]
    assert [len(part.queries) for part in toy().collections("train")] == [24, 24]
    assert all(not item.title for part in toy(title_dropout=1.0).collections("train") for item in part.items)
    dev = [len(part.queries) for part in toy().collections("dev")]
    mixed = data.collections("dev")
    assert [any(item.title for item in part.items) for part in mixed] == [True, False] * len(dev)
    assert [len(hidden.queries) for hidden in mixed[1::2]] == [round(0.25 * queries) for queries in dev]


def test_batch_order_is_a_function_of_seed_and_epoch() -> None:
    """A resumed epoch must go on behind what was seen; ranks must take the same steps, of joint batches."""
    whole = list(CollectionBatches([10, 7], Loading(3, seed=1)))
    assert sorted(p for b in whole for p in b) == [(0, i) for i in range(10)] + [(1, i) for i in range(7)]
    assert all(len({c for c, _ in batch}) == 1 for batch in whole)
    for rank in range(2):
        assert list(CollectionBatches([10, 7], Loading(3, 1, rank, 2))) == list(
            CollectionBatches([10, 7], Loading(6, 1))
        )
    resumed = CollectionBatches([10, 7], Loading(3, 1))
    resumed.start = 4
    assert list(resumed) == whole[4:]
    assert list(resumed) == whole
    resumed.epoch = 1
    assert list(resumed) != whole


def test_mining_is_the_top_of_the_first_stage() -> None:
    """Negatives from the wrong rows look hard to the eye and are random."""
    from simzoo.retrieval.first_stages.dense import Dense

    collection = toy_collection()
    stage = Dense.of(DualEncoder.tiny().eval())
    mined = mine(stage, collection, 7)
    expected = stage.embedder.encode(collection.queries) @ stage.embedder.vectors.T
    np.testing.assert_allclose(mined.scores, -np.sort(-expected, axis=1)[:, :7], atol=1e-5)
    for row in range(24):
        gold = collection.relevant(row)[0]
        if gold in mined.items[row]:
            assert mined.gold_scores[row] == pytest.approx(expected[row, gold], abs=1e-5)
        else:
            assert np.isinf(mined.gold_scores[row])


@pytest.mark.parametrize("loss", [MatchLoss(), PairLoss()])
def test_distillation_sees_the_teachers_top(loss: Loss, tmp_path: Path) -> None:
    """L_match and L_pair need the teacher's top items with its scores, and the student's top ones outside them."""
    save(CrossEncoder.tiny(), tmp_path / "teacher")
    model = DualEncoder.tiny()
    model.loss = loss
    batches: list[Batch] = []

    class Watch(Callback):
        def on_train_batch_start(self, trainer: Trainer, module: Any, batch: Batch, batch_idx: int) -> None:
            batches.append(batch)

    fit = trainer(tmp_path, Watch(), epochs=1)
    fit.callbacks[0] = MineCandidates(depth=12, teacher=OfMined(str(tmp_path / "teacher")))  # type: ignore[attr-defined]
    data = toy(Distilled(top=3))
    fit.fit(model, datamodule=data)
    assert len(batches) == 12
    teacher = load(tmp_path / "teacher")
    mined = data.part("train", 0).candidates
    assert mined is not None and mined.teacher is not None
    collection = data.collections("train")[0]
    with torch.inference_mode():
        exact = teacher.score(
            teacher.encode_queries(teacher.collate_queries(collection.queries)),
            teacher.encode_items(teacher.collate_items(collection.items)),
        ).numpy()
    np.testing.assert_allclose(mined.teacher, np.take_along_axis(exact, mined.items, axis=1), atol=2e-5)
    for batch in batches:
        assert batch.targets.teacher is not None
        known = torch.isfinite(batch.targets.teacher)
        assert known.tolist() == [[True] * 3 + [False] * 3] * 4
        assert (batch.targets.teacher[:, :2] >= batch.targets.teacher[:, 1:3]).all()
        assert all(len(set(row)) == 6 for row in batch.candidates.tolist())


def test_distillation_without_a_teacher_says_so(tmp_path: Path) -> None:
    """Training on labels where distillation was asked for would go unseen."""
    with pytest.raises(ValueError, match=r"give data\.miner a teacher"):
        trainer(tmp_path).fit(DualEncoder.tiny(), datamodule=toy(Distilled(top=3)))


class Exploding(Loss):
    """NaN at the fifth call."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def count(self, targets: Targets) -> torch.Tensor:
        return targets.mask.sum()

    def forward(self, scores: torch.Tensor, targets: Targets) -> torch.Tensor:
        self.calls += 1
        return scores[torch.isfinite(scores)].mean() * (float("nan") if self.calls == 5 else 1.0)


def test_nan_stops_names_the_batch_and_keeps_the_checkpoint(tmp_path: Path) -> None:
    """A NaN that is stepped on ruins the weights, and every later checkpoint with them."""
    model = CrossEncoder.tiny()
    model.loss = Exploding()
    keep = ModelCheckpoint(dirpath=tmp_path, filename="last", every_n_train_steps=2)
    with pytest.raises(FloatingPointError, match=r"epoch 0, batch 4, queries q\d+"):
        trainer(tmp_path, keep).fit(model, datamodule=toy())
    kept = torch.load(tmp_path / "last.ckpt", weights_only=True)
    assert kept["global_step"] == 4
    assert all(torch.isfinite(value).all() for value in kept["state_dict"].values())


KILLED = """
import os, signal, sys
from pathlib import Path
from lightning import Callback
from lightning.pytorch.callbacks import ModelCheckpoint
from simzoo.models.cross_encoder import CrossEncoder
from simzoo.models.training import Optimization
from tests.test_training import trainer
from tests.toy import toy

class Kill(Callback):
    def on_train_batch_end(self, trainer, model, outputs, batch, batch_idx):
        if trainer.global_step == 17:
            os.kill(os.getpid(), signal.SIGKILL)

folder = Path(sys.argv[1])
model = CrossEncoder.tiny()
model.optimization = Optimization(lr=1e-3)
keep = ModelCheckpoint(dirpath=folder, filename="resume", every_n_train_steps=5, enable_version_counter=False)
trainer(folder, keep, Kill()).fit(model, datamodule=toy())
"""


def test_killed_training_goes_on_with_the_same_bytes(tmp_path: Path) -> None:
    """kill -9 in the middle of an epoch: no batch seen twice or skipped, and dropout as if it had not been."""
    killed = subprocess.run(
        [sys.executable, "-c", KILLED, str(tmp_path / "a")], cwd=ROOT, capture_output=True, text=True
    )
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    states = []
    for folder, resume in (("a", tmp_path / "a" / "resume.ckpt"), ("b", None)):
        model = CrossEncoder.tiny()
        model.optimization = Optimization(lr=1e-3)
        fit = trainer(tmp_path / folder)
        fit.fit(model, datamodule=toy(), ckpt_path=resume, weights_only=True)
        assert fit.global_step == 24
        states.append(model.trained_state())
    for name, value in states[0].items():
        assert torch.equal(value, states[1][name]), name


def test_a_checkpoint_of_another_model_is_refused(tmp_path: Path) -> None:
    """Loading what fits and leaving the rest random is how a wrong start goes unseen."""
    keep = ModelCheckpoint(dirpath=tmp_path, filename="last", every_n_train_steps=2)
    trainer(tmp_path, keep, epochs=1).fit(DualEncoder.tiny(), datamodule=toy())
    with pytest.raises(ValueError, match="does not fit CrossEncoder"):
        trainer(tmp_path).fit(
            CrossEncoder.tiny(), datamodule=toy(), ckpt_path=tmp_path / "last.ckpt", weights_only=True
        )


@pytest.mark.parametrize("limit", [None, 3])
def test_ddp_sees_every_query_once(limit: int | None, tmp_path: Path) -> None:
    """Two processes: the same weights on both, every validation query counted once, also in one batch for both."""
    script = f"""
import torch
from pathlib import Path
from simzoo.models.dual_encoder import DualEncoder
from simzoo.models.training import Optimization
from tests.test_training import trainer
from tests.toy import toy
if __name__ == "__main__":
    model = DualEncoder.tiny()
    model.optimization = Optimization(lr=1e-3)
    fit = trainer(Path({str(tmp_path)!r}), epochs=1, strategy="ddp", devices=2)
    fit.fit(model, datamodule=toy(max_val_queries={limit}))
    weights = torch.cat([v.flatten() for v in model.trained_state().values()])
    low, high = fit.strategy.reduce(weights, reduce_op="min"), fit.strategy.reduce(weights, reduce_op="max")
    zero = fit.is_global_zero
    torch.distributed.destroy_process_group()
    if zero:
        alone = trainer(Path({str(tmp_path)!r}) / "one")
        alone.validate(model, datamodule=toy(max_val_queries={limit}), verbose=False)
        print("RESULT", torch.equal(low, high), fit.global_step, round(float(alone.callback_metrics["val/mrr"]), 6),
              round(float(fit.callback_metrics["val/mrr"]), 6))
"""
    path = tmp_path / "ddp.py"
    path.write_text(script)
    environment = {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    import os

    done = subprocess.run(
        [sys.executable, str(path)],
        cwd=ROOT,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    line = next(line for line in done.stdout.splitlines() if line.startswith("RESULT"))
    _, same, steps, alone, together = line.split()
    assert same == "True"
    assert steps == "6"
    assert alone == together
