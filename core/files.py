"""Files that are either the old ones or whole, whatever ends the program."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO


@contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """A file to write, which takes the place of ``path`` when the block ends without an error (a full disk is one)."""
    path.parent.mkdir(parents=True, exist_ok=True)
    scratch = path.with_name(f"{path.name}.{os.getpid()}.tmp")
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
