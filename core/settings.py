"""Settings as plain values: what files hold of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, is_dataclass
from typing import Any


def plain(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments with dataclasses turned into dicts, so that no file needs a class of ours to be read."""
    return {name: asdict(value) if is_dataclass(value) else value for name, value in arguments.items()}  # type: ignore[arg-type]
