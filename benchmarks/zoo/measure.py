"""Every released checkpoint on every data set at hand, and the pages made of it: docs/zoo.md and docs/zoo.html,
and of every similarity: docs/systems.md.

    python -m benchmarks.zoo.measure             measure what is missing, then write the pages; --only names data sets
    python -m benchmarks.zoo.measure --render    only write the pages
    python -m benchmarks.zoo.measure --check     fail if the pages are not those of the measured figures

What was measured lies in docs/zoo/<data>/<system>/metrics.json: evaluate.py's own, with the values of each query for
the significance marks, and without milliseconds, which belong to the machine. A system is measured again when its
weights have changed. Text data: WordNet's four test worlds with and without titles; the collections in SIMZOO_DATA.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.zoo.page import html_page, markdown_page
from benchmarks.zoo.systems import systems_page
from simzoo import evaluate
from simzoo.core.hub import file_sha256
from simzoo.datamodules.readers.wordnet import TEST_WORLDS
from simzoo.models.parts.backbone import MINILM
from simzoo.retrieval.results.run_files import read_run, write_text

ZOO = Path("docs") / "zoo"
STORES = Path("out") / "zoo"
QUERIES, DEPTH = 100, 64
FIRST_STAGE = "checkpoints/wordnet-de"
KEPT = ("accuracy", "nDCG@10", "R@64")
DROPPED = ("search_seconds", "index_seconds", "threads", "device", "k", "seed", "truncated", "bf16")


@dataclass(frozen=True)
class Job:
    """One evaluation.

    Attributes:
        data: folder name of the data set.
        system: folder name of what is evaluated.
        words: options of evaluate.py run.
        weights: the system's file of weights; None: it has none, or none here.
    """

    data: str
    system: str
    words: tuple[str, ...]
    weights: Path | None = None

    @property
    def stores(self) -> list[str]:
        """Options that keep items' representations, which several systems and a run after a killed one share."""
        found = []
        if "--checkpoint" in self.words:
            found += ["--store", str(STORES / self.data / self.system)]
        if FIRST_STAGE in self.words[self.words.index("--search") :]:
            found += ["--search.first_stage.store", str(STORES / self.data / Path(FIRST_STAGE).name)]
        return found

    @property
    def file(self) -> Path:
        """Where its figures lie."""
        return ZOO / self.data / self.system / "metrics.json"

    def is_done(self) -> bool:
        """Whether it was measured with these weights."""
        if not self.file.is_file():
            return False
        known = json.loads(self.file.read_text())["checkpoint"]["sha256"]
        return self.weights is None or known == file_sha256(self.weights)


def data_sets() -> dict[str, tuple[str, ...]]:
    """Options that name each data set at hand, small ones first."""
    found = {}
    for world in reversed(TEST_WORLDS):
        for titles in ("false", "true"):
            name = f"wordnet-{world}{'' if titles == 'true' else '-untitled'}"
            found[name] = ("--data", "WordNet", "--data.world", world, "--data.titles", titles)
    root = os.environ.get("SIMZOO_DATA")
    for folder in sorted(Path(root).glob("*/qrels")) if root else ():
        found[folder.parent.name] = ("--data", "BEIR", "--data.root", str(folder.parent))
    return found


def systems() -> Iterator[tuple[str, tuple[str, ...], Path | None]]:
    """Baselines and the text models in checkpoints/: name, options, weights."""
    yield "BM25", ("--search", "Retrieve", "--search.first_stage", "BM25"), None
    yield "all-MiniLM-L6-v2", ("--checkpoint", MINILM, "--search", "Exact"), None
    for folder in sorted(Path("checkpoints").iterdir()):
        config = json.loads((folder / "config.json").read_text())
        if "tokens" not in config["arguments"]:
            continue  # ranks no texts
        chosen = ("--checkpoint", str(folder))
        if config["class"].endswith(".DualEncoder"):
            search: tuple[str, ...] = ("--search", "Exact")
        else:
            search = ("--search", "Rerank", "--search.budget", str(DEPTH), "--search.first_stage", "Dense")
            search += ("--search.first_stage.checkpoint", FIRST_STAGE)
        yield folder.name, (*chosen, *search), folder / "model.safetensors"


def jobs() -> list[Job]:
    """Every system on every data set."""
    made = list(systems())
    return [
        Job(data, name, (*options, *words), weights)
        for data, options in data_sets().items()
        for name, words, weights in made
    ]


def measure(job: Job) -> None:
    """Runs an evaluation and keeps its figures."""
    with tempfile.TemporaryDirectory() as scratch:
        output = Path(scratch) / job.system
        command = ["run", *job.words, "--queries", str(QUERIES)]
        hidden = [*job.stores, "--output", str(output)]
        sys.argv = ["evaluate.py", *command]
        try:
            evaluate.main([*command, *hidden])
        except ValueError as error:
            if "cannot evaluate" not in str(error):  # fewer queries than that: all of them
                raise
            sys.argv = ["evaluate.py", *command[:-2]]
            evaluate.main([*command[:-2], *hidden])
        keep(job, output)


def keep(job: Job, output: Path) -> None:
    """Takes an output folder of evaluate.py run for a job's figures."""
    run = read_run(output)
    described = {key: value for key, value in run.described.items() if key not in DROPPED}
    described["cost"] = {"calls": described["cost"]["calls"]}
    described["command"] = re.sub(r" --output \S+", "", described["command"])  # the page adds its own
    if root := os.environ.get("SIMZOO_DATA"):
        described["command"] = described["command"].replace(root, "$SIMZOO_DATA")
    names = [name for name in KEPT if name in run.columns]
    described["per_query"] = {name: [round(value, 6) for value in run.columns[name]] for name in names}
    write_text(job.file, json.dumps(described) + "\n")


def figures() -> list[dict[str, Any]]:
    """What lies in docs/zoo, by data set and system."""
    found = []
    for path in sorted(ZOO.glob("*/*/metrics.json")):
        described = json.loads(path.read_text())
        found.append({**described, "folder": path.parent.parent.name, "system": path.parent.name})
    return found


def pages() -> dict[Path, str]:
    """The pages as they have to be, by file."""
    rows = figures()
    return {
        Path("docs/zoo.md"): markdown_page(rows),
        Path("docs/zoo.html"): html_page(rows),
        Path("docs/systems.md"): systems_page(),
    }


def main() -> None:
    """Measures, and writes or checks the pages."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--render", action="store_true", help="only write the pages")
    parser.add_argument("--check", action="store_true", help="fail if the pages are not those of the measured figures")
    parser.add_argument("--only", nargs="+", default=None, metavar="DATA", help="measure on these data sets alone")
    options = parser.parse_args()
    if options.check:
        stale = [str(path) for path, text in pages().items() if not path.is_file() or path.read_text() != text]
        sys.exit(f"error: {', '.join(stale)}: not as measured; run `make zoo`" if stale else 0)
    if not options.render:
        missing = [job for job in jobs() if not job.is_done() and job.data in (options.only or data_sets())]
        width = shutil.get_terminal_size().columns
        for number, job in enumerate(missing, start=1):
            print(f"[{number}/{len(missing)}] {job.system} on {job.data}"[:width], flush=True)
            measure(job)
    for path, text in pages().items():
        write_text(path, text)
        print(f"written: {path}")


if __name__ == "__main__":
    main()
