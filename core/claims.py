"""Who makes which part of shared work: a file that a process holds, here or on another host that sees the folder."""

from __future__ import annotations

import json
import os
import secrets
import socket
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from simzoo.core.locks import is_at, keep, release
from simzoo.core.progress import say

if sys.platform != "win32":
    import fcntl

STALE = 120.0  # seconds without a sign of life, after which what another host holds is taken over
BEAT = 15.0  # seconds between signs of life


class Claims:
    """Files of which each is held by one process at a time.

    A claim of a process on this host ends with the process, however that ends: the system's own lock (flock) says so.
    One that another host holds is judged by its time stamp, which its process renews: if that stays as it is for
    `STALE` seconds of this host's clock, the claim is taken over. Two processes may then hold one claim, if the first
    was only asleep, so what is claimed must do no harm when it is done twice: files that are renamed into place, with
    the same bytes. Windows has no flock, and judges all by time stamps.
    """

    def __init__(self) -> None:
        self._seen: dict[Path, tuple[int, float]] = {}

    @contextmanager
    def held(self, path: Path) -> Iterator[bool]:
        """Whether the claim at ``path`` is this process's own while the block lasts; it does not wait for it."""
        descriptor = self._taken(path)
        if descriptor is None:
            yield False
            return
        keep(descriptor)
        ended = threading.Event()
        beating = threading.Thread(target=_beat, args=(descriptor, ended), name=f"claim of {path.name}", daemon=True)
        beating.start()
        try:
            yield True
        finally:
            ended.set()
            beating.join()
            release(descriptor, path)

    def _taken(self, path: Path) -> int | None:
        """A descriptor of the file at ``path``, held; None: another process has it."""
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o644)
        except FileExistsError:
            return self._taken_over(path)
        except FileNotFoundError:  # all is done, and the folder was removed
            return None
        _lock(descriptor)
        _sign(descriptor)
        return descriptor

    def _taken_over(self, path: Path) -> int | None:
        """What a process left that has ended; None: it lives, or may live."""
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_NOFOLLOW)
        except FileNotFoundError:  # given back meanwhile: the next look takes it
            return None
        had = owner(path)
        if sys.platform != "win32" and had.get("host") == socket.gethostname():
            if _lock(descriptor) and is_at(descriptor, path):
                say(f"{path.stem}: taken over from process {had.get('pid')}, which has ended")
                _sign(descriptor)
                return descriptor
            os.close(descriptor)
            return None
        stale = self._is_stale(path, os.fstat(descriptor).st_mtime_ns)
        os.close(descriptor)
        if not stale:
            return None
        aside = path.with_name(f"{path.name}.{secrets.token_hex(4)}")
        with suppress(FileNotFoundError):  # another one is quicker
            os.rename(path, aside)
            aside.unlink()
            say(f"{path.stem}: taken over from process {had.get('pid')} on {had.get('host')}, silent for {STALE:.0f} s")
        return self._taken(path)

    def _is_stale(self, path: Path, stamp: int) -> bool:
        known, since = self._seen.get(path, (None, 0.0))
        if known != stamp:
            self._seen[path] = stamp, time.monotonic()
            return False
        return time.monotonic() - since > STALE


def owner(path: Path) -> dict[str, str]:
    """Process and host that hold a claim, as it says; empty where there is none."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return {key: str(value) for key, value in found.items()} if isinstance(found, dict) else {}


def _sign(descriptor: int) -> None:
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, json.dumps({"pid": os.getpid(), "host": socket.gethostname()}).encode(), 0)


def _lock(descriptor: int) -> bool:
    if sys.platform == "win32":
        return True
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _beat(descriptor: int, ended: threading.Event) -> None:
    while not ended.wait(BEAT):
        with suppress(OSError):
            os.utime(descriptor)
