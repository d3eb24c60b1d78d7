"""Every entry point that reads files of others, each as one function of a place; called with little memory."""

from __future__ import annotations

import resource
from collections.abc import Callable
from pathlib import Path

from simzoo.__main__ import main
from simzoo.datamodules.sources import BEIR
from simzoo.models import checkpointing
from simzoo.models.formats import load as load_model
from simzoo.retrieval.engine import Engine
from simzoo.retrieval.hub.commands import verify as verify_checkpoint
from simzoo.retrieval.storage.score_matrix import ScoreMatrix
from simzoo.train import main as train_main
from tests.fault_work import overlap

assert train_main  # imported before the limit is set

EXTRA = 1_000_000_000
"""Bytes that a process may map besides what it has when everything is imported."""

SECONDS = 60


def load(place: Path) -> None:
    """A checkpoint."""
    load_model(place).rank("a", ["a"])


def engine(place: Path) -> None:
    """An index."""
    Engine.load(place, similarity=overlap).search("boat", 3)


def verify(place: Path) -> None:
    """A checkpoint, whole."""
    verify_checkpoint(str(place))


def train(place: Path) -> None:
    """A recipe of training."""
    main(["train", "fit", "--config", str(place), "--print_config"])


def evaluate(place: Path) -> None:
    """A recipe of evaluation."""
    main(["evaluate", "run", "--config", str(place)])


def matrix(place: Path) -> None:
    """Exact scores."""
    ScoreMatrix.load(place)


def resume(place: Path) -> None:
    """A training checkpoint."""
    checkpointing.read(place)


def data(place: Path) -> None:
    """A data set in BEIR's layout."""
    BEIR(place).read("test")


def limited(entry: str, place: str) -> None:
    """Calls one of the functions above with `EXTRA` bytes and `SECONDS` seconds."""
    function: Callable[[Path], None] = globals()[entry]
    with open("/proc/self/statm") as file:
        most = int(file.read().split()[0]) * resource.getpagesize() + EXTRA
    resource.setrlimit(resource.RLIMIT_AS, (most, most))
    resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS))
    function(Path(place))
