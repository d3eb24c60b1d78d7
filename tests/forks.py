"""Processes that can be killed at any moment without harm to the test: forked from one that has imported everything."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from typing import IO, Any

import pytest

ROOT = Path(__file__).parents[1]
SEED = int(os.environ.get("SIMZOO_SEED") or random.randrange(1_000_000))
"""Of all that is random in the tests that kill."""

KILLS = int(os.environ.get("SIMZOO_FAULTS") or 0)
"""How many; 0: the short form, one of each kind in `SHORT`."""

SHORT = ("train", "store", "add")


def kinds(*work: str) -> list[str]:
    """Which of these kinds of work are tried."""
    return [name for name in work if KILLS or name in SHORT]


class Forks:
    """A process that imports ``modules`` once, and forks for each call: a start takes milliseconds instead of seconds.

    It runs no gradient itself: torch refuses to train in a process whose parent did.
    """

    def __init__(self, *modules: str, **settings: str) -> None:
        words = [sys.executable, "-c", "from tests.forks import serve; serve()", *modules]
        environment = {
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "OMP_NUM_THREADS": "1",
            "TOKENIZERS_PARALLELISM": "false",
        } | settings
        self.server = subprocess.Popen(
            words, cwd=ROOT, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self._answer()

    def start(self, function: str, *args: Any, output: Path) -> Run:
        """Calls ``module:function`` with ``args``, its words into a file."""
        return Run(self, self._ask({"start": function, "args": [*map(str, args)], "output": str(output)}), output)

    def run(self, function: str, *args: Any, output: Path) -> Run:
        """Calls it and waits for its end."""
        run = self.start(function, *args, output=output)
        run.wait()
        return run

    def close(self) -> None:
        """Ends the process."""
        self.server.kill()
        self.server.communicate()

    def _ask(self, question: dict[str, Any]) -> int:
        pipe = self._pipe(self.server.stdin)
        pipe.write(json.dumps(question) + "\n")
        pipe.flush()
        return self._answer()

    def _answer(self) -> int:
        line = self._pipe(self.server.stdout).readline()
        assert line, "the process that forks has ended"
        return int(line)

    @staticmethod
    def _pipe(pipe: IO[str] | None) -> IO[str]:
        assert pipe is not None
        return pipe


class Run:
    """One forked process."""

    def __init__(self, forks: Forks, pid: int, output: Path) -> None:
        self.forks = forks
        self.pid = pid
        self.output = output
        self.status: int | None = None

    def wait(self) -> int:
        """Its exit status; that of a signal is negative."""
        if self.status is None:
            self.status = self.forks._ask({"wait": self.pid})
        return self.status

    def end(self, number: int = signal.SIGKILL) -> bool:
        """Sends it a signal and waits; whether it was still at work."""
        os.kill(self.pid, number)
        return self.wait() in (-number, 128 + number)

    def words(self) -> str:
        """What it wrote to stdout and stderr."""
        return self.output.read_text()


class SmallDisk:
    """A file system in memory of so many bytes."""

    def __init__(self, folder: Path, size: int) -> None:
        self.folder = folder
        folder.mkdir()
        self._mount("-t", "tmpfs", "-o", f"size={size}", "tmpfs")

    def grow(self) -> None:
        """Makes room, as who reads the message would."""
        self._mount("-o", "remount,size=256m")

    def _mount(self, *words: str) -> None:
        done = subprocess.run(["mount", *words, str(self.folder)], capture_output=True, text=True)
        if done.returncode:
            pytest.skip(f"needs the right to mount a tmpfs: {done.stderr.strip()}")


def outcome(folder: Path) -> dict[str, bytes]:
    """What finished work left, by name."""
    return {path.name: path.read_bytes() for path in sorted((folder / "done").iterdir())}


def serve() -> None:
    """The other side of `Forks`."""
    for name in sys.argv[1:]:
        import_module(name)
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    print(0, file=answers, flush=True)
    for line in sys.stdin:
        asked = json.loads(line)
        if "wait" in asked:
            print(os.waitstatus_to_exitcode(os.waitpid(asked["wait"], 0)[1]), file=answers, flush=True)
            continue
        pid = os.fork()
        if pid == 0:
            _call(asked)
        print(pid, file=answers, flush=True)


def _call(asked: dict[str, Any]) -> None:
    """In the forked process: calls, and ends without the rest of the server."""
    status = 1
    try:
        descriptor = os.open(asked["output"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
        for stream in (1, 2):
            os.dup2(descriptor, stream)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        module, name = asked["start"].split(":")
        getattr(import_module(module), name)(*asked["args"])
        status = 0
    except SystemExit as end:
        if isinstance(end.code, str):
            print(end.code, file=sys.stderr)
        status = end.code if isinstance(end.code, int) else int(end.code is not None)
    except (FloatingPointError, OSError, TypeError, ValueError) as error:  # as the command line does
        print(f"error: {error}", file=sys.stderr)
    except BaseException:
        import traceback

        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)
