"""Command lines: classes by their bare names, code that may be named, and refusals of one line.

Only the modules of classes that the words or the named files mention are imported, before jsonargparse parses; it then
finds them among the subclasses of the type that an option has.
"""

from __future__ import annotations

import os
import re
import sys
from argparse import HelpFormatter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from shutil import get_terminal_size
from textwrap import fill
from types import MappingProxyType
from typing import Any, NoReturn

import yaml
from jsonargparse import ArgumentParser, set_parsing_settings

from simzoo.core.recipes import with_base
from simzoo.core.records import DataError
from simzoo.core.refusals import named, refusal
from simzoo.core.registry import Known, UnknownNameError, find, known_classes, subclasses

__all__ = ["ALLOW", "EPILOG", "OneLine", "prepared"]

ALLOW = "SIMZOO_ALLOW"
"""Environment variable: modules, separated by commas, whose classes a command line or recipe may name."""

EPILOG = (
    f"Options and YAML files may name classes of simzoo, and Lightning's callbacks, loggers, profilers, strategies, "
    f"plugins and accelerators. --allow MODULE, or the variable {ALLOW}, adds a module of yours."
)

OTHERS = (
    "lightning.pytorch.accelerators",
    "lightning.pytorch.callbacks",
    "lightning.pytorch.loggers",
    "lightning.pytorch.plugins",
    "lightning.pytorch.profilers",
    "lightning.pytorch.strategies",
    # Where Lightning defines some of what it offers under the names above.
    "lightning.fabric.plugins",
)
"""Code of others that a recipe may name: parts of a trainer. Nothing of it takes a command or a pickle."""

LONGEST_NAME = 255  # characters of a file's name; a query may be longer
MOST_RECIPE = 10_000_000  # bytes
MOST_NODES = 100_000  # values of a recipe with aliases, when every one is written out
DEEPEST = 50  # lists and mappings in each other

_allowed: set[str] = set()
"""What the user allowed, so that the next command line in the same process takes it back."""


def prepared(args: Sequence[str] | None) -> list[str]:
    """The words of a command line without ``--allow``, after setting what they may name and importing what they do.

    Raises:
        ValueError: ``--allow`` without a module, or with something that is none.
    """
    words = list(sys.argv[1:] if args is None else args)
    words, allowed = _without_allow(words)
    _set_policy(allowed | {name.strip() for name in os.environ.get(ALLOW, "").split(",") if name.strip()})
    for module in sorted({known.module for name in _names(words) if (known := _one(name))}):
        import_module(module)
    return words


def _without_allow(words: list[str]) -> tuple[list[str], set[str]]:
    rest, allowed = [], set()
    iterator = iter(words)
    for word in iterator:
        if word == "--allow" or word.startswith("--allow="):
            module = next(iterator, "") if word == "--allow" else word.removeprefix("--allow=")
            if not all(part.isidentifier() for part in module.split(".")):
                raise ValueError(f"--allow expects a module's name, such as my_project.models; got {module!r}")
            allowed.add(module)
        else:
            rest.append(word)
    return rest, allowed


def _set_policy(allowed: set[str]) -> None:
    own = [
        f"{'.'.join(parts[:end])}.{known.name}"
        for same in known_classes().values()
        for known in same
        # Under the name of each package above it too: from simzoo.losses import MarginMSE.
        for parts in [known.module.split(".")]
        for end in range(1, len(parts) + 1)
    ]
    set_parsing_settings(
        import_path_denylist=["*", *sorted(_allowed - allowed)],
        import_path_allowlist=[*own, *OTHERS, *sorted(allowed)],
        instantiate_subclass_spec_in_any=False,
        config_read_mode_fsspec_enabled=False,  # a recipe is a file of this machine, not an address
        docstring_parse_attribute_docstrings=True,
    )
    _allowed.clear()
    _allowed.update(allowed)


def _one(name: str) -> Known | None:
    """The class; None where there is none, or where several have the name: the type that an option has decides."""
    try:
        return find(name)
    except UnknownNameError:
        return None


def _names(words: Sequence[str]) -> Iterator[str]:
    """Every text that can be a class's name: words, values of options, and what YAML in words and files holds."""
    seen: set[Path] = set()
    for word in words:
        value = word.partition("=")[2] if word.startswith("--") else word
        if value[:1] in ("{", "["):
            yield from _in_yaml(value, Path("-"), seen)
        else:
            yield value
            yield from _in_file(Path(value), seen)


def _in_file(path: Path, seen: set[Path]) -> Iterator[str]:
    if path.suffix not in (".yaml", ".yml", ".json") or path in seen or len(path.name) > LONGEST_NAME:
        return
    if path.is_file():
        seen.add(path)
        if (size := path.stat().st_size) > MOST_RECIPE:
            if path.suffix == ".json":  # data, which no class is named in
                return
            raise DataError(f"has {size:,} bytes, expected a recipe of at most {MOST_RECIPE:,}; it is not read", path)
        yield from _in_yaml(path.read_text(encoding="utf-8", errors="replace"), path, seen)


