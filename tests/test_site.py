"""The documents as a site: it builds without a warning, and its reference has what `import simzoo` names."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import simzoo
from simzoo.core.registry import find, is_abstract

ROOT = Path(__file__).resolve().parents[1]


def test_the_site_builds_and_names_every_public_class(tmp_path: Path) -> None:
    """Prevents a page that no menu shows, a link that leads nowhere, and a class that the reference forgets."""
    env = {**os.environ, "NO_MKDOCS_2_WARNING": "1", "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "mkdocs", "build", "--quiet", "--site-dir", str(tmp_path / "site")]
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=300)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    page = (tmp_path / "site" / "api" / "index.html").read_text(encoding="utf-8")
    entries = {name.rpartition(".")[2] for name in re.findall(r'id="(simzoo\.[\w.]+)"', page)}
    known = {name: find(name) for name in dir(simzoo)}
    classes = {name for name, one in known.items() if one is not None and not is_abstract(one)}
    assert len(classes) > 50 and classes <= entries
    assert not re.search(r"<(?:script|link|img)[^>]* (?:src|href)=\"https?://", page), (
        "the site asks another for a part"
    )
