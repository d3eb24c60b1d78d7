"""Milliseconds of CMC beside a cross-encoder, by number of candidates: CMC's Figure 4 on this machine.

    python -m benchmarks.cmc.speed [--cmc checkpoints/wordnet-cmc] [--cross-encoder checkpoints/wordnet-emb-ce] \
        [--most 16384] [--most-pairs 1024] [--threads 1] [--plot docs/cmc.svg] [--output out/cmc/speed.json]
    python -m benchmarks.cmc.speed --papers-sizes

Wall time, one query at a time, with its encoding: for a machine that does nothing else. CMC's candidates are stored
vectors, as in use (random ones: its time does not depend on their values); the cross-encoder's are a test world's
items, tokenised beforehand. Each figure is the median of as many repetitions as fit into a second, at least one; what
is in ``--output`` with as many threads is not measured again. The peak of resident memory is that of the whole process.

``--papers-sizes``: both on BERT-base (random weights: time does not depend on them) with 128 tokens a query and 128 an
item, WordNet's texts joined until they are that long: 16 pairs and 10,000 candidates; with floating-point operations,
a multiplication and an addition being two.
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
import transformers
from matplotlib.figure import Figure
from torch.utils.flop_counter import FlopCounterMode, sdpa_flop
from transformers import BertConfig, BertModel

from simzoo.core.records import Collection
from simzoo.core.reps import Reps
from simzoo.datamodules.readers.wordnet import find_wordnet, load_wordnet
from simzoo.models.cmc import CMC
from simzoo.models.cross_encoder import CrossEncoder
from simzoo.models.formats import load
from simzoo.models.parts.backbone import BackboneConfig, load_tokenizer
from simzoo.models.parts.tokenizing import TokenConfig
from simzoo.models.similarity import LearnedSimilarity

WORLD = "noun.event"
SECONDS = 1.0
Curve = list[tuple[int, float]]


def milliseconds(step: Callable[[int], object], seconds: float = SECONDS) -> float:
    """Median over repetitions of ``step(repetition)``, after one that does not count where it is quick."""
    start = time.perf_counter()
    step(0)
    spent = [time.perf_counter() - start]
    if spent[0] < seconds:
        spent = []
        while sum(spent) < seconds:
            start = time.perf_counter()
            step(len(spent) + 1)
            spent.append(time.perf_counter() - start)
    return 1000 * statistics.median(spent)


def sizes(most: int) -> list[int]:
    """16, 64, 256, ... and the largest."""
    found = [16]
    while found[-1] * 4 <= most:
        found.append(found[-1] * 4)
    return found if found[-1] == most else [*found, most]


def operations(step: Callable[[int], object]) -> int:
    """Floating-point operations of ``step(0)``'s matrix products."""
    # PyTorch's counter knows attention by the names that it has on a GPU.
    attention = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
    counted = {attention: lambda query, key, value, *_, out_shape=None, **__: sdpa_flop(query, key, value)}
    with FlopCounterMode(display=False, custom_mapping=counted) as counter:
        step(0)
    return int(counter.get_total_flops())


class Points:
    """Measured (candidates, milliseconds) by model, in a JSON file that is rewritten after each."""

    def __init__(self, path: Path, threads: int) -> None:
        self.path = path
        self.threads = threads
        self.known: dict[str, dict[str, float]] = json.loads(path.read_text()) if path.exists() else {}

    @torch.inference_mode()
    def measure(
        self, name: str, model: LearnedSimilarity, collection: Collection, items: Reps, counts: Sequence[int]
    ) -> Curve:
        """For lists of a query's candidates, the first so many of ``items``; what is known is not measured again."""
        known = self.known.setdefault(f"{name}, threads: {self.threads}", {})
        for size in counts:
            if str(size) in known:
                continue
            known[str(size)] = milliseconds(scored(model, collection, items, size))
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self.path.write_text(json.dumps(self.known, indent=2) + "\n")
            print(f"{name}: {size:,} candidates, {known[str(size)]:,.1f} ms", flush=True)
        return [(size, known[str(size)]) for size in counts]


def scored(model: LearnedSimilarity, collection: Collection, items: Reps, size: int) -> Callable[[int], object]:
    """Encodes one of the first 50 queries, by number, and scores the first ``size`` items for it."""
    queries = [model.collate_queries([query]) for query in collection.queries[:50]]
    return lambda i: model.score(model.encode_queries(queries[i % 50]), items, torch.arange(size)[None])


def crossover(cmc: Curve, pairs: Curve) -> list[tuple[int, float]]:
    """(candidates of the cross-encoder, candidates that CMC compares in the same time); log-linear in between."""
    counts, spent = np.log([size for size, _ in cmc]), np.log([ms for _, ms in cmc])
    return [(size, float(np.exp(np.interp(np.log(ms), spent, counts)))) for size, ms in pairs]


