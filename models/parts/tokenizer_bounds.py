"""Tokenizers that others made: what one may do to a text is bounded before it sees one, and its failures are errors.

The tokenizers library reads a tokenizer.json of any kind: replacements that follow each other multiply a text until
memory ends, which aborts the process, and a pattern that its matcher gives up on panics.
"""

from __future__ import annotations

import base64
import binascii
import json
import math
import struct
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from simzoo.core.files import read_object

MOST_GROWTH = 256
"""Characters that a normalizer may make of one. SentencePiece's models make 18, in chains with a few others."""


def check_tokenizer(path: Path) -> None:
    """Refuses a tokenizer.json whose normalizer may make a text much longer; nothing else in it can.

    Raises:
        ValueError: says how much longer.
    """
    if not path.is_file():
        return
    _check_growth(read_object(path, "fetch it again").get("normalizer"), path)


def check_normalizer(tokenizer: Any, folder: Path) -> None:
    """The same for a tokenizer that is made, whose normalizer may come from another file than tokenizer.json.

    Raises:
        ValueError: see `check_tokenizer`.
    """
    normalizer = tokenizer.backend_tokenizer.normalizer
    if normalizer is not None:
        _check_growth(json.loads(normalizer.__getstate__()), folder)


def _check_growth(normalizer: Any, path: Path) -> None:
    try:
        growth = _growth(normalizer)
    except (AttributeError, binascii.Error, KeyError, RecursionError, struct.error, TypeError) as error:
        raise ValueError(f"{path}: its normalizer cannot be read ({type(error).__name__}: {error})") from error
    if growth > MOST_GROWTH:
        raise ValueError(
            f"{path}: its normalizer makes up to {growth:,.0f} characters of one, expected at most {MOST_GROWTH}; "
            "it is made to fill memory, and refused"
        )


def _growth(normalizer: Any) -> float:
    """Characters that a normalizer makes of one, at most."""
    if normalizer is None:
        return 1.0
    kind = normalizer["type"]
    if kind == "Sequence":
        return math.prod(min(_growth(part), 1e9) for part in normalizer["normalizers"])
    if kind == "Replace":
        made = len(normalizer["content"])
        pattern = normalizer["pattern"]
        if "String" in pattern:
            taken = len(pattern["String"])
            return max(1.0, made / taken) if taken else 1.0 + made
        return 1.0 + made if made else 1.0  # a pattern may match nothing, and then adds to every character
    if kind == "Prepend":
        return 1.0 + len(normalizer["prepend"])
    if kind == "Precompiled":
        table = base64.b64decode(normalizer["precompiled_charsmap"])
        (size,) = struct.unpack_from("<I", table)  # of the trie, behind which the replacements stand
        return max(1.0, float(max(map(len, table[4 + size :].split(b"\0")), default=1)))
    return 1.0  # Unicode's own forms, which make 18 of one at most and of few


@contextmanager
def usable(name: str, texts: Sequence[str] = ()) -> Iterator[None]:
    """What a tokenizer raises, or panics with, becomes an error.

    Args:
        name: of the tokenizer, for the message.
        texts: that it is given.

    Raises:
        ValueError: a text has half of a surrogate pair, or the tokenizer panics.
    """
    try:
        yield
    except (TypeError, UnicodeEncodeError) as error:
        for text in texts:
            place = next((place for place, letter in enumerate(text) if "\ud800" <= letter <= "\udfff"), None)
            if place is not None:
                raise ValueError(
                    f"the text {text[:60]!a} has U+{ord(text[place]):04X} at character {place}, half of a "
                    "surrogate pair, which is no character; remove it, or read the file with the encoding it has"
                ) from error
        raise
    except BaseException as error:
        if type(error).__name__ != "PanicException":  # Rust's own, which no import gives and no Exception is
            raise
        reason = (str(error) or "no reason is given").splitlines()[0]
        raise ValueError(
            f"tokenizer {name!r} breaks down at a text ({reason}): its tokenizer.json is damaged or made to harm"
        ) from None
