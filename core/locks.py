"""One writer at a time: a lock file that says who has it."""

from __future__ import annotations

import json
import os
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import cache
from pathlib import Path

from simzoo.core.records import DataError

if sys.platform != "win32":
    import fcntl

NAME = "writer.lock"


class InUse(DataError):
    """Another process writes to the folder: says which."""


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """The only writer of ``folder``, which is made if need be.

    The lock is the system's own (flock), so it ends with its process, however that ends: what a dead process of this
    host left is taken over. The file ``writer.lock`` in the folder names the process, and is gone when the block ends.
    A file that names another host is not taken over: this system cannot tell whether that process lives. Windows has
    no such lock: there, one writer at a time is up to the user.

    Raises:
        InUse: another process, or another writer in this one, has it.
    """
    folder.mkdir(parents=True, exist_ok=True)
    if sys.platform == "win32":
        yield
        return
    path = folder / NAME
    descriptor = _taken(path)
    keep(descriptor)
    try:
        owner = {"pid": os.getpid(), "host": socket.gethostname(), "since": f"{datetime.now(UTC):%Y-%m-%d %H:%M:%S}"}
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, json.dumps(owner).encode(), 0)
        yield
    finally:
        release(descriptor, path)


def left_over(folder: Path) -> bool:
    """Whether a writer of the folder was killed: its lock file or a half-written file is there (or it is at work)."""
    return (folder / NAME).exists() or any(folder.glob("*.tmp"))


_kept: set[int] = set()


def keep(descriptor: int) -> None:
    """Keeps a held lock to this process: forked ones (a loader's workers) would hold it beyond this one's end."""
    _watch_forks()
    _kept.add(descriptor)


def release(descriptor: int, path: Path) -> None:
    """Lets go of the lock file at ``path``, and removes it while it is held; nothing where a fork of its owner asks."""
    if descriptor in _kept:
        _kept.remove(descriptor)
        if is_at(descriptor, path):
            path.unlink(missing_ok=True)
        os.close(descriptor)


@cache
def _watch_forks() -> None:
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=_forget)


def _forget() -> None:
    for descriptor in _kept:
        os.close(descriptor)  # not the lock itself: that is the parent's
    _kept.clear()


def _taken(path: Path) -> int:
    """A descriptor of the lock file at ``path``, held."""
    while True:
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o644)
        except OSError as error:
            if path.is_symlink():  # what it leads to would be cut to the lock's few words
                raise DataError("is a link, and a lock is a file; remove it", path) from error
            raise
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if is_at(descriptor, path):
                _refuse_other_hosts(descriptor, path)
                return descriptor
        except BlockingIOError:
            owner = _owner(descriptor)
            os.close(descriptor)
            raise InUse(
                f"is being written by process {owner.get('pid', '?')} on {owner.get('host', '?')} "
                f"since {owner.get('since', '?')} UTC; wait until it is done, or end it",
                path.parent,
            ) from None
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)  # its owner removed it between our opening and our locking


def is_at(descriptor: int, path: Path) -> bool:
    """Whether an open file is still the one of that name."""
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False


def _refuse_other_hosts(descriptor: int, path: Path) -> None:
    owner = _owner(descriptor)
    if owner and owner.get("host") != socket.gethostname():
        raise InUse(
            f"names process {owner.get('pid')} on {owner.get('host')} as the writer since {owner.get('since')} UTC; "
            "if that process is gone, remove this file",
            path,
        )


def _owner(descriptor: int) -> dict[str, str]:
    try:
        found = json.loads(os.pread(descriptor, 4096, 0))
    except ValueError:  # between its being made and its being filled in
        return {}
    return {key: str(value) for key, value in found.items()} if isinstance(found, dict) else {}
