"""What a folder that is to be published says of the machine and of the person that it comes from."""

from __future__ import annotations

import getpass
import mmap
import re
import struct
from collections.abc import Iterable
from pathlib import Path

SETTINGS = (".json", ".jsonl", ".yaml", ".yml", ".md", ".txt", ".csv", ".onnx", ".safetensors")
VOCABULARIES = ("tokenizer.json", "vocab.txt", "vocab.json", "merges.txt")
"""Files of pieces of text, which may look like anything."""

ROOTS = "home|Users|root|tmp|private|work|workspace|mnt|media|srv|opt|usr|var|data|scratch|content|kaggle"
UNIX = rf"(?<![\w.:/<>()\]}}*~-])/(?:{ROOTS})/[\w.@+/-]*\w"
WINDOWS = r"\b[A-Za-z]:[\\/]+(?:Users|Documents and Settings)[\\/]+[\w.-]+"
PLACES = re.compile(f"{UNIX}|{WINDOWS}".encode())
GENERIC = ("root", "user", "ubuntu", "admin", "runner", "jovyan", "docker", "nobody")
"""Names of accounts that tell nothing of a person."""


def leaks(files: Iterable[tuple[str, Path]]) -> list[str]:
    """What files tell: absolute paths, and the name of the account that asks.

    Args:
        files: name, and where.

    Returns:
        A line for each file that tells something.
    """
    patterns = [PLACES]
    account = _account()
    if len(account) > 2 and account not in GENERIC:
        name = re.escape(account)
        patterns.append(re.compile(rf'(?<!\w){name}@[\w.-]+|"{name}"'.encode()))
    found = []
    for name, path in files:
        if path.suffix in SETTINGS and path.name not in VOCABULARIES and path.stat().st_size:
            told = {match.decode(errors="replace") for pattern in patterns for match in _matches(pattern, path)}
            if told:
                shown = ", ".join(sorted(told)[:3])
                found.append(f"{name} tells of this machine or its user ({shown}; {len(told)} in all)")
    return found


def _matches(pattern: re.Pattern[bytes], path: Path) -> list[bytes]:
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        end = len(content)
        if path.suffix == ".safetensors":  # numbers behind the header
            end = min(end, 8 + struct.unpack_from("<Q", content)[0]) if end >= 8 else 0
        return pattern.findall(content, 0, end)


def _account() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return ""
