"""Hypencoder and BE-Base over one frozen backbone: depth of the q-net and seeds, for minutes instead of days.

    python -m benchmarks.hypencoder_frozen cache
    python -m benchmarks.hypencoder_frozen teach --queries 100
    python -m benchmarks.hypencoder_frozen train --depth 2 --seed 1 [--steps 480] [--save out/hypencoder/depth-2]
    python -m benchmarks.hypencoder_frozen table

The backbone is wordnet-de's, whose item vectors (mean over the tokens, not normalised) and query token states are
computed once and kept under out/hypencoder. Hypencoder trains its hyperhead alone; BE-Base (``--depth 0``) a linear map
of each side's mean vector, which begins as the identity. Both see the same batches, teacher scores and steps. Items are
shown without titles, but for a second evaluation.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import transformers
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import get_scheduler

from datamodules.distillation import read_lessons
from datamodules.records import Collection, Query
from datamodules.reps import Ragged, Reps
from datamodules.wordnet import find_wordnet, load_wordnet
from losses import MarginMSE, OtherPositivesCrossEntropy, SoftmaxCrossEntropy, SumOfLosses
from losses.targets import Targets
from models import checkpoint
from models.backbone import BackboneConfig, LoRA
from models.dual_encoder import DualEncoder
from models.hypencoder import Hypencoder, QNetConfig
from models.pooling import each_text
from models.similarity import LearnedSimilarity
from models.tokens import TokenConfig
from retrieval.dense import Dense
from retrieval.encode import encode_items
from retrieval.evaluation import split_queries
from retrieval.metrics import interval
from retrieval.store import RepresentationStore
from retrieval.teaching import write_lessons

OUT = Path("out/hypencoder")
LESSONS = Path("out/lessons-wordnet")
DE = "checkpoints/wordnet-de"
# Worlds with many usage examples for their size: few items to encode.
WORLDS = [
    "noun.attribute",
    "verb.body",
    "verb.cognition",
    "verb.consumption",
    "verb.creation",
    "verb.emotion",
    "verb.perception",
    "verb.possession",
    "verb.social",
    "verb.stative",
]
TESTED = ("noun.event", "verb.communication")
BATCH, HARD, RANDOM, DEPTH = 32, 6, 2, 32
"""Queries a step; a query's hard negatives, drawn from so many first ones of wordnet-de, and random ones."""
CUTOFFS = (1, 10, 64)


def backbone() -> DualEncoder:
    """wordnet-de without its normalisation."""
    model = DualEncoder.from_pretrained(DE)
    model.normalize = False
    return model


def cached_items(model: DualEncoder, world: Collection, titles: bool) -> Tensor:
    """(N, h)."""
    folder = OUT / ("titled" if titles else "untitled") / world.name
    vectors = encode_items(model, world.items, folder, f"{model.weights_sha256} not normalised")["vector"]
    assert isinstance(vectors, Tensor)
    return vectors


def cached_states(model: DualEncoder, world: Collection) -> Ragged:
    """Token states of every query."""

    def encode(blocks: Sequence[Sequence[Query]]) -> Iterator[Reps]:
        for block in blocks:
            ids = model.collate_queries(block)["ids"]
            assert isinstance(ids, Ragged)
            longest = int(ids.lengths.max())

            def read(padded: Tensor, mask: Tensor, longest: int = longest) -> Tensor:
                return F.pad(model.query_encoder(padded, mask), (0, 0, 0, longest - padded.shape[1])).half()

            with torch.inference_mode():
                states = each_text(ids, None, read, (longest, model.query_encoder.width))
            real = torch.arange(longest) < ids.lengths[:, None]
            yield {"states": Ragged(states[real], F.pad(ids.lengths.cumsum(0), (1, 0)))}

    store = RepresentationStore(OUT / "queries" / world.name, world.queries, f"{model.weights_sha256} states", 512)
    states = store.build(encode, f"queries of {world.name}")["states"]
    assert isinstance(states, Ragged)
    return states


