"""Where results go is tried before the work: a refusal after hours of scoring keeps nothing of them."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from simzoo.core.records import DataError
from simzoo.models.dual_encoder import DualEncoder
from simzoo.models.formats import load, save, save_sentence_transformer
from simzoo.retrieval.results.output import RESULTS, check_file, check_folder, check_parts

ROOT = Path(__file__).parents[1]
CHECKS = (check_folder, check_file, check_parts)


@pytest.mark.parametrize("check", CHECKS)
@pytest.mark.parametrize("name", ["", "."])
def test_results_need_a_name(check: Callable[[Path], None], name: str) -> None:
    """`--output ""`, an unset variable of a script, would write into whatever folder one stands in."""
    with pytest.raises(DataError, match="empty or the current folder; name a place"):
        check(Path(name))


@pytest.mark.parametrize("check", CHECKS)
def test_nothing_is_left_behind(check: Callable[[Path], None], tmp_path: Path) -> None:
    """A check that leaves folders or scratch files makes the next run find results of a run that never was."""
    (tmp_path / "notes").mkdir()
    check(tmp_path / "new" / "deep" / "place")
    check(tmp_path / "notes" / "place")
    assert [path.name for path in tmp_path.rglob("*")] == ["notes"]


@pytest.mark.parametrize("check", CHECKS)
def test_a_file_in_the_way_is_named(check: Callable[[Path], None], tmp_path: Path) -> None:
    """A folder cannot be made of a file, nor below one; the message must say which it is."""
    (tmp_path / "taken").write_text("precious")
    with pytest.raises(DataError, match=r"taken: is a file, so no folder"):
        check(tmp_path / "taken" / "below" / "it")
    if check is not check_file:
        with pytest.raises(DataError, match=r"taken: is a file, so no folder"):
            check(tmp_path / "taken")
    assert (tmp_path / "taken").read_text() == "precious"


@pytest.mark.parametrize("name", RESULTS)
def test_results_that_are_there_are_kept(name: str, tmp_path: Path) -> None:
    """The figures of last week are gone without a word when a command is called again with another option."""
    (tmp_path / name).write_text("last week's")
    with pytest.raises(DataError, match=rf"holds results already \({name}\); .* --overwrite true"):
        check_folder(tmp_path)
    check_folder(tmp_path, overwrite=True)
    with pytest.raises(DataError, match=r"is there already; .* --overwrite true"):
        check_file(tmp_path / name)
    check_file(tmp_path / name, overwrite=True)
    check_parts(tmp_path)
    assert (tmp_path / name).read_text() == "last week's"


def test_a_folder_cannot_be_a_file(tmp_path: Path) -> None:
    """Replacing it at the end would fail after all the work."""
    with pytest.raises(DataError, match="is a folder, but a file will be written"):
        check_file(tmp_path, overwrite=True)


def test_too_little_room_is_found(tmp_path: Path) -> None:
    """A full disk is seen at the last write, when the work is done; a limit on files' size stands for it here."""
    script = (
        "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))\n"
        "from pathlib import Path; from simzoo.retrieval.results.output import check_folder\n"
        f"check_folder(Path({str(tmp_path)!r}), room=50_000)\n"
        f"check_folder(Path({str(tmp_path)!r}), room=200_000)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True)
    assert "cannot take 0.2 MB of results (File too large); make room, or name another place" in done.stderr
    assert "line 3" in done.stderr and list(tmp_path.iterdir()) == []


@pytest.mark.skipif(not Path("/proc/self").is_dir(), reason="needs /proc, where nobody may make folders")
def test_a_place_that_takes_nothing_is_named() -> None:
    """Read-only places: the reason and the way out, before the work."""
    with pytest.raises(DataError, match=r"/proc/results: cannot take .* make room, or name another place"):
        check_folder(Path("/proc/results"))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["run", "--output", "{out}"], "holds results already"),
        (["run", "--output", ""], "--output is empty"),
        (["matrix", "--output", "{out}"], "is a folder"),
        (["matrix", "--output", "{out}/metrics.json"], "is there already"),
        (["teach", "--output", "{out}/metrics.json"], "is a file"),
    ],
)
def test_commands_check_before_they_read_anything(words: list[str], message: str, tmp_path: Path) -> None:
    """The check is worth nothing behind the loading of the data and the weights: neither exists here."""
    from simzoo import evaluate

    (tmp_path / "metrics.json").write_text("{}")
    here = [word.format(out=tmp_path) for word in words]
    where = ["--data", "BEIR", "--data.root", str(tmp_path / "none"), "--checkpoint", os.devnull]
    with pytest.raises(DataError, match=message):
        evaluate.main([*here, *where])


@pytest.mark.parametrize(("umask", "mode"), [(0o022, 0o644), (0o077, 0o600)])
def test_weights_may_be_read_by_whom_the_umask_allows(umask: int, mode: int, tmp_path: Path) -> None:
    """A released model in a shared folder could be listed by everyone and loaded by nobody else."""
    before = os.umask(umask)
    try:
        save(DualEncoder.tiny(), tmp_path / "own")
        save_sentence_transformer(load(tmp_path / "own"), tmp_path / "st")
    finally:
        os.umask(before)
    written = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert {"own/model.safetensors", "st/model.safetensors"} <= {str(path.relative_to(tmp_path)) for path in written}
    assert {path.name: oct(path.stat().st_mode & 0o777) for path in written} == {p.name: oct(mode) for p in written}
