"""Hypencoder and BE-Base over one encoder, from one start: seeds and depths of the q-net, for minutes each.

    python -m benchmarks.hypencoder.train cache
    python -m benchmarks.hypencoder.train teach --queries 60
    python -m benchmarks.hypencoder.train train --depth 2 --seed 1 [--save checkpoints/wordnet-hypencoder]
    python -m benchmarks.hypencoder.train train --depth 2 --seed 1 --encoder_lr 1e-4
    python -m benchmarks.hypencoder.train train --depth 6 --seed 1 --wide
    python -m benchmarks.hypencoder.train table [--wide]

The backbone is wordnet-de's, whose item vectors (mean over the tokens, not normalised) and query token states are
computed once and kept (`benchmarks.hypencoder.frozen`). Both students begin with its scores. Hypencoder trains its
hyperhead alone, BE-Base (``--depth 0``) a linear map of each side's mean vector. Both see the same batches, teacher
scores and steps; in training items are shown without titles. With ``--encoder_lr`` the adapters of the query encoder
are trained as well, for both alike; the items' vectors stay. With ``--wide`` states and vectors are 768 wide, those of
the token embeddings beside the last layer's. A student's weights are kept: other ``--tested`` worlds cost no training.
With MALLOC_MMAP_THRESHOLD_=4294967296 MALLOC_TRIM_THRESHOLD_=17179869184 glibc keeps its memory, and steps take two
thirds of the time.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from numpy.typing import NDArray
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import get_scheduler

from benchmarks.hypencoder.frozen import FirstAndLast, FrozenEncoder, Nearest
from benchmarks.hypencoder.students import parameter_groups, untrained_student, untrained_wide
from simzoo.core.records import Collection, Query
from simzoo.core.reps import Ragged
from simzoo.core.targets import Targets
from simzoo.datamodules.readers.beir import load_beir
from simzoo.datamodules.readers.lessons import read_lessons
from simzoo.datamodules.readers.wordnet import TEST_WORLDS, find_wordnet, load_wordnet
from simzoo.losses import MarginMSE, OtherPositivesCrossEntropy, SoftmaxCrossEntropy, SumOfLosses
from simzoo.models.formats import load, save
from simzoo.models.parts.pooling import mean_state
from simzoo.retrieval.evaluation import split_queries
from simzoo.retrieval.results.metrics import interval, ir_metrics
from simzoo.retrieval.scorer import Rows
from simzoo.retrieval.teaching import write_lessons

OUT = Path("out/hypencoder")
LESSONS = Path("out/lessons-wordnet")
Read = Callable[[Sequence[Query]], Ragged]
# Training worlds with at least 80 queries and not many more items than can be encoded in minutes.
WORLDS = [
    *("adj.pert", "adv.all", "noun.act", "noun.attribute", "noun.cognition", "noun.communication", "noun.feeling"),
    *("noun.phenomenon", "noun.quantity", "noun.relation", "noun.shape", "noun.state", "noun.time", "verb.body"),
    *("verb.change", "verb.cognition", "verb.competition", "verb.consumption", "verb.contact", "verb.creation"),
    *("verb.emotion", "verb.perception", "verb.possession", "verb.social", "verb.stative", "verb.weather"),
]
# Those with lessons of the teacher.
TAUGHT = ["noun.attribute", "verb.body", "verb.cognition", "verb.consumption", "verb.creation", "verb.emotion"]
TAUGHT += ["verb.perception", "verb.possession", "verb.social", "verb.stative"]
IN_DOMAIN = ["noun.cognition", "noun.communication", "verb.change", "verb.contact"]
"""Training worlds of which some queries are held out: on those nothing but the query is new."""
BATCH, HARD, RANDOM, DEPTH = 32, 6, 2, 32
"""Queries a step; a query's hard negatives, drawn from so many first ones of wordnet-de, and random ones."""
STEPS, LR = 300, 3e-4
"""What the dev worlds chose, for both students."""
METRICS, QUERIES = ("R@1", "R@10", "R@64", "nDCG@10"), 100


