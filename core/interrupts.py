"""Ctrl-C and SIGTERM: no traceback, a status that says which, and a line that says how to go on."""

from __future__ import annotations

import shlex
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import FrameType


class Stopped(SystemExit):
    """A signal ended the program: exit status 128 + its number, 143 for SIGTERM, 130 for Ctrl-C."""

    def __init__(self, number: int) -> None:
        super().__init__(128 + number)
        self.number = number


def end_without_traceback() -> None:
    """Lets Ctrl-C end the process at once, for the seconds in which it imports; not where it is ignored (nohup)."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)


@contextmanager
def stopping(command: Sequence[str]) -> Iterator[None]:
    """Ends the block at Ctrl-C or SIGTERM: what it holds is let go, and one line says how to go on.

    Args:
        command: what the user typed; what is finished of its work is kept, so the same command goes on where it was.

    Raises:
        Stopped: a signal came.
    """
    before = {}
    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGINT, signal.SIGTERM):
            if signal.getsignal(number) in (signal.SIG_DFL, signal.default_int_handler):  # not under nohup
                before[number] = signal.signal(number, _stop)
    try:
        yield
    except (KeyboardInterrupt, Stopped) as error:
        came = error.number if isinstance(error, Stopped) else int(signal.SIGINT)
        print(
            f"stopped by {signal.Signals(came).name}; what was finished is kept, go on with: {shlex.join(command)}",
            file=sys.stderr,
        )
        raise Stopped(came) from None
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _stop(number: int, frame: FrameType | None) -> None:
    raise Stopped(number)
