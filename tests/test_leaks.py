"""What is saved and published says nothing of the machine and the person that it comes from."""

from __future__ import annotations

import getpass
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from simzoo.core.records import DataError
from simzoo.models.cross_encoder import CrossEncoder
from simzoo.models.dual_encoder import DualEncoder
from simzoo.models.formats import load, save, save_onnx, save_sentence_transformer
from simzoo.models.parts.backbone import BackboneConfig
from simzoo.models.parts.tiny import tiny_backbone
from simzoo.models.parts.tokenizing import TokenConfig
from simzoo.models.sequence_classifier import SequenceClassifier
from simzoo.retrieval.hub.commands import verify
from simzoo.retrieval.hub.leaks import leaks
from simzoo.retrieval.hub.push import plan_push

ROOT = Path(__file__).parents[1]


def backbone(folder: Path) -> Path:
    """As old versions of transformers saved them, with places of the machine that wrote them."""
    shutil.copytree(tiny_backbone(), folder)
    for name, changes in (
        ("config.json", {"_name_or_path": "/home/alice/models/bert"}),
        ("tokenizer_config.json", {"special_tokens_map_file": "/root/.cache/x.json", "name_or_path": str(folder)}),
    ):
        found = json.loads((folder / name).read_text()) | changes
        (folder / name).write_text(json.dumps(found))
    return folder


def told(folder: Path, *of: Path) -> list[str]:
    """Files that hold one of some places, byte for byte: not the check's own way to look."""
    places = [b"/home/alice", b"/root/.cache", str(ROOT).encode(), b"site-packages", *(str(o).encode() for o in of)]
    return [
        f"{path.name}: {place.decode()}"
        for path in sorted(folder.rglob("*"))
        if path.is_file()
        for place in places
        if place in path.read_bytes()
    ]


@pytest.mark.parametrize("cls", [CrossEncoder, DualEncoder, SequenceClassifier])
def test_a_checkpoint_takes_its_local_backbone_along(cls: Any, tmp_path: Path) -> None:
    """A config.json that names a folder of the writer's tells of him, and loads nowhere else."""
    folder = backbone(tmp_path / "theirs")
    model = cls(BackboneConfig(str(folder))) if cls is SequenceClassifier else None
    model = model or cls(BackboneConfig(str(folder)), TokenConfig(24, 24))
    save(model, tmp_path / "m")
    assert told(tmp_path / "m", tmp_path) == []
    assert json.loads((tmp_path / "m" / "config.json").read_text())["arguments"]["backbone"]["name"] == "./backbone"
    expected = dict(model.eval().rank("a boat", ["boats", "the bank", "z"]))
    shutil.rmtree(folder)
    shutil.move(tmp_path / "m", tmp_path / "elsewhere")
    loaded = load(tmp_path / "elsewhere", merge=False)
    assert dict(loaded.rank("a boat", ["boats", "the bank", "z"])) == pytest.approx(expected)
    save(loaded, tmp_path / "again")
    save(loaded, tmp_path / "elsewhere")  # over what it was loaded from
    for name in ("again", "elsewhere"):
        assert dict(load(tmp_path / name).rank("a boat", ["boats", "the bank", "z"])) == pytest.approx(expected)
        assert told(tmp_path / name, tmp_path) == []


def test_exports_hold_no_places(tmp_path: Path) -> None:
    """An ONNX file names the exporter's source for every operation; tokenizers name what they were read from."""
    model = DualEncoder(BackboneConfig(str(backbone(tmp_path / "theirs"))), TokenConfig(24, 24)).eval()
    save_onnx(model, tmp_path / "onnx")
    save_sentence_transformer(model, tmp_path / "st")
    assert (tmp_path / "onnx" / "query.onnx").stat().st_size > 10_000
    for name in ("onnx", "st"):
        assert told(tmp_path / name, tmp_path) == []
        assert leaks((path.name, path) for path in (tmp_path / name).rglob("*") if path.is_file()) == []


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    """A released checkpoint, to be changed."""
    return Path(shutil.copytree(ROOT / "checkpoints" / "wordnet-de", tmp_path / "wordnet-de"))


LEAKS = {
    "home": "see /home/alice/data/run.json for more",
    "mac": '"path": "/Users/alice/model"',
    "root": "`/root/out`",
    "windows": r'"C:\\Users\\Alice\\model"',
    "scratch": "--data.root /scratch/alice/beir",
    "account": "run by alice@cluster-7",
    "value": '{"user": "alice"}',
}


@pytest.mark.parametrize("kind", LEAKS)
def test_verify_and_push_refuse_what_tells(kind: str, checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A path of the author's stands on the Hub for good: commits there are not forgotten."""
    monkeypatch.setattr(getpass, "getuser", lambda: "alice")
    (checkpoint / "notes.md").write_text(LEAKS[kind])
    with pytest.raises(DataError, match=r"notes\.md tells of this machine or its user \(.*[Aa]lice|/root/out"):
        verify(str(checkpoint), write=True)
    with pytest.raises(DataError, match=r"notes\.md tells of this machine or its user"):
        plan_push(checkpoint, "alice/model")


def test_binary_files_are_looked_at_too(checkpoint: Path) -> None:
    """A path in the header of the weights is published like one on the card."""
    save_file({"a": torch.ones(2)}, checkpoint / "more.safetensors", metadata={"from": "/home/alice/x"})
    (checkpoint / "model.onnx").write_bytes(b"\x08\x0a\xff /home/alice/venv/lib/torch.py\x00")
    found = leaks((path.name, path) for path in sorted(checkpoint.iterdir()))
    assert [line.split(" ")[0] for line in found] == ["model.onnx", "more.safetensors"]


def test_what_tells_nothing_passes(checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A check that refuses addresses, relative paths and every text with a name in it is switched off."""
    monkeypatch.setattr(getpass, "getuser", lambda: "alice")
    texts = [
        "https://example.org/home/alice/x", "and/or", "out/home/x", "./data/x", "R@1/R@10", "checkpoints/data/x",
        "simzoo.load('alice/model')", "Alice wrote it", "a /data row", "`~/data/x`", "<folder>/data/train.tsv",
    ]  # fmt: skip
    (checkpoint / "notes.md").write_text("\n".join(texts))
    assert verify(str(checkpoint), write=True) == checkpoint
    assert plan_push(checkpoint, "alice/model").files


@pytest.mark.parametrize("folder", sorted((ROOT / "checkpoints").iterdir()), ids=lambda path: path.name)
def test_released_checkpoints_tell_nothing(folder: Path) -> None:
    """Those were published before there was a check."""
    assert leaks((path.name, path) for path in sorted(folder.iterdir())) == []
