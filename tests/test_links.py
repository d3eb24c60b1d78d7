"""Links in a checkpoint folder: what lies outside is neither read, nor written, nor removed."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from simzoo.core.hub import file_sha256, write_manifest
from simzoo.models.cross_encoder import CrossEncoder
from simzoo.models.formats import load, save
from simzoo.models.parts.backbone import BackboneConfig
from simzoo.models.parts.tiny import tiny_backbone
from simzoo.models.parts.tokenizing import TokenConfig
from simzoo.retrieval.hub import commands as hub
from simzoo.retrieval.hub.push import _index, plan_push

REFUSED = "is a link that leads out of its folder"


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    model = CrossEncoder(BackboneConfig(str(tiny_backbone())), TokenConfig(24, 24), scoring="cls")
    save(model, tmp_path / "c")
    return tmp_path / "c"


@pytest.fixture
def precious(tmp_path: Path) -> Path:
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "precious.txt").write_text("years of work")
    return tmp_path / "home" / "precious.txt"


@pytest.mark.parametrize("listed", [True, False])
def test_a_file_that_a_link_leads_to_survives(listed: bool, checkpoint: Path, precious: Path) -> None:
    """Loading removed the target of a link whose size was not that of the manifest: anybody's file."""
    (checkpoint / "vocab.txt").symlink_to("../home/precious.txt")
    found = json.loads((checkpoint / "manifest.json").read_text())
    if listed:
        found["files"]["vocab.txt"] = {"size": 7, "sha256": "0" * 64}
    (checkpoint / "manifest.json").write_text(json.dumps(found))
    with pytest.raises(ValueError, match=rf"vocab\.txt {REFUSED}, to .*precious\.txt; the folder is refused"):
        load(checkpoint)
    assert precious.read_text() == "years of work" and (checkpoint / "vocab.txt").is_symlink()


def test_a_file_named_by_its_sha256_survives(checkpoint: Path, precious: Path) -> None:
    """A name of 64 digits was taken for one of the Hub's cache, wherever the file was."""
    named = precious.rename(precious.with_name("0" * 64))
    (checkpoint / "vocab.txt").symlink_to(named)
    (checkpoint / "manifest.json").unlink()
    with pytest.raises(ValueError, match=REFUSED):
        load(checkpoint)
    assert named.read_text() == "years of work"


@pytest.mark.parametrize(
    ("name", "target"),
    [("notes", "/etc/passwd"), ("notes", "../gone"), ("deeper", "../home"), (".hidden", "../home/precious.txt"),
     ("1_Dense/notes", "../../home/precious.txt"), ("manifest.json", "../home/precious.txt")],
)  # fmt: skip
def test_links_that_lead_out_are_refused(name: str, target: str, checkpoint: Path, precious: Path) -> None:
    """A link shows the reader's own file to whoever the folder is published for, or lends it to the model."""
    place = checkpoint / name
    place.parent.mkdir(exist_ok=True)
    place.unlink(missing_ok=True)
    place.symlink_to(target)
    for use in (load, write_manifest, lambda path: plan_push(path, "me/it")):
        with pytest.raises(ValueError, match=REFUSED):
            use(checkpoint)
    with pytest.raises(ValueError, match=REFUSED):
        CrossEncoder(BackboneConfig(str(checkpoint)), TokenConfig(24, 24))


def test_a_link_in_a_circle_is_refused(checkpoint: Path) -> None:
    """Python's own error for it is one that no command line expects."""
    (checkpoint / "a").symlink_to("b")
    (checkpoint / "b").symlink_to("a")
    with pytest.raises(ValueError, match=r"a is a link that leads nowhere"):
        load(checkpoint)


def test_accepting_a_change_writes_inside(checkpoint: Path, precious: Path) -> None:
    """A link in the place of the scratch file makes `verify --write` overwrite what it leads to."""
    (checkpoint / ".manifest.json.tmp").symlink_to(precious)
    with pytest.raises(ValueError, match=REFUSED):
        hub.verify(str(checkpoint), write=True)
    assert precious.read_text() == "years of work"


def test_links_inside_and_to_the_folder_are_followed(checkpoint: Path, tmp_path: Path) -> None:
    """Refusing is easy: a folder that is reached by a link, or repeats a file by one, must load."""
    (checkpoint / "again.safetensors").symlink_to("model.safetensors")
    (tmp_path / "link").symlink_to(checkpoint, target_is_directory=True)
    expected = load(checkpoint).rank("a", ["b", "c"])
    assert load(tmp_path / "link").rank("a", ["b", "c"]) == expected


def _cached(checkpoint: Path, repository: Path) -> Path:
    """A snapshot as the Hub's client lays it out."""
    snapshot = repository / "snapshots" / "0123abcd"
    (repository / "blobs").mkdir(parents=True)
    snapshot.mkdir(parents=True)
    for file in (path for path in checkpoint.rglob("*") if path.is_file()):
        blob, place = repository / "blobs" / file_sha256(file), file.relative_to(checkpoint)
        shutil.copy(file, blob)
        (snapshot / place).parent.mkdir(exist_ok=True)
        (snapshot / place).symlink_to(Path("../../", *[".."] * (len(place.parts) - 1), "blobs", blob.name))
    return snapshot


def test_a_snapshot_links_to_its_own_blobs_alone(checkpoint: Path, tmp_path: Path) -> None:
    """The Hub's cache is made of links: those must load by path too, and stay where damaged; others are refused."""
    snapshot = _cached(checkpoint, tmp_path / "cache" / "models--me--it")
    expected = load(checkpoint).rank("a", ["b", "c"])
    assert load(snapshot).rank("a", ["b", "c"]) == expected
    blob = (snapshot / "model.safetensors").resolve()
    blob.write_bytes(blob.read_bytes()[:-1])
    with pytest.raises(ValueError, match=r"model\.safetensors has .* bytes, expected .* Restore the file"):
        load(snapshot)
    assert blob.is_file()
    other = _cached(checkpoint, tmp_path / "cache" / "models--me--other")
    (snapshot / "model.safetensors").unlink()
    (snapshot / "model.safetensors").symlink_to((other / "model.safetensors").resolve())
    with pytest.raises(ValueError, match=REFUSED):
        load(snapshot)


def test_blobs_that_are_a_link_are_outside(checkpoint: Path, precious: Path, tmp_path: Path) -> None:
    """A folder with the names of the cache's, and a link for `blobs`, would lead anywhere again."""
    snapshot = _cached(checkpoint, tmp_path / "evil" / "models--me--it")
    shutil.rmtree(tmp_path / "evil" / "models--me--it" / "blobs")
    (tmp_path / "evil" / "models--me--it" / "blobs").symlink_to(precious.parent, target_is_directory=True)
    (snapshot / "vocab.txt").symlink_to("../../blobs/precious.txt")
    with pytest.raises(ValueError, match=REFUSED):
        load(snapshot)
    assert precious.is_file()


def test_an_index_with_a_link_is_not_published(tmp_path: Path, precious: Path) -> None:
    """A file of the sender's home would be on the Hub, under the name of an index."""
    (tmp_path / "index").mkdir()
    (tmp_path / "index" / "graph.npy").symlink_to(precious)
    with pytest.raises(ValueError, match=r"graph\.npy is a link that leads out of its folder"):
        _index(tmp_path / "index")
