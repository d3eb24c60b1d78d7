"""Every reader of a data layout, called with little memory; what it read is thrown away."""

from __future__ import annotations

import resource
from pathlib import Path

from simzoo.datamodules.readers import json_lines
from tests.test_fuzz_readers import LAYOUTS

EXTRA = 300_000_000
"""Bytes that a process may map besides what it has when everything is imported."""

LONGEST = 1 << 24
"""Bytes of the longest line: fewer than in use, so that the tests are quick, and as many fewer of `EXTRA`."""

SECONDS = 60


def limited(layout: str, file: str, root: str) -> None:
    """Reads one of `LAYOUTS` with `EXTRA` bytes and `SECONDS` seconds."""
    json_lines.LONGEST = LONGEST
    with open("/proc/self/statm") as status:
        most = int(status.read().split()[0]) * resource.getpagesize() + EXTRA
    resource.setrlimit(resource.RLIMIT_AS, (most, most))
    resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS))
    LAYOUTS[layout][1][file](Path(root))
