"""What ends a program: kill -9 at any write, a full disk."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

WRITES = ("replace", "fsync", "unlink", "rename", "rmdir")  # of the module os: each is a step that a kill can follow


def in_child(work: Callable[[], object], before: Callable[[], object] = lambda: None) -> int:
    """Runs ``work`` in a forked process; its exit status, negative for a signal (-9: killed, -7: bus error)."""
    pid = os.fork()
    if not pid:
        status = 1
        try:
            before()
            work()
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


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

    def patch() -> None:
        for name in WRITES:
            setattr(os, name, counting(getattr(os, name)))

    status = in_child(work, patch)
    assert status in (0, -signal.SIGKILL), f"the child failed with {status}"
    return status != 0


@contextmanager
def small_disk(folder: Path, size: str) -> Iterator[Path]:
    """A file system of so many bytes (1m), where this system lets us mount one."""
    folder.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)], capture_output=True)
    if mounted.returncode:
        pytest.skip("a full disk needs the right to mount a tmpfs")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)
