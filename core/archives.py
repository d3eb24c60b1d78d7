"""Archives of a checkpoint folder, unpacked so that nothing is written outside and no more than they may hold."""

from __future__ import annotations

import gzip
import hashlib
import io
import shutil
import tarfile
import tempfile
import zipfile
import zlib
from pathlib import Path, PurePosixPath
from typing import IO, Any

ARCHIVES = (".zip", ".tar", ".tar.gz", ".tgz")
MOST_BYTES = 50_000_000_000
MOST_FILES = 10_000
PIECE = 16_384  # bytes of a file's content that are read at once
MOST_HEADER = 64_000  # bytes of a name or note in a .tar, which tarfile would read at once; more than PIECE
MOST_RATIO = 100  # weights hardly compress; a small file that claims to hold very much is made to fill a disk


def unpacked(archive: Path) -> Path:
    """The checkpoint folder in an archive, unpacked into the cache once.

    Args:
        archive: a .zip, .tar, .tar.gz or .tgz; the checkpoint is its top, or the one folder in it.

    Raises:
        ValueError: it is damaged, holds a name that leads outside, a link, or more than it may.
    """
    from huggingface_hub.constants import HF_HOME

    with archive.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    folder = Path(HF_HOME) / "simzoo" / digest
    if not folder.is_dir():
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent) as scratch:
            whole = Path(scratch) / "whole"
            whole.mkdir()
            unpack(archive, whole)
            whole.replace(folder)
    inside = list(folder.iterdir())
    return inside[0] if len(inside) == 1 and inside[0].is_dir() else folder


def unpack(archive: Path, folder: Path) -> None:
    """Writes an archive's files, without owners and modes, into a folder.

    Raises:
        ValueError: see `unpacked`.
    """
    try:
        (_unzip if archive.suffix == ".zip" else _untar)(archive, folder)
    except (
        zipfile.BadZipFile,
        tarfile.TarError,
        EOFError,
        OSError,
        RuntimeError,
        NotImplementedError,
        IndexError,  # zipfile: of a name that begins with a zero
        UnicodeError,
        zlib.error,
    ) as error:
        raise ValueError(f"{archive}: cannot be unpacked ({error}); fetch it again") from error


def _unzip(archive: Path, folder: Path) -> None:
    with zipfile.ZipFile(archive) as found:
        entries = [entry for entry in found.infolist() if not entry.is_dir()]
        for entry in entries:
            # The others let a header say how much memory it takes to read them.
            if entry.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
                raise ValueError(f"{archive}: {entry.filename!r} is packed in another way than deflate; pack it anew")
            _check_name(archive, entry.filename)
        _check_size(archive, len(entries), sum(entry.file_size for entry in entries))
        for entry in entries:
            with found.open(entry) as source:
                _write(source, folder / entry.filename)


class _Pieces(io.RawIOBase):
    """A file that is read in small pieces alone: tarfile takes a header's word for the length of what it reads next."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file

    def seek(self, offset: int, whence: int = 0) -> int:
        return self._file.seek(offset, whence)

    def tell(self) -> int:
        return self._file.tell()

    def read(self, size: int = -1) -> bytes:
        if not 0 <= size <= MOST_HEADER:
            raise tarfile.ReadError(f"a header claims {size:,} bytes of names")
        return self._file.read(size)


def _untar(archive: Path, folder: Path) -> None:
    opened: Any = Path.open if archive.suffix == ".tar" else gzip.open
    with opened(archive, "rb") as file, tarfile.open(fileobj=_Pieces(file), mode="r:") as found:
        total = 0
        for count, entry in enumerate(found, start=1):
            if not (entry.isfile() or entry.isdir()):
                raise ValueError(f"{archive}: {entry.name!r} is a link or a device; the archive is refused")
            _check_name(archive, entry.name)
            total += abs(entry.size)  # a note may say that it is negative
            _check_size(archive, count, total)  # while it is read, so that an endless one is not read to its end
        for entry in found:  # not extractall: its filters are not in every Python 3.11
            if source := found.extractfile(entry):  # none of a folder
                with source:
                    _write(source, folder / entry.name)


def _write(source: IO[bytes], place: Path) -> None:
    place.parent.mkdir(parents=True, exist_ok=True)
    with place.open("wb") as target:
        shutil.copyfileobj(source, target, PIECE)


def _check_name(archive: Path, name: str) -> None:
    place = PurePosixPath(name)
    if place.is_absolute() or ".." in place.parts or "\\" in name or ":" in name:
        raise ValueError(f"{archive}: {name!r} leads outside of the folder; the archive is refused")


def _check_size(archive: Path, files: int, total: int) -> None:
    most = min(MOST_BYTES, MOST_RATIO * archive.stat().st_size + 1_000_000)
    if total > most or files > MOST_FILES:
        raise ValueError(
            f"{archive}: claims {files:,} files and {total:,} bytes, expected at most {MOST_FILES:,} and {most:,} of "
            "an archive of its size; it is refused"
        )
