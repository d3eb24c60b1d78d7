"""Training checkpoints under full disks, damage and strange files; what a resumed run would leave out."""

from __future__ import annotations

import os
import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning import Callback, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint

from simzoo.models.checkpointing import CheckpointFiles, newest, previous, read
from simzoo.models.cross_encoder import CrossEncoder
from simzoo.models.durable import Durable
from simzoo.models.formats import load, save
from simzoo.models.training import Optimization
from tests.test_training import trainer
from tests.toy import toy

SMALL = {"state_dict": {"weight": torch.arange(50_000.0)}, "loops": {}}


def checkpoint(step: int) -> dict[str, Any]:
    return {**SMALL, "global_step": step}


def write(path: Path, *steps: int) -> Path:
    for step in steps:
        CheckpointFiles().save_checkpoint(checkpoint(step), path)
    return path


def test_the_last_two_are_kept(tmp_path: Path) -> None:
    """One file that is damaged later was all there was."""
    path = write(tmp_path / "new" / "resume.ckpt", 1, 2, 3)
    assert (read(path)["global_step"], read(previous(path))["global_step"]) == (3, 2)
    assert sorted(found.name for found in path.parent.iterdir()) == ["resume.ckpt", "resume.previous.ckpt"]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
def test_a_full_disk_keeps_the_checkpoints_and_says_so(tmp_path: Path) -> None:
    """Lightning copies onto the target: a full disk left half a checkpoint, and nothing older."""
    path = write(tmp_path / "resume.ckpt", 1, 2)
    (tmp_path / f".writing-{os.getpid()}.tmp").symlink_to("/dev/full")
    with pytest.raises(OSError, match=r"No space left on device; .* the one before it is kept: '.*resume.ckpt'"):
        write(path, 3)
    assert (read(path)["global_step"], read(previous(path))["global_step"]) == (2, 1)
    assert len(list(tmp_path.iterdir())) == 2


