"""Names of this project's classes, found in its files without importing one of them.

A class is known because its file lies in a room: no list has to be kept. Command lines, recipes and the config.json of
a downloaded checkpoint name classes; what they may name is looked up here, before anything is imported.

>>> find("AXN").path
'simzoo.retrieval.searchers.axn.AXN'
>>> [known.name for known in subclasses("NextItem")]
['NextItem', 'NextItemMoL']
>>> nearest("axm", ["CUR", "AXN"])
'AXN'
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import NamedTuple

__all__ = [
    "Known",
    "UnknownNameError",
    "choice",
    "find",
    "is_abstract",
    "known_classes",
    "nearest",
    "subclasses",
    "unknown",
]

ROOMS = ("losses", "models", "datamodules", "retrieval")
"""The rooms whose classes can be named; a folder of `simzoo` each."""

ROOT = Path(__file__).parents[1]

# Reading 100 files this way takes a twentieth of the time of parsing them; a test compares both.
_CLASS = re.compile(r"^class +(\w+)(?:\[[^\]]*\])? *(?:\(([^():]*(?:\([^()]*\)[^():]*)*)\))? *:", re.MULTILINE)
_ABSTRACT = re.compile(r"^    @abstractmethod\n(?:    @.*\n)*    def (\w+)", re.MULTILINE)
_DEFINED = re.compile(r"^    (?:def +)?(\w+)(?=\(| *[:=])", re.MULTILINE)


class UnknownNameError(ValueError):
    """A name that is no class of this project, or that several classes have."""


class Known(NamedTuple):
    """A class of this project.

    Attributes:
        name: its own name.
        module: where it is defined, ``simzoo.models.cmc``.
        bases: the names of its bases, without modules.
        defined: the methods and attributes that its own body gives.
        missing: the methods that its own body declares abstract.
    """

    name: str
    module: str
    bases: tuple[str, ...]
    defined: frozenset[str]
    missing: frozenset[str]

    @property
    def path(self) -> str:
        """Module and name."""
        return f"{self.module}.{self.name}"


@cache
def known_classes() -> Mapping[str, tuple[Known, ...]]:
    """All public classes of the rooms by name, those of one name together."""
    found: dict[str, tuple[Known, ...]] = {}
    for room in ROOMS:
        for path in sorted((ROOT / room).rglob("*.py")):
            parts = path.relative_to(ROOT).with_suffix("").parts
            module = ".".join(("simzoo", *(part for part in parts if part != "__init__")))
            for known in _in_file(path, module):
                found[known.name] = (*found.get(known.name, ()), known)
    return found


def _in_file(path: Path, module: str) -> Iterator[Known]:
    text = path.read_text(encoding="utf-8")
    for match in _CLASS.finditer(text):
        following = _CLASS.search(text, match.end())
        end = following.start() if following else len(text)
        body = text[match.end() : end]
        missing = frozenset(_ABSTRACT.findall(body))
        yield Known(
            match[1], module, tuple(_bases(match[2] or "")), frozenset(_DEFINED.findall(body)) - missing, missing
        )


def _bases(listed: str) -> Iterator[str]:
    """The names in the brackets of a class statement, without modules, type arguments and keywords."""
    while listed != (shorter := re.sub(r"\[[^\[\]]*\]|\([^()]*\)", "", listed)):
        listed = shorter
    for base in listed.split(","):
        if base.strip() and "=" not in base:
            yield base.strip().rpartition(".")[2]


def find(name: str, rooms: Collection[str] = ROOMS) -> Known | None:
    """The class of a bare name, ``CMC``, or of a path, ``simzoo.models.cmc.CMC``; None: there is none.

    A path may leave out the modules between a room and a class, as an import from the room's package does:
    ``simzoo.losses.MarginMSE``.

    Raises:
        UnknownNameError: several classes have the bare name.
    """
    module, _, own = name.rpartition(".")
    found = [
        known
        for known in known_classes().get(own, ())
        if known.module.split(".")[1] in rooms
        and not own.startswith("_")
        and (not module or known.module == module or known.module.startswith(f"{module}."))
    ]
    if len(found) > 1:
        raise UnknownNameError(f"{name!r} names several classes: {', '.join(k.path for k in found)}; name one in full")
    return found[0] if found else None


@cache
def _missing(name: str) -> frozenset[str]:
    """The abstract methods that a class of this name, or a base of it, leaves to its subclasses."""
    left: set[str] = set()
    for known in known_classes().get(name, ()):
        left |= known.missing | frozenset().union(*(_missing(base) for base in known.bases)) - known.defined
    return frozenset(left)


def is_abstract(known: Known) -> bool:
    """Whether a class is a base for others, and no choice itself: private, a protocol, or not all of it is there."""
    declared = not {"ABC", "Protocol"}.isdisjoint(known.bases)
    return known.name.startswith("_") or declared or bool(_missing(known.name))


def subclasses(base: str, abstract: bool = False) -> tuple[Known, ...]:
    """The classes that have a base among their bases, or bases' bases, in the order of their files.

    Args:
        base: a class's own name; it is among the answers if it is no abstract class.
        abstract: also those that are abstract.
    """
    family = {base}
    every = [known for same in known_classes().values() for known in same]
    while grown := {known.name for known in every if not family.isdisjoint(known.bases)} - family:
        family |= grown
    return tuple(known for known in every if known.name in family and (abstract or not is_abstract(known)))


def choice(name: str, base: str) -> Known | None:
    """The class of a bare name among the `subclasses` of a base; None: there is none, or there are several.

    >>> choice("AXN", "Searcher").module
    'simzoo.retrieval.searchers.axn'
    >>> choice("AXN", "FirstStage") is None
    True
    """
    found = [known for known in subclasses(base) if known.name == name]
    return found[0] if len(found) == 1 else None


def nearest(name: str, choices: Iterable[str]) -> str | None:
    """The choice that a misspelt name probably means; None: no choice is near."""
    from difflib import get_close_matches

    by_form = {choice.casefold(): choice for choice in choices}
    close = get_close_matches(name.casefold(), by_form, n=1, cutoff=0.6)
    return by_form[close[0]] if close else None


def unknown(name: str, kind: str, choices: Iterable[str]) -> str:
    """What to say of a name that is none of the choices: the nearest one, and all of them.

    Args:
        name: what was given.
        kind: what it should have named, ``Searcher``.
        choices: what there is.
    """
    choices = list(choices)
    near = nearest(name.rpartition(".")[2], choices)
    meant = f"; did you mean {near}?" if near else "."
    listed = f" Choose one of {', '.join(sorted(choices))}" if choices else ""
    return f"there is no {kind} {name!r}{meant}{listed}"
