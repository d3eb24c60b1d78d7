"""Files that several workers make together: each once, whoever dies, and the same bytes as one would make."""

from __future__ import annotations

import json
import os
import signal
import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from simzoo.core import claims, shards
from simzoo.core.claims import Claims
from simzoo.core.files import replacing
from simzoo.core.locks import InUse
from simzoo.core.records import DataError
from simzoo.core.shards import ALONE, Shards, Worker, writing
from tests.forks import forked, in_child

NUMBER = 12
Made = Callable[[int, int], None]


def work(folder: Path, rank: int, workers: int, before: Made = lambda rank, number: None, pause: float = 0.01) -> None:
    """Twelve files and one of all of them; says in a log who made which."""
    paths = [folder / f"{number}.part" for number in range(NUMBER)]
    final = folder / "all"

    def one(number: int) -> None:
        before(rank, number)
        with (folder.parent / "log").open("a") as log:
            log.write(f"{rank} {number}\n")
        time.sleep(pause)
        with replacing(paths[number]) as file:
            file.write(bytes([number] * 1000))

    def join() -> None:
        with replacing(final) as file:
            file.write(b"".join(path.read_bytes() for path in paths))

    worker = Worker(rank, workers)
    with writing(folder, worker):
        found = Shards(folder, paths, worker, final)
        found.make(one, "making")
        found.finish(join)
        if worker.first:
            for path in paths:
                path.unlink()
            found.clean()


def logged(tmp_path: Path) -> Counter[str]:
    """How often each file was begun."""
    return Counter(line.split()[1] for line in (tmp_path / "log").read_text().splitlines())


def statuses(*pids: int) -> list[int]:
    return [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids]


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


EXPECTED = {"all": b"".join(bytes([number] * 1000) for number in range(NUMBER))}


def test_workers_share_and_end_as_one_does(tmp_path: Path) -> None:
    """Work that two do twice, or that each takes for the other's; files of the workers left in the result."""
    work(tmp_path / "alone", 0, 1)
    assert contents(tmp_path / "alone") == EXPECTED
    (tmp_path / "log").unlink()
    assert statuses(*[forked(partial(work, tmp_path / "both", rank, 3)) for rank in range(3)]) == [0, 0, 0]
    assert contents(tmp_path / "both") == EXPECTED
    assert set(logged(tmp_path).values()) == {1} and len(logged(tmp_path)) == NUMBER
    assert len({line[0] for line in (tmp_path / "log").read_text().splitlines()}) > 1
    work(tmp_path / "both", 1, 3)  # who comes late finds the parts removed, and does not make them again
    assert len(logged(tmp_path)) == NUMBER


def killed(rank: int, number: int) -> None:
    if rank == 1 and number % 2:
        os.kill(os.getpid(), signal.SIGKILL)


def failing(rank: int, number: int) -> None:
    if rank == 1:
        raise ValueError("no memory is left")


@pytest.mark.parametrize(("accident", "status"), [(killed, -9), (failing, 1)])
def test_what_a_dead_worker_had_is_made_by_another(accident: Made, status: int, tmp_path: Path) -> None:
    """The others would wait for it for ever, or call the work done without its part."""
    pids = [forked(partial(work, tmp_path / "both", rank, 2, accident)) for rank in range(2)]
    assert statuses(*pids) == [0, status]
    assert contents(tmp_path / "both") == EXPECTED
    assert set(logged(tmp_path).values()) == {1}


def test_the_first_worker_is_killed_and_another_begins(tmp_path: Path) -> None:
    """The lock of a dead first worker, or its half-made parts, would stop the next one."""

    def dying(rank: int, number: int) -> None:
        if number == 7:
            os.kill(os.getpid(), signal.SIGKILL)

    assert in_child(partial(work, tmp_path / "both", 0, 2, dying)) == -9
    assert 7 not in logged(tmp_path) and len(logged(tmp_path)) == 7
    work(tmp_path / "both", 0, 2)
    assert contents(tmp_path / "both") == EXPECTED
    assert set(logged(tmp_path).values()) == {1}


def test_one_first_worker_at_a_time(tmp_path: Path) -> None:
    """Two commands that were typed twice would clean up behind each other."""
    with writing(tmp_path, Worker(0, 2)), pytest.raises(InUse), writing(tmp_path, ALONE):
        pass
    with writing(tmp_path, Worker(0, 2)), writing(tmp_path, Worker(1, 2)):
        pass


def test_a_claim_of_another_host_is_judged_by_its_time_stamp(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A node that lost its power holds its part for ever; one that lives is robbed of it."""
    monkeypatch.setattr(claims, "STALE", 0.2)
    path = tmp_path / "work" / "7.claim"
    path.parent.mkdir()
    path.write_text(json.dumps({"pid": os.getpid(), "host": "far.away"}))
    looking = Claims()
    for _ in range(10):
        os.utime(path)  # its sign of life, by whatever clock
        with looking.held(path) as mine:
            assert not mine
        time.sleep(0.05)
    deadline = time.monotonic() + 30
    mine = False
    while not mine:
        assert time.monotonic() < deadline
        time.sleep(0.05)
        with looking.held(path) as mine:
            assert not mine or claims.owner(path)["host"] != "far.away"
    assert not path.exists()


def test_a_claim_shows_signs_of_life(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without them another host would take over what is being made."""
    monkeypatch.setattr(claims, "BEAT", 0.01)
    with Claims().held(tmp_path / "a") as mine:
        assert mine
        os.utime(tmp_path / "a", (0, 0))
        deadline = time.monotonic() + 30
        while (tmp_path / "a").stat().st_mtime == 0:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        with Claims().held(tmp_path / "a") as other:  # flock, of this host's own
            assert not other


def test_a_part_of_other_bytes_is_refused(tmp_path: Path) -> None:
    """A disk that lost what it had promised to keep: a joined file with a hole."""
    paths = [tmp_path / "0.part", tmp_path / "1.part"]
    made = Shards(tmp_path, paths, Worker(0, 2))
    made.make(lambda number: paths[number].write_bytes(b"whole") and None, "making")
    paths[1].write_bytes(b"hole!")
    with pytest.raises(DataError, match=r"1\.part: is not what was written; remove it"):
        made.check()


def test_who_is_waited_for_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A worker that hangs on another machine would look like one that works."""
    monkeypatch.setattr(shards, "SILENCE", 0.0)
    monkeypatch.setattr(shards, "LONGEST", 0.01)
    monkeypatch.setattr(claims, "STALE", 0.1)
    path = tmp_path / "work" / "0.part.claim"
    path.parent.mkdir()
    path.write_text(json.dumps({"pid": 7, "host": "far.away"}))
    made = Shards(tmp_path, [tmp_path / "0.part"], Worker(0, 2))
    made.make(lambda number: (tmp_path / "0.part").write_bytes(b"whole") and None, "making")
    said = capsys.readouterr().err
    assert "making: waiting for 1 of process 7 on far.away" in said
    assert "0.part: taken over from process 7 on far.away, silent for 0 s" in said