def test_a_folder_without_links_keeps_two_as_well(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Some network disks and sticks know no hard links."""

    def refused(*args: Any) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "link", refused)
    path = write(tmp_path / "resume.ckpt", 1, 2, 3)
    assert (read(path)["global_step"], read(previous(path))["global_step"]) == (3, 2)


class Evil:
    def __reduce__(self) -> Any:
        return os.system, ("echo > ran",)


def damaged(path: Path, kind: str) -> str:
    """Makes a bad checkpoint; what its message must say."""
    whole = path.read_bytes()
    if kind == "text":
        path.write_text("hello")
        return "no training checkpoint: it does not begin as a file of torch.save does"
    if kind == "empty":
        path.write_bytes(b"")
        return "no training checkpoint"
    if kind == "cut":
        path.write_bytes(whole[: len(whole) // 2])
        return r"cut short or damaged, it has [\d,]+ bytes; the one before it is whole: go on from .*previous.ckpt"
    if kind == "flipped":  # torch reads it without a complaint
        path.write_bytes(whole[:100_000] + bytes([whole[100_000] ^ 1]) + whole[100_001:])
        return r"damaged, the checksum of its record .*data/0 is wrong; the one before it is whole"
    if kind == "packed":
        with zipfile.ZipFile(path) as archive, zipfile.ZipFile(path.with_suffix(".zip"), "w", 8) as packed:
            for entry in archive.infolist():
                packed.writestr(entry.filename, archive.read(entry))
        path.with_suffix(".zip").replace(path)
        return "its records are compressed"
    if kind == "evil":
        torch.save({**SMALL, "global_step": Evil()}, path)
        return r"is refused: it names \w+\.system, and nothing in a training checkpoint is run"
    if kind == "tensors":
        torch.save(SMALL["state_dict"], path)
        return "lacks state_dict, loops, global_step; expected a .ckpt file that a run of train.py wrote"
    if kind == "list":
        torch.save([1], path)
        return "lacks state_dict"
    if kind == "folder":
        path.unlink()
        path.mkdir()
        return "is a folder"
    path.unlink()
    return r"there is no such training checkpoint; in .* there are resume.previous.ckpt"


KINDS = ["text", "empty", "cut", "flipped", "packed", "evil", "tensors", "list", "folder", "gone"]


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_no_whole_checkpoint_is_refused_in_one_line(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tracebacks of torch's reader, advice to read unsafely, and a flipped bit that was trained on."""
    monkeypatch.chdir(tmp_path)
    path = write(tmp_path / "resume.ckpt", 1, 2)
    with pytest.raises((ValueError, OSError), match=damaged(path, kind)) as refused:
        CheckpointFiles().load_checkpoint(path, weights_only=False)
    assert "\n" not in str(refused.value)
    assert "weights_only" not in str(refused.value)
    assert not (tmp_path / "ran").exists()
    if kind != "folder":
        found, reasons = newest(tmp_path.glob("*.ckpt"))
        assert found == previous(path)
        assert len(reasons) == (kind != "gone")


@pytest.mark.parametrize("path", ["http://host/a.ckpt", "s3://bucket/a.ckpt", "file:///a.ckpt", "registry:a:version:1"])
def test_addresses_are_refused(path: str) -> None:
    """Lightning fetches them, and reads them with pickle."""
    for use in (read, lambda at: CheckpointFiles().save_checkpoint(checkpoint(1), at)):
        with pytest.raises(ValueError, match="on this machine's disks"):
            use(path)


class Watch(Callback):
    """At which steps was validated, with what result."""

    def __init__(self) -> None:
        self.seen: dict[int, float] = {}

    def on_validation_end(self, trainer: Trainer, pl_module: Any) -> None:
        self.seen[trainer.global_step] = float(trainer.callback_metrics["val/mrr"])


def keepers(folder: Path) -> list[Callback]:
    best = ModelCheckpoint(folder, "{step}-best", "val/mrr", mode="max", save_top_k=-1)
    return [best, ModelCheckpoint(folder / "all", "{step}", every_n_train_steps=1, save_top_k=-1)]


@pytest.mark.parametrize(
    "settings", [{}, {"val_check_interval": 0.5}, {"max_steps": 24}], ids=["epoch", "half", "max_steps"]
)
def test_a_validation_that_was_due_is_made(settings: dict[str, Any], tmp_path: Path) -> None:
    """Killed while it validated, a resumed run left the epoch out: another checkpoint was the best, and released."""

    def run(folder: Path, start: Path | None) -> tuple[dict[int, float], dict[str, Any]]:
        watch, model = Watch(), CrossEncoder.tiny()
        model.optimization = Optimization(lr=1e-3)
        fit = trainer(folder, watch, *keepers(folder), Durable(), **settings)
        fit.fit(model, datamodule=toy(), ckpt_path=start)
        assert fit.global_step == 24
        return watch.seen, {path.name: read(path)["state_dict"] for path in folder.glob("*best.ckpt")}

    seen, best = run(tmp_path / "whole", None)
    half = [6, 18] if "val_check_interval" in settings else []
    assert sorted(seen) == sorted([12, 24, *half])
    for step in (5, 6, 11, 12, 13, 18, 24):
        again, kept = run(tmp_path / str(step), tmp_path / "whole" / "all" / f"step={step}.ckpt")
        assert again == {at: value for at, value in seen.items() if at >= step}
        for name, state in kept.items():
            assert all(torch.equal(value, best[name][key]) for key, value in state.items()), name
        assert kept.keys() >= {f"step={at}-best.ckpt" for at in again}


def test_a_release_may_be_a_disk_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files were renamed into the folder from beside it: "Invalid cross-device link" after all the training."""
    folder, rename = tmp_path / "release", os.replace
    folder.mkdir()

    def within_a_disk(source: Any, target: Any) -> None:
        if Path(source).is_relative_to(folder) != Path(target).is_relative_to(folder):
            raise OSError(18, "Invalid cross-device link")
        rename(source, target)

    monkeypatch.setattr(os, "replace", within_a_disk)
    (folder / ".writing").mkdir()
    (folder / ".writing" / "model.safetensors").write_text("half, of a run that was killed")
    model = CrossEncoder.tiny()
    save(model, folder)
    assert not (folder / ".writing").exists()
    again = load(folder)
    assert all(torch.equal(value, again.trained_state()[name]) for name, value in model.trained_state().items())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("shape", r"does not fit CrossEncoder: .*weight has shape \(3,\), expected \(.*recipe"),
        ("name", r"does not fit CrossEncoder: missing \['.*'\], unknown \['other'\]; was it trained"),
        ("class", "does not fit CrossEncoder: it holds a MoL; was it trained with another recipe"),
        ("weights", "the checkpoint holds weights only"),
        ("epoch", "is of epoch 9, but trainer.max_epochs is 2"),
    ],
)
def test_a_checkpoint_of_another_recipe_is_refused_in_one_line(change: str, message: str, tmp_path: Path) -> None:
    """Loading what fits and leaving the rest random is how a wrong start goes unseen; torch's dump had 40 lines."""
    keep = ModelCheckpoint(tmp_path, "kept", every_n_train_steps=2, save_top_k=1, enable_version_counter=False)
    trainer(tmp_path, keep, epochs=1, limit_train_batches=2).fit(CrossEncoder.tiny(), datamodule=toy(batch_size=8))
    held = read(tmp_path / "kept.ckpt")
    name = next(key for key in held["state_dict"] if key.endswith("weight"))
    if change == "shape":
        held["state_dict"][name] = torch.zeros(3)
    elif change == "name":
        held["state_dict"]["other"] = held["state_dict"].pop(name)
    elif change == "class":
        held["class"] = "MoL"
    elif change == "weights":
        del held["optimizer_states"]
    else:
        held["epoch"] = 9
    CheckpointFiles().save_checkpoint(held, tmp_path / "other.ckpt")
    with pytest.raises(ValueError, match=message) as refused:
        trainer(tmp_path, Durable()).fit(
            CrossEncoder.tiny(), datamodule=toy(batch_size=8), ckpt_path=tmp_path / "other.ckpt"
        )
    assert "\n" not in str(refused.value)