def plot(cmc: Curve, pairs: Curve, threads: int, path: Path) -> None:
    """Both curves on logarithmic axes."""
    figure = Figure(figsize=(6, 4), layout="constrained")
    axes = figure.subplots()
    for name, points, marker in (("cross-encoder", pairs, "s"), ("CMC", cmc, "o")):
        axes.plot(*zip(*points, strict=True), marker=marker, markersize=4, label=name)
    axes.axhline(pairs[0][1], color="grey", linewidth=0.8, linestyle="--")
    axes.annotate("16 pairs", (cmc[-1][0], pairs[0][1]), ha="right", va="bottom", fontsize=8, color="grey")
    axes.set(xscale="log", yscale="log", xlabel="candidates", ylabel=f"milliseconds a query, threads: {threads}")
    ticks = [size for size, _ in cmc]
    axes.set_xticks(ticks, [f"{tick:,}" for tick in ticks], fontsize=8)
    axes.minorticks_off()
    axes.grid(alpha=0.3)
    axes.legend()
    figure.savefig(path, metadata={"Date": None})


def random_vectors(model: LearnedSimilarity, collection: Collection, count: int) -> Reps:
    """As many stored vectors as are asked for, of the model's width."""
    width = model.encode_items(model.collate_items(collection.items[:1]))["vector"].shape[1]  # type: ignore[union-attr]
    return {"vector": torch.nn.functional.normalize(torch.randn(count, width), dim=1)}


def joined(collection: Collection) -> Collection:
    """The first 50 queries and 64 items, each with the texts of the 20 that follow it behind its own."""
    texts = [[record.text for record in records] for records in (collection.queries, collection.items)]
    queries, items = ([" ".join(part[i : i + 20]) for i in range(len(part) - 20)] for part in texts)
    long_queries = [replace(query, text=text) for query, text in zip(collection.queries[:50], queries, strict=False)]
    long_items = [replace(item, text=text) for item, text in zip(collection.items[:64], items, strict=False)]
    return Collection(f"{collection.name}, joined", long_items, long_queries, [{} for _ in long_queries])


def papers_sizes(points: Points, collection: Collection) -> None:
    """16 pairs and 10,000 candidates at the paper's sizes."""
    with tempfile.TemporaryDirectory() as folder:
        BertModel(BertConfig()).save_pretrained(folder)
        load_tokenizer(BackboneConfig()).save_pretrained(folder)  # BERT's vocabulary
        backbone, tokens = BackboneConfig(folder), TokenConfig(query_length=128, item_length=128)
        cross: LearnedSimilarity = CrossEncoder(backbone, tokens).eval()
        cmc = CMC(backbone, tokens, shared=True).eval()
    long = joined(collection)
    for name, model, items, counts in (
        ("CrossEncoder, BERT-base", cross, cross.collate_items(long.items), [16]),
        ("CMC, BERT-base", cmc, random_vectors(cmc, long, 10_000), [1_024, 10_000]),
    ):
        points.measure(name, model, long, items, counts)
        with torch.inference_mode():
            print(f"{name}: {operations(scored(model, long, items, counts[-1])) / 1e9:,.0f} GFLOP for {counts[-1]:,}")


def main() -> None:
    """Measures, prints, plots."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cmc", default="checkpoints/wordnet-cmc")
    parser.add_argument("--cross-encoder", default="checkpoints/wordnet-emb-ce")
    parser.add_argument("--most", type=int, default=16_384)
    parser.add_argument("--most-pairs", type=int, default=1_024)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--papers-sizes", action="store_true")
    parser.add_argument("--plot", type=Path, default=None)
    parser.add_argument("--output", type=Path, default=Path("out/cmc/speed.json"))
    options = parser.parse_args()
    transformers.utils.logging.disable_progress_bar()
    torch.set_num_threads(options.threads)
    points = Points(options.output, options.threads)
    collection = load_wordnet(find_wordnet(), titles=False, only=[WORLD])[WORLD]
    if options.papers_sizes:
        papers_sizes(points, collection)
        return
    model = load(options.cross_encoder)
    most = sizes(min(options.most_pairs, len(collection.items)))
    pairs = points.measure("CrossEncoder", model, collection, model.collate_items(collection.items), most)
    model = load(options.cmc)
    cmc = points.measure("CMC", model, collection, random_vectors(model, collection, options.most), sizes(options.most))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"peak of resident memory: {peak:,.0f} MiB")
    for size, equal in crossover(cmc, pairs):
        print(f"{size:,} pairs take as long as {equal:,.0f} candidates of CMC")
    if options.plot is not None:
        plot(cmc, pairs, options.threads, options.plot)


if __name__ == "__main__":
    main()
