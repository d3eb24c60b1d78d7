"""A full disk in the middle of long work: a message, nothing lost, and the same bytes once there is room."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.forks import Forks, SmallDisk, kinds, outcome

WORK = ("train", "store", "neighbours", "matrix", "teach", "pull", "release", "add")


@pytest.mark.faults
@pytest.mark.parametrize("work", kinds(*WORK))
def test_a_full_disk_is_an_error_and_loses_nothing(
    work: str, forks: Forks, small_disk: Callable[[int], SmallDisk], tmp_path: Path
) -> None:
    """A bus error without a word, the only checkpoint cut short, a file that is half there and taken for whole."""
    (whole := tmp_path / "whole").mkdir()
    run = forks.run(f"tests.fault_work:{work}", whole, output=tmp_path / "whole.log")
    assert run.wait() == 0, run.words()
    used = sum(path.stat().st_size for path in whole.rglob("*") if path.is_file() and "done" not in path.parts)
    disk = small_disk(max(4096 * 4, used * 6 // 10))
    run = forks.run(f"tests.fault_work:{work}", disk.folder, output=tmp_path / "disk.log")
    assert run.wait() == 1, run.words()
    assert "No space left on device" in run.words().splitlines()[-1]
    disk.grow()
    run = forks.run(f"tests.fault_work:{work}", disk.folder, output=tmp_path / "disk.log")
    assert run.wait() == 0, run.words()
    assert outcome(disk.folder) == outcome(whole)
