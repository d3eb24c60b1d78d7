"""Top-k search with Mixture-of-Logits beside the reference implementation: time, extra memory, recall.

    python -m benchmarks.mol.topk prepare [--shapes 24186:8x4x128 ...]
    python -m benchmarks.mol.topk measure [--reference DIR] [--shapes ...] [--seconds 400]
    python -m benchmarks.mol.topk table [--shapes ...]

Items and queries are the synsets and usage examples of WordNet, each the mean of its words' embeddings in
all-MiniLM-L6-v2, weighted by rarity (the transformer itself would take an hour); beyond the synsets' number items are
repeated with noise. For each shape a mixture is trained on these vectors from the queries' gold synsets, so that gate
and components are no random ones. `prepare` does all that once and keeps it. `measure` searches a batch of 32 queries
for k = 100 with the methods in turn, several times, keeps the times, and starts no search after so many seconds. DIR is
a clone of bailuding/rails, whose modules get the same weights: as it is, and with its brute force over chunks of items,
of several sizes. Times are medians; extra memory is the process's peak above what it held.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import json
import os
import statistics
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.nn import functional as F

from benchmarks.mol.reference import CHUNKED, K, RowsAndScores, reference_methods
from simzoo.core.files import replacing
from simzoo.core.records import Item, Query
from simzoo.core.reps import Ragged, Reps, take
from simzoo.datamodules.readers.wordnet import find_wordnet, load_wordnet
from simzoo.losses import MutualInformation
from simzoo.losses.ranking import softmax_cross_entropy
from simzoo.models.parts.backbone import BackboneConfig, Encoder, load_tokenizer
from simzoo.models.parts.mixture import MixtureConfig, MoLHead
from simzoo.models.parts.tokenizing import TextTokenizer, TokenConfig
from simzoo.retrieval.corpus import Corpus
from simzoo.retrieval.judge import SimilarityJudge
from simzoo.retrieval.searchers.mol.searcher import MixtureSearcher
from simzoo.retrieval.searchers.mol.topk import BruteForce, CombTopK, ExactMoL, TopKAvg, TopKGate, TopKPerEmbd

BATCH = 32
NEGATIVES = 256
EXHAUSTIVE = "BruteForce"
SHAPES = ("24186:8x4x128", "109739:4x4x768", "100000:8x8x32", "674044:8x8x32")


@dataclass(frozen=True)
class Shape:
    """Number of items, and P_Q x P_X x d."""

    items: int
    grid: tuple[int, int, int]

    @classmethod
    def parse(cls, text: str) -> Shape:
        """From 24186:8x4x128."""
        count, grid = text.split(":")
        p_q, p_x, width = map(int, grid.split("x"))
        return cls(int(count), (p_q, p_x, width))

    def __str__(self) -> str:
        return f"{self.items}-{'x'.join(map(str, self.grid))}"

    def weights(self, cache: Path) -> Path:
        """Where the trained mixture is kept; shapes that differ in the number of items share it."""
        return cache / f"head-{'x'.join(map(str, self.grid))}.safetensors"


def vectors(cache: Path) -> tuple[Tensor, Tensor, Tensor]:
    """Items (N, 384), queries (Q, 384), and each query's gold row (Q,)."""
    path = cache / "wordnet-words.npz"
    if not path.exists():
        worlds = load_wordnet(find_wordnet()).values()
        backbone = BackboneConfig()
        text = TextTokenizer(load_tokenizer(backbone), TokenConfig(64, 64, mention_tags=None, item_tag=None))
        table = Encoder(backbone).model.get_input_embeddings().weight.detach()
        items = text.items([item for world in worlds for item in world.items], cls=False)["ids"]
        queries = text.queries([query for world in worlds for query in world.queries])["ids"]
        assert isinstance(items, Ragged) and isinstance(queries, Ragged)
        seen = torch.bincount(items.values, minlength=len(table)).clamp_min(1)
        weighted = table * (len(items.values) / seen).log()[:, None]
        starts = np.cumsum([0, *(len(world.items) for world in worlds)])
        gold = [start + row for start, world in zip(starts, worlds, strict=False) for [row] in world.judgements]
        bags = [
            F.normalize(F.embedding_bag(ids.values.long(), weighted, ids.offsets[:-1], mode="mean"), dim=1)
            for ids in (items, queries)
        ]
        with replacing(path) as file:
            np.savez(file, items=bags[0], queries=bags[1], gold=gold)
    with np.load(path, allow_pickle=False) as kept:
        return torch.from_numpy(kept["items"]), torch.from_numpy(kept["queries"]), torch.from_numpy(kept["gold"])


