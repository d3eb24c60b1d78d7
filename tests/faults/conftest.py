"""One process that has imported everything and forks, one Hub, one seed for all tests that kill."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.forks import SEED, Forks, SmallDisk
from tests.hub_client import checkpoint, environment  # noqa: F401  the former is a fixture
from tests.loopback_hub import running


def pytest_report_header() -> str:
    """How to repeat what is random."""
    return f"kills: at random; SIMZOO_SEED={SEED} repeats them"


@pytest.fixture(scope="session")
def forks(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Forks]:  # noqa: F811
    """For the Hub's client the loopback Hub is the only one; it has one checkpoint."""
    files = {path.relative_to(checkpoint).as_posix(): path.read_bytes() for path in checkpoint.rglob("*.*")}
    with running() as hub:
        hub.add("org/tiny-ce", files)
        settings = environment(hub, tmp_path_factory.mktemp("home"))
        hidden = {"HF_HUB_OFFLINE": "0"}
        found = Forks("tests.fault_work", **{**settings, **hidden})
        yield found
        found.close()


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Callable[[int], SmallDisk]]:
    """Makes one; it is gone behind the test."""
    with ExitStack() as stack:
        yield lambda size: stack.enter_context(SmallDisk(tmp_path / "disk", str(size)))
