"""kill -9 at random moments in all long work: it goes on where it was, and ends with the same bytes."""

from __future__ import annotations

import random
import signal
import time
from pathlib import Path

import pytest

from tests.forks import KILLS, SEED, Forks, kinds, outcome

SHARES = {
    "train": 15,
    "train_workers": 5,
    "train_ranks": 5,
    "store": 10,
    "neighbours": 10,
    "matrix": 10,
    "teach": 10,
    "pull": 10,
    "release": 5,
    "add": 10,
    "remove": 10,
}
"""Kills of each kind in a hundred."""

IN_A_ROW = 3  # kills before a run may end


@pytest.mark.faults
@pytest.mark.parametrize("work", kinds(*SHARES))
def test_killed_work_goes_on_and_ends_with_the_same_bytes(work: str, forks: Forks, tmp_path: Path) -> None:
    """Half a file under a finished name, a block that is counted twice, a checkpoint that cannot be read."""
    whole = tmp_path / "whole"
    whole.mkdir()
    start = time.monotonic()
    run = forks.run(f"tests.fault_work:{work}", whole, output=tmp_path / "whole.log")
    assert run.wait() == 0, run.words()
    took, expected = time.monotonic() - start, outcome(whole)
    assert expected
    wanted = max(1, round(SHARES[work] * KILLS / 100))
    signals = [signal.SIGKILL, signal.SIGTERM] if work.startswith("train") else [signal.SIGKILL]
    chance, killed, attempt = random.Random(f"{SEED} {work}"), 0, 0
    while killed < wanted:
        attempt += 1
        assert attempt <= 10 * wanted, f"it ends before it can be killed, in {took:.2f} s"
        folder = tmp_path / str(attempt)
        folder.mkdir()
        for _ in range(IN_A_ROW):
            run = forks.start(f"tests.fault_work:{work}", folder, output=tmp_path / f"{attempt}.log")
            time.sleep(chance.uniform(0, took))
            if run.end(chance.choice(signals)):
                killed += 1
            else:
                assert run.wait() == 0, run.words()
                break
            if killed >= wanted:
                break
        if run.wait() != 0:
            run = forks.run(f"tests.fault_work:{work}", folder, output=tmp_path / f"{attempt}.log")
            assert run.wait() == 0, f"SIMZOO_SEED={SEED}, after {killed} kills: {run.words()}"
        assert outcome(folder) == expected, f"SIMZOO_SEED={SEED}, after {killed} kills in {folder}"
    print(f"{work}: {killed} kills, seed {SEED}")
