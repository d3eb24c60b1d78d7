"""Searchers as JSON: every one of them, those of a test's own, those written before, and those that are refused."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

import simzoo
from simzoo.core import registry
from simzoo.core.records import DataError
from simzoo.core.registry import subclasses
from simzoo.retrieval import searchers, stored_settings
from simzoo.retrieval.engine import Engine
from simzoo.retrieval.first_stages.dense import Dense
from simzoo.retrieval.first_stages.lexical import BM25, TFIDF
from simzoo.retrieval.first_stages.offered import Given
from simzoo.retrieval.first_stages.vector_database import Qdrant
from simzoo.retrieval.searcher import Searcher
from simzoo.retrieval.searchers.exact import Exact, Rerank
from simzoo.retrieval.stored_settings import read, written
from tests.forks import in_child
from tests.test_engine import ITEMS, ids, overlap

GOLDEN = Path(__file__).parent / "golden" / "settings-0.1.0.json"


def test_every_searcher_is_written_and_read_back() -> None:
    """A searcher that cannot be written could be used, but its index not be opened."""
    found = [getattr(simzoo, known.name) for known in subclasses("Searcher")]
    assert len(found) > 15
    for kind in found:
        searcher = kind.tiny(Dense(), 20)
        kept = written(searcher, Searcher)
        again = read(json.loads(json.dumps(kept)), Path("x"), Searcher)
        assert type(again) is kind and written(again, Searcher) == kept

    class Mine(Exact):
        pass

    with pytest.raises(TypeError, match="Mine cannot be written into an index"):
        written(Mine(), Searcher)
    with pytest.raises(TypeError, match="Qdrant cannot be written into an index"):
        written(Rerank(Dense(ann=Qdrant(":memory:"))), Searcher)


@pytest.mark.parametrize("stage", [TFIDF(), Given()], ids=["TFIDF", "Given"])
def test_a_first_stage_without_a_constructor(stage: Any) -> None:
    """It has no arguments; those of `object.__init__` are not among them."""
    kept = written(Rerank(stage), Searcher)
    assert kept["arguments"]["first_stage"] == {"class": type(stage).__name__, "arguments": {}}
    assert type(read(kept, Path("x"), Searcher).first_stage) is type(stage)


def _holds(found: Any, kept: Any) -> bool:
    """Whether all that was kept is still so; arguments that are new may stand beside."""
    if isinstance(kept, dict):
        return isinstance(found, dict) and all(name in found and _holds(found[name], kept[name]) for name in kept)
    if isinstance(kept, list):
        return len(found) == len(kept) and all(map(_holds, found, kept))
    return type(found) is type(kept) and found == kept


@pytest.mark.parametrize(("name", "kept"), json.loads(GOLDEN.read_text()).items())
def test_settings_that_were_written_before(name: str, kept: dict[str, Any]) -> None:
    """The folder of an index that took hours must open for good."""
    searcher = read(kept, Path("x"), Searcher)
    assert type(searcher).__name__ == name.split(",")[0]
    assert _holds(written(searcher, Searcher), kept)


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"class": "BM25", "arguments": {}}, "one of AXN"),  # ours, but no searcher
        ({"class": "Searcher", "arguments": {}}, "one of AXN"),
        ({"class": "InRounds", "arguments": {}}, "one of AXN"),
        ({"class": "_Adaptive", "arguments": {}}, "one of AXN"),
        ({"class": "Engine", "arguments": {}}, "one of AXN"),
        ({"class": "simzoo.retrieval.remote.Remote", "arguments": {}}, "one of AXN"),
        ({"class": "Rerank", "arguments": {"budget": {"class": "Rerank", "arguments": {}}}}, "expected one of none"),
        ({"class": "Rerank", "arguments": {"first_stage": {"class": "Exact", "arguments": {}}}}, "one of AliasTable"),
        ({"class": "AXN", "arguments": {"embeddings": {"class": "BM25", "arguments": {}}}}, "expected one of Dense"),
        ({"class": "AXN", "arguments": {"embeddings": {"class": "Dense", "arguments": {
            "ann": {"class": "Qdrant", "arguments": {"location": "http://elsewhere"}}}}}}, "'Qdrant'"),
    ],
)  # fmt: skip
def test_settings_name_what_the_constructor_takes(
    settings: dict[str, Any], expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A folder from elsewhere could build any class of ours, or have vectors sent to a server of its own."""
    imported: list[str] = []
    real = stored_settings.import_module
    monkeypatch.setattr(stored_settings, "import_module", lambda name: imported.append(name) or real(name))
    with pytest.raises(DataError, match=rf"names the class .*{expected}"):
        read(settings, Path("settings.json"), Searcher)
    allowed = ("simzoo.retrieval.searchers.", "simzoo.retrieval.first_stages.")
    assert all(name.startswith(allowed) for name in imported) and "simzoo.retrieval.remote" not in imported


LONGEST = '''
"""A searcher that a test makes."""

from simzoo.retrieval.first_stages.first_stage import FirstStage
from simzoo.retrieval.searchers.exact import Rerank


class Longest(Rerank):
    """As `Rerank`.

    Args:
        first_stage: what retrieves.
        budget: items scored a query.
        spare: another argument.
    """

    def __init__(self, first_stage: FirstStage | None = None, budget: int = 100, spare: int = 0) -> None:
        super().__init__(first_stage, budget)
        self.spare = spare
'''


def test_a_new_searcher_is_one_file(tmp_path: Path) -> None:
    """Its index could be saved, but not be opened, until a line is added to a table far away."""
    rooms = tmp_path / "rooms"
    rooms.mkdir()
    for name in registry.ROOMS:
        if name != "retrieval":
            (rooms / name).symlink_to((registry.ROOT / name).resolve())
    shutil.copytree(registry.ROOT / "retrieval", rooms / "retrieval", ignore=shutil.ignore_patterns("__pycache__"))
    (rooms / "retrieval" / "searchers" / "longest.py").write_text(LONGEST)

    def work() -> None:
        registry.ROOT = rooms
        registry.known_classes.cache_clear()
        registry._missing.cache_clear()
        simzoo._classes.cache_clear()
        searchers.__path__.append(str(rooms / "retrieval" / "searchers"))
        engine = Engine(overlap, search=simzoo.Longest(BM25(b=0.5), 20, spare=7), folder=tmp_path / "index")
        engine.add(ITEMS)
        opened = Engine.load(tmp_path / "index", overlap)
        assert type(opened.searcher) is simzoo.Longest
        assert (opened.searcher.budget, opened.searcher.spare, opened.searcher.first_stage.b) == (20, 7, 0.5)
        assert ids(opened.search("boat river", k=5)) == ids(engine.search("boat river", k=5))

    assert in_child(work) == 0  # in a process of its own: a class that was imported cannot be taken back
