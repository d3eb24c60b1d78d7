"""JSON lines, plain or gzipped, read with their place so that every complaint names file and line."""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from simzoo.core.records import DataError


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
            return value
        if isinstance(value, int | float) and not isinstance(value, bool):
            return str(value)
        raise self.error(f"expected a string under {key!r}, got {_shown(self.fields, key)}")

    def identifier(self, key: str) -> str:
        """A string that is not blank."""
        value = self.text(key)
        if not value.strip():
            raise self.error(f"expected an id under {key!r}, got {value!r}")
        return value

    def integer(self, key: str) -> int:
        """A whole number."""
        value = self.fields.get(key)
        if isinstance(value, int) and not isinstance(value, bool):
            return value
        raise self.error(f"expected a whole number under {key!r}, got {_shown(self.fields, key)}")

    def error(self, message: str) -> DataError:
        """A complaint about this record."""
        return DataError(message, self.path, self.line)


def _shown(fields: Mapping[str, Any], key: str) -> str:
    return repr(fields[key]) if key in fields else "no such key among " + (", ".join(map(repr, fields)) or "none")


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

    Raises:
        DataError: the text is not UTF-8, or the gzip stream is broken.
    """
    for number, line in _lines(path):
        if line.strip():
            yield number, line


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    number = 0
    try:
        with gzip.open(path, "rt", encoding="utf-8") if path.suffix == ".gz" else path.open(encoding="utf-8") as stream:
            for number, line in enumerate(stream, start=1):
                yield number, line
    except UnicodeDecodeError as error:
        raise DataError(f"is not UTF-8 text ({error.reason}) soon after this line", path, number) from error
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise DataError(f"is not a whole gzip file ({error}) after this line; fetch it again", path, number) from error


def read_json_lines(path: Path) -> Iterator[Record]:
    """The objects of a JSON-lines file.

    Raises:
        DataError: the file is missing or empty, or a line is not a JSON object.
    """
    path = existing(path)
    for number, line in numbered_lines(path):
        try:
            fields = json.loads(line)
        except json.JSONDecodeError as error:
            raise DataError(f"broken JSON: {error.msg} at column {error.colno}", path, number) from error
        if not isinstance(fields, dict):
            raise DataError(f"expected a JSON object, got {line.strip()[:60]!r}", path, number)
        yield Record(fields, path, number)


def read_json_array(path: Path) -> Iterator[Record]:
    """The objects of a file that is one JSON array, one after another; a record's line is where it begins.

    Raises:
        DataError: the file is missing or empty, or is not an array of objects.
    """
    path = existing(path)
    text = "".join(line for _, line in _lines(path))
    decoder = json.JSONDecoder()
    at = _behind(text, 0)
    line = 1 + text.count("\n", 0, at)
    if text[at : at + 1] != "[":
        raise DataError(f"expected a JSON array, got {text[at : at + 40]!r}", path, line)
    begun, at = at, _behind(text, at + 1)
    while text[at : at + 1] != "]":
        line += text.count("\n", begun, at)
        begun = at
        try:
            fields, end = decoder.raw_decode(text, at)
        except json.JSONDecodeError as error:
            raise DataError(f"broken JSON: {error.msg}", path, error.lineno) from error
        if not isinstance(fields, dict):
            raise DataError(f"expected a JSON object, got {text[at:end][:60]!r}", path, line)
        yield Record(fields, path, line)
        at = _behind(text, end)
        if text[at : at + 1] == ",":
            at = _behind(text, at + 1)
        elif text[at : at + 1] != "]":
            line += text.count("\n", begun, at)
            raise DataError("broken JSON: expected ',' or ']' behind an object", path, line)


def _behind(text: str, at: int) -> int:
    """The place behind white space."""
    while at < len(text) and text[at].isspace():
        at += 1
    return at
