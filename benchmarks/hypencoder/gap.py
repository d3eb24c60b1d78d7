"""Does what BE-Base and Hypencoder learn carry over? Losses on lists they were trained on, and on those of new queries.

    python -m benchmarks.hypencoder.gap

Reads the students that benchmarks.hypencoder.train trained. Of the four worlds with held-out queries, lists made
alike: those of steps of the training, and of queries that were held out. The loss is the cross-entropy of the relevant
item among all of a list, by query; R@1 is that item's share of first places in its list.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
import transformers
from numpy.typing import NDArray
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.hypencoder.frozen import FrozenEncoder
from benchmarks.hypencoder.students import untrained_student
from benchmarks.hypencoder.train import BATCH, IN_DOMAIN, LESSONS, OUT, STEPS, WORLDS, World, batches, padded
from simzoo.core.targets import Targets
from simzoo.datamodules.readers.wordnet import find_wordnet, load_wordnet
from simzoo.retrieval.results.metrics import interval

LISTS = 12
"""Lists of a batch each, of trained and of held-out queries."""
Batch = tuple[World, Tensor, Tensor, Targets]


def held_out(worlds: Sequence[World]) -> list[Batch]:
    """As many batches of each world, of queries that were not trained on."""
    rng, found = np.random.default_rng(0), []
    for world in worlds:
        new = np.setdiff1d(np.arange(len(world.gold)), world.trained)
        for rows in torch.split(torch.from_numpy(rng.permutation(new)), BATCH)[: LISTS // len(worlds)]:
            found.append((world, rows, *world.batch(rows, rng)))
    return found


@torch.inference_mode()
def losses(student: nn.Module, lists: Sequence[Batch]) -> NDArray[np.float32]:
    """(2, Q) loss and place 1 of each query."""
    found = []
    for world, rows, candidates, targets in lists:
        scores = student(*padded(world.asked, rows), F.embedding(candidates, world.vectors))
        scores = scores.masked_fill(~targets.mask, -torch.inf)
        found.append(torch.stack([scores.logsumexp(1) - scores[:, 0], (scores.argmax(1) == 0).float()]))
    return torch.cat(found, dim=1).numpy()


def main() -> None:
    """Prints one row a kind of student, means over its seeds; in brackets Hypencoder's difference to BE-Base."""
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    transformers.utils.logging.disable_progress_bar()
    frozen, lessons = FrozenEncoder(), sorted(LESSONS.rglob("*.jsonl.gz"))
    known = load_wordnet(find_wordnet(), titles=False, only=WORLDS)
    found: dict[tuple[float, int], list[NDArray[np.float32]]] = {}
    begun: dict[int, NDArray[np.float32]] = {}
    for path in sorted((OUT / "students").glob(f"*-steps-{STEPS}*.safetensors")):
        run: dict[str, Any] = json.loads(path.with_suffix(".json").read_text())
        student, _ = untrained_student(run["depth"], run["seed"], run["encoder_lr"] > 0)
        read = frozen.ids if run["encoder_lr"] else frozen.states
        worlds = [World.of(frozen, collection, lessons, read) for collection in known.values()]
        seen = [batch for batch in batches(worlds, STEPS, run["seed"]) if batch[0].name in IN_DOMAIN]
        split = [world for world in worlds if world.name in IN_DOMAIN]
        lists = seen[:LISTS], held_out(split)
        if run["depth"] == 0:
            begun[run["seed"]] = np.stack([losses(student, some) for some in lists])
        student.load_state_dict(load_file(path), strict=False)
        both = np.stack([losses(student, some) for some in lists])
        found.setdefault((run["encoder_lr"], run["depth"]), []).append(both)
        print(path.name, both.mean(axis=2).round(3).tolist(), flush=True)
    columns = "student", "encoder's rate", "seeds", "loss, trained", "R@1", "loss, held out", "R@1"
    print(f"| {' | '.join(columns)} |\n{'|---' * len(columns)}|")
    cells = [f"{value:.3f}" for value in np.concatenate(list(begun.values()), axis=2).mean(axis=2).ravel()]
    print(f"| where both begin | | {len(begun)} | {' | '.join(cells)} |")
    for (rate, depth), same in sorted(found.items()):
        own, base = np.concatenate(same, axis=2), found.get((rate, 0), [])
        cells = [f"{value:.3f}" for value in own.mean(axis=2).ravel()]
        if depth and len(base) == len(same):
            differences = (own - np.concatenate(base, axis=2)).reshape(4, -1)
            cells = [
                f"{cell} ({low:+.3f} to {high:+.3f})"
                for cell, (_, low, high) in zip(cells, map(interval, differences), strict=True)
            ]
        name = f"Hypencoder, {depth} layers" if depth else "BE-Base"
        print(f"| {name} | {rate:g} | {len(same)} | {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
