"""Files that are either the old ones or whole, whatever ends the program."""

from __future__ import annotations

import json
import os
import shutil
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from simzoo.core.records import DataError

MOST_SETTINGS = 100_000_000  # bytes of a .json: it is read as a whole, and several times


@contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """A file to write, which takes the place of ``path`` when the block ends without an error (a full disk is one)."""
    path.parent.mkdir(parents=True, exist_ok=True)
    # Not by the pid alone: containers that share a folder have the same ones.
    scratch = path.with_name(f"{path.name}.{socket.gethostname()}.{os.getpid()}.tmp")
    try:
        with scratch.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(scratch, path)
    except OSError as error:
        error.filename = error.filename or str(path)  # a full disk does not say which file it had no room for
        raise
    finally:
        scratch.unlink(missing_ok=True)
    sync_folder(path.parent)


def read_object(path: Path, todo: str) -> dict[str, Any]:
    """The object in a JSON file of settings, which anybody may have written.

    Args:
        path: of the file.
        todo: what to do if it is damaged, for the message.

    Raises:
        FileNotFoundError: there is no such file.
        DataError: it is no file, too large, broken, or holds something else than an object.
    """
    if not path.exists():
        raise FileNotFoundError(f"{path} is missing; {todo}")
    if not path.is_file():
        raise DataError(f"is no file, expected settings; {todo}", path)
    if (size := path.stat().st_size) > MOST_SETTINGS:
        raise DataError(f"has {size:,} bytes, expected settings of at most {MOST_SETTINGS:,}; {todo}", path)
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise DataError(f"is damaged ({error}); {todo}", path) from error
    if not isinstance(found, dict):
        raise DataError(f"holds {type(found).__name__}, expected an object; {todo}", path)
    return found


def copy_folder(source: Path, target: Path, *left_out: str) -> None:
    """Copies what is in a folder into another one.

    Args:
        source: from where.
        target: to where; what is there stays, but for files of the same names.
        left_out: patterns of names that are not copied.

    Raises:
        OSError: the first file that could not be copied, and why; shutil says it of all, as a list of Python.
    """
    try:
        shutil.copytree(source, target, ignore=shutil.ignore_patterns(*left_out), dirs_exist_ok=True)
    except shutil.Error as error:
        _, to, reason = error.args[0][0]
        raise OSError(f"cannot write {to}: {reason}") from error


def sync_folder(folder: Path) -> None:
    """Makes the names in a folder outlast a power cut."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def reserve(file: BinaryIO, size: int) -> None:
    """Takes the disk space for ``size`` bytes before the first of them is written, where the system can.

    Raises:
        OSError: there is no room; nothing was written.
    """
    if size and hasattr(os, "posix_fallocate"):
        os.posix_fallocate(file.fileno(), 0, size)


def remove_scratch(folder: Path) -> None:
    """Removes what `replacing` left when its process was killed; only for who holds the folder's lock."""
    for path in folder.glob("*.tmp"):
        path.unlink(missing_ok=True)