@dataclass
class World:
    """What is cached of a world, and its training lists.

    Attributes:
        name: of the world.
        vectors: (N, h).
        asked: of Q queries: what students read, token states or ids.
        gold: (Q,) row of the relevant item.
        trained: rows of the queries that are trained on.
        mined: (Q, DEPTH) the first other items by wordnet-de.
        taught: by query row: rows of the items of a lesson and the teacher's scores.
    """

    name: str
    vectors: Tensor
    asked: Ragged
    gold: Tensor
    trained: Rows
    mined: Tensor
    taught: dict[int, tuple[Tensor, Tensor]]

    @classmethod
    def of(cls, frozen: FrozenEncoder, collection: Collection, lessons: Sequence[Path], read: Read) -> World:
        """Reads or makes it."""
        vectors, states = frozen.vectors(collection.items), frozen.states(collection.queries)
        gold = torch.tensor([collection.relevant(row)[0] for row in range(len(collection.queries))])
        items, means = F.normalize(vectors), []
        for rows in torch.split(torch.arange(len(gold)), 256):
            means.append(mean_state(*padded(states, rows)))
        near = (F.normalize(torch.cat(means)) @ items.T).scatter_(1, gold[:, None], -torch.inf)
        mined = near.topk(min(DEPTH, len(items) - 1), dim=1).indices
        row_of = {query.id: row for row, query in enumerate(collection.queries)}
        item_of = {item.id: row for row, item in enumerate(collection.items)}
        taught = {
            row_of[lesson.query.id]: (
                torch.tensor([item_of[item.id] for item in lesson.items]),
                torch.tensor(lesson.scores, dtype=torch.float32),
            )
            for path in lessons
            for lesson in read_lessons(path, "positive")
            if lesson.query.id in row_of
        }
        held_out = QUERIES if collection.name in IN_DOMAIN else 0
        rows = split_queries(collection, held_out, seed=0)[1] if held_out else np.arange(len(gold))
        return cls(collection.name, vectors, read(collection.queries), gold, rows, mined, taught)

    def batch(self, rows: Tensor, rng: np.random.Generator) -> tuple[Tensor, Targets]:
        """Candidates (B, 1 + HARD + RANDOM + B) and targets: a lesson's items where there is one, or drawn ones."""
        lists, teacher = [], []
        for row in rows.tolist():
            if row in self.taught:
                items, scores = self.taught[row]
            else:
                hard = self.mined[row][torch.from_numpy(rng.permutation(self.mined.shape[1])[:HARD])]
                drawn = torch.from_numpy(rng.integers(len(self.vectors), size=RANDOM))
                items = torch.cat([self.gold[row, None], hard, drawn])
                scores = torch.full(items.shape, torch.nan)
            lists.append(items)
            teacher.append(scores)
        own, gold = torch.stack(lists), self.gold[rows]
        others = gold.expand(len(rows), -1)
        candidates = torch.cat([own, others], dim=1)
        is_other = (torch.arange(candidates.shape[1]) >= own.shape[1]).expand(candidates.shape)
        labels = candidates == gold[:, None]
        labels[:, 1:] = False
        mask = (candidates != gold[:, None]) | labels
        known = torch.cat([torch.stack(teacher), torch.full(others.shape, torch.nan)], dim=1)
        return candidates, Targets(labels.float(), mask, known, is_other)


def batches(worlds: Sequence[World], steps: int, seed: int) -> Iterator[tuple[World, Tensor, Tensor, Targets]]:
    """Of each step a world, rows of its queries, and `World.batch` of them: the same for all students."""
    rng = np.random.default_rng(seed)
    sizes = np.array([len(world.trained) for world in worlds])
    for _ in range(steps):
        world = worlds[rng.choice(len(worlds), p=sizes / sizes.sum())]
        rows = torch.from_numpy(np.sort(rng.permutation(world.trained)[:BATCH]))
        yield world, rows, *world.batch(rows, rng)