def untrained(shape: Shape, width: int) -> MoLHead:
    """A mixture over raw vectors of this width."""
    torch.manual_seed(0)
    config = MixtureConfig(
        query_components=shape.grid[0],
        item_components=shape.grid[1],
        width=shape.grid[2],
        query_projection="swiglu",
        item_projection="linear",
        query_gate=True,
        item_gate=True,
    )
    return MoLHead(config, width, width)


def prepare(shape: Shape, options: argparse.Namespace) -> None:
    """Trains a mixture on queries and their gold synsets, against items drawn for the batch, and keeps it."""
    items, queries, gold = vectors(options.cache)
    if shape.weights(options.cache).exists():
        return
    head, gate_loss = untrained(shape, items.shape[1]), MutualInformation()
    optimizer = torch.optim.AdamW(head.parameters(), lr=1e-3)
    for _ in range(options.steps):
        rows = torch.randint(len(queries), (64,))
        drawn = torch.cat([gold[rows], torch.randint(len(items), (NEGATIVES,))])
        scores, gates = head.score(head.queries(queries[rows]), head.items(items[drawn]))
        own = torch.arange(64)
        listed = torch.cat([scores[own, own, None], scores[:, 64:]], dim=1)
        labels = F.one_hot(torch.zeros_like(own), listed.shape[1])
        hits = F.pad(drawn[64:] == gold[rows][:, None], (1, 0))
        loss = softmax_cross_entropy(listed, labels, ~hits)
        loss = loss + gate_loss(gates[own, :, own])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"{shape}: loss of the last step {loss.item():.3f}", flush=True)
    save_file(head.state_dict(), shape.weights(options.cache))


def vectors_of(shape: Shape, cache: Path) -> tuple[Tensor, Tensor]:
    """As many items as the shape has, and a batch of queries."""
    items, queries, _ = vectors(cache)
    generator = torch.Generator().manual_seed(0)
    rows = torch.randperm(len(items), generator=generator)[: shape.items]
    if shape.items > len(items):
        more = torch.randint(len(items), (shape.items - len(items),), generator=generator)
        noise = 0.02 * torch.randn(len(more), items.shape[1], generator=generator)
        items = torch.cat([items, F.normalize(items[more] + noise, dim=1)])
    else:
        items = items[rows]
    return items, queries[torch.randperm(len(queries), generator=generator)[:BATCH]]


class Encoded(SimilarityJudge):
    """Over representations of queries at hand; a query's id is its row."""

    def __init__(self, head: MoLHead, items: Reps, queries: Reps) -> None:
        super().__init__(SimpleNamespace(head=head, device="cpu", pointwise=True), items)
        self.queries = queries

    def encode(self, queries: Sequence[Query]) -> Reps:
        """See `SimilarityJudge.encode`."""
        return take(self.queries, torch.tensor([int(query.id) for query in queries]))


def ours(head: MoLHead, items: Tensor, queries: Tensor, searchers: Sequence[MixtureSearcher]) -> None:
    """Prepares the searchers; the item side is computed once."""
    parts = [head.items(chunk) for chunk in torch.split(items, 4096)]
    reps = {name: torch.cat([part[name] for part in parts]) for name in parts[0]}  # type: ignore[misc]
    judge = Encoded(head, reps, head.queries(queries))
    corpus = Corpus([Item(str(row), "x") for row in range(len(items))], judge)
    for searcher in searchers:
        searcher.index(corpus)


def peak(run: Callable[[], Any]) -> tuple[Any, float]:
    """The result, and MiB that the process held at most above what it held before."""
    page = os.sysconf("SC_PAGE_SIZE")
    statm = Path("/proc/self/statm")

    def held() -> int:
        return int(statm.read_text().split()[1]) * page

    gc.collect()
    ctypes.CDLL("libc.so.6").malloc_trim(0)
    before, highest, done = held(), 0, threading.Event()

    def watch() -> None:
        nonlocal highest
        while not done.is_set():
            highest = max(highest, held())
            time.sleep(0.0005)

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        result = run()
    finally:
        done.set()
        thread.join()
    return result, max(0, highest - before) / 2**20


