"""Two processes that do the same work in one folder: the second is refused by name, and the first is not harmed."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

from tests.forks import Forks, kinds, outcome

WORK = ("train", "store", "neighbours", "matrix", "teach")


@pytest.mark.faults
@pytest.mark.parametrize("work", kinds(*WORK))
def test_the_second_of_two_writers_is_refused(work: str, forks: Forks, tmp_path: Path) -> None:
    """Each overwrote what the other had: rows of zeros, and checkpoints of two runs in turn under one name."""
    (whole := tmp_path / "whole").mkdir()
    assert forks.run(f"tests.fault_work:{work}", whole, output=tmp_path / "whole.log").wait() == 0
    (folder := tmp_path / "both").mkdir()
    first = forks.start(f"tests.fault_work:{work}", folder, output=tmp_path / "first.log")
    end = time.monotonic() + 60
    while not any(path.read_text() for path in folder.glob("*/writer.lock")):
        assert time.monotonic() < end, first.words()
        time.sleep(0.001)
    os.kill(first.pid, signal.SIGSTOP)
    second = forks.run(f"tests.fault_work:{work}", folder, output=tmp_path / "second.log")
    os.kill(first.pid, signal.SIGCONT)
    assert second.wait() == 1, second.words()
    assert f"is being written by process {first.pid} on " in second.words().splitlines()[-1]
    assert first.wait() == 0, first.words()
    assert outcome(folder) == outcome(whole)
    assert not list(folder.rglob("writer.lock"))
