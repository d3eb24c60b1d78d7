"""The index folder: growth, kills at every step, readers beside a writer, ids."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from simzoo.core.locks import InUse, locked
from simzoo.core.records import DataError, Item
from simzoo.core.reps import Ragged
from simzoo.retrieval import index_folder
from simzoo.retrieval.first_stages import segmented_index
from simzoo.retrieval.first_stages.vector_index import IVF, Auto, FaissKind, Flat
from simzoo.retrieval.index_folder import IndexFolder, Opened
from simzoo.retrieval.storage import texts
from tests.forks import SmallDisk, forked, in_child, killed_at

Block = tuple[Sequence[Item], None]
ITEMS = [Item(f"id {i}", "boat " * (i % 4) + f"Wörter 船 {i}", "" if i % 3 else f"title {i}") for i in range(90)]
NEW = [Item(item.id, "new " + item.text) for item in ITEMS]


def vector(item: Item) -> NDArray[np.float32]:
    return np.random.default_rng(list(item.text.encode())).normal(size=6).astype(np.float32)


def represent(items: Sequence[Item], given: NDArray[np.float32] | None) -> dict[str, NDArray[np.float32] | Ragged]:
    tokens = Ragged.of([[len(word) for word in item.text.split()] for item in items])
    return {"vectors": np.stack([vector(item) for item in items]), "judge.ids": tokens}


def blocks(items: Sequence[Item], size: int = 8) -> Iterator[Block]:
    return ((items[start : start + size], None) for start in range(0, len(items), size))


def folder_of(path: Path, kind: Auto | FaissKind | None = None) -> IndexFolder:
    return IndexFolder(path, kind or Flat())


def shown(opened: Opened) -> dict[str, tuple[Item, list[float], list[int]]]:
    """All that is said of the items that are there."""
    found = {}
    for row, item in enumerate(opened.items):
        if opened.removed is None or not opened.removed[row]:
            ids = opened.columns.part("judge.ids")
            assert isinstance(ids, Ragged)
            tokens = ids.take(torch.tensor([row])).values.tolist()
            found[item.id] = item, opened.columns.values("vectors")[row].tolist(), tokens
            assert opened.rows([item.id]).tolist() == [row]
    return found


def expected(items: Sequence[Item]) -> dict[str, tuple[Item, list[float], list[int]]]:
    return {item.id: (item, vector(item).tolist(), [len(w) for w in item.text.split()]) for item in items}


def history(path: Path) -> None:
    """Everything that changes an index."""
    folder = folder_of(path)
    folder.add(blocks(ITEMS[:50]), represent)
    folder.add(blocks(ITEMS[50:70]), represent)
    folder.remove([item.id for item in ITEMS[10:20]])
    folder.add(blocks(NEW[20:40]), represent, update=True)
    folder.compact()
    folder.add(blocks(ITEMS[10:12]), represent)


STATES = [
    [],
    ITEMS[:50],
    ITEMS[:70],
    ITEMS[:10] + ITEMS[20:70],
    ITEMS[:10] + NEW[20:40] + ITEMS[40:70],
    ITEMS[:12] + NEW[20:40] + ITEMS[40:70],
]


def test_items_come_back_as_they_went_in(tmp_path: Path) -> None:
    """Titles, empty texts and bytes beyond ASCII, through additions, updates, removals and a compaction."""
    history(tmp_path)
    opened = folder_of(tmp_path).read()
    opened.columns.verify()
    assert shown(opened) == expected(STATES[-1])
    assert opened.rows(["id 12", "id 1", "none"]).tolist() == [-1, opened.rows(["id 1"])[0], -1]
    assert opened.items[-1] == ITEMS[11] and opened.items[1:3] == [opened.items[1], opened.items[2]]
    with pytest.raises(IndexError):
        opened.items[len(opened.items)]
    assert sorted(p.name for p in tmp_path.iterdir()) == [opened.generation.data, "generation.json"]


def test_a_kill_at_any_step_leaves_the_old_or_the_new_index(tmp_path: Path) -> None:
    """A half-added segment, a tombstone without its new row, or a compaction half copied would be found by a search."""
    step, seen = 0, []
    while True:
        path = tmp_path / "index"
        shutil.rmtree(path, ignore_errors=True)
        killed = killed_at(step, lambda: history(tmp_path / "index"))
        found = shown(folder_of(path).read()) if path.exists() else {}
        state = [i for i, items in enumerate(STATES) if expected(items) == found]
        assert state, f"killed at step {step}: neither the old nor the new index"
        seen.append(state[0])
        if not killed:
            break
        folder_of(path).add(blocks(ITEMS[80:]), represent)  # whatever was left behind, the next writer goes on
        assert shown(folder_of(path).read()) == expected(STATES[state[0]]) | expected(ITEMS[80:])
        step += 1 if step < 25 else 11
    assert seen == sorted(seen) and set(seen) == set(range(6))


def test_a_killed_addition_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Encoding a million texts again because of a kill in the last block; the end must be the same bytes."""
    folder_of(tmp_path / "whole").add(blocks(ITEMS), represent)
    folder, calls = folder_of(tmp_path / "killed"), []

    def dying(items: Sequence[Item], given: NDArray[np.float32] | None) -> dict[str, NDArray[np.float32] | Ragged]:
        calls.append(items[0].id)
        if len(calls) == 8:
            raise KeyboardInterrupt
        return represent(items, given)

    with pytest.raises(KeyboardInterrupt):
        folder.add(blocks(ITEMS), dying)
    assert shown(folder.read()) == {}
    with (next((tmp_path / "killed").glob("data-*")) / "vectors").open("ab") as file:
        file.write(b"half a block")
    folder.add(blocks(ITEMS), dying)
    assert calls == [f"id {8 * i}" for i in range(8)] + [f"id {8 * i}" for i in range(7, 12)]
    for path in (tmp_path / "whole").rglob("*"):
        if path.is_file():
            other = tmp_path / "killed" / path.relative_to(tmp_path / "whole")
            assert other.read_bytes() == path.read_bytes(), path.name


