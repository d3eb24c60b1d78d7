"""The checkpoints that this version was released with, by name: where they are, and which files they must be.

python -m simzoo.core.released                              # make released.json anew from checkpoints/
python -m simzoo.core.released wordnet-de org/name@COMMIT   # after a push: where the Hub has it
"""

from __future__ import annotations

import hashlib
import json
import re
import sys
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import NamedTuple

__all__ = ["Released", "in_clone", "released"]

TABLE = Path(__file__).parents[1] / "released.json"
"""Lies in the package; `test_released` keeps it as fresh as checkpoints/."""


class Released(NamedTuple):
    """One checkpoint.

    Attributes:
        name: what it is called, ``wordnet-de``.
        manifest: sha256 of its manifest.json, which has the sha256 of every other file.
        hub: ``org/name@commit``, the commit in full; None: it is not on the Hub.
    """

    name: str
    manifest: str
    hub: str | None


@cache
def _table() -> Mapping[str, Released]:
    rows = json.loads(TABLE.read_text(encoding="utf-8"))
    return {name: Released(name, row["manifest"], row["hub"]) for name, row in rows.items()}


def released(name: str) -> Released | None:
    """The released checkpoint of this name; None: there is none."""
    return _table().get(name)


def in_clone(name: str) -> Path | None:
    """The folder of a released checkpoint in a clone, whose package lies beside checkpoints/; None elsewhere."""
    root = TABLE.resolve().parents[1]
    folder = root / "checkpoints" / name
    return folder if (root / "pyproject.toml").is_file() and folder.is_dir() else None


def made(checkpoints: Path, before: Mapping[str, Released]) -> dict[str, Released]:
    """The table of a folder of checkpoints; what the Hub has of an earlier state is not named any more."""
    rows = {}
    for manifest in sorted(checkpoints.glob("*/manifest.json")):
        name, sha256 = manifest.parent.name, hashlib.sha256(manifest.read_bytes()).hexdigest()
        same = name in before and before[name].manifest == sha256
        rows[name] = Released(name, sha256, before[name].hub if same else None)
    return rows


def written(rows: Mapping[str, Released]) -> str:
    """The file's text."""
    return json.dumps({row.name: {"manifest": row.manifest, "hub": row.hub} for row in rows.values()}, indent=2) + "\n"


def main(args: list[str]) -> None:
    """See the module's docstring."""
    rows = made(TABLE.resolve().parents[1] / "checkpoints", _table() if TABLE.is_file() else {})
    if args:
        name, hub = args
        if name not in rows or not re.fullmatch(r"[\w.-]+/[\w.-]+@[0-9a-f]{40}", hub):
            sys.exit(f"error: expected one of {', '.join(rows)} and org/name@commit with all 40 digits, got {args}")
        rows[name] = rows[name]._replace(hub=hub)
    TABLE.write_text(written(rows), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