@dataclass
class World:
    """What is cached of a world, and its training lists.

    Attributes:
        vectors: (N, h).
        states: of Q queries.
        gold: (Q,) row of the relevant item.
        mined: (Q, DEPTH) the first other items by wordnet-de.
        taught: by query row: rows of the items of a lesson and the teacher's scores.
    """

    vectors: Tensor
    states: Ragged
    gold: Tensor
    mined: Tensor
    taught: dict[int, tuple[Tensor, Tensor]]

    @classmethod
    def of(cls, model: DualEncoder, collection: Collection, lessons: Sequence[Path]) -> World:
        """Reads or makes it."""
        vectors, states = cached_items(model, collection, titles=False), cached_states(model, collection)
        gold = torch.tensor([collection.relevant(row)[0] for row in range(len(collection.queries))])
        items, means = F.normalize(vectors), []
        for rows in torch.split(torch.arange(len(gold)), 256):
            means.append(_mean(*_padded(states, rows)))
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
        return cls(vectors, states, gold, mined, taught)

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


class Mined(Dense):
    """wordnet-de as a first stage over a sample of a world's queries, from what is cached of all."""

    def index(self, collection: Collection) -> None:
        """See `FirstStage.index`."""
        whole = load_wordnet(find_wordnet(), titles=False, only=[collection.name])[collection.name]
        row_of = {query.id: row for row, query in enumerate(whole.queries)}
        rows = torch.tensor([row_of[query.id] for query in collection.queries])
        states = cached_states(self.similarity, whole)
        means = [_mean(*_padded(states, some)) for some in torch.split(rows, 256)]
        self.num_items = len(whole.items)
        self._queries = F.normalize(torch.cat(means)).numpy()
        self._searched = self.ann.build(F.normalize(cached_items(self.similarity, whole, titles=False)).numpy())


class BEBase(nn.Module):
    """A linear map of the query's mean state, another of the item's vector, and a dot product."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.query, self.item = nn.Linear(width, width), nn.Linear(width, width)
        for layer in (self.query, self.item):
            nn.init.eye_(layer.weight)
            nn.init.zeros_(layer.bias)

    def forward(self, states: Tensor, mask: Tensor, vectors: Tensor) -> Tensor:
        """(B, K) scores of (B, L, h) states and (B, K, h) vectors."""
        return (self.item(vectors) @ self.query(_mean(states, mask))[:, :, None])[..., 0]


class Frozen(nn.Module):
    """A Hypencoder's hyperhead and q-net, on states and vectors at hand."""

    def __init__(self, model: Hypencoder) -> None:
        super().__init__()
        self.hyperhead, self.q_net = model.hyperhead, model.q_net

    def forward(self, states: Tensor, mask: Tensor, vectors: Tensor) -> Tensor:
        """(B, K) scores of (B, L, h) states and (B, K, h) vectors."""
        weights: Reps = dict(zip(self.q_net.names, self.hyperhead(states, mask), strict=True))
        scores: Tensor = self.q_net(weights, vectors)
        return scores


def untrained(depth: int, residual: bool, seed: int) -> Hypencoder:
    """A Hypencoder with wordnet-de's encoder and a new hyperhead."""
    torch.manual_seed(seed)
    tokens = TokenConfig(query_length=64, item_length=64)
    encoder = BackboneConfig(lora=LoRA(16, 32), dropout=0.0, start=DE)
    q_net = QNetConfig((384,) * depth, residual_on_last=residual)
    return Hypencoder(encoder, tokens, pooling="mean", q_net=q_net).eval()