def test_another_addition_after_a_kill_is_not_mixed_with_it(tmp_path: Path) -> None:
    """What the killed process had finished belongs to other items from the third block on."""

    def dying(items: Sequence[Item], given: NDArray[np.float32] | None) -> dict[str, NDArray[np.float32] | Ragged]:
        if items[0].id == "id 32":
            raise KeyboardInterrupt
        return represent(items, given)

    folder = folder_of(tmp_path)
    with pytest.raises(KeyboardInterrupt):
        folder.add(blocks(ITEMS), dying)
    other = ITEMS[:16] + NEW[16:60]
    folder.add(blocks(other), represent)
    assert shown(folder.read()) == expected(other)


def test_adding_costs_what_is_added(tmp_path: Path) -> None:
    """Rewriting an index of five million rows for a thousand new ones."""
    many = [Item(str(i), "boat") for i in range(4000)]
    folder = folder_of(tmp_path)
    folder.add(blocks(many, 1000), represent)
    before = {path: (path.stat().st_ino, path.stat().st_size) for path in tmp_path.rglob("*") if path.is_file()}
    folder.add(blocks(ITEMS[:10]), represent)
    folder.remove([item.id for item in many[:10]])
    written = 0
    for path in tmp_path.rglob("*"):
        if path.is_file():
            inode, size = before.get(path, (0, 0))
            written += path.stat().st_size - (size if inode == path.stat().st_ino else 0)
    assert written < 12_000


def test_many_additions_make_few_segments(tmp_path: Path) -> None:
    """A file and a checksum for each of a thousand additions would make opening slow."""
    folder = folder_of(tmp_path)
    for start in range(0, 90, 2):
        folder.add(blocks(ITEMS[start : start + 2]), represent)
    opened = folder.read()
    assert len(opened.generation.segments) <= 7 and len(opened.ids) <= 7
    assert shown(opened) == expected(ITEMS)


