"""`simzoo hub convert` brings a checkpoint of version 0.1.0 forward: new names, the same bytes."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from simzoo.core.hub import file_sha256, problems
from simzoo.core.records import DataError
from simzoo.models.dual_encoder import DualEncoder
from simzoo.models.formats import load, save
from simzoo.retrieval.hub.commands import convert, pull

ROOT = Path(__file__).parents[1]


@pytest.mark.parametrize("name", ["wordnet-de", "ml-100k-hstu-mol"])
def test_an_old_checkpoint_is_brought_forward(name: str, tmp_path: Path) -> None:
    """Half-precision weights were written as float32: twice the size, another sha256 than the figures' in the card."""
    old = ROOT / "checkpoints" / name
    convert(str(old), tmp_path / "new")
    config = (tmp_path / "new" / "config.json").read_text()
    assert '"simzoo.models.' in config and '"models.' not in config and '"losses.' not in config
    kept = {path.name for path in old.iterdir()} - {"config.json", "manifest.json"}
    assert {path.name for path in (tmp_path / "new").iterdir()} == kept | {"config.json", "manifest.json"}
    for file in kept:
        assert file_sha256(tmp_path / "new" / file) == file_sha256(old / file)
    assert problems(tmp_path / "new") == []
    before, after = load(old), load(tmp_path / "new")
    assert type(before) is type(after) and before.weights_sha256 == after.weights_sha256
    for key, value in before.state_dict().items():
        assert torch.equal(value, after.state_dict()[key])


def test_the_files_are_readable_as_others_of_this_user_are(tmp_path: Path) -> None:
    """safetensors writes with mode 0600: a released model that the rest of the group cannot load."""
    save(DualEncoder.tiny(), tmp_path / "made")
    (tmp_path / "usual").write_text("")
    modes = {path.stat().st_mode for path in (tmp_path / "made").rglob("*") if path.is_file()}
    assert modes == {(tmp_path / "usual").stat().st_mode}


def test_a_checkpoint_is_not_converted_onto_itself(tmp_path: Path) -> None:
    """A run that ends in between would leave neither the old one nor the new one."""
    shutil.copytree(ROOT / "checkpoints" / "ml-100k-sasrec", tmp_path / "own")
    before = json.loads((tmp_path / "own" / "config.json").read_text())
    with pytest.raises(DataError, match="another folder"):
        convert(str(tmp_path / "own"), tmp_path / "x" / ".." / "own")
    assert json.loads((tmp_path / "own" / "config.json").read_text()) == before


@pytest.mark.parametrize("verb", [convert, lambda source, output: pull(source, output)])
def test_the_output_is_looked_at_before_the_work(verb: Callable[[str, Path], object], tmp_path: Path) -> None:
    """A download of an hour, or a conversion, ended at a file that was in the way."""
    (tmp_path / "file").write_text("precious")
    with pytest.raises(DataError, match="is a file, so no folder can be made of it"):
        verb("org/nowhere", tmp_path / "file" / "below")
    assert (tmp_path / "file").read_text() == "precious"


@pytest.mark.parametrize("verb", [convert, lambda source, output: pull(source, output)])
def test_nothing_is_written_through_links_of_the_output(verb: Callable[[str, Path], object], tmp_path: Path) -> None:
    """A copy onto a link replaces what it leads to."""
    (tmp_path / "precious").write_text("precious")
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "config.json").symlink_to(tmp_path / "precious")
    with pytest.raises(ValueError, match="is a link that leads out of its folder"):
        verb(str(ROOT / "checkpoints" / "ml-100k-sasrec"), tmp_path / "out")
    assert (tmp_path / "precious").read_text() == "precious"
