"""What ends a program: kill -9 at any moment or write, a full disk. Processes that may end so are forked.

`in_child` and `killed_at` fork from the test itself; `Forks` from a process that has imported everything, which may
start several at once, kill them when it likes, and train in them.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import traceback
from collections.abc import Callable
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import IO, Any, Self

import pytest

ROOT = Path(__file__).parents[1]
SEED = int(os.environ.get("SIMZOO_SEED") or random.randrange(1_000_000))
"""Of all that is random in the tests that kill."""

KILLS = int(os.environ.get("SIMZOO_FAULTS") or 0)
"""How many; 0: the short form, one of each kind in `SHORT`."""

SHORT = ("train", "store", "add")

WRITES = ("replace", "fsync", "unlink", "rename", "rmdir")
"""Of the module os: each is a step that a kill can follow."""


def forked(work: Callable[[], object]) -> int:
    """The id of a forked process that does ``work``; its status is 0, 1 after an exception, or that of SystemExit."""
    pid = os.fork()
    if pid:
        return pid
    status = 1
    try:
        work()
        status = 0
    except SystemExit as end:
        if isinstance(end.code, str):
            print(end.code, file=sys.stderr)
        status = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def in_child(work: Callable[[], object]) -> int:
    """Runs ``work`` in a forked process; its exit status, negative for a signal (-9: killed, -7: bus error)."""
    return os.waitstatus_to_exitcode(os.waitpid(forked(work), 0)[1])


def killed_at(step: int, work: Callable[[], object]) -> bool:
    """Runs ``work`` in another process, which is killed after ``step`` steps of writing; False: it ended before."""
    left = step

    def counting(real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **options: Any) -> Any:
            nonlocal left
            if left == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            left -= 1
            return real(*args, **options)

        return call

    def counted() -> None:
        for name in WRITES:
            setattr(os, name, counting(getattr(os, name)))
        work()

    status = in_child(counted)
    assert status in (0, -signal.SIGKILL), f"the child failed with {status}"
    return status != 0


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
    """A file system in memory of so many bytes (``12k``), where this system lets us mount one; gone behind ``with``."""

    def __init__(self, folder: Path, size: str) -> None:
        self.folder = folder
        folder.mkdir()
        self._mount("-t", "tmpfs", "-o", f"size={size}", "tmpfs")

    def grow(self, size: str = "256m") -> None:
        """Makes room, as who reads the message would."""
        self._mount("-o", f"remount,size={size}")

    def _mount(self, *words: str) -> None:
        done = subprocess.run(["mount", *words, str(self.folder)], capture_output=True, text=True)
        if done.returncode:
            pytest.skip(f"needs the right to mount a tmpfs: {done.stderr.strip()}")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        subprocess.run(["umount", "-l", str(self.folder)], check=True)


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
        print(forked(partial(_call, asked)), file=answers, flush=True)


def _call(asked: dict[str, Any]) -> None:
    """In the forked process: its words go into a file, and errors are told as the command line tells them."""
    descriptor = os.open(asked["output"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    for stream in (1, 2):
        os.dup2(descriptor, stream)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    module, name = asked["start"].split(":")
    try:
        getattr(import_module(module), name)(*asked["args"])
    except (FloatingPointError, OSError, TypeError, ValueError) as error:
        raise SystemExit(f"error: {error}") from error
