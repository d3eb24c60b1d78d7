"""Workers that share a piece of work are killed, and so is the one that speaks for them: on one machine, and on Ray."""

from __future__ import annotations

import importlib.util
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from simzoo.core.shards import ALONE
from tests.crew_work import SHARDS, matrix
from tests.forks import ROOT, outcome
from tests.ports import free_port

HERE = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
needs_ray = pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="needs Ray: pip install 'simzoo[ray]'")
RUNNERS = ["local", pytest.param("ray", marks=needs_ray)]


@pytest.fixture(scope="module")
def cluster() -> Iterator[str]:
    """A Ray cluster of this machine, which outlives its drivers; its address."""
    port, folder = free_port(), tempfile.mkdtemp(prefix="ray")  # sockets take short paths only
    words = ["--head", "--block", f"--port={port}", "--num-cpus=3", "--include-dashboard=false", f"--temp-dir={folder}"]
    begin = "import sys; from ray.scripts.scripts import main; sys.exit(main())"
    quiet: Any = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, "start_new_session": True}
    environment = {**HERE, "RAY_USAGE_STATS_ENABLED": "0"}
    head = subprocess.Popen([sys.executable, "-c", begin, "start", *words], env=environment, **quiet)
    try:
        yield f"127.0.0.1:{port}"
    finally:
        head.terminate()  # ends what it has started
        head.wait(60)
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def settings(runner: str, request: pytest.FixtureRequest) -> dict[str, str]:
    """Variables of the first worker's environment."""
    return {"RAY_ADDRESS": request.getfixturevalue("cluster")} if runner == "ray" else {}


def started(runner: str, folder: Path, settings: dict[str, str]) -> subprocess.Popen[str]:
    """The first of two workers."""
    words = [sys.executable, "-m", "tests.crew_work", runner, "2", str(folder), "0.05"]
    pipes: Any = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    return subprocess.Popen(words, cwd=ROOT, env={**HERE, **settings}, **pipes)


def log(folder: Path) -> list[list[str]]:
    """Pid and shard, in the order in which shards were begun."""
    path = folder / "log"
    return [line.split() for line in path.read_text().splitlines()] if path.exists() else []


def both_at_work(folder: Path, run: subprocess.Popen[str]) -> int:
    """Waits until both workers have scored; the id of the second."""
    end = time.monotonic() + 300  # Ray starts a process within seconds, but on a busy machine within minutes
    while len(found := {int(pid) for pid, _ in log(folder)}) < 2:
        assert run.poll() is None, f"it ended before both were at work: {run.communicate()[0]}"
        assert time.monotonic() < end, "the second worker does not come"
        time.sleep(0.01)
    [other] = found - {run.pid}
    return other


@pytest.fixture
def expected(tmp_path: Path) -> dict[str, bytes]:
    """What one process makes."""
    (whole := tmp_path / "whole").mkdir()
    matrix(str(whole), 0.0, ALONE)
    return outcome(whole)


@pytest.mark.faults
@pytest.mark.parametrize("runner", RUNNERS)
def test_a_worker_is_killed(runner: str, settings: dict[str, str], expected: dict[str, bytes], tmp_path: Path) -> None:
    """Its shard is scored again, and no other: a teacher's calls cost money."""
    (folder := tmp_path / "both").mkdir()
    run = started(runner, folder, settings)
    os.kill(both_at_work(folder, run), signal.SIGKILL)
    said, _ = run.communicate(timeout=300)
    assert run.returncode == 0, said
    assert outcome(folder) == expected
    times = Counter(shard for _, shard in log(folder))
    assert len(times) == SHARDS and sum(times.values()) <= SHARDS + 1, times


@pytest.mark.faults
@pytest.mark.parametrize("runner", RUNNERS)
def test_the_first_worker_is_killed_and_started_again(
    runner: str, settings: dict[str, str], expected: dict[str, bytes], tmp_path: Path
) -> None:
    """Its helpers would go on unseen, or what they had scored be lost."""
    (folder := tmp_path / "both").mkdir()
    run = started(runner, folder, settings)
    both_at_work(folder, run)
    run.kill()
    run.communicate()
    before = len(log(folder))
    assert before < SHARDS
    again = started(runner, folder, settings)
    said, _ = again.communicate(timeout=300)
    assert again.returncode == 0, said
    assert outcome(folder) == expected
    times = Counter(shard for _, shard in log(folder))
    assert len(times) == SHARDS and sum(times.values()) <= SHARDS + 2, times  # one that each had in hand
