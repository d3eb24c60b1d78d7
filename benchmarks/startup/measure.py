"""How long it takes until a command answers: whole processes, each several times, medians.

    python -m benchmarks.startup.measure --repeat 5

Wall time depends on what else the machine does; the processor's time beside it much less. The first run of each
command warms the page cache and is not counted.
"""

from __future__ import annotations

import argparse
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SIMZOO = [sys.executable, "-m", "simzoo"]
COMMANDS = {
    "python -c pass": [sys.executable, "-c", "pass"],
    "import simzoo": [sys.executable, "-c", "import simzoo"],
    "import torch": [sys.executable, "-c", "import torch"],
    "import lightning.pytorch": [sys.executable, "-c", "import lightning.pytorch"],
    "simzoo --help": [*SIMZOO, "--help"],
    "simzoo train --help": [*SIMZOO, "train", "--help"],
    "simzoo train fit --help": [*SIMZOO, "train", "fit", "--help"],
    "simzoo evaluate --help": [*SIMZOO, "evaluate", "--help"],
    "simzoo evaluate run --help": [*SIMZOO, "evaluate", "run", "--help"],
    "simzoo search --help": [*SIMZOO, "search", "--help"],
    "simzoo hub --help": [*SIMZOO, "hub", "--help"],
    "simzoo hub list": [*SIMZOO, "hub", "list"],
}
HEAVY = ("torch", "lightning", "torchmetrics", "torch._dynamo", "transformers", "faiss", "sklearn", "matplotlib")
NOTE = """
import sys
from simzoo.__main__ import main
try:
    main({words})
finally:
    print('MODULES', *sys.modules)
"""


def seconds(words: list[str], repeat: int) -> tuple[float, float]:
    """Medians of wall and processor seconds of a process."""
    walls, processors = [], []
    for turn in range(repeat + 1):
        before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
        subprocess.run(words, cwd=ROOT, env=environment(), check=True, capture_output=True)
        after, wall = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter() - start
        if turn:
            walls.append(wall)
            processors.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    return statistics.median(walls), statistics.median(processors)


def environment() -> dict[str, str]:
    """One thread, this checkout, and no Hub."""
    return {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "PYTHONPATH": str(ROOT)}


def loaded(words: list[str]) -> str:
    """Which of the heavy packages a command loads."""
    code = NOTE.format(words=words)
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, env=environment(), check=False, capture_output=True, text=True
    )
    modules = set(done.stdout.rpartition("MODULES")[2].split())
    return ", ".join(name for name in HEAVY if name in modules) or "-"


def index(folder: Path, size: int) -> list[str]:
    """An index of short texts, and the words that search it."""
    code = (
        "import sys\nfrom simzoo import Engine, Exact\n"
        "engine = Engine('wordnet-de', search=Exact(), folder=sys.argv[1])\n"
        "rows = range(int(sys.argv[2]))\n"
        "engine.add([f'd{row}' for row in rows], [f'a text about number {row}' for row in rows])"
    )
    subprocess.run([sys.executable, "-c", code, str(folder), str(size)], cwd=ROOT, env=environment(), check=True)
    return ["search", "--index", str(folder), "--k", "3", "number 3"]


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeat", type=int, default=5, help="counted runs of each command")
    parser.add_argument("--only", default="", help="commands whose name has this text in it")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        commands = dict(COMMANDS)
        if options.only in "simzoo search --index":
            commands["simzoo search --index"] = [*SIMZOO, *index(Path(folder) / "index", 1000)]
        print("| command | wall s | processor s | loads |\n|---|---|---|---|")
        for name, words in commands.items():
            if options.only in name:
                wall, processor = seconds(words, options.repeat)
                loads = loaded(words[3:]) if words[1:3] == ["-m", "simzoo"] else ""
                print(f"| `{name}` | {wall:.2f} | {processor:.2f} | {loads} |", flush=True)


if __name__ == "__main__":
    main()
