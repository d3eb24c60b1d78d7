"""Released checkpoints by name: from a clone, from the Hub at a commit, and never other files."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest

import simzoo
from simzoo.core import hub, released
from simzoo.core.hub import HubError, local_path
from simzoo.core.released import Released, in_clone, made, written
from simzoo.models.dual_encoder import DualEncoder
from simzoo.models.formats import save
from tests.hub_client import Client, process, server  # noqa: F401  fixtures
from tests.loopback_hub import Hub

ROOT = Path(__file__).parents[1]
HUB = hub.__name__


def test_the_table_is_as_fresh_as_the_checkpoints() -> None:
    """A wheel that asks for files which were replaced since; `python -m simzoo.core.released` makes it anew."""
    table = json.loads((ROOT / "simzoo" / "released.json").read_text())
    expected = {
        path.parent.name: hashlib.sha256(path.read_bytes()).hexdigest()
        for path in (ROOT / "checkpoints").glob("*/manifest.json")
    }
    assert {name: row["manifest"] for name, row in table.items()} == expected
    assert len(expected) == len(list((ROOT / "checkpoints").iterdir()))


def test_a_clone_has_them(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Wherever the program runs; a folder of this name in the current one comes first."""
    monkeypatch.chdir(tmp_path)
    assert local_path("wordnet-de").resolve() == (ROOT / "checkpoints" / "wordnet-de").resolve()
    assert isinstance(simzoo.load("wordnet-de"), DualEncoder)
    (tmp_path / "wordnet-de").mkdir()
    assert local_path("wordnet-de").resolve() == tmp_path / "wordnet-de"
    assert in_clone("nothing") is None


def test_a_wheel_says_where_they_are(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A name that the documents use must not end in a question to the Hub for somebody else's repository."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(hub, "in_clone", lambda name: None)
    with pytest.raises(HubError, match=r"not on the Hub: clone the repository.*checkpoints/wordnet-de"):
        simzoo.load("wordnet-de")


def test_a_wheel_in_a_folder_with_checkpoints_is_no_clone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Files beside the package that are somebody else's would be taken for those released."""
    (tmp_path / "simzoo").mkdir()
    (tmp_path / "checkpoints" / "wordnet-de").mkdir(parents=True)
    monkeypatch.setattr(released, "TABLE", tmp_path / "simzoo" / "released.json")
    assert in_clone("wordnet-de") is None


def test_the_hub_gives_what_was_released_and_nothing_else(
    server: Hub,  # noqa: F811
    process: Client,  # noqa: F811
    tmp_path: Path,
) -> None:
    """Who may write to the repository could change what a released name loads."""
    save(DualEncoder.tiny(), tmp_path / "toy")
    files = {
        path.relative_to(tmp_path / "toy").as_posix(): path.read_bytes()
        for path in (tmp_path / "toy").rglob("*")
        if path.is_file()
    }
    commit = server.add("zoo/toy", files)
    sha256 = hashlib.sha256(files["manifest.json"]).hexdigest()

    def load(name: str) -> str:
        row = f"Released('toy', {sha256!r}, 'zoo/toy@{name}')"
        known: str = process.run(
            f"import {HUB} as hub; from simzoo.core.released import Released; import simzoo\n"
            f"hub.released = lambda name: {row}; hub.in_clone = lambda name: None\n"
            f"value = type(simzoo.load('toy')).__name__"
        )
        return known

    assert load(commit) == "DualEncoder"
    changed = {**files, "README.md": b"another card"}
    changed["manifest.json"] = changed["manifest.json"].replace(b'"format": 1', b'"format":  1')
    assert load(commit) == "DualEncoder"
    other = server.add("zoo/toy", changed)
    assert load(commit) == "DualEncoder"  # the branch has moved, the commit has not
    with pytest.raises(RuntimeError, match="does not hold the files that toy was released with"):
        load(other)


def test_a_checkpoint_that_changed_is_no_longer_that_on_the_hub(tmp_path: Path) -> None:
    """A new state under the commit of an old one would be refused by everybody who loads it."""
    (tmp_path / "one").mkdir()
    (tmp_path / "one" / "manifest.json").write_text("{}")
    first = made(tmp_path, {})
    pinned = {"one": first["one"]._replace(hub=f"org/one@{40 * 'a'}")}
    assert made(tmp_path, pinned) == pinned
    (tmp_path / "one" / "manifest.json").write_text("{ }")
    assert made(tmp_path, pinned)["one"].hub is None
    assert json.loads(written(pinned)) == {"one": {"manifest": first["one"].manifest, "hub": pinned["one"].hub}}
    assert Released("one", "", None).name == "one"
