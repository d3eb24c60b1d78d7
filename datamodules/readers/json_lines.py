"""Lines of text and of JSON, plain or gzipped, read with their place so that every complaint names file and line."""

from __future__ import annotations

import gzip
import json
import math
import re
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from reprlib import Repr
from typing import Any

from simzoo.core.records import DataError, has_surrogate

LONGEST = 1 << 28
"""Bytes of the longest line that is read: a file of a few kilobytes can unpack to one that fills the memory."""

_SHORT = Repr()
_SHORT.maxstring = _SHORT.maxother = _SHORT.maxlong = 60


@dataclass(frozen=True, slots=True)
class Record:
    """A JSON object and where it stands."""

    fields: Mapping[str, Any]
    path: str | Path
    line: int

    def text(self, key: str, default: str | None = None) -> str:
        """A string; a number is taken as one, null or a missing key as the default if there is one."""
        value = self.fields.get(key)
        if value is None and default is not None:
            return default
        if isinstance(value, str):
            if has_surrogate(value):
                raise self.error(
                    f"the string under {key!r} holds half of a character (a lone surrogate): {value!a:.80}"
                )
            return value
        if isinstance(value, int | float) and not isinstance(value, bool) and self._finite(value):
            return str(value)
        raise self.error(f"expected a string under {key!r}, got {self._shown(key)}")

    def identifier(self, key: str) -> str:
        """A string that is not blank."""
        value = self.text(key)
        if not value.strip():
            raise self.error(f"expected an id under {key!r}, got {value!r}")
        return value

    def integer(self, key: str, bits: int = 64) -> int:
        """A whole number that so many bits hold, its sign included."""
        value = self.fields.get(key)
        if isinstance(value, int) and not isinstance(value, bool):
            if -(1 << bits - 1) <= value < 1 << bits - 1:
                return value
            raise self.error(f"expected a whole number of at most {bits} bits under {key!r}, got {self._shown(key)}")
        raise self.error(f"expected a whole number under {key!r}, got {self._shown(key)}")

    def number(self, key: str) -> float:
        """A finite number."""
        value = self.fields.get(key)
        if isinstance(value, int | float) and not isinstance(value, bool) and self._finite(value):
            return float(value)
        raise self.error(f"expected a finite number under {key!r}, got {self._shown(key)}")

    def error(self, message: str) -> DataError:
        """A complaint about this record."""
        return DataError(message, self.path, self.line)

    def _shown(self, key: str) -> str:
        if key in self.fields:
            return shown(self.fields[key])
        return "no such key among " + (", ".join(map(shown, list(self.fields)[:20])) or "none")

    @staticmethod
    def _finite(value: float) -> bool:
        try:
            return math.isfinite(value)
        except OverflowError:  # a whole number beyond the largest float
            return False


def shown(value: Any) -> str:
    """A value for a complaint: short, whatever its size and depth."""
    return _SHORT.repr(value)


def whole_number(text: str, bits: int = 64) -> int | None:
    """A whole number of plain digits that so many bits hold, its sign included; None if the text is none."""
    if len(text) > 40 or not re.fullmatch(r"[+-]?[0-9]+", text):
        return None
    value = int(text)
    return value if -(1 << bits - 1) <= value < 1 << bits - 1 else None


def existing(path: Path) -> Path:
    """The path, or the path with ".gz" added, whichever is there.

    Raises:
        DataError: neither is, or it is empty; says what the folder holds instead.
    """
    for candidate in (path, path.with_name(path.name + ".gz")):
        if candidate.is_file():
            if candidate.stat().st_size == 0:
                raise DataError("is empty", candidate)
            return candidate
    if not path.parent.is_dir():
        raise DataError(f"expected {path.name} here, but there is no such folder", path.parent)
    held = sorted(entry.name for entry in path.parent.iterdir())
    raise DataError(
        f"expected {path.name} (or .gz) here; the folder holds {', '.join(held[:20]) or 'nothing'}", path.parent
    )


def numbered_lines(path: Path) -> Iterator[tuple[int, str]]:
    """The lines that are not blank, with their numbers from 1, of a plain or gzipped (by its name) UTF-8 text.

    A line ends with a line feed or with carriage return and line feed, which are left out; a carriage return elsewhere
    is part of it. A byte-order mark is left out, also where files that begin with one were joined.

    Raises:
        DataError: a line is not UTF-8 or is longer than `LONGEST`; the file holds blank lines only; the gzip stream is
            broken.
    """
    blank = True
    for number, line in raw_lines(path):
        if line.strip():
            blank = False
            yield number, line.removesuffix("\n").removesuffix("\r")
    if blank:
        raise DataError("holds blank lines only", path)