def trained(student: nn.Module, worlds: Sequence[World], steps: int, seed: int, lr: float, encoder_lr: float) -> None:
    """Trains in place."""
    loss = SumOfLosses([SoftmaxCrossEntropy(), OtherPositivesCrossEntropy(), MarginMSE()], [1.0, 1.0, 0.1])
    optimizer = torch.optim.AdamW(parameter_groups(student, lr, encoder_lr), weight_decay=0.01)
    scheduler = get_scheduler("linear", optimizer, steps // 20, steps)
    began = time.perf_counter()
    for step, (world, rows, candidates, targets) in enumerate(batches(worlds, steps, seed)):
        scores = student(*padded(world.asked, rows), F.embedding(candidates, world.vectors))
        value = loss(scores, targets)
        optimizer.zero_grad()
        value.backward()
        nn.utils.clip_grad_norm_(student.parameters(), 1.0)
        optimizer.step()
        scheduler.step()
        if step % 20 == 0:
            print(f"step {step} loss {value.item():.3f} {time.perf_counter() - began:.0f} s", flush=True)


def collections(worlds: Sequence[str]) -> Iterator[tuple[str, Collection]]:
    """What students are evaluated on, by name."""
    for name, world in load_wordnet(find_wordnet(), titles=False, only=IN_DOMAIN).items():
        yield f"{name} in domain", world
    for titles in (False, True):
        for name, world in load_wordnet(find_wordnet(), titles=titles, only=worlds).items():
            yield f"{name} {'with' if titles else 'without'} titles", world
    for folder in sorted(Path(os.environ["SIMZOO_DATA"]).glob("*/qrels")) if "SIMZOO_DATA" in os.environ else ():
        yield folder.parent.name, replace(load_beir(folder.parent), name=folder.parent.name)


@torch.inference_mode()
def evaluated(student: nn.Module, asked: Ragged, vectors: Tensor, collection: Collection) -> dict[str, list[float]]:
    """Metrics of each of a random sample of the queries: those of docs/zoo."""
    rows, _ = split_queries(collection, min(QUERIES, len(collection.queries)), seed=0)
    found = []
    for row in torch.from_numpy(rows):
        parts = torch.split(vectors, 4096)
        scores = torch.cat([student(*padded(asked, row[None]), part[None])[0] for part in parts])
        found.append(scores.topk(100).indices.numpy())
    metrics = ir_metrics(np.stack(found), collection, rows, METRICS)
    return {name: values.tolist() for name, values in metrics.items()}


def teach(queries: int) -> None:
    """The cross-encoder's lessons, as ``evaluate.py teach`` writes them, on a sample of each world's queries."""
    teacher, nearest = load("checkpoints/wordnet-emb-ce"), Nearest(FrozenEncoder())
    for collection in load_wordnet(find_wordnet(), titles=False, only=TAUGHT).values():
        write_lessons(teacher, collection.sample(queries), nearest, LESSONS, HARD, RANDOM, seed=0)


def student_file(depth: int, seed: int, steps: int = STEPS, encoder_lr: float = 0.0, wide: bool = False) -> Path:
    """Where a student's metrics are kept; its weights lie beside it (.safetensors)."""
    name = f"depth-{depth}-seed-{seed}-steps-{steps}" + (f"-encoder-{encoder_lr:g}" if encoder_lr else "")
    return students(wide) / f"{name}.json"


def students(wide: bool) -> Path:
    """The folder of all of one width."""
    return OUT / ("students-wide" if wide else "students")


def train(options: argparse.Namespace) -> None:
    """Trains a student and evaluates it where it was not yet: a JSON file keeps what was found, another its weights."""
    depth, seed = options.depth, options.seed
    path = student_file(depth, seed, options.steps, options.encoder_lr, options.wide)
    weights = path.with_suffix(".safetensors")
    path.parent.mkdir(parents=True, exist_ok=True)
    hypencoder = None
    if options.wide:
        frozen, student = FirstAndLast(), untrained_wide(depth, seed)
    else:
        frozen = FrozenEncoder()
        student, hypencoder = untrained_student(depth, seed, options.encoder_lr > 0)
    read: Read = frozen.ids if options.encoder_lr else frozen.states
    own = {name: value for name, value in student.named_parameters() if value.requires_grad}
    if weights.exists():
        student.load_state_dict(load_file(weights), strict=False)
    else:
        lessons, known = sorted(LESSONS.rglob("*.jsonl.gz")), load_wordnet(find_wordnet(), titles=False, only=WORLDS)
        worlds = [World.of(frozen, collection, lessons, read) for collection in known.values()]
        print(f"{sum(len(w.gold) for w in worlds)} queries, {sum(len(w.taught) for w in worlds)} taught", flush=True)
        began = time.process_time()
        trained(student, worlds, options.steps, seed, options.lr, options.encoder_lr)
        print(f"{time.process_time() - began:.0f} s of processor time", flush=True)
        save_file(own, weights)
    if options.save is not None and hypencoder is not None:
        save(hypencoder, options.save, torch.float16)
        print(f"written: {options.save}")
    run = {"depth": depth, "seed": seed, "steps": options.steps, "encoder_lr": options.encoder_lr}
    result: dict[str, Any] = json.loads(path.read_text()) if path.exists() else run
    for name, collection in collections(options.tested):
        if name not in result:
            vectors, asked = frozen.vectors(collection.items), read(collection.queries)
            result[name] = evaluated(student, asked, vectors, collection)
            path.write_text(json.dumps(result))
        print(name, {metric: round(float(np.mean(v)), 3) for metric, v in result[name].items()}, flush=True)


def table(tested: Sequence[str], wide: bool) -> None:
    """Markdown: a student's means over seeds and queries, and differences to BE-Base with intervals over queries."""
    runs = [json.loads(path.read_text()) for path in sorted(students(wide).glob("*.json"))]
    shown = {"in domain": [f"{world} in domain" for world in IN_DOMAIN]}
    shown |= {kind: [f"{world} {kind}" for world in tested] for kind in ("without titles", "with titles")}
    for data, names in (shown | {name: [name] for name in ("cranfield", "vaswani")}).items():
        of: dict[tuple[int, float, int], list[dict[str, Any]]] = {}
        for run in (run for run in runs if set(names) <= set(run)):
            of.setdefault((run["steps"], run["encoder_lr"], run["depth"]), []).append(run)
        columns = "student", "steps", "encoder's rate", "seeds", *METRICS
        print(f"\n**{data}**\n\n| {' | '.join(columns)} |\n{'|---' * len(columns)}|")
        for (steps, rate, depth), same in sorted(of.items()):
            cells = []
            for metric in METRICS:
                own = _pooled(same, names, metric)
                cells.append(f"{own.mean():.3f}")
                if depth and (steps, rate, 0) in of:
                    differences = own - _pooled(of[steps, rate, 0], names, metric)
                    cells[-1] += " ({:+.3f}, {:+.3f} to {:+.3f})".format(*interval(differences))
            student = f"Hypencoder, {depth} layers" if depth else "BE-Base"
            print(f"| {student} | {steps} | {rate:g} | {len(same)} | {' | '.join(cells)} |")


def _pooled(runs: Sequence[dict[str, Any]], names: Sequence[str], metric: str) -> NDArray[np.float64]:
    """(Q,) of all queries of these data sets, means over the runs."""
    return np.mean([[value for name in names for value in run[name][metric]] for run in runs], axis=0)


def padded(asked: Ragged, rows: Tensor) -> tuple[Tensor, Tensor]:
    """(B, L, ...) what some queries' students read, and the mask (B, L)."""
    values, mask = asked.take(rows).pad()
    return values.float(), mask


def main() -> None:
    """Runs one command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=["cache", "teach", "train", "table"])
    parser.add_argument("--depth", type=int, default=2, help="core blocks of the q-net; 0: BE-Base")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--lr", type=float, default=LR)
    parser.add_argument("--encoder_lr", type=float, default=0.0, help="of the query encoder; 0: it is frozen")
    parser.add_argument("--wide", action="store_true", help="768 instead of 384")
    parser.add_argument("--queries", type=int, default=60, help="lessons of each world")
    parser.add_argument("--tested", nargs="+", default=TEST_WORLDS, help="worlds; the dev worlds chose the settings")
    parser.add_argument("--save", type=Path, help="folder of a checkpoint")
    options = parser.parse_args()
    if options.wide and options.encoder_lr:
        parser.error("--wide needs a frozen encoder: give no --encoder_lr")
    if options.save is not None and (options.depth == 0 or options.encoder_lr or options.wide):
        parser.error("--save writes a Hypencoder on the frozen encoder: no --depth 0, --encoder_lr or --wide with it")
    transformers.utils.logging.disable_progress_bar()
    if options.command == "cache":
        frozen = FrozenEncoder()
        read = load_wordnet(find_wordnet(), titles=False, only=WORLDS).values()
        for world in (*read, *(collection for _, collection in collections(options.tested))):
            frozen.vectors(world.items)
            frozen.states(world.queries)
    elif options.command == "teach":
        teach(options.queries)
    elif options.command == "train":
        train(options)
    else:
        table(options.tested, options.wide)


if __name__ == "__main__":
    main()
