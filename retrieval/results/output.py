"""Where results go: tried before the work, so that hours of scoring are not lost to a folder that takes no file."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from simzoo.core.records import DataError

RESULTS = ("metrics.json", "per_query.jsonl", "run.trec", "report.html")
"""What an evaluation leaves in its folder."""
ROOM = 1_000_000
OTHER = "name another place with --output"


def check_folder(folder: Path, overwrite: bool = False, room: int = ROOM) -> None:
    """Makes sure that a folder takes an evaluation's results; leaves it as it was.

    Args:
        folder: of the results; there need not be one.
        overwrite: replace the results that are there.
        room: bytes that will be needed, about.

    Raises:
        DataError: there is no name, it is a file's, results are there already, or nothing can be written there.
    """
    _named(folder)
    if folder.is_dir() and not overwrite and (there := [name for name in RESULTS if (folder / name).exists()]):
        raise DataError(f"holds results already ({', '.join(there)}); {OTHER}, or pass --overwrite true", folder)
    _try(folder, room)


def check_file(path: Path, overwrite: bool = False, room: int = ROOM) -> None:
    """Makes sure that a file can be written; leaves all as it was.

    Args:
        path: of the file.
        overwrite: replace it if it is there.
        room: bytes that will be needed, about.

    Raises:
        DataError: there is no name, it is a folder's, the file is there already, or nothing can be written there.
    """
    _named(path)
    if path.is_dir():
        raise DataError("is a folder, but a file will be written; name the file with --output", path)
    if path.exists() and not overwrite:
        raise DataError(f"is there already; {OTHER}, or pass --overwrite true", path)
    _try(path.parent, room)


def check_parts(folder: Path, room: int = ROOM) -> None:
    """The same for work that goes on where it was: what is in the folder already is a part of it.

    Raises:
        DataError: there is no name, it is a file's, or nothing can be written there.
    """
    _named(folder)
    _try(folder, room)


def _named(path: Path) -> None:
    if path == Path():
        raise DataError("--output is empty or the current folder; name a place of its own, for example out/bm25")


def _try(folder: Path, room: int) -> None:
    """Makes a folder, writes so many bytes into it, and takes back both."""
    made = [place for place in (folder, *folder.parents) if not place.exists()]
    scratch = folder / f"try.{os.getpid()}.tmp"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with scratch.open("wb") as file:
            if hasattr(os, "posix_fallocate"):  # macOS and Windows have none
                os.posix_fallocate(file.fileno(), 0, room)
            else:
                file.write(bytes(min(room, ROOM)))
            os.fsync(file.fileno())
    except (FileExistsError, NotADirectoryError) as error:
        at = next(place for place in (folder, *folder.parents) if place.exists())
        raise DataError(f"is a file, so no folder can be made of it; {OTHER}", at) from error
    except OSError as error:
        raise DataError(
            f"cannot take {room / 1e6:,.1f} MB of results ({error.strerror}); make room, or {OTHER}", folder
        ) from error
    finally:
        with suppress(OSError):
            scratch.unlink(missing_ok=True)
            for place in made:
                place.rmdir()