def raw_lines(path: Path) -> Iterator[tuple[int, str]]:
    """All lines with their ends and numbers from 1; see `numbered_lines`."""
    number = 0
    try:
        with gzip.open(path, "rb") if path.suffix == ".gz" else path.open("rb") as stream:
            while raw := stream.readline(LONGEST + 1):
                number += 1
                if len(raw) > LONGEST:
                    raise DataError(f"is longer than {LONGEST >> 20} MiB; is this a file of lines?", path, number)
                yield number, _decoded(raw, path, number)
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise DataError(f"is no whole gzip file ({error}); fetch it again", path, number or None) from error


def _decoded(raw: bytes, path: Path, number: int) -> str:
    try:
        return raw.decode("utf-8").lstrip("\ufeff")
    except UnicodeDecodeError as error:
        hint = "is it UTF-16? " if raw[:2] in (b"\xff\xfe", b"\xfe\xff") else ""
        raise DataError(
            f"is not UTF-8 text ({error.reason} at byte {error.start + 1} of the line); {hint}save it as UTF-8",
            path,
            number,
        ) from error


def read_json_lines(path: Path) -> Iterator[Record]:
    """The objects of a JSON-lines file.

    Raises:
        DataError: the file is missing, empty or blank, or a line is not a JSON object.
    """
    path = existing(path)
    for number, line in numbered_lines(path):
        fields, _ = _parsed(line.strip(), 0, path, number)
        if not isinstance(fields, dict):
            raise DataError(f"expected a JSON object, got {line.strip()[:60]!r}", path, number)
        yield Record(fields, path, number)


def read_json_array(path: Path) -> Iterator[Record]:
    """The objects of a file that is one JSON array, one after another; a record's line is where it begins.

    Raises:
        DataError: the file is missing or empty, or is not an array of objects and nothing else.
    """
    path = existing(path)
    text = "".join(line for _, line in raw_lines(path))
    at = _behind(text, 0)
    line = 1 + text.count("\n", 0, at)
    if text[at : at + 1] != "[":
        raise DataError(f"expected a JSON array, got {text[at : at + 40]!r}", path, line)
    begun, at = at, _behind(text, at + 1)
    while text[at : at + 1] != "]":
        line += text.count("\n", begun, at)
        begun = at
        fields, end = _parsed(text, at, path, line)
        if not isinstance(fields, dict):
            raise DataError(f"expected a JSON object, got {text[at:end][:60]!r}", path, line)
        yield Record(fields, path, line)
        at = _behind(text, end)
        if text[at : at + 1] == ",":
            at = _behind(text, at + 1)
            if text[at : at + 1] != "]":
                continue
        elif text[at : at + 1] == "]":
            continue
        line += text.count("\n", begun, at)
        raise DataError(f"broken JSON: expected ',' and an object, or ']', got {text[at : at + 20]!r}", path, line)
    if (rest := _behind(text, at + 1)) < len(text):
        line += text.count("\n", begun, rest)
        raise DataError(f"expected nothing behind the array, got {text[rest : rest + 40]!r}", path, line)


def _parsed(text: str, at: int, path: Path, line: int) -> tuple[Any, int]:
    """The JSON value that begins at a place and where it ends: at the text's end if it begins at 0."""
    try:
        value, end = _DECODER.raw_decode(text, at)
    except json.JSONDecodeError as error:
        where = f" at column {error.colno}" if at == 0 else ""
        raise DataError(f"broken JSON: {error.msg}{where}", path, line + text.count("\n", at, error.pos)) from error
    except RecursionError as error:
        raise DataError("JSON that is nested too deeply", path, line) from error
    except ValueError as error:  # keys and constants refused below; numbers of too many digits
        raise DataError(f"JSON that cannot be used: {error}", path, line) from error
    if at == 0 and end < len(text):
        raise DataError(f"broken JSON: text behind the value at column {end + 1}", path, line)
    return value, end


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object; a key that is there twice would hide a value."""
    found = dict(pairs)
    if len(found) < len(pairs):
        keys = [key for key, _ in pairs]
        raise ValueError(f"the key {shown(next(key for key in keys if keys.count(key) > 1))} is there twice")
    return found


def _no_constant(name: str) -> float:
    raise ValueError(f"{name} is no JSON number")


_DECODER = json.JSONDecoder(object_pairs_hook=_once, parse_constant=_no_constant)


def _behind(text: str, at: int) -> int:
    """The place behind white space."""
    while at < len(text) and text[at].isspace():
        at += 1
    return at
