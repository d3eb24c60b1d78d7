"""Packages that come with an extra: asked for when they are used, never when something else is."""

from __future__ import annotations

from importlib import import_module
from typing import Any

__all__ = ["MissingExtraError", "extra"]


class MissingExtraError(ImportError):
    """A package is missing; says which extra of simzoo brings it."""


def extra(module: str, name: str, purpose: str) -> Any:
    """A module of a package that not every installation has.

    Args:
        module: what to import.
        name: the extra that brings it; several are separated by ", ".
        purpose: what needs it, for the message.

    Raises:
        MissingExtraError: it is not installed.
    """
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.split(".")[0] != module.split(".")[0]:
            raise  # a package that is there lacks one of its own
        first = name.split(",")[0]
        raise MissingExtraError(
            f"{purpose} needs {module.split('.')[0]}, which the extra {name.replace(', ', ' or ')} brings: "
            f"pip install 'simzoo[{first}]'"
        ) from error