def trained(student: nn.Module, worlds: Sequence[World], steps: int, seed: int, lr: float, schedule: str) -> None:
    """Trains in place; the same seed means the same batches whatever the student is."""
    loss = SumOfLosses([SoftmaxCrossEntropy(), OtherPositivesCrossEntropy(), MarginMSE()], [1.0, 1.0, 0.1])
    rng = np.random.default_rng(seed)
    sizes = np.array([len(world.gold) for world in worlds])
    optimizer = torch.optim.AdamW(student.parameters(), lr=lr, weight_decay=0.01)
    scheduler = get_scheduler(schedule, optimizer, steps // 20, steps)
    began = time.perf_counter()
    for step in range(steps):
        world = worlds[rng.choice(len(worlds), p=sizes / sizes.sum())]
        rows = torch.from_numpy(np.sort(rng.permutation(len(world.gold))[:BATCH]))
        candidates, targets = world.batch(rows, rng)
        scores = student(*_padded(world.states, rows), F.embedding(candidates, world.vectors))
        value = loss(scores, targets)
        optimizer.zero_grad()
        value.backward()
        nn.utils.clip_grad_norm_(student.parameters(), 1.0)
        optimizer.step()
        scheduler.step()
        if step % 20 == 0:
            print(f"step {step} loss {value.item():.3f} {time.perf_counter() - began:.0f} s", flush=True)


@torch.inference_mode()
def ranks(student: nn.Module, states: Ragged, vectors: Tensor, rows: Tensor, gold: Tensor) -> Tensor:
    """(B,) rank of each query's relevant item among all, from 1; equal scores count against it."""
    found = []
    for row, item in zip(rows, gold, strict=True):
        padded, mask = _padded(states, row[None])
        scores = torch.cat([student(padded, mask, part[None])[0] for part in torch.split(vectors, 4096)])
        found.append((scores >= scores[item]).sum())
    return torch.stack(found)


def evaluated(student: nn.Module, model: DualEncoder, titles: bool, queries: int) -> dict[str, list[int]]:
    """Ranks on a random sample of each test world's queries."""
    worlds = load_wordnet(find_wordnet(), titles=titles, only=TESTED)
    plain = load_wordnet(find_wordnet(), titles=False, only=TESTED)
    found = {}
    for name, world in worlds.items():
        rows, _ = split_queries(world, queries, seed=0)
        gold = torch.tensor([world.relevant(row)[0] for row in rows])
        vectors, states = cached_items(model, world, titles), cached_states(model, plain[name])
        found[name] = ranks(student, states, vectors, torch.from_numpy(rows), gold).tolist()
    return found


def measures(found: Sequence[int]) -> dict[str, np.ndarray]:
    """Per-query values: one item is relevant to each."""
    rank = np.array(found)
    return {f"R@{k}": (rank <= k).astype(float) for k in CUTOFFS} | {
        "nDCG@10": np.where(rank <= 10, 1 / np.log2(1 + rank), 0.0)
    }


def teach(worlds: Sequence[str], queries: int) -> None:
    """The cross-encoder's lessons, as ``evaluate.py teach`` writes them, on a sample of each world's queries."""
    teacher, model = LearnedSimilarity.from_pretrained("checkpoints/wordnet-emb-ce"), backbone()
    for collection in load_wordnet(find_wordnet(), titles=False, only=worlds).values():
        write_lessons(teacher, collection.sample(queries), Mined.of(model), LESSONS, HARD, RANDOM, seed=0)


def train(options: argparse.Namespace) -> None:
    """Trains and evaluates one student; what it found is kept as a JSON file."""
    name = f"depth-{options.depth}{'-residual' * options.residual_on_last}-seed-{options.seed}-steps-{options.steps}"
    path = OUT / "frozen" / f"{name}.json"
    if path.exists():
        print(f"{path} is there")
        return
    model = backbone()
    lessons = sorted(LESSONS.rglob("*.jsonl.gz"))
    collections = load_wordnet(find_wordnet(), titles=False, only=options.worlds)
    worlds = [World.of(model, collection, lessons) for collection in collections.values()]
    print(f"{sum(len(w.gold) for w in worlds)} queries, {sum(len(w.taught) for w in worlds)} taught", flush=True)
    hypencoder = None if options.depth == 0 else untrained(options.depth, options.residual_on_last, options.seed)
    student = BEBase(model.query_encoder.width) if hypencoder is None else Frozen(hypencoder)
    schedule = "linear" if options.depth == 0 else "constant_with_warmup"
    began = time.perf_counter()
    trained(student, worlds, options.steps, options.seed, options.lr, schedule)
    result = {"depth": options.depth, "seed": options.seed, "steps": options.steps, "lr": options.lr}
    result["residual_on_last"] = options.residual_on_last
    result["seconds"] = round(time.perf_counter() - began)
    print(f"{options.steps * BATCH / (time.perf_counter() - began):.1f} queries a second", flush=True)
    for titles in options.titles:
        result[str(titles)] = evaluated(student, model, titles, options.queries)
        pooled = measures([rank for found in result[str(titles)].values() for rank in found])
        print("titles" if titles else "no titles", {name: round(float(v.mean()), 3) for name, v in pooled.items()})
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(result))
    if options.save is not None and hypencoder is not None:
        checkpoint.save(hypencoder, options.save, torch.float16)
        print(f"written: {options.save}")


