"""Stores and graphs under kills, second writers and full disks."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch

from simzoo.core import locks
from simzoo.core.locks import InUse, locked
from simzoo.core.records import DataError, Item
from simzoo.core.reps import Ragged, Reps
from simzoo.models.dual_encoder import DualEncoder
from simzoo.retrieval.first_stages.lexical import BM25
from simzoo.retrieval.scorer import Scorer
from simzoo.retrieval.storage import checksums, graph
from simzoo.retrieval.storage.graph import GraphConfig, build_graph, load_graph
from simzoo.retrieval.storage.representations import RepresentationStore
from simzoo.retrieval.storage.score_matrix import build_matrix
from simzoo.retrieval.teaching import write_lessons
from tests.forks import SmallDisk, in_child, killed_at
from tests.toy import toy_collection

ITEMS = [Item(str(i), "boat") for i in range(40)]
VECTORS = np.random.default_rng(0).normal(size=(40, 6)).astype(np.float32)


def encode(blocks: Sequence[Sequence[Item]]) -> Iterator[Reps]:
    for block in blocks:
        numbers = torch.tensor([float(item.id) + 1 for item in block])
        yield {"vector": numbers[:, None].repeat(1, 64), "ids": Ragged.of([[int(n)] * 3 for n in numbers])}


def build(folder: Path) -> Reps:
    return RepresentationStore(folder, ITEMS, "m", block=16).build(encode, "x")


def walk(folder: Path) -> object:
    graph.BLOCK = 16
    return build_graph(VECTORS, GraphConfig(5, folder=folder))


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.mark.parametrize("work", [build, walk])
def test_a_kill_after_any_step_leaves_nothing_behind(
    work: Callable[[Path], object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """60 finished blocks stayed for ever after a kill between joining and removing; half-joined files were trusted."""
    monkeypatch.setattr(graph, "BLOCK", 16)
    work(tmp_path / "whole")
    step = 0
    while killed_at(step, partial(work, folder := tmp_path / str(step))):
        work(folder)
        assert contents(folder) == contents(tmp_path / "whole"), f"killed at step {step}"
        step += 1
    assert step > 10


def score(folder: Path) -> None:
    """A score matrix, in shards."""
    collection = toy_collection()
    size = len(collection.items)
    scorer_of = lambda queries: Scorer(lambda _, items: items / size, len(queries), size)  # noqa: E731
    build_matrix(scorer_of, collection, np.arange(6), "m", folder, query_block=2)


def teach(folder: Path) -> None:
    """A teacher's records."""
    torch.manual_seed(0)
    write_lessons(DualEncoder.tiny().eval(), toy_collection(num_queries=4), BM25(), folder, 3, 2, 0)


@pytest.mark.parametrize("work", [build, walk, score, teach])
def test_the_second_of_two_builders_is_refused_by_name(
    work: Callable[[Path], object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One joined what the other removed: the store opened with 400 of 400 rows zero and no complaint."""
    monkeypatch.setattr(graph, "BLOCK", 16)
    folder = tmp_path / "store"
    first = os.fork()
    if not first:
        with locked(folder):
            signal.pause()
    while not (folder / locks.NAME).exists() or not (folder / locks.NAME).read_text():
        time.sleep(0.01)
    try:
        with pytest.raises(InUse, match=f"being written by process {first} on .* since 2"):
            work(folder)
    finally:
        os.kill(first, signal.SIGKILL)
        os.waitpid(first, 0)
    work(folder)  # what a dead process left is taken over
    work(tmp_path / "alone")
    assert contents(folder) == contents(tmp_path / "alone")


def test_two_writers_in_one_process_are_two(tmp_path: Path) -> None:
    """Threads share a pid: a lock that only compares pids lets both in."""
    with locked(tmp_path), pytest.raises(InUse, match=f"process {os.getpid()}"), locked(tmp_path):
        pass
    with locked(tmp_path):
        pass
    assert not any(tmp_path.iterdir())


def test_a_lock_ends_with_its_process_though_its_children_live(tmp_path: Path) -> None:
    """A loader's workers outlive a killed training by seconds, in which the same command was refused."""
    folder, pid = tmp_path / "store", tmp_path / "pid"
    first = os.fork()
    if not first:
        with locked(folder):
            if not os.fork():
                (tmp_path / "new").write_text(str(os.getpid()))
                (tmp_path / "new").rename(pid)
            signal.pause()
    while not pid.exists():
        time.sleep(0.01)
    with pytest.raises(InUse), locked(folder):
        pass
    os.kill(first, signal.SIGKILL)
    os.waitpid(first, 0)
    try:
        with locked(folder):
            pass
    finally:
        os.kill(int(pid.read_text()), signal.SIGKILL)


def test_a_lock_of_another_host_is_not_taken_over(tmp_path: Path) -> None:
    """On a shared disk its process may well be alive."""
    (tmp_path / locks.NAME).write_text(json.dumps({"pid": 7, "host": "far.away", "since": "2026-01-01"}))
    with pytest.raises(InUse, match=r"names process 7 on far\.away .*remove this file"), locked(tmp_path):
        pass


@pytest.mark.parametrize("work", [build, walk])
def test_a_full_disk_is_an_error_and_keeps_what_was_made(
    work: Callable[[Path], object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sparse memory map on a full disk ends the process with a bus error and without a word."""
    monkeypatch.setattr(graph, "BLOCK", 16)
    folder = tmp_path / "disk" / "store"

    def refused() -> None:
        with pytest.raises(OSError, match="No space left on device"):
            work(folder)

    work(tmp_path / "whole")
    with SmallDisk(tmp_path / "disk", "12k") as disk:
        size = 12
        while (status := in_child(refused)) == 0:  # full while blocks are written, then while they are joined
            assert not list(folder.glob("*.tmp"))
            size += 4
            disk.grow(f"{size}k")
        assert size > 20 and status == 1  # it ended because the work was done, not by a signal
        work(folder)
        assert contents(folder) == contents(tmp_path / "whole")


def test_exchanged_and_zeroed_files_are_found_at_opening(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows of zeros score like rows; a file larger than what is sampled must be found too."""
    monkeypatch.setattr(checksums, "SAMPLES", 4)
    monkeypatch.setattr(checksums, "SAMPLE", 64)
    build(tmp_path / "a")
    path = tmp_path / "a" / "vector.npy"
    whole = path.read_bytes()
    assert len(whole) > 4 * 64
    path.write_bytes(whole[:128] + bytes(len(whole) - 128))
    with pytest.raises(DataError, match=r"vector\.npy: is not what was written"):
        build(tmp_path / "a")
    flipped = bytearray(whole)
    flipped[300] ^= 1  # between two samples: `open` does not promise to find it
    path.write_bytes(flipped)
    store = RepresentationStore(tmp_path / "a", ITEMS, "m", block=16)
    store.open()
    with pytest.raises(DataError, match=r"vector\.npy: is not what was written"):
        store.verify()
    walk(tmp_path / "g")
    found = np.load(tmp_path / "g" / "neighbors.npy")
    np.save(tmp_path / "g" / "neighbors.npy", found[::-1])
    with pytest.raises(DataError, match=r"neighbors\.npy: is not what was written"):
        load_graph(tmp_path / "g", len(VECTORS))
