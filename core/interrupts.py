"""Ctrl-C before there is anything to say about it."""

from __future__ import annotations

import signal


def end_without_traceback() -> None:
    """Lets Ctrl-C end the process at once, for the seconds in which it imports; not where it is ignored (nohup)."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
