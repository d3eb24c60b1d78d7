"""Evaluation: ``python evaluate.py COMMAND``: run, compare, search, matrix, teach, card; see ``--help`` for options."""

from __future__ import annotations

if __name__ not in ("__main__", "simzoo.evaluate"):
    raise ImportError("evaluate is a part of simzoo: import simzoo.evaluate instead of evaluate")

import importlib
import pkgutil
import sys
from collections.abc import Callable
from pathlib import Path

from jsonargparse import ArgumentParser, set_parsing_settings

from simzoo import datamodules, retrieval
from simzoo.core.progress import quiet
from simzoo.retrieval.commands.card import card
from simzoo.retrieval.commands.compare import compare
from simzoo.retrieval.commands.matrix import matrix
from simzoo.retrieval.commands.run import run
from simzoo.retrieval.commands.search import search
from simzoo.retrieval.commands.teach import teach

COMMANDS: tuple[Callable[..., None], ...] = (run, compare, search, matrix, teach, card)


def parser() -> ArgumentParser:
    """The command line: one subcommand a function; a misspelt option is refused by name."""
    for package in (datamodules, retrieval):  # so that their classes are known by name
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            importlib.import_module(module.name)
    set_parsing_settings(docstring_parse_attribute_docstrings=True)
    described = (__doc__ or "").split("\n")[0]
    top = ArgumentParser(prog="evaluate.py", description=described, allow_abbrev=False)
    commands = top.add_subcommands(dest="command")
    for function in COMMANDS:
        positional = {"compare": "runs", "search": "query"}.get(function.__name__)
        summary = (function.__doc__ or "").split("\n")[0]
        command = ArgumentParser(description=summary, allow_abbrev=False)
        command.add_argument("--config", action="config", help="YAML file with these options")
        if positional == "runs":
            command.add_argument("runs", nargs="+", type=Path, help="output folders of evaluate.py run")
        elif positional == "query":
            command.add_argument("query", type=str, help="the query's text")
        command.add_function_arguments(function, as_positional=False, skip={positional} if positional else None)
        commands.add_subcommand(function.__name__, command, help=summary)
    return top


def main(args: list[str] | None = None) -> None:
    """Runs the command line."""
    quiet()
    top = parser()
    chosen = top.instantiate(top.parse_args(args))
    options = dict(chosen[chosen.command])
    options.pop("config")
    {function.__name__: function for function in COMMANDS}[chosen.command](**options)


if __name__ == "__main__":
    try:
        main()
    except (FloatingPointError, OSError, TypeError, ValueError) as error:
        sys.exit(f"error: {error}")
