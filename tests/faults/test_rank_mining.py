"""Two ranks mine together: each a part, both the same lists as one process, and none waits for one that is dead."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from tests.forks import KILLS
from tests.rank_work import ranks, train

SHARDS = 5  # of 24 queries, five each
MORE = bool(KILLS)  # the long form


@pytest.mark.faults
@pytest.mark.parametrize("stage", ["student", "BM25"] if MORE else ["student"])
def test_ranks_train_on_what_one_process_would_mine(stage: str, tmp_path: Path) -> None:
    """Every rank mined all, dev again at each validation; parts in another order would be other queries' lists.

    Where sums differ by the last bit between ranks, each would look for a file of its own.
    """
    (together := tmp_path / "together").mkdir()
    (alone := tmp_path / "alone").mkdir()
    started = ranks(together, stage)
    words = [one.communicate(timeout=300)[0] for one in started]
    assert [one.returncode for one in started] == [0, 0], words
    train(alone, stage, max_steps=1, limit_val_batches=0)
    first, second = (dict(np.load(together / f"rank-{rank}.npz")) for rank in range(2))
    assert first.keys() == second.keys() and len(first) == 8
    for name, found in first.items():
        assert np.array_equal(found, second[name]), name
    mined, expected = (
        {path.name[:3]: dict(np.load(path)) for path in (folder / "candidates" / "round-0").iterdir()}
        for folder in (together, alone)
    )
    assert mined.keys() == expected.keys() == {"000", "001"}
    for number, arrays in expected.items():
        assert arrays.keys() == mined[number].keys()
        assert all(np.array_equal(array, mined[number][name], equal_nan=True) for name, array in arrays.items())
    lines = [json.loads(line) for line in (together / "log").read_text().splitlines()]
    times = Counter((name, query) for _, name, query in lines)
    assert {rank for rank, _, _ in lines} == {0, 1}
    rounds = 2 if stage == "student" else 1  # two epochs, of which each is validated
    assert set(times.values()) == {rounds} and len(times) == 3 * SHARDS
    assert bool(list((together / "candidates").glob("dev/*"))) == (stage == "BM25")
    assert not list(together.rglob("*.shards"))


@pytest.mark.faults
@pytest.mark.parametrize("accident", ["kill", "error"] if MORE else ["kill"])
def test_a_rank_that_fails_does_not_keep_the_other_waiting(accident: str, tmp_path: Path) -> None:
    """It waited at a barrier for half an hour."""
    started = ranks(tmp_path, "BM25", accident)
    words = [one.communicate(timeout=300)[0] for one in started]
    assert all(one.returncode for one in started), words
    assert "no memory is left" in words[1] or accident == "kill"
    assert len((tmp_path / "log").read_text().splitlines()) == 2 * SHARDS  # what was the other's is mined, too
