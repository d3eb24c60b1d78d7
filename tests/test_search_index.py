"""`simzoo search --index`: one query in what an engine has saved."""

from __future__ import annotations

from pathlib import Path

import pytest

from simzoo import Engine, evaluate
from simzoo.core.records import DataError
from simzoo.models.dual_encoder import DualEncoder
from simzoo.models.formats import save
from simzoo.retrieval.searchers.exact import Exact


def test_a_query_is_answered_from_an_index(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The command must give what the engine gives, in its order."""
    save(DualEncoder.tiny(), tmp_path / "de")
    engine = Engine(str(tmp_path / "de"), search=Exact(), folder=tmp_path / "index")
    engine.add(["a", "b", "c"], ["a boat", "the bank of a river", "a tree"])
    expected = [(hit.id, f"{hit.score:.3f}") for hit in engine.search("a boat", 2)]
    evaluate.main(["search", "--index", str(tmp_path / "index"), "--k", "2", "a boat"])
    words = capsys.readouterr().out.replace("│", " ").split()
    places = [words.index(score) for _, score in expected]
    assert [words[place + 1] for place in places] == [name for name, _ in expected]
    assert places == sorted(places) and "calls," in words


def test_what_is_searched_is_said_once(tmp_path: Path) -> None:
    """An index and a checkpoint: which of them ranks would be anybody's guess."""
    with pytest.raises(DataError, match="leave out --checkpoint and --data"):
        evaluate.main(["search", "--index", str(tmp_path), "--checkpoint", "x", "a boat"])
    with pytest.raises(DataError, match="give --index, or --checkpoint and --data"):
        evaluate.main(["search", "--checkpoint", "x", "a boat"])