def measure(shape: Shape, options: argparse.Namespace) -> None:
    """Measures the methods, in turn, as often as is missing."""
    path = options.rows / f"{shape}.json"
    rows: dict[str, dict[str, Any]] = json.loads(path.read_text()) if path.exists() else {}
    items, queries = vectors_of(shape, options.cache)
    head = untrained(shape, items.shape[1])
    head.load_state_dict(load_file(shape.weights(options.cache)))
    head.eval().requires_grad_(False)
    named: dict[str, MixtureSearcher] = {
        EXHAUSTIVE: BruteForce(),
        "Exact": ExactMoL(),
        "TopKAvg500": TopKAvg(500),
        "TopKPerEmbd50": TopKPerEmbd(50),
        "CombTopK5_200": CombTopK(5, 200),
        "TopKGate256_512": TopKGate(256, 512),
    }
    shares: dict[str, float] = {}
    asked = [Query(str(row), "x") for row in range(BATCH)]

    def searched(name: str) -> Callable[[], RowsAndScores]:
        def search() -> RowsAndScores:
            ranking = named[name].search(asked, K)
            shares[name] = float(np.mean(ranking.calls)) / shape.items
            return ranking.items, ranking.scores

        return search

    with torch.inference_mode():
        ours(head, items, queries, list(named.values()))
        methods = {name: searched(name) for name in named}
        if options.reference is not None:
            methods |= reference_methods(options.reference, head, items, queries)
        exact = methods[EXHAUSTIVE]()
        for name, method in methods.items():
            if name in rows or time.monotonic() > options.until:
                continue
            rows[name] = {"ms": [], **compared(method, exact), "share": shares.get(name)}
        for name, method in turns(methods, rows, options.repeats):
            if time.monotonic() > options.until:
                break
            start = time.perf_counter()
            method()
            rows[name]["ms"].append(1000 * (time.perf_counter() - start))
            with replacing(path) as file:
                file.write(json.dumps(rows, indent=1).encode())
    print(shape, {name: len(row["ms"]) for name, row in rows.items()}, flush=True)


def compared(method: Callable[[], RowsAndScores], exact: RowsAndScores) -> dict[str, Any]:
    """Peak memory, recall, and the largest difference of scores where the items are the same."""
    (items, scores), mebibytes = peak(method)
    same = float(np.mean([len(np.intersect1d(a, b)) / K for a, b in zip(items, exact[0], strict=True)]))
    return {"MiB": mebibytes, "recall": same, "apart": float(np.abs(scores - exact[1]).max()) if same == 1 else None}


def turns(
    methods: dict[str, Callable[[], RowsAndScores]], rows: dict[str, dict[str, Any]], repeats: int
) -> Iterator[tuple[str, Callable[[], RowsAndScores]]]:
    """Methods in turn, so that a machine whose speed drifts treats them alike; those first that were timed least."""
    for repeat in range(repeats):
        for name, method in methods.items():
            if name in rows and len(rows[name]["ms"]) <= repeat:
                yield name, method


def table(shape: Shape, options: argparse.Namespace) -> None:
    """Prints the kept rows of one shape."""
    rows: dict[str, dict[str, Any]] = json.loads((options.rows / f"{shape}.json").read_text())
    times = {name: statistics.median(row["ms"]) for name, row in rows.items()}
    best = min((name for name in rows if name.startswith(CHUNKED)), key=times.__getitem__, default=EXHAUSTIVE)
    print(f"\n{shape.items:,} items, {'x'.join(map(str, shape.grid))}; ratios against: {best}\n")
    print("| method | ms a batch | times as fast | extra MiB | recall@100 | largest difference | gates evaluated |")
    print("|---|---|---|---|---|---|---|")
    for name, row in rows.items():
        apart = "" if row["apart"] is None else f"{row['apart']:.1e}"
        share = "" if row["share"] is None else f"{100 * row['share']:.1f} %"
        print(
            f"| {name} | {times[name]:,.0f} | {times[best] / times[name]:.2f} | {row['MiB']:,.0f} | "
            f"{row['recall']:.3f} | {apart} | {share} |"
        )


def main() -> None:
    """Prepares, measures, or prints the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("step", type={step.__name__: step for step in (prepare, measure, table)}.__getitem__)
    parser.add_argument("--reference", type=Path, default=None)
    parser.add_argument("--shapes", nargs="+", type=Shape.parse, default=list(map(Shape.parse, SHAPES)))
    parser.add_argument("--cache", type=Path, default=Path("out/vectors"))
    parser.add_argument("--rows", type=Path, default=Path("out/mol_topk"))
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=float("inf"))
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    options.until = time.monotonic() + options.seconds
    torch.set_num_threads(options.threads)
    for shape in options.shapes:
        options.step(shape, options)


if __name__ == "__main__":
    main()
