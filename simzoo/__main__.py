"""The command ``simzoo``: hands its words to the parser of train.py, of evaluate.py or of the Hub's verbs."""

from __future__ import annotations

import sys
from contextlib import nullcontext
from importlib import import_module

from simzoo.core.interrupts import end_without_traceback, stopping
from simzoo.core.startup import importing

COMMANDS = {
    "train": ("simzoo.train", (), "fit, validate or test a similarity; as train.py"),
    "evaluate": ("simzoo.evaluate", (), "run, score, compare, matrix, teach, card; as evaluate.py"),
    "search": ("simzoo.evaluate", ("search",), "answer one query; as evaluate.py search"),
    "serve": ("simzoo.retrieval.serving.command", (), "answer queries over HTTP, and take items; see --help"),
    "hub": ("simzoo.retrieval.hub.commands", (), "push, pull, list, verify or convert checkpoints"),
}
"""Module, words put in front of the user's, and summary. A module is imported when its command is called."""


TRAINING = """usage: simzoo train {fit,validate,test} --config RECIPE.yaml [options]

Train, validate or test a similarity; as train.py.

  fit       train, and keep the best and the last state
  validate  measure a training checkpoint on the validation data
  test      measure it on the test data

simzoo train fit --help explains all options; --print_config shows what a command would run with."""
"""Written out, because Lightning alone takes seconds to be imported; a test compares it with the real parser."""


def usage() -> str:
    """What ``simzoo --help`` prints."""
    lines = [f"  {name:<10}{summary}" for name, (_, _, summary) in COMMANDS.items()]
    return "\n".join(
        [
            "usage: simzoo COMMAND ...",
            "",
            "Train, evaluate, publish and search with learned similarities.",
            "",
            *lines,
            "",
            "simzoo COMMAND --help explains a command's options.",
        ]
    )


def main(args: list[str] | None = None) -> None:
    """Runs the command line; errors that a user can mend are one line and exit status 1."""
    name, *rest = (sys.argv[1:] if args is None else args) or ["--help"]
    if name in ("-h", "--help"):
        print(usage())
        return
    if name not in COMMANDS:
        print(f"{usage()}\n\nerror: there is no command {name!r}", file=sys.stderr)
        sys.exit(2)
    if name == "train" and (not rest or rest[0] in ("-h", "--help")):
        print(TRAINING)
        return
    module, first, _ = COMMANDS[name]
    if args is None and name == "train":
        end_without_traceback()
    try:
        # A training stops in its own way, and says which checkpoint to go on from.
        with nullcontext() if name == "train" else stopping(["simzoo", name, *rest]):
            with importing():
                called = import_module(module).main
            called([*first, *rest])
    except (FloatingPointError, ImportError, OSError, TypeError, ValueError) as error:
        sys.exit(f"error: {error}")
    except MemoryError as error:
        sys.exit(f"error: there is not enough memory: {str(error) or 'none is left'}")


if __name__ == "__main__":
    main()
