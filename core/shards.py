"""Files that any number of workers make together: each takes the next one that nobody has."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from simzoo.core.claims import Claims, owner
from simzoo.core.files import read_object, remove_scratch, replacing
from simzoo.core.locks import locked
from simzoo.core.progress import progress, say
from simzoo.core.records import DataError

__all__ = ["Worker"]

FIRST, LONGEST = 0.01, 5.0  # seconds between two looks at what others do
SILENCE = 60.0  # seconds of waiting after which it is said
WORK = "work"  # folder of claims and of what is known of finished files


@dataclass(frozen=True)
class Worker:
    """One of the processes that do a piece of work together.

    Attributes:
        rank: its number, from 0.
        workers: how many they are.

    Examples:
        >>> Worker().alone, Worker(1, 4).first
        (True, False)
    """

    rank: int = 0
    workers: int = 1

    def __post_init__(self) -> None:
        if not 0 <= self.rank < self.workers:
            raise ValueError(f"of {self.workers} workers one has a number from 0 on, got {self.rank}")

    @property
    def alone(self) -> bool:
        """Whether there is no other."""
        return self.workers == 1

    @property
    def first(self) -> bool:
        """Whether it is the one that speaks for all."""
        return self.rank == 0


ALONE = Worker()


@contextmanager
def writing(folder: Path, worker: Worker) -> Iterator[None]:
    """The folder's lock for the first worker, so that the same work is not begun twice; the others join in.

    Raises:
        InUse: another process works there.
    """
    if not worker.first:
        folder.mkdir(parents=True, exist_ok=True)
        yield
        return
    with locked(folder):
        if worker.alone:
            remove_scratch(folder)
        yield


class Shards:
    """Files of one folder that workers make together, on one machine or on several that see the folder.

    Whoever is free claims the next file (`Claims`), makes it and writes down its sha256. A worker that is killed loses
    what it had in hand: another one takes it over. A file is made alone by one worker, so its bytes do not depend on
    how many there are. A worker that is alone claims nothing.

    Args:
        folder: of the files, and of what the workers write about them.
        paths: the files, in order; a file that is there is whole.
        worker: which of the workers this process is.
        final: the file that one of them makes of all others at last; where it is, nothing is missing, though the
            others be gone. None: the files are what is wanted.
    """

    def __init__(self, folder: Path, paths: Sequence[Path], worker: Worker, final: Path | None = None) -> None:
        self.folder = folder
        self.paths = paths
        self.worker = worker
        self.final = final
        self.claims = Claims()

    def make(self, one: Callable[[int], None], description: str) -> None:
        """Makes what is missing, and returns when all files are there.

        Args:
            one: makes the file of a number, and puts it into its place as a whole (`core.files.replacing`).
            description: what the progress bar calls it.
        """
        if self.worker.alone:
            left = [number for number in range(len(self.paths)) if not self._there(number)]
            for number in progress(left, description):
                one(number)
            return
        left = [number for number in range(len(self.paths)) if not self._done(number)]
        start = self.worker.rank * len(left) // self.worker.workers
        tick = _ticking(len(left), description if self.worker.first else "")
        left = left[start:] + left[:start]  # each begins elsewhere
        pause, since = FIRST, time.monotonic()
        while left:
            others = []
            for number in left:
                if self._made(number, one):
                    tick()
                else:
                    others.append(number)
            if len(others) < len(left):
                pause, since = FIRST, time.monotonic()
            elif time.monotonic() - since > SILENCE:
                say(f"{description}: waiting for {self._owners(others)}")
                since = time.monotonic()
            if left := others:
                time.sleep(pause)
                pause = min(2 * pause, LONGEST)
        tick()

    def finish(self, join: Callable[[], None]) -> None:
        """Lets one of the workers make the final file from all others, whose bytes are checked; all wait for it."""
        assert self.final is not None

        def checked(_: int) -> None:
            self.check()
            join()

        Shards(self.folder, [self.final], self.worker).make(checked, f"writing {self.final.name}")

    def check(self) -> None:
        """Compares the files with what their makers wrote down.

        Raises:
            DataError: one has other bytes.
        """
        for path in self.paths:
            record = self._record(path)
            if record.exists() and read_object(record, "remove it")["sha256"] != _sha256(path):
                raise DataError("is not what was written; remove it, and it is made again", path)

    def clean(self) -> None:
        """Removes what only the workers needed, and what killed ones left; when all is done."""
        shutil.rmtree(self.folder / WORK, ignore_errors=True)
        remove_scratch(self.folder)

    def _there(self, number: int) -> bool:
        return self.paths[number].exists() or (self.final is not None and self.final.exists())

    def _done(self, number: int) -> bool:
        """Whether it is there, and whoever made it has written down so: nobody touches the folder for it any more."""
        return self._there(number) and not self._claim(self.paths[number]).exists()

    def _made(self, number: int, one: Callable[[int], None]) -> bool:
        """Whether it is done, now at the latest."""
        if self._done(number):
            return True
        path = self.paths[number]
        with self.claims.held(self._claim(path)) as mine:
            if mine and not self._there(number):
                start = time.monotonic()
                one(number)
                self._write_record(path, time.monotonic() - start)
        return mine

    def _record(self, path: Path) -> Path:
        """Where it is written down who made a file, and its sha256."""
        return self.folder / WORK / f"{path.name}.json"

    def _claim(self, path: Path) -> Path:
        return self.folder / WORK / f"{path.name}.claim"

    def _write_record(self, path: Path, seconds: float) -> None:
        by = f"process {os.getpid()} on {socket.gethostname()}"
        said: dict[str, Any] = {"sha256": _sha256(path), "by": by, "seconds": round(seconds, 3)}
        with replacing(self._record(path)) as file:
            file.write(json.dumps(said).encode())

    def _owners(self, numbers: Sequence[int]) -> str:
        """Who has these, for a message."""
        found: dict[str, int] = {}
        for number in numbers:
            who = owner(self._claim(self.paths[number]))
            name = f"process {who['pid']} on {who['host']}" if {"pid", "host"} <= who.keys() else "somebody"
            found[name] = found.get(name, 0) + 1
        return ", ".join(f"{count} of {name}" for name, count in found.items())


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _ticking(total: int, description: str) -> Callable[[], object]:
    """Moves a progress bar on by one each time it is called; without a description there is none."""
    bar = iter(progress(range(total), description)) if description else iter(())
    next(bar, None)
    return lambda: next(bar, None)