def table() -> None:
    """Markdown of all runs: the mean over seeds and queries, with the interval over queries of the seeds' mean."""
    runs = [json.loads(path.read_text()) for path in sorted((OUT / "frozen").glob("*.json"))]
    for titles in ("False", "True"):
        print(f"\n{'With' if titles == 'True' else 'Without'} titles:\n")
        print("| student | steps | seeds | R@1 | R@10 | R@64 | nDCG@10 |")
        print("|---|---|---|---|---|---|---|")
        for depth, steps in sorted({(run["depth"], run["steps"]) for run in runs if titles in run}):
            same = [run for run in runs if (run["depth"], run["steps"]) == (depth, steps) and titles in run]
            every = [measures([r for found in run[titles].values() for r in found]) for run in same]
            cells = []
            for name in every[0]:
                values = np.stack([one[name] for one in every])
                seeds = ", ".join(f"{value:.3f}" for value in values.mean(axis=1))
                cells.append("{:.3f} ({:.3f} to {:.3f}); ".format(*interval(values.mean(axis=0))) + seeds)
            name = f"Hypencoder, {depth} layers" if depth else "BE-Base"
            print(f"| {name} | {steps} | {len(same)} | {' | '.join(cells)} |")


def _padded(states: Ragged, rows: Tensor) -> tuple[Tensor, Tensor]:
    padded, mask = states.take(rows).pad()
    return padded.float(), mask


def _mean(states: Tensor, mask: Tensor) -> Tensor:
    weights = mask[..., None].float()
    return (states * weights).sum(dim=1) / weights.sum(dim=1)


def main() -> None:
    """Runs one command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=["cache", "teach", "train", "table"])
    parser.add_argument("--worlds", nargs="+", default=WORLDS)
    parser.add_argument("--depth", type=int, default=2, help="core blocks of the q-net; 0: BE-Base")
    parser.add_argument("--residual-on-last", action="store_true", help="see QNetConfig")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--steps", type=int, default=480)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--queries", type=int, default=100, help="of each test world, or lessons of each world")
    parser.add_argument(
        "--titles", nargs="+", type=lambda text: text == "yes", default=[False], help="no, yes, or both"
    )
    parser.add_argument("--save", type=Path)
    options = parser.parse_args()
    transformers.utils.logging.disable_progress_bar()
    if options.command == "cache":
        model = backbone()
        for titles, names in ((False, [*options.worlds, *TESTED]), (True, TESTED)):
            for world in load_wordnet(find_wordnet(), titles=titles, only=names).values():
                cached_items(model, world, titles)
                if not titles:
                    cached_states(model, world)
    elif options.command == "teach":
        teach(options.worlds, options.queries)
    elif options.command == "train":
        train(options)
    else:
        table()


if __name__ == "__main__":
    main()
