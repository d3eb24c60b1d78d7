"""The loopback Hub and a process that talks to it, for the tests of publishing, fetching and naming."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import torch

from simzoo.core.hub import file_sha256, write_manifest
from simzoo.models.cross_encoder import CrossEncoder
from simzoo.models.formats import save
from simzoo.models.parts.backbone import BackboneConfig
from simzoo.models.parts.tiny import tiny_backbone
from simzoo.models.parts.tokenizing import TokenConfig
from simzoo.retrieval.hub.card import About
from tests.loopback_hub import TOKEN, Hub, running

ROOT = Path(__file__).resolve().parents[1]
QUERY, DOCUMENTS = "the boat", ["a bank by the river", "boats", "z"]

# The client reads its settings when it is imported, and the tests' process is offline: another process runs it.
LOOP = """
import contextlib, io, json, sys
answers = sys.stdout
for line in sys.stdin:
    scope, error, out = {}, None, io.StringIO()
    try:
        with contextlib.redirect_stdout(out):
            exec(json.loads(line), scope)
    except BaseException as caught:
        error = [type(caught).__name__, str(caught)]
    print(json.dumps([scope.get("value"), error, out.getvalue()]), file=answers, flush=True)
"""


class Client:
    """A Python process for which the Hub is the loopback one; its cache is ``home``."""

    def __init__(self, hub: Hub, home: Path) -> None:
        self.env = environment(hub, home)
        self.cache = home / "hub"
        self.process = subprocess.Popen(
            [sys.executable, "-c", LOOP],
            env=self.env,
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def run(self, code: str, home: Path | None = None) -> Any:
        """Runs code; what it leaves in ``value`` comes back, an error as a RuntimeError with its text.

        Args:
            code: Python.
            home: another cache, as on another machine.
        """
        assert self.process.stdin is not None and self.process.stdout is not None
        cache = home or self.cache
        code = f"import huggingface_hub.constants as c; c.HF_HUB_CACHE = {str(cache)!r}\n{code}"
        self.process.stdin.write(json.dumps(code) + "\n")
        self.process.stdin.flush()
        value, error, self.printed = json.loads(self.process.stdout.readline())
        if error is not None:
            raise RuntimeError(": ".join(error))
        return value

    def hub(self, *words: str | Path, home: Path | None = None) -> None:
        """Runs ``simzoo hub``'s function for a command line."""
        self.run(f"from simzoo.retrieval.hub.commands import main; main({[str(word) for word in words]!r})", home)


def environment(hub: Hub, home: Path, **more: str) -> dict[str, str]:
    """Settings of a process that knows the loopback Hub alone."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("HF_", "HUGGING"))}
    settings = {
        "HF_ENDPOINT": hub.url,
        "HF_HOME": str(home),
        "HF_TOKEN": TOKEN,
        "HF_HUB_DISABLE_XET": "1",
        "HF_HUB_DISABLE_PROGRESS_BARS": "1",
        "HF_HUB_DISABLE_TELEMETRY": "1",
        "PYTHONPATH": str(ROOT),
    }
    return {**kept, **settings, **more}


@pytest.fixture(scope="session")
def server() -> Iterator[Hub]:
    with running() as hub:
        yield hub


@pytest.fixture(scope="session")
def process(server: Hub, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    client = Client(server, tmp_path_factory.mktemp("home"))
    yield client
    client.process.kill()
    client.process.communicate()


@pytest.fixture
def hub(server: Hub) -> Hub:
    """Each test starts with a Hub that works."""
    server.faults.clear()
    server.requests.clear()
    server.uploaded.clear()
    return server


@pytest.fixture
def client(process: Client, hub: Hub) -> Client:
    return process


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A released checkpoint with a card."""
    folder = tmp_path_factory.mktemp("made") / "tiny-ce"
    torch.manual_seed(0)
    model = CrossEncoder(BackboneConfig(str(tiny_backbone())), TokenConfig(query_length=24, item_length=24)).eval()
    save(model, folder)
    runs = json.loads((ROOT / "checkpoints" / "wordnet-emb-ce" / "metrics.json").read_text())["runs"]
    about = asdict(About("Letters.", "None: random weights.", "Everything.", QUERY, tuple(DOCUMENTS)))
    described = {"sha256": file_sha256(folder / "model.safetensors"), "about": about, "runs": runs}
    (folder / "metrics.json").write_text(json.dumps(described))
    (folder / "run.trec").write_text("q Q0 i 1 1.0 tag\n" * 100)
    write_manifest(folder)
    return folder


def contents(folder: Path) -> dict[str, bytes]:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and ".cache" not in path.parts
    }
