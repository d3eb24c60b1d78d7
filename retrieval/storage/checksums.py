"""Checksums of large files: of samples, which every opening can afford, and of every byte, for `verify`."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import BinaryIO

from simzoo.core.records import DataError

SAMPLES = 32
SAMPLE = 16_384  # bytes


def sample_sha256(path: Path, start: int = 0, stop: int | None = None) -> str:
    """sha256 of 32 evenly spaced samples of 16 KiB, the first and the last bytes among them, in [start, stop).

    Of all bytes where there are no more than that (512 KiB). Reading them costs milliseconds whatever the size. It
    finds a file that was not written, was cut or exchanged, but not a single flipped bit: `whole_sha256` does.
    """
    digest = hashlib.sha256()
    with path.open("rb") as file:
        size = (path.stat().st_size if stop is None else stop) - start
        digest.update(f"{size}\n".encode())
        if size <= SAMPLES * SAMPLE:
            file.seek(start)
            digest.update(file.read(size))
        else:
            for number in range(SAMPLES):
                file.seek(start + (size - SAMPLE) * number // (SAMPLES - 1))
                digest.update(file.read(SAMPLE))
    return digest.hexdigest()


def whole_sha256(path: Path, start: int = 0, stop: int | None = None) -> str:
    """sha256 of the bytes in [start, stop)."""
    with path.open("rb") as file:
        file.seek(start)
        return _sha256(file, (path.stat().st_size if stop is None else stop) - start)


def _sha256(file: BinaryIO, left: int) -> str:
    digest = hashlib.sha256()
    while left > 0:
        chunk = file.read(min(left, 1 << 22))
        if not chunk:
            break
        digest.update(chunk)
        left -= len(chunk)
    return digest.hexdigest()


def described(path: Path) -> dict[str, str | int]:
    """What `check` compares: the size, the sha256 of samples and of all."""
    return {"bytes": path.stat().st_size, "sample": sample_sha256(path), "sha256": whole_sha256(path)}


def check(path: Path, expected: object, every_byte: bool = False) -> None:
    """Compares a file with what `described` said of it.

    Raises:
        DataError: it is missing, cut short or another one.
    """
    if not isinstance(expected, Mapping) or not expected.keys() >= {"bytes", "sample", "sha256"}:
        raise DataError(f"has no checksum to be compared with ({expected!r:.80}); remove it and build again", path)
    if not path.is_file() or path.stat().st_size != expected["bytes"]:
        found = f"{path.stat().st_size:,}" if path.is_file() else "no"
        raise DataError(
            f"is missing or cut short ({found} bytes, expected {expected['bytes']}); remove the folder and build again",
            path,
        )
    found = whole_sha256(path) if every_byte else sample_sha256(path)
    if found != expected["sha256" if every_byte else "sample"]:
        raise DataError("is not what was written (its checksum differs); remove the folder and build again", path)