def _in_yaml(text: str, path: Path, seen: set[Path]) -> Iterator[str]:
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        _check_bounds(yaml.parse(text, Loader=loader), path)
        nodes = [yaml.load(text, Loader=loader)]  # noqa: S506
    except DataError:
        raise
    except (yaml.YAMLError, ValueError):
        return  # the parser says what is wrong with it, and where
    while nodes:
        node = nodes.pop()
        if isinstance(node, str):
            yield node
            yield from _in_file(path.parent / node, seen)
        elif isinstance(node, dict):
            nodes += node.values()
        elif isinstance(node, list):
            nodes += node


def _check_bounds(events: Iterable[Any], path: Path) -> None:
    """Refuses YAML that is small as a file and endless as a value: aliases of aliases, lists in lists.

    Raises:
        DataError: says which.
    """
    depth = total = plain = 0
    sizes: dict[str, int] = {}  # nodes that an anchor stands for
    open_anchors: list[tuple[str | None, int]] = []
    for event in events:
        if isinstance(event, yaml.CollectionEndEvent):
            depth -= 1
            anchor, before = open_anchors.pop()
            if anchor is not None:
                sizes[anchor] = total - before
            continue
        total, plain = total + 1, plain + 1
        anchor = getattr(event, "anchor", None)
        if isinstance(event, yaml.AliasEvent):
            if any(anchor == one for one, _ in open_anchors):
                raise DataError(f"holds *{anchor} within &{anchor}, and so has no end; it is refused", path)
            total += sizes.get(anchor or "", 1)
        elif isinstance(event, yaml.CollectionStartEvent):
            depth += 1
            open_anchors.append((anchor, total))
        elif anchor is not None:
            sizes[anchor] = 1
        if depth > DEEPEST or total > max(MOST_NODES, plain):
            raise DataError(
                f"holds more than {MOST_NODES:,} values once its aliases are written out, or lists {DEEPEST} deep in "
                "each other; it is refused",
                path,
            )


class OneLine(ArgumentParser):
    """A parser whose refusals are one line, and whose help lists the classes that an option takes, by name.

    jsonargparse makes the parsers of nested classes of the same type.
    """

    bases: Mapping[str, str] = MappingProxyType({})
    """For an option, the base of the classes that it takes."""

    def parse_string(self, content: str, path: str | os.PathLike[str] = "", *args: Any, **kwargs: Any) -> Any:
        """Fills in what a recipe takes from its ``base``; jsonargparse reads a file with its folder as the current."""
        try:
            recipe = yaml.safe_load(content)
        except yaml.YAMLError:
            recipe = None  # jsonargparse says what is wrong with it, and where
        if isinstance(recipe, dict) and "base" in recipe:
            try:
                content = yaml.safe_dump(with_base(recipe, Path()), sort_keys=False)
            except ValueError as error:
                self.error(str(error), error)
        return super().parse_string(content, path, *args, **kwargs)

    def error(self, message: str, ex: Exception | None = None) -> NoReturn:
        """Exits with status 2 and one line; a nested parser hands its message on."""
        if not self.exit_on_error:
            super().error(message, ex)
        parser = getattr(ex, "subcommand_parser", None) or self
        options = re.findall(r"--[\w.]+", parser.format_usage())
        said = refusal(message, getattr(parser, "bases", {}), options)
        print(f"error: {said} (see {parser.prog.replace(' [options]', '')} --help)", file=sys.stderr)
        sys.exit(2)

    def format_help(self, formatter: HelpFormatter | None = None) -> str:
        """Help, with the names of all classes instead of the paths of those that happen to be imported."""
        text = super().format_help(formatter)
        return _TYPE.sub(_with_choices, text)


# "(required, type: Searcher | null, default: null, known subclasses: a.B, c.D)", over several lines
_TYPE = re.compile(r"^( *)(.*?)\(((?:required,\s+)?type:\s[^()]*)\)", re.MULTILINE)


def _with_choices(match: re.Match[str]) -> str:
    described = " ".join(match[3].split()).partition(", known subclasses:")[0]
    base = named(described.partition("type:")[2])
    if not base:
        return match[0]
    choices = sorted({known.name for known in subclasses(base)})
    width = max(40, get_terminal_size().columns - 2)
    listed = fill(
        f"({described}; one of {', '.join(choices)})", width, initial_indent=24 * " ", subsequent_indent=24 * " "
    )
    before = (match[1] + match[2]).rstrip()
    return f"{before}\n{listed}" if before else listed
