"""Pairs per second of our cross-encoder scoring beside sentence-transformers' ``CrossEncoder.predict``, same weights.

    python benchmarks/cross_encoder/speed.py [--pairs 512] [--beir DIR] [--threads 2] [--repeats 3]

Three pair files, fixed by seed: short WordNet pairs; long texts of widely varying length with a mean near 105 tokens;
and, with --beir, the queries and documents of a test collection in BEIR's layout. Both sides start from texts, so that
tokenising counts. predict runs at its best batch size of those tried, per file. Ratios are medians over paired repeats.
"""

from __future__ import annotations

import argparse
import random
import statistics
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import torch
import transformers
from numpy.typing import NDArray
from sentence_transformers import CrossEncoder as Peer
from sentence_transformers.base.modules import Dense, Transformer
from sentence_transformers.sentence_transformer.modules import Pooling

from simzoo.core.records import Item, Query
from simzoo.datamodules.readers.beir import load_beir
from simzoo.datamodules.readers.wordnet import find_wordnet, load_wordnet
from simzoo.models.cross_encoder import CrossEncoder
from simzoo.models.parts.backbone import MINILM, BackboneConfig, resolve_backbone
from simzoo.models.parts.tokenizing import TokenConfig
from simzoo.retrieval.judge import SimilarityJudge

Pairs = list[tuple[str, str]]
LENGTH = 256
BATCH_SIZES = (8, 16, 32, 64, 128)


def wordnet_pairs(count: int, rng: random.Random) -> Pairs:
    """A usage example and a definition, drawn at random."""
    worlds = load_wordnet(find_wordnet(None))
    queries = [query.text for world in worlds.values() for query in world.queries]
    items = [item.text for world in worlds.values() for item in world.items]
    return [(rng.choice(queries), rng.choice(items)) for _ in range(count)]


def mixed_pairs(count: int, rng: random.Random) -> Pairs:
    """Several definitions one after another: from a sentence to a page."""
    items = [item.text for world in load_wordnet(find_wordnet(None)).values() for item in world.items]
    return [
        (
            " ".join(rng.choices(items, k=rng.randint(1, 2))),
            "; ".join(rng.choices(items, k=rng.choice((1, 2, 4, 8, 16)))),
        )
        for _ in range(count)
    ]


def beir_pairs(folder: Path, count: int, rng: random.Random) -> Pairs:
    """Queries and documents of a collection, drawn at random."""
    collection = load_beir(folder)
    return [
        (rng.choice(collection.queries).text, f"{item.title} {item.text}".strip())
        for item in rng.choices(collection.items, k=count)
    ]


def whole(model: CrossEncoder, pairs: Pairs) -> Pairs:
    """The pairs that neither side truncates: each truncates in its own way."""
    lengths = [[len(ids) for ids in model.text.tokenizer(list(side))["input_ids"]] for side in zip(*pairs, strict=True)]
    return [pair for pair, *sides in zip(pairs, *lengths, strict=True) if max(sides) < LENGTH]


def both(folder: Path) -> tuple[CrossEncoder, Peer]:
    """Our [CLS]-CE and the same weights as modules of sentence-transformers."""
    torch.manual_seed(0)
    tokens = TokenConfig(query_length=LENGTH, item_length=LENGTH, mention_tags=None, item_tag=None)
    ours = CrossEncoder(BackboneConfig(MINILM), tokens, scoring="cls").eval()
    settings = {name: {"trust_remote_code": False} for name in ("model_kwargs", "processor_kwargs", "config_kwargs")}
    transformer = Transformer(str(folder), max_seq_length=2 * LENGTH, **settings)  # type: ignore[arg-type]
    pooling = Pooling(ours.encoder.width, pooling_mode="cls")
    dense = Dense(ours.encoder.width, 1, activation_function=torch.nn.Identity(), module_output_name="scores")
    assert ours.head is not None
    dense.linear.load_state_dict(ours.head[1].state_dict())
    return ours, Peer(modules=[transformer, pooling, dense], activation_fn=torch.nn.Identity(), device="cpu")


def score_ours(model: CrossEncoder, pairs: Pairs) -> NDArray[np.float32]:
    """Distinct texts are tokenised once, as in a search."""
    queries = {text: row for row, text in enumerate(dict.fromkeys(q for q, _ in pairs))}
    items = {text: row for row, text in enumerate(dict.fromkeys(i for _, i in pairs))}
    judge = SimilarityJudge.of(model, [Item(str(row), text) for text, row in items.items()])
    scorer = judge.scorer([Query(str(row), text) for text, row in queries.items()])
    return scorer(np.array([queries[q] for q, _ in pairs]), np.array([items[i] for _, i in pairs]))


def timed(work: Callable[[], NDArray[np.float32]]) -> tuple[float, NDArray[np.float32]]:
    """Seconds and result."""
    start = time.perf_counter()
    result = work()
    return time.perf_counter() - start, result


def main() -> None:
    """Prints a Markdown table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=512)
    parser.add_argument("--beir", type=Path, default=None, help="folder of a collection in BEIR's layout")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    transformers.utils.logging.disable_progress_bar()
    files = {"WordNet": wordnet_pairs, "mixed": mixed_pairs}
    if options.beir is not None:
        files[options.beir.name] = lambda count, rng: beir_pairs(options.beir, count, rng)
    print("| pairs | tokens a pair | predict, pairs/s (batch) | ours, pairs/s | ratio | max difference |")
    print("|---|---|---|---|---|---|")
    ours, peer = both(resolve_backbone(BackboneConfig(MINILM)))
    for name, make in files.items():
        pairs = whole(ours, make(2 * options.pairs, random.Random(0)))[: options.pairs]
        lengths = [len(ids) for ids in ours.text.tokenizer([q for q, _ in pairs], [i for _, i in pairs])["input_ids"]]
        few = pairs[: max(64, options.pairs // 4)]
        score_ours(ours, few)
        speed = {size: timed(partial(peer.predict, few, batch_size=size))[0] for size in BATCH_SIZES}
        best = min(speed, key=speed.__getitem__)
        runs = []
        for _ in range(options.repeats):
            theirs_s, theirs = timed(partial(peer.predict, pairs, batch_size=best))
            ours_s, mine = timed(partial(score_ours, ours, pairs))
            runs.append((theirs_s, ours_s))
        ratio = statistics.median(t / o for t, o in runs)
        rates = [len(pairs) / statistics.median(column) for column in zip(*runs, strict=True)]
        print(
            f"| {name} | {np.mean(lengths):.0f} ({min(lengths)} to {max(lengths)}) | {rates[0]:.1f} ({best}) "
            f"| {rates[1]:.1f} | {ratio:.2f} | {np.abs(theirs - mine).max():.1e} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
