"""Evaluation: ``python evaluate.py COMMAND``, or ``simzoo evaluate COMMAND``; ``--help`` lists the commands."""

from __future__ import annotations

if __name__ not in ("__main__", "__mp_main__", "simzoo.evaluate"):
    raise ImportError("evaluate is a part of simzoo: import simzoo.evaluate instead of evaluate")

import ast
import re
import sys
from collections.abc import Callable
from importlib import import_module
from inspect import signature
from pathlib import Path
from typing import Any

from simzoo.core.command_line import EPILOG, OneLine, prepared
from simzoo.core.crew import Crew, Runner
from simzoo.core.progress import quiet
from simzoo.core.refusals import named_bases
from simzoo.core.startup import importing

FOLDER = Path(__file__).parent / "retrieval" / "commands"
RUNNER = (
    "who shares the work: processes on this machine, those that torchrun started, or tasks on a Ray cluster "
    "(docs/scale.md); a command that is killed goes on where it was, with any number of workers"
)
WORKERS = "how many, this process included; null: one, or as many as torchrun started"
POSITIONAL: dict[str, dict[str, dict[str, Any]]] = {
    "compare": {"runs": {"type": Path, "nargs": "+", "help": "output folders of evaluate.py run, or of score"}},
    "score": {
        "trec": {"type": Path, "help": "the run, in TREC's layout"},
        "qrels": {"type": Path, "help": "the judgements, in TREC's layout or BEIR's"},
    },
    "search": {"query": {"type": str, "help": "the query"}},
}
"""By command, the arguments that have no option's name."""


def commands() -> dict[str, str]:
    """Summary by name of every command: a file that defines a function of its own name. No file is imported."""
    found = {}
    for path in sorted(FOLDER.glob("*.py")):
        text = path.read_text(encoding="utf-8")
        if re.search(rf"^def {path.stem}\(", text, re.MULTILINE):
            found[path.stem] = (ast.get_docstring(ast.parse(text)) or "").partition(": ")[2].split("\n")[0]
    return found


def command(name: str) -> Callable[..., None]:
    """The function of a command; its module is imported."""
    function: Callable[..., None] = getattr(import_module(f"simzoo.retrieval.commands.{name}"), name)
    return function


def parser(args: list[str]) -> OneLine:
    """The command line; the options of the command that the words name, and of no other one."""
    top = OneLine(prog="evaluate.py", description=(__doc__ or "").split("\n")[0], epilog=EPILOG)
    chosen = next((word for word in args if not word.startswith("-")), None)
    group = top.add_subcommands(dest="command")
    for name, summary in commands().items():
        one = OneLine(description=summary, epilog=EPILOG)
        if name == chosen:
            _add_options(one, name)
        group.add_subcommand(name, one, help=summary)
    return top


def _add_options(parser: OneLine, name: str) -> None:
    function = command(name)
    parser.bases = named_bases(function)
    parser.add_argument("--config", action="config", help="YAML file with these options")
    positional = POSITIONAL.get(name, {})
    skip: set[str | int] = set(positional)
    if "worker" in signature(function).parameters:
        skip.add("worker")
        parser.add_argument("--runner", type=Runner, default="local", help=RUNNER)
        parser.add_argument("--workers", type=int | None, default=None, help=WORKERS)
    for argument, settings in positional.items():
        parser.add_argument(argument, **settings)
    parser.add_function_arguments(function, as_positional=False, skip=skip)


def main(args: list[str] | None = None) -> None:
    """Runs the command line."""
    with importing():
        words = prepared(args)
        top = parser(words)
        parsed = top.parse_args(words)
        quiet()  # it imports transformers, which refusals and help do without
    chosen = top.instantiate(parsed)
    options = dict(chosen[chosen.command])
    options.pop("config")
    if "runner" not in options:
        command(chosen.command)(**options)
        return
    runner, workers = options.pop("runner"), options.pop("workers")
    crew = Crew(runner, 1 if options["plan"] and runner != "torchrun" else workers)
    crew.run(command(chosen.command), options)


if __name__ == "__main__":
    from simzoo.__main__ import main as run

    run(["evaluate", *sys.argv[1:]])