@pytest.mark.parametrize("kind", [Flat(), IVF(4, 4), Auto(40)], ids=["Flat", "IVF", "Auto"])
def test_an_index_that_grew_finds_what_one_built_at_once_finds(
    kind: Auto | FaissKind, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows of a later part are counted from its start; an item of the scanned rest must not hide one of the lists."""
    monkeypatch.setattr(segmented_index, "TAIL", 10)
    grown, whole = folder_of(tmp_path / "grown", kind), folder_of(tmp_path / "whole", kind)
    whole.add(blocks(ITEMS), represent)
    for start, stop in ((0, 30), (30, 36), (36, 60), (60, 85), (85, 90)):
        grown.add(blocks(ITEMS[start:stop]), represent)
    queries = np.stack([vector(item) for item in NEW[:20]])
    found = [folder.read().vectors for folder in (grown, whole)]
    assert all(index is not None for index in found)
    one, other = (index.search(queries, 7) for index in found if index is not None)
    np.testing.assert_array_equal(one[0], other[0])  # every list is probed
    np.testing.assert_array_equal(one[1], other[1])
    assert found[0] is not None and len(found[0].parts) == (1 if kind == Flat() else 3)
    grown.remove(["id 3", "id 33"])
    grown.compact()
    compact = grown.read()
    assert compact.vectors is not None and len(compact.vectors.parts) == 1 and compact.count == 88


def test_readers_go_on_beside_a_writer(tmp_path: Path) -> None:
    """A reader holds what it has opened, also when a compaction removes its files; opening never fails in between."""
    folder = folder_of(tmp_path)
    folder.add(blocks(ITEMS[:50]), represent)
    reader = folder.read()

    def write() -> None:
        for _ in range(15):
            folder.add(blocks(NEW[:20]), represent, update=True)
            folder.compact()

    writer = forked(write)
    opened = 0
    while os.waitpid(writer, os.WNOHANG) == (0, 0):
        found = shown(folder.read())
        assert found in (expected(ITEMS[:50]), expected(NEW[:20] + ITEMS[20:50]))
        opened += 1
    assert opened > 3
    assert shown(reader) == expected(ITEMS[:50])
    assert shown(folder.read()) == expected(NEW[:20] + ITEMS[20:50])


def test_a_second_writer_is_refused_by_name(tmp_path: Path) -> None:
    """Both would append behind the same row."""
    folder = folder_of(tmp_path)
    folder.add(blocks(ITEMS[:50]), represent)
    with locked(tmp_path):
        for write in (
            lambda: folder.add(blocks(ITEMS[50:]), represent),
            lambda: folder.remove(["id 1"]),
            folder.compact,
        ):
            with pytest.raises(InUse, match=f"being written by process {os.getpid()} on"):
                write()
        assert shown(folder.read()) == expected(ITEMS[:50])


def test_ids_that_do_not_fit_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An id that stands twice makes removals and updates ambiguous; nothing of such an addition may stay."""
    folder = folder_of(tmp_path)
    folder.add(blocks(ITEMS[:50]), represent)
    with pytest.raises(DataError, match="item 'id 4' is there already; update it"):
        folder.add(blocks([ITEMS[60], ITEMS[4]]), represent)
    with pytest.raises(DataError, match="item 'id 60' is given twice"):
        folder.add(blocks([*ITEMS[60:70], ITEMS[60]]), represent)
    with pytest.raises(DataError, match="item 'id 61' is given twice"):
        folder.add(blocks([ITEMS[61], ITEMS[61]]), represent)
    with pytest.raises(DataError, match="no item 'id 60' to update; add it"):
        folder.add(blocks([NEW[1], NEW[60]]), represent, update=True)
    with pytest.raises(DataError, match=r"no item 'id 77' \(nor 1 more of 3\); none was removed"):
        folder.remove(["id 1", "id 77", "id 78"])
    assert shown(folder.read()) == expected(ITEMS[:50])
    # Two ids with one hash are two items.
    monkeypatch.setattr(texts, "id_hashes", lambda ids: np.zeros(len(ids), dtype=np.uint64))
    monkeypatch.setattr(index_folder, "id_hashes", lambda ids: np.zeros(len(ids), dtype=np.uint64))
    clash = folder_of(tmp_path / "clash")
    clash.add(blocks(ITEMS[:20]), represent)
    clash.add(blocks(ITEMS[20:30]), represent)
    assert shown(clash.read()) == expected(ITEMS[:30])
    with pytest.raises(DataError, match="item 'id 35' is given twice"):
        clash.add(blocks([*ITEMS[30:40], ITEMS[35]]), represent)


def test_a_full_disk_is_an_error_and_keeps_the_old_index(tmp_path: Path) -> None:
    """Bus errors, and an index that is half the new one."""
    with SmallDisk(tmp_path / "disk", "400k") as disk:
        folder = folder_of(disk.folder / "index")
        folder.add(blocks(ITEMS[:50]), represent)
        long = [Item(f"long {i}", f"{i} " + "boat " * 2000) for i in range(80)]

        def refused() -> None:
            with pytest.raises(OSError, match="No space left on device"):
                folder.add(blocks(long), represent)

        assert in_child(refused) == 0
        assert shown(folder.read()) == expected(ITEMS[:50])
        disk.grow()
        folder.add(blocks(long), represent)
        assert shown(folder.read()) == expected(ITEMS[:50] + long)


def test_damaged_files_are_found(tmp_path: Path) -> None:
    """Rows of zeros score like rows."""
    history(tmp_path)
    data = next(tmp_path.glob("data-*"))
    for name in ("vectors", "texts", "texts.offsets", "judge.ids"):
        whole = (data / name).read_bytes()
        (data / name).write_bytes(bytes(len(whole)))
        with pytest.raises(DataError, match=f"{name}: is not what was written"):
            folder_of(tmp_path).read()
        (data / name).write_bytes(whole[:-1])
        with pytest.raises(DataError, match=f"{name}: is missing or cut short"):
            folder_of(tmp_path).read()
        (data / name).write_bytes(whole)
    (tmp_path / "generation.json").write_text('{"format": 1}x')
    with pytest.raises(DataError, match="is damaged"):
        folder_of(tmp_path).read()
    (tmp_path / "generation.json").write_text('{"format": 2}')
    with pytest.raises(DataError, match="another version of simzoo"):
        folder_of(tmp_path).read()
